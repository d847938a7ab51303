"""Limits the replication of a plan's moves (KIP-73), and removes these limits again.

The rate is a dynamic setting of brokers; topics list the replicas that it applies to. Before they
are set, ``throttle.json`` in the directory of the plan notes what belongs to the plan. Only that is
removed: rates return to what they were, and listed replicas of others stay (KAFKA-10779).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

import orjson

from regent.admin.reassignment_throttles import (
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
from regent.core.model import BrokerId
from regent.jobs.execution.plan_directory import ExecutablePlan
from regent.jobs.execution.plan_progress import PlannedMove
from regent.zk.stores.entity_configs import BROKERS, TOPICS, ZkEntityConfigs

THROTTLE: Final = "throttle.json"
_RATES: Final = (LEADER_RATE, FOLLOWER_RATE)
_EVERY: Final = "*"


def set_throttle(
    configs: ZkEntityConfigs,
    plan: ExecutablePlan,
    moves: Collection[PlannedMove],
    bytes_per_second: int,
) -> None:
    """Limit what the brokers of these moves send and fetch for them; may be repeated.

    Raises ``BadDataError`` and ``InputError``.
    """
    noted, rate = _read_note(plan), str(bytes_per_second)
    of_partition = {
        move.partition: PartitionMove(
            frozenset(move.before), frozenset(move.target) - frozenset(move.before)
        )
        for move in moves
        if set(move.target) - set(move.before)
    }
    brokers = reassigning_brokers(of_partition.values())
    leaders, followers = leader_throttles(of_partition), follower_throttles(of_partition)
    lists = {
        topic: {LEADER_REPLICAS: leaders[topic], FOLLOWER_REPLICAS: followers[topic]}
        for topic in leaders
    }
    note = {
        "rates": sorted({*noted["rates"], rate}),  # an interrupted change leaves the former one
        "rates_before": noted["rates_before"] | _rates_before(configs, brokers, noted),
        "replicas": noted["replicas"] | _not_listed(configs, lists, noted["replicas"]),
    }
    plan.leave(THROTTLE, orjson.dumps(note))
    for topic, pairs in note["replicas"].items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_list_too, pairs))
    for broker in note["rates_before"]:
        configs.change_config(f"{BROKERS}/{broker}", lambda _: dict.fromkeys(_RATES, rate))


def clear_throttle(configs: ZkEntityConfigs, plan: ExecutablePlan) -> None:
    """Remove what ``set_throttle`` has set, unless others have changed it since.

    Raises ``BadDataError`` and ``InputError``.
    """
    note = _read_note(plan)
    for broker, before in note["rates_before"].items():
        configs.change_config(f"{BROKERS}/{broker}", partial(_restore, before, note["rates"]))
    for topic, pairs in note["replicas"].items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_list_no_more, pairs))
    plan.remove(THROTTLE)


def _read_note(plan: ExecutablePlan) -> dict[str, Any]:
    content = plan.read(THROTTLE)
    if content is None:
        return {"rates": [], "rates_before": {}, "replicas": {}}
    note: dict[str, Any] = orjson.loads(content)
    return note


def _rates_before(
    configs: ZkEntityConfigs, brokers: Collection[BrokerId], noted: Mapping[str, Any]
) -> dict[str, dict[str, str | None]]:
    """Return the rates of others; a rate that this plan has set is not one."""
    rates: dict[str, dict[str, str | None]] = {}
    for broker, config in configs.read_broker_configs(brokers).items():
        if isinstance(config, BadDataError):
            raise config
        if broker.isdecimal():
            earlier = noted["rates_before"].get(broker, {})
            rates[broker] = {
                name: earlier.get(name) if config.get(name) in noted["rates"] else config.get(name)
                for name in _RATES
            }
    return rates


def _not_listed(
    configs: ZkEntityConfigs, lists: Mapping[str, Mapping[str, str]], noted: Mapping[str, Any]
) -> dict[str, dict[str, list[str]]]:
    """Return the replicas that topics do not list yet, and those that this plan has added."""
    added: dict[str, dict[str, list[str]]] = {}
    for topic, config in configs.read_topic_configs(lists).items():
        if isinstance(config, BadDataError):
            raise config
        earlier = noted.get(topic, {})
        added[topic] = {
            name: sorted({*earlier.get(name, []), *_pairs(wanted) - _pairs(config.get(name, ""))})
            for name, wanted in lists[topic].items()
            if _EVERY not in _pairs(config.get(name, ""))
        }
    return added


def _pairs(text: str) -> set[str]:
    return set(filter(None, text.split(",")))


def _list_too(
    pairs: Mapping[str, Collection[str]], old: Mapping[str, str]
) -> dict[str, str | None]:
    return {name: _joined(_pairs(old.get(name, "")) | set(pairs[name])) for name in pairs}


def _list_no_more(
    pairs: Mapping[str, Collection[str]], old: Mapping[str, str]
) -> dict[str, str | None]:
    return {name: _joined(_pairs(old[name]) - set(pairs[name])) for name in pairs if name in old}


def _restore(
    before: Mapping[str, str | None], rates: Collection[str], old: Mapping[str, str]
) -> dict[str, str | None]:
    return {name: before[name] for name in _RATES if old.get(name) in rates}


def _joined(pairs: Collection[str]) -> str | None:
    return ",".join(sorted(pairs, key=_numbers)) or None


def _numbers(pair: str) -> list[int]:
    return [int(number) for number in pair.split(":") if number.isdecimal()]
