"""The metrics of a broker's replicas by Kafka's names."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from actors.replica_fetcher_manager import ReplicaFetcherManager
from core.replication.partition import Partition, Role
from core.replication.replica_manager import ReplicaManager

_MANAGER = "kafka_server_ReplicaManager_"
_PARTITION = "kafka_cluster_Partition_"
_FETCHERS = "kafka_server_ReplicaFetcherManager_"

MAX_PARTITIONS = 2_000  # a broker that leads more has no metrics for each of them


def replication_metrics(replicas: ReplicaManager) -> Iterable[Metric]:
    """Yield what a broker hosts, how its ISRs change, and each partition it leads."""
    hosted = list(replicas.partitions.values())
    led = [partition for partition in hosted if partition.role is Role.LEADER]
    moving = sum(partition.assignment.is_being_reassigned for partition in led)
    for name, meaning, value in (
        ("PartitionCount", "replicas hosted", len(hosted)),
        ("LeaderCount", "partitions led", replicas.leader_count),
        ("OfflineReplicaCount", "replicas in failed directories", replicas.offline_replica_count),
        ("UnderReplicatedPartitions", "led with too few in sync", replicas.under_replicated_count),
        ("ReassigningPartitions", "led and being moved", moving),
    ):
        yield GaugeMetricFamily(_MANAGER + name, meaning, value=value)
    counters = replicas.counters
    for name, meaning, count in (
        ("IsrExpandsPerSec", "replicas that came back into an ISR", counters.isr_expands),
        ("IsrShrinksPerSec", "ISRs that lost replicas", counters.isr_shrinks),
        ("FailedIsrUpdatesPerSec", "ISR changes refused", counters.failed_isr_updates),
    ):
        yield CounterMetricFamily(_MANAGER + name, meaning, value=count)
    if len(led) <= MAX_PARTITIONS:
        yield from _of_partitions(led)


def fetcher_metrics(fetchers: ReplicaFetcherManager) -> Iterable[Metric]:
    """Yield how the fetchers of a broker that follows are doing."""
    threads = fetchers.threads
    alive = {leader: thread for leader, thread in threads.items() if thread is not None}
    dead = len(threads) - sum(thread.thread.is_alive() for thread in alive.values())
    yield GaugeMetricFamily(_FETCHERS + "DeadThreadCount", "fetchers that have died", value=dead)
    requests = CounterMetricFamily(
        "kafka_server_FetcherStats_RequestsPerSec", "fetches sent", labels=["leader_id"]
    )
    for leader, thread in sorted(alive.items()):
        requests.add_metric([str(leader)], thread.fetches)
    yield requests


def _of_partitions(led: Iterable[Partition]) -> Iterable[Metric]:
    labels = ["topic", "partition"]
    in_sync = GaugeMetricFamily(
        _PARTITION + "InSyncReplicasCount", "replicas in sync", labels=labels
    )
    replicas = GaugeMetricFamily(_PARTITION + "ReplicasCount", "replicas assigned", labels=labels)
    under_replicated = GaugeMetricFamily(
        _PARTITION + "UnderReplicated", "1 when too few are in sync", labels=labels
    )
    for partition in led:
        topic, number = partition.topic_partition
        of_this = [topic, str(number)]
        in_sync.add_metric(of_this, len(partition.isr))
        replicas.add_metric(of_this, len(partition.assignment.replicas))
        under_replicated.add_metric(of_this, partition.is_under_replicated)
    yield from (in_sync, replicas, under_replicated)
