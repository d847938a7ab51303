"""The metrics of a broker's replicas and their logs by Kafka's names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from regent.actors.replica_fetcher_manager import ReplicaFetcherManager
from regent.core.errors import StorageError
from regent.core.replica_logs import PartitionLog
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager

_MANAGER = "kafka_server_ReplicaManager_"
_PARTITION = "kafka_cluster_Partition_"
_FETCHERS = "kafka_server_ReplicaFetcherManager_"
_STATS = "kafka_server_FetcherStats_"
_LOG = "kafka_log_Log_"

MAX_PARTITIONS = 2_000  # a broker with more has no metrics for single partitions


def replication_metrics(replicas: ReplicaManager) -> Iterable[Metric]:
    """Yield the metrics of hosted partitions, of ISR changes, and of each led partition."""
    hosted = list(replicas.partitions.values())
    led = [partition for partition in hosted if partition.role is Role.LEADER]
    moving = sum(partition.assignment.is_being_reassigned for partition in led)
    for name, meaning, value in (
        ("PartitionCount", "replicas hosted", len(hosted)),
        ("LeaderCount", "partitions led", replicas.leader_count),
        (
            "OfflineReplicaCount",
            "replicas in failed log directories",
            replicas.offline_replica_count,
        ),
        (
            "UnderReplicatedPartitions",
            "led partitions with replicas that are not in the ISR",
            replicas.under_replicated_count,
        ),
        (
            "UnderMinIsrPartitionCount",
            "led partitions with an ISR below min.insync.replicas: they refuse acks=all",
            replicas.under_min_isr_count,
        ),
        (
            "AtMinIsrPartitionCount",
            "led partitions with exactly min.insync.replicas in the ISR",
            replicas.at_min_isr_count,
        ),
        ("ReassigningPartitions", "led partitions that are being reassigned", moving),
    ):
        yield GaugeMetricFamily(_MANAGER + name, meaning, value=value)
    counters = replicas.counters
    for name, meaning, count in (
        ("IsrExpandsPerSec", "replicas that joined an ISR again", counters.isr_expands),
        ("IsrShrinksPerSec", "ISRs that lost replicas", counters.isr_shrinks),
        ("FailedIsrUpdatesPerSec", "ISR changes refused", counters.failed_isr_updates),
    ):
        yield CounterMetricFamily(_MANAGER + name, meaning, value=count)
    yield GaugeMetricFamily(
        _FETCHERS + "MaxLag", "largest lag of a follower on this broker", value=replicas.max_lag
    )
    if len(led) <= MAX_PARTITIONS:
        yield from _of_partitions(led)
    if len(hosted) <= MAX_PARTITIONS:
        yield from _of_logs(hosted)


def fetcher_metrics(fetchers: ReplicaFetcherManager) -> Iterable[Metric]:
    """Yield the metrics of a follower's fetchers."""
    by_leader = fetchers.fetchers
    dead = sum(not fetcher.is_alive for fetcher in by_leader.values())
    yield GaugeMetricFamily(_FETCHERS + "DeadThreadCount", "fetchers that have died", value=dead)
    requests = CounterMetricFamily(_STATS + "RequestsPerSec", "fetches sent", labels=["leader_id"])
    received = CounterMetricFamily(
        _STATS + "BytesPerSec", "bytes of records received", labels=["leader_id"]
    )
    for leader, fetcher in sorted(by_leader.items()):
        if fetcher.is_alive:
            requests.add_metric([str(leader)], fetcher.stats.requests)
            received.add_metric([str(leader)], fetcher.stats.received_bytes)
    yield from (requests, received)


def _of_partitions(led: Iterable[Partition]) -> Iterable[Metric]:
    labels = ["topic", "partition"]
    in_sync = GaugeMetricFamily(
        _PARTITION + "InSyncReplicasCount", "replicas in sync", labels=labels
    )
    replicas = GaugeMetricFamily(_PARTITION + "ReplicasCount", "replicas assigned", labels=labels)
    under_replicated = GaugeMetricFamily(
        _PARTITION + "UnderReplicated", "1 when replicas are not in the ISR", labels=labels
    )
    under_min_isr = GaugeMetricFamily(
        _PARTITION + "UnderMinIsr", "1 when the ISR is below min.insync.replicas", labels=labels
    )
    for partition in led:
        topic, number = partition.topic_partition
        of_this = [topic, str(number)]
        in_sync.add_metric(of_this, len(partition.isr))
        replicas.add_metric(of_this, len(partition.assignment.replicas))
        under_replicated.add_metric(of_this, partition.is_under_replicated)
        under_min_isr.add_metric(of_this, len(partition.isr) < partition.min_isr)
    yield from (in_sync, replicas, under_replicated, under_min_isr)


def _of_logs(hosted: Collection[Partition]) -> Iterable[Metric]:
    """Yield the offsets of logs; a log in a failed directory has none."""
    kinds: tuple[tuple[str, str, Callable[[PartitionLog], int]], ...] = (
        ("LogStartOffset", "log start offset", lambda log: log.log_start_offset),
        ("LogEndOffset", "log end offset", lambda log: log.log_end_offset),
        ("Size", "bytes of records", lambda log: log.size),
    )
    for name, meaning, read in kinds:
        gauge = GaugeMetricFamily(_LOG + name, meaning, labels=["topic", "partition"])
        for partition in hosted:
            if partition.log is not None:
                topic, number = partition.topic_partition
                with suppress(StorageError):
                    gauge.add_metric([topic, str(number)], read(partition.log))
        yield gauge
