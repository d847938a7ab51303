"""The metrics of a broker's replicas, their logs and their topics.

No lock is taken for the partitions: ten thousand of them would keep producers waiting. So the
numbers of one partition may be of different moments.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final

from regent.actors.replica_fetcher_manager import Fetcher, ReplicaFetcherManager
from regent.broker.metrics.metric_table import Family, Metric, MetricTable, counter, gauge
from regent.broker.metrics.recent import Recent
from regent.core.protocol.broker import FollowerPace
from regent.core.replica_logs import PartitionLog, ProducerSummary
from regent.core.replication.broker_topic_stats import TopicStats
from regent.core.replication.fetch_session import FetchSessionCount
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager

MAX_PARTITIONS = 20_000
"""A broker with more has no metrics for single partitions and topics."""
_NO_PRODUCERS = ProducerSummary(0, has_late_transaction=False)
_AT_ONCE = 200  # partitions; then other threads get their turn
_REPLICA: Final = "Replica"
_MANAGER: Final = "kafka.server:type=ReplicaManager,name="


def _count(name: str, meaning: str, details: str = "") -> Metric[Counter[str]]:
    return gauge(name, meaning, lambda counts: counts[name], details)


PARTITION_COUNTS: Final = MetricTable[Counter[str]](
    _MANAGER,
    _count("PartitionCount", "replicas hosted"),
    _count("LeaderCount", "partitions led"),
    _count("OfflineReplicaCount", "replicas in failed log directories"),
    _count("UnderReplicatedPartitions", "led partitions with replicas that are not in the ISR"),
    _count(
        "UnderMinIsrPartitionCount",
        "led partitions with an ISR below min.insync.replicas: they refuse acks=all",
    ),
    _count("AtMinIsrPartitionCount", "led partitions with exactly min.insync.replicas in the ISR"),
    _count("ReassigningPartitions", "led partitions that are being reassigned"),
    _count(
        "PartitionsWithLateTransactionsCount",
        "led partitions with a transaction that is open for longer than any may be",
        details="5 minutes more than `transaction.max.timeout.ms`: its coordinator has lost it"
        " (KIP-664)",
    ),
    _count("ProducerIdCount", "idempotent producers that hosted replicas know"),
)
LAG: Final = MetricTable[int](
    "kafka.server:type=ReplicaFetcherManager,name=",
    gauge("MaxLag", "largest lag of a follower on this broker, in committed records"),
    labels=("clientid",),
)
ISR_CHANGES: Final = MetricTable[ReplicaManager](
    _MANAGER,
    counter("IsrExpandsPerSec", "replicas that joined an ISR again", "counters.isr_expands"),
    counter("IsrShrinksPerSec", "ISRs that lost replicas", "counters.isr_shrinks"),
    counter("FailedIsrUpdatesPerSec", "ISR changes refused", "counters.failed_isr_updates"),
)
SESSIONS: Final = MetricTable[FetchSessionCount](
    "kafka.server:type=FetchSessionCache,name=",
    gauge("NumIncrementalFetchSessions", "fetch sessions of followers", "sessions"),
    gauge(
        "NumIncrementalFetchPartitionsCached",
        "partitions of sessions",
        "partitions",
    ),
    counter(
        "IncrementalFetchSessionEvictionsPerSec",
        "sessions ended because their follower had too many",
        "evicted",
    ),
)
PURGATORY: Final = MetricTable[int](
    "kafka.server:type=DelayedOperationPurgatory,name=",
    gauge(
        "PurgatorySize",
        "requests that wait",
        details="`Produce`, `Fetch` (of consumers and followers), `DeleteRecords`, `topic`",
    ),
    labels=("delayedoperation",),
)
TOPICS: Final = MetricTable[TopicStats](
    "kafka.server:type=BrokerTopicMetrics,name=",
    counter("MessagesInPerSec", "records that producers have appended", "messages_in"),
    counter("BytesInPerSec", "bytes of records that producers have appended", "bytes_in"),
    counter("BytesOutPerSec", "bytes of records sent to consumers", "bytes_out"),
    counter(
        "TotalProduceRequestsPerSec",
        "produce requests, once for each partition",
        "total_produce_requests",
    ),
    counter(
        "TotalFetchRequestsPerSec",
        "fetch requests of consumers, once for each partition",
        "total_fetch_requests",
    ),
    counter(
        "FailedProduceRequestsPerSec",
        "those that the log refused or could not carry out",
        "failed_produce_requests",
    ),
    counter(
        "FailedFetchRequestsPerSec",
        "those that the log could not carry out",
        "failed_fetch_requests",
    ),
    labels=("topic",),
)
PARTITIONS: Final = MetricTable[Partition](
    "kafka.cluster:type=Partition,name=",
    gauge("InSyncReplicasCount", "replicas in sync", lambda p: len(p.isr)),
    gauge("ReplicasCount", "replicas assigned", lambda p: len(p.assignment.replicas)),
    gauge("UnderReplicated", "1 when replicas are not in the ISR", "is_under_replicated"),
    gauge(
        "UnderMinIsr",
        "1 when the ISR is below min.insync.replicas",
        lambda p: len(p.isr) < p.min_isr,
    ),
    gauge(
        "AtMinIsr",
        "1 when min.insync.replicas are in the ISR and no more",
        lambda p: len(p.isr) == p.min_isr,
    ),
    labels=("topic", "partition"),
)
LOGS: Final = MetricTable[PartitionLog](
    "kafka.log:type=Log,name=",
    gauge("LogStartOffset", "log start offset", "log_start_offset"),
    gauge("LogEndOffset", "log end offset", "log_end_offset"),
    gauge("Size", "bytes of records", "size"),
    labels=("topic", "partition"),
)
FOLLOWERS: Final = MetricTable[FollowerPace](
    "",
    gauge(
        "regent_follower_turnaround_median_ms",
        "from the answer to a fetch to the next fetch of a follower, in the last minute",
        "median_ms",
    ),
    gauge(
        "regent_follower_turnaround_p99_ms",
        "the same: 99 of 100 took no longer",
        "slowest_ms",
        details="above 500 ms the follower is slow; pauses of this broker do not count",
    ),
    gauge(
        "regent_follower_silent_ms",
        "how long ago this broker answered a follower that has not fetched again",
        "silent_ms",
        details="0 while a fetch waits",
    ),
    gauge(
        "regent_follower_absent_ms",
        "how much of the last minute a follower took to fetch again, in gaps above 200 ms",
        "absent_ms",
        details="above 6,000 the follower is slow",
    ),
    counter(
        "regent_isr_removals_total",
        "how often this broker, as leader, took a follower out of an ISR",
        "isr_shrinks",
    ),
    labels=("broker_id",),
)
DEAD_FETCHERS: Final = MetricTable[int](
    "kafka.server:type=ReplicaFetcherManager,name=",
    gauge("DeadThreadCount", "fetchers that have died"),
    labels=("clientid",),
)
FETCHERS: Final = MetricTable[Fetcher](
    "kafka.server:type=FetcherStats,name=",
    counter("RequestsPerSec", "fetches sent", "stats.requests"),
    counter("BytesPerSec", "bytes of records received", "stats.received_bytes"),
    labels=("clientid", "broker"),
)
SLOWEST_FETCHER: Final = MetricTable[float](
    "kafka.server:type=ReplicaFetcherManager,name=",
    gauge("MinFetchRate", "fetches in a second of the slowest fetcher, in the last minute"),
    labels=("clientid",),
)


def replication_metrics(replicas: ReplicaManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of hosted partitions, of ISR changes, and of each partition and topic."""
    hosted = list(replicas.partitions.values())
    led = [partition for partition in hosted if partition.role is Role.LEADER]
    counts, max_lag = _counts(hosted, replicas.max_transaction_timeout_ms)
    yield from PARTITION_COUNTS.of(counts, recent)
    yield from LAG.of(max_lag, recent, _REPLICA)
    yield from ISR_CHANGES.of(replicas, recent)
    paces = replicas.follower_paces(time.monotonic())
    yield from FOLLOWERS.families((((str(pace.broker_id),), pace) for pace in paces), recent)
    yield from SESSIONS.of(replicas.fetch_sessions, recent)
    delayed = replicas.delayed_counts
    kinds = ("Produce", "Fetch", "DeleteRecords")
    yield from PURGATORY.families((((kind,), delayed.get(kind, 0)) for kind in kinds), recent)
    yield from TOPICS.families(_topics(replicas), recent)
    if len(hosted) <= MAX_PARTITIONS:
        yield from PARTITIONS.families(_each(led), recent)
        logs = ((labels, p.log) for labels, p in _each(hosted))
        yield from LOGS.families(((labels, log) for labels, log in logs if log is not None), recent)


