"""Limits the replication of moves (KIP-73), and removes these limits again.

The rate is a dynamic setting of the brokers that send and receive. Two settings of a topic list the
replicas that it applies to, as ``partition:broker``: the original replicas throttle what they send
as leaders, the added ones what they fetch as followers.

``reassign`` writes over what is there and clears all, as ``modifyReassignmentThrottle`` and
``clearAllThrottles`` of Kafka's tool do. A plan adds its throttle to what is there, after a *note*
of what belongs to it. Only that is removed: rates return to what they were, and listed replicas of
others stay (KAFKA-10779). A rate from before may be that of another plan, which has ended since and
could not remove it. It has, if the replicas of others that were listed then are no more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from regent.client.moves import Move
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.zk.client.operations import ConflictError
from regent.zk.stores.config_store import BROKERS, TOPICS, ZkConfigStore

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LISTS: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
_LOG_DIRS_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_OF_BROKERS: Final = (*RATES, _LOG_DIRS_RATE)
_SETTINGS: Final = frozenset((*_OF_BROKERS, *LISTS))
_EVERY: Final = "*"
_MAX_LOOKS: Final = 20

Pairs: TypeAlias = set[str]
"""Throttled replicas, as ``partition:broker``."""


class Cleared(NamedTuple):
    """The brokers and topics whose throttles were removed."""

    brokers: list[BrokerId]
    topics: list[str]


def throttled_replicas(moves: Iterable[Move]) -> dict[str, dict[str, list[str]]]:
    """Return what ``LEADER_REPLICAS`` and ``FOLLOWER_REPLICAS`` of each topic list."""
    found: dict[str, dict[str, list[str]]] = {}
    for move in sorted(moves):
        topic, number = move.partition
        lists = found.setdefault(topic, {name: [] for name in LISTS})
        for name, brokers in zip(LISTS, (move.before, move.added), strict=True):
            lists[name] += [f"{number}:{broker}" for broker in sorted(brokers)]
    return found


def throttled_brokers(moves: Iterable[Move]) -> set[BrokerId]:
    """Return every broker that sends or receives: each needs a rate."""
    return {broker for move in moves for broker in (*move.before, *move.target)}


# --- of Kafka's tool ------------------------------------------------------------------------------


def write_throttle(configs: ZkConfigStore, moves: Collection[Move], bytes_per_second: int) -> None:
    """Limit these moves, and only these. Raises ``BadDataError``."""
    lists = throttled_replicas(moves)
    rates = dict.fromkeys(RATES, str(bytes_per_second))
    configs.alter_configs(
        {
            **{
                f"{TOPICS}/{topic}": {name: ",".join(pairs) for name, pairs in of_topic.items()}
                for topic, of_topic in lists.items()
            },
            **{f"{BROKERS}/{broker}": rates for broker in throttled_brokers(moves)},
        }
    )


def write_log_dirs_throttle(
    configs: ZkConfigStore, brokers: Collection[BrokerId], bytes_per_second: int
) -> None:
    """Limit what brokers copy between their log directories. Raises ``BadDataError``."""
    rate = {_LOG_DIRS_RATE: str(bytes_per_second)}
    configs.alter_configs({f"{BROKERS}/{broker}": rate for broker in brokers})


def are_throttled(
    configs: ZkConfigStore, brokers: Collection[BrokerId], topics: Collection[str]
) -> bool:
    """Return whether a broker or a topic has a throttle. Raises ``BadDataError``."""
    found = {**configs.read_topic_configs(topics), **configs.read_broker_configs(brokers)}
    return any(not _SETTINGS.isdisjoint(config) for config in _readable(found).values())


def clear_throttles(
    configs: ZkConfigStore, brokers: Collection[BrokerId], topics: Collection[str]
) -> Cleared:
    """Remove all throttles of brokers and topics. Raises ``BadDataError``."""
    changed = configs.alter_configs(
        {
            **{f"{BROKERS}/{broker}": dict.fromkeys(_OF_BROKERS) for broker in brokers},
            **{f"{TOPICS}/{topic}": dict.fromkeys(LISTS) for topic in topics},
        }
    )
    names: dict[str, list[str]] = {BROKERS: [], TOPICS: []}
    for entity in sorted(changed):
        kind, _, name = entity.partition("/")
        names[kind].append(name)
    return Cleared(sorted(map(int, names[BROKERS])), names[TOPICS])


# --- of a plan ------------------------------------------------------------------------------------


def add_throttle(
    configs: ZkConfigStore,
    moves: Collection[Move],
    bytes_per_second: int,
    keep_note: Callable[[bytes], None],
    earlier: bytes | None = None,
) -> None:
    """Limit these moves beside others. Raises ``BadDataError``.

    ``keep_note`` stores what ``remove_throttle`` needs before anything is set. ``earlier``: the
    note of a throttle that the plan has already; the new one has both, and replaces its rate.
    """
    note = throttle_note(configs, moves, bytes_per_second, earlier)
    keep_note(note)
    set_throttle(configs, note)


def throttle_note(
    configs: ZkConfigStore,
    moves: Collection[Move],
    bytes_per_second: int,
    earlier: bytes | None = None,
) -> bytes:
    """Return what to set, and what to restore at the end. Raises ``BadDataError``.

    ``earlier``: a note for other moves, which the new one replaces; it may not be set yet.
    """
    copying = [move for move in moves if move.added]
    wanted = throttled_replicas(copying)
    rates_before, beside = _rates_now(configs, throttled_brokers(copying))
    topics = configs.read_topic_configs(wanted)
    replicas = {
        topic: {
            name: sorted(set(pairs) - there)
            for name, pairs in wanted[topic].items()
            if _EVERY not in (there := _pairs(config.get(name)))
        }
        for topic, config in _readable(topics).items()
    }
    rates = [str(bytes_per_second)]
    if earlier is not None:
        before: dict[str, Any] = orjson.loads(earlier)
        rates += [rate for rate in before["rates"] if rate not in rates]
        beside -= before["rates_before"].keys()
        beside |= set(before.get("beside", ()))
        rates_before |= before["rates_before"]
        for topic, lists in before["replicas"].items():
            of_topic = replicas.setdefault(topic, {})
            for name, pairs in lists.items():
                of_topic[name] = sorted({*pairs, *of_topic.get(name, ())})
    return orjson.dumps(
        {
            "rates": rates,
            "rates_before": rates_before,
            "beside": sorted(beside),  # brokers with a rate for replicas of others
            "replicas": replicas,
        }
    )


def set_throttle(configs: ZkConfigStore, kept_note: bytes) -> None:
    """Set what a note says. Raises ``BadDataError``."""
    note: dict[str, Any] = orjson.loads(kept_note)
    for topic, pairs in note["replicas"].items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_with_pairs, pairs, set.union))
    rates = dict.fromkeys(RATES, note["rates"][0])
    configs.alter_configs({f"{BROKERS}/{broker}": rates for broker in note["rates_before"]})


def remove_throttle(configs: ZkConfigStore, kept_note: bytes) -> None:
    """Remove what ``set_throttle`` has set, unless others have changed it since.

    Another plan may begin or end at the same time. One that begins reads rates before lists, so it
    finds our replicas beside our rate. One that ends may bring our rate back until it finds that
    our replicas are gone, therefore we look at the rates again after that. Raises ``BadDataError``.
    """
    note: dict[str, Any] = orjson.loads(kept_note)
    _restore_rates(configs, note)
    for topic, pairs in note["replicas"].items():
        configs.change_config(f"{TOPICS}/{topic}", partial(_with_pairs, pairs, set.difference))
    _restore_rates(configs, note)
    beside = note.get("beside", ())
    for broker in set(beside) - _listed(configs, beside):
        orphans = partial(_without, note["rates_before"][broker])
        configs.change_config(f"{BROKERS}/{broker}", orphans)


def _listed(configs: ZkConfigStore, brokers: Collection[str]) -> set[str]:
    """Return those of ``brokers`` whose throttled replicas a topic lists."""
    if not brokers:
        return set()
    listed = {
        pair.rpartition(":")[2]
        for config in configs.read_all_topic_configs().values()
        for name in LISTS
        for pair in _pairs(config.get(name))
    }
    return set(brokers) if _EVERY in listed else listed.intersection(brokers)


def _rates_now(
    configs: ZkConfigStore, brokers: Collection[BrokerId]
) -> tuple[dict[str, dict[str, str | None]], set[str]]:
    """Return the rates of brokers, and which of these have a rate and listed replicas.

    If rates change while the lists are read, both are read again, because they belong together.
    """
    rates: dict[str, dict[str, str | None]] = {}
    listed: set[str] = set()
    for _ in range(_MAX_LOOKS):
        before = rates
        rates = {
            broker: {name: config.get(name) for name in RATES}
            for broker, config in _readable(configs.read_broker_configs(brokers)).items()
            if broker.isdecimal()
        }
        limited = [broker for broker, of_broker in rates.items() if any(of_broker.values())]
        if rates == before or not limited:
            return rates, listed.intersection(limited)
        listed = _listed(configs, limited)
    raise ConflictError("other commands keep changing the rates of brokers; try again")


def _restore_rates(configs: ZkConfigStore, note: Mapping[str, Any]) -> None:
    for broker, before in note["rates_before"].items():
        configs.change_config(f"{BROKERS}/{broker}", partial(_restore, before, note["rates"]))


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
    return {name: before[name] for name in RATES if old.get(name) in rates}


def _without(rates: Mapping[str, str | None], old: Mapping[str, str]) -> dict[str, str | None]:
    return {name: None for name in RATES if old.get(name) == rates[name]}


def _numbers(pair: str) -> list[int]:
    return [int(number) for number in pair.split(":") if number.isdecimal()]
