"""What the cluster serves, as ZooKeeper, the controller and the brokers tell it once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from regent.client.broker_request import NoAnswerError, ask_broker
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.client.controller_ref import ControllerRef
from regent.client.deletion_obstacles import deletion_obstacles
from regent.client.health import Troubles
from regent.client.live_brokers import read_live_brokers, software_of
from regent.client.log_sizes import LogDirectorySize, LogSize, read_log_dirs
from regent.client.missing_brokers import EndsOfBrokers, MissingBroker, restless_brokers
from regent.client.obstacles import move_obstacles
from regent.client.partitions import DescribedPartition, Topics, read_partitions
from regent.client.pauses import pauses
from regent.client.slow_brokers import slow_brokers
from regent.cluster.cluster_file import ClusterFile
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration, EndPoint, TopicPartition
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.controller import DescribeControllerResponse
from regent.core.protocol.messages.transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from regent.transport.control.remote_ref import RemoteActorRef, actor_at, ask
from regent.transport.kafka.api import KafkaApiKey
from regent.zk.stores.admin_store import ZkAdminStore

_ASK_S: Final = 3.0
_AT_ONCE: Final = 32
_NEWS_S: Final = 6.0  # a change of an ISR reaches all brokers sooner, also over ZooKeeper
_CLIENT_ID: Final = "doctor"
_LONG_TRANSACTION_MS: Final = 15 * 60_000  # Kafka's transaction.max.timeout.ms
_MIN_INSYNC: Final = "min.insync.replicas"


class ClockReading(NamedTuple):
    """How far the clock of a broker is ahead of the one here, in seconds, give or take."""

    ahead_s: float
    doubt_s: float


class StaleCache(NamedTuple):
    """What a broker tells clients, although it was not true any more some seconds ago."""

    deleted: Sequence[str] = ()
    isrs: Sequence[TopicPartition] = ()


_Told: TypeAlias = tuple[DescribeMetadataResponse, ClockReading | None]
_Difference: TypeAlias = tuple[str, int | None, tuple[BrokerId, ...], tuple[BrokerId, ...]]
"""A topic, the partition, its ISR and the one in a cache; the topic alone: it is deleted."""


@dataclass(slots=True)
class ServedCluster:
    """Brokers, partitions and what does not get on; ``default_min_insync`` is of all topics.

    ``unassigned`` are the logs that brokers serve although the partitions are assigned to others;
    ``missing`` are the brokers that have replicas and are not registered; ``silent`` are those that
    have not answered, each with the reason.
    """

    live: Mapping[BrokerId, BrokerRegistration] = field(default_factory=dict)
    partitions: Sequence[DescribedPartition] = ()
    topic_configs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    default_min_insync: int = 1
    caches: Mapping[BrokerId, DescribeMetadataResponse] = field(default_factory=dict)
    stale: Mapping[BrokerId, StaleCache] = field(default_factory=dict)
    software: Mapping[BrokerId, str] = field(default_factory=dict)
    deletions: Mapping[str, str] = field(default_factory=dict)
    move_obstacles: Sequence[str] = ()
    old_transactions: Sequence[str] = ()
    slow_brokers: Mapping[BrokerId, str] = field(default_factory=dict)
    restless_brokers: Mapping[BrokerId, str] = field(default_factory=dict)
    clocks: Mapping[BrokerId, ClockReading] = field(default_factory=dict)
    log_dirs: Mapping[BrokerId, Sequence[LogDirectorySize]] = field(default_factory=dict)
    unassigned: Mapping[BrokerId, Sequence[LogSize]] = field(default_factory=dict)
    missing: Mapping[BrokerId, MissingBroker] = field(default_factory=dict)
    silent: Mapping[BrokerId, str] = field(default_factory=dict)
    troubles: Troubles = field(default_factory=Troubles)

    def min_insync(self, partition: DescribedPartition) -> int:
        """Return how many replicas must be in sync for acks=all: all, if there are fewer."""
        topic = partition.topic_partition.topic
        text = self.topic_configs.get(topic, {}).get(_MIN_INSYNC, "")
        least = int(text) if text.isdecimal() else self.default_min_insync
        return min(least, len(partition.assignment.replicas))


def read_served(
    admin: ZkAdminStore,
    settings: Mapping[BrokerId, Mapping[str, str]],
    troubles: Troubles,
    data_dir: Path | None = None,
    file: ClusterFile | None = None,
) -> ServedCluster:
    """Read what a cluster serves, and its troubles; ``data_dir`` and ``file`` are of a local one.

    Raises ``BadDataError``; ``troubles`` then has what was found before.
    """
    controller, answer = troubles.find_controller(admin, data_dir), None
    troubles.examine_placement(file)
    live = read_live_brokers(admin)
    names = admin.topics.read_topic_names()
    deleted = admin.topics.read_topics_being_deleted().intersection(names)
    found = read_partitions(admin, [name for name in names if name not in deleted])
    configs = admin.configs.read_topic_configs(names)
    if controller is not None:
        answer = _ask_controller(admin, live.get(controller.broker_id), troubles)
    troubles.examine(admin, found, answer)
    defaults = [int(rows.get(_MIN_INSYNC, "1")) for rows in settings.values()]
    moving = [p.topic_partition for p in found.partitions if p.assignment.is_being_reassigned]
    asked, old = _ask_brokers(live)
    told = {broker: row for broker, row in asked.items() if not isinstance(row, str)}
    caches = {broker: row[0] for broker, row in told.items()}
    log_dirs = read_log_dirs(live)
    elected_ms = 0 if controller is None else controller.elected_ms
    supervised = {} if file is None else file.brokers
    ends = EndsOfBrokers(admin.read_ends(), supervised, answer, elected_ms)
    return ServedCluster(
        live,
        found.partitions,
        {t: config for t, config in configs.items() if not isinstance(config, BadDataError)},
        max(defaults, default=1),
        caches,
        _stale(admin, live, found.partitions, caches),
        software_of(live, answer),
        deletion_obstacles(admin, sorted(deleted), answer),
        move_obstacles(admin, moving) if moving else (),
        old,
        dict(slow_brokers(live, answer, caches)),
        dict(restless_brokers(answer)),
        {b: row[1] for b, row in told.items() if row[1] is not None},
        log_dirs,
        _unassigned(admin, found.partitions, log_dirs),
        _missing(live, found, ends, troubles),
        {broker: row for broker, row in sorted(asked.items()) if isinstance(row, str)},
        troubles,
    )


def _missing(
    live: Mapping[BrokerId, BrokerRegistration],
    found: Topics,
    ends: EndsOfBrokers,
    troubles: Troubles,
) -> Mapping[BrokerId, MissingBroker]:
    """Return the brokers that have replicas and are not there; note others that failed today."""
    assigned = {broker for p in found.partitions for broker in p.assignment.replicas}
    missing = {broker: ends.of(broker) for broker in sorted(assigned - live.keys())}
    known = {*live, *missing, *ends.supervised}
    troubles.warnings += [one.sentence() for one in ends.recent_failures(known)]
    return missing


def _ask_controller(
    admin: ZkAdminStore, broker: BrokerRegistration | None, troubles: Troubles
) -> DescribeControllerResponse | None:
    """Ask the broker that rules, unless it is one of Kafka, which answers no such request."""
    if broker is None or broker.info.is_of_kafka:
        return None
    with ControllerRef(admin.read_controller_endpoint, client_id=_CLIENT_ID) as controller:
        return troubles.ask_controller(controller)


def _ask_brokers(
    live: Mapping[BrokerId, BrokerRegistration],
) -> tuple[
    Mapping[BrokerId, tuple[DescribeMetadataResponse, ClockReading | None] | str], list[str]
]:
    """Return what each of our brokers tells, or why not; and transactions that do not end."""
    ours = {b: r.info.control_peer for b, r in live.items() if r.info.control_peer is not None}
    endpoints = [e for r in live.values() if (e := SECURITY_OF_COMMAND.endpoint_of(r.info))]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        asked = dict(zip(ours, threads.map(_told_at, ours.values()), strict=True))
        old = list(threads.map(_old_transactions, endpoints))
    return asked, sorted({name for names_of_one in old for name in names_of_one})


def _told_at(endpoint: str) -> _Told | str:
    """Return the metadata cache of a broker and its clock, or why it does not tell them."""
    request = DescribeMetadataRequest()
    try:
        with actor_at(endpoint, client_id=_CLIENT_ID) as actor:
            answer = ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_S)
            if answer.error_code is Errors.NONE:
                return answer, _clock_of(actor)
            return f"{endpoint}: {answer.error_code.name}"
    except RegentError as error:
        return str(error)


def _clock_of(actor: RemoteActorRef) -> ClockReading | None:
    """Return the clock of a broker that is connected; None if it does not tell, or is older."""
    began_s, began = time.time(), time.monotonic()
    with suppress(RegentError):
        request = DescribeMetadataRequest(topics=())
        now_ms = ask(actor, request, DescribeMetadataResponse, timeout_s=_ASK_S).now_ms
        half_s = (time.monotonic() - began) / 2
        return ClockReading(now_ms / 1000 - began_s - half_s, half_s) if now_ms >= 0 else None
    return None


def _stale(
    admin: ZkAdminStore,
    live: Mapping[BrokerId, BrokerRegistration],
    partitions: Sequence[DescribedPartition],
    caches: Mapping[BrokerId, DescribeMetadataResponse],
) -> Mapping[BrokerId, StaleCache]:
    """Return what caches have kept: it is looked at until it is gone, or has stayed for long."""
    names = set(admin.topics.read_topic_names())
    kept = {b: _differences(partitions, names, cache) for b, cache in caches.items()}
    for _ in pauses(time.monotonic() + _NEWS_S, _NEWS_S / 10):
        kept = {broker: rows for broker, rows in kept.items() if rows}
        if not kept:
            break
        told = {broker: _cache_of(live[broker]) for broker in kept}
        names = set(admin.topics.read_topic_names())
        topics = sorted(names & {row[0] for rows in kept.values() for row in rows})
        partitions = read_partitions(admin, topics).partitions
        kept = {
            broker: rows & _differences(partitions, names, cache)
            for broker, rows in kept.items()
            if (cache := told[broker]) is not None
        }
    return {
        broker: StaleCache(
            sorted({topic for topic, partition, *_ in rows if partition is None}),
            sorted(TopicPartition(row[0], row[1]) for row in rows if row[1] is not None),
        )
        for broker, rows in kept.items()
        if rows
    }


def _differences(
    partitions: Sequence[DescribedPartition],
    names: Collection[str],
    cache: DescribeMetadataResponse,
) -> set[_Difference]:
    """Return deleted topics, and partitions with another ISR under the same leader epoch."""
    described = {p.topic_partition: p for p in partitions}
    found: set[_Difference] = set()
    for row in cache.partitions:
        partition = described.get(TopicPartition(row.topic, row.partition))
        if row.topic not in names:
            found.add((row.topic, None, (), ()))
        elif partition is not None:
            state = partition.state.leader_and_isr
            is_same = state.leader_epoch == row.leader_epoch
            if is_same and set(state.isr) != set(row.isr):
                found.add((row.topic, row.partition, tuple(state.isr), row.isr))
    return found


def _cache_of(broker: BrokerRegistration) -> DescribeMetadataResponse | None:
    told = _told_at(broker.info.control_peer or "")
    return None if isinstance(told, str) else told[0]


def _unassigned(
    admin: ZkAdminStore,
    partitions: Sequence[DescribedPartition],
    log_dirs: Mapping[BrokerId, Sequence[LogDirectorySize]],
) -> Mapping[BrokerId, Sequence[LogSize]]:
    """Return the logs of brokers that are no replicas, neither before the logs were read nor now.

    So a topic that is created or deleted meanwhile has none.
    """
    found = _strangers(partitions, log_dirs)
    topics = {log.topic for logs in found.values() for log in logs}
    again = _strangers(read_partitions(admin, topics).partitions, log_dirs) if topics else {}
    return {
        broker_id: kept
        for broker_id, logs in found.items()
        if (kept := [log for log in logs if log in again.get(broker_id, ())])
    }


def _strangers(
    partitions: Sequence[DescribedPartition],
    log_dirs: Mapping[BrokerId, Sequence[LogDirectorySize]],
) -> Mapping[BrokerId, Sequence[LogSize]]:
    replicas = {p.topic_partition: p.assignment.replicas for p in partitions}
    found: dict[BrokerId, list[LogSize]] = defaultdict(list)
    for broker_id, directories in log_dirs.items():
        for log in (log for directory in directories for log in directory.logs):
            if broker_id not in replicas.get(log.topic_partition, ()):
                found[broker_id].append(log)
    return found


def _old_transactions(broker: EndPoint) -> Sequence[str]:
    """Return the transactional ids of a broker whose transactions are open for long."""
    request = ListTransactionsRequest(
        state_filters=("Ongoing", "PrepareCommit", "PrepareAbort"),
        producer_id_filters=(),
        duration_filter=_LONG_TRANSACTION_MS,
    )
    try:
        api = (KafkaApiKey.LIST_TRANSACTIONS, 1)
        answer = ask_broker(broker, api, request, ListTransactionsResponse, _ASK_S)
    except (NoAnswerError, RegentError):
        return ()
    return [row.transactional_id for row in answer.transaction_states]