def fetcher_metrics(fetchers: ReplicaFetcherManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of a follower's fetchers."""
    by_leader = fetchers.fetchers
    alive = [(leader, each) for leader, each in sorted(by_leader.items()) if each.is_alive]
    yield from DEAD_FETCHERS.of(len(by_leader) - len(alive), recent, _REPLICA)
    named = (
        ((f"ReplicaFetcherThread-0-{leader}", each.endpoint.removeprefix("tcp://")), each)
        for leader, each in alive
    )
    yield from FETCHERS.families(named, recent)
    rates = [recent.rate(f"fetches from {leader}", each.stats.requests) for leader, each in alive]
    yield from SLOWEST_FETCHER.of(min(rates, default=0.0), recent, _REPLICA)


def _counts(hosted: Collection[Partition], max_timeout_ms: int) -> tuple[Counter[str], int]:
    """Return the counts, and the largest lag of a follower."""
    counts, max_lag = Counter[str](), 0
    for number, partition in enumerate(hosted):
        log = partition.log  # None: it has just failed
        seen = _NO_PRODUCERS if log is None else log.producer_summary(max_timeout_ms)
        counts["ProducerIdCount"] += seen.producers
        if partition.role is Role.LEADER:
            size, least = len(partition.isr), partition.min_isr
            counts["LeaderCount"] += 1
            counts["UnderReplicatedPartitions"] += partition.is_under_replicated
            counts["UnderMinIsrPartitionCount"] += size < least
            counts["AtMinIsrPartitionCount"] += size == least
            counts["ReassigningPartitions"] += partition.assignment.is_being_reassigned
            counts["PartitionsWithLateTransactionsCount"] += seen.has_late_transaction
        else:
            counts["OfflineReplicaCount"] += partition.role is Role.OFFLINE
            max_lag = max(max_lag, partition.lag)
        _give_way(number)
    counts["PartitionCount"] = len(hosted)
    return counts, max_lag


def _topics(replicas: ReplicaManager) -> Iterator[tuple[Sequence[str], TopicStats]]:
    """Yield the counters of all topics without a label, and of each topic."""
    replicas.forget_topic_stats()
    yield (), replicas.topic_stats.all_topics()
    by_topic = replicas.topic_stats.by_topic()
    if len(by_topic) <= MAX_PARTITIONS:
        yield from (((topic,), stats) for topic, stats in by_topic.items())


def _each(partitions: Iterable[Partition]) -> Iterator[tuple[Sequence[str], Partition]]:
    for number, partition in enumerate(partitions):
        topic, index = partition.topic_partition
        yield (topic, str(index)), partition
        _give_way(number)


def _give_way(number: int) -> None:
    """Let the threads that serve clients run: Python would make them wait for 5 ms each time."""
    if number % _AT_ONCE == _AT_ONCE - 1:
        time.sleep(0.0002)
