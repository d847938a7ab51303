"""Limits the replication of a plan's moves (KIP-73), and removes these limits again.

The rate is a dynamic setting of brokers; topics list the replicas that it applies to. Before they
are set, ``throttle.json`` in the directory of the plan notes what belongs to the plan. Only that is
removed: rates return to what they were, and listed replicas of others stay (KAFKA-10779).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import orjson

from regent.client.moves import Move
from regent.client.reassignment_throttles import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_RATE,
    LEADER_REPLICAS,
)
from regent.core.admin.reassignment_plan import (
    PartitionMove,
    follower_throttles,
    leader_throttles,
    reassigning_brokers,
)
from regent.core.errors import BadDataError
from regent.jobs.execution.plan_directory import ExecutablePlan
from regent.zk.stores.entity_configs import BROKERS, TOPICS, ZkEntityConfigs

THROTTLE: Final = "throttle.json"
_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
_EVERY: Final = "*"

Pairs: TypeAlias = set[str]
"""Throttled replicas, as ``partition:broker``."""


def set_throttle(
    configs: ZkEntityConfigs,
    plan: ExecutablePlan,
    moves: Collection[Move],
    bytes_per_second: int,
) -> None:
    """Limit what the brokers of these moves send and fetch for them. Raises ``BadDataError``.

    A throttle that the plan has already must be cleared before.
    """
    of_partition = {
        move.partition: PartitionMove(frozenset(move.before), frozenset(move.added))
        for move in moves
        if move.added
    }
    wanted = {
        LEADER_REPLICAS: leader_throttles(of_partition),
        FOLLOWER_REPLICAS: follower_throttles(of_partition),
    }
    brokers = configs.read_broker_configs(reassigning_brokers(of_partition.values()))
    topics = configs.read_topic_configs(wanted[LEADER_REPLICAS])
    rate = str(bytes_per_second)
    rates_before = {
        broker: {name: config.get(name) for name in _RATES}
        for broker, config in _readable(brokers).items()
        if broker.isdecimal()
    }
    replicas = {
        topic: {
            name: sorted(_pairs(of_topic[topic]) - there)
            for name, of_topic in wanted.items()
            if _EVERY not in (there := _pairs(config.get(name)))
        }
        for topic, config in _readable(topics).items()
    }
    note = {"rates": [rate], "rates_before": rates_before, "replicas": replicas}
    plan.leave(THROTTLE, orjson.dumps(note))
    for topic, pairs in replicas.items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_with_pairs, pairs, set.union))
    configs.alter_configs(
        {f"{BROKERS}/{broker}": dict.fromkeys(_RATES, rate) for broker in rates_before}
    )


def clear_throttle(configs: ZkEntityConfigs, plan: ExecutablePlan) -> None:
    """Remove what ``set_throttle`` has set, unless others have changed it since.

    Raises ``BadDataError`` and ``InputError``.
    """
    content = plan.read(THROTTLE)
    if content is None:
        return
    note: dict[str, Any] = orjson.loads(content)
    for broker, before in note["rates_before"].items():
        configs.change_config(f"{BROKERS}/{broker}", partial(_restore, before, note["rates"]))
    for topic, pairs in note["replicas"].items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_with_pairs, pairs, set.difference))
    plan.remove(THROTTLE)


def _readable(
    configs: Mapping[str, dict[str, str] | BadDataError],
) -> dict[str, dict[str, str]]:
    readable = {}
    for name, config in configs.items():
        if isinstance(config, BadDataError):
            raise config
        readable[name] = config
    return readable


def _pairs(text: str | None) -> Pairs:
    return set(filter(None, (text or "").split(",")))


def _with_pairs(
    pairs: Mapping[str, Collection[str]],
    change: Callable[[Pairs, Pairs], Pairs],
    old: Mapping[str, str],
) -> dict[str, str | None]:
    return {
        name: ",".join(sorted(change(_pairs(old.get(name)), set(given)), key=_numbers)) or None
        for name, given in pairs.items()
    }


def _restore(
    before: Mapping[str, str | None], rates: Collection[str], old: Mapping[str, str]
) -> dict[str, str | None]:
    return {name: before[name] for name in _RATES if old.get(name) in rates}


def _numbers(pair: str) -> list[int]:
    return [int(number) for number in pair.split(":") if number.isdecimal()]
