"""The metrics of a broker's replicas, their logs and their topics.

No lock is taken for the partitions: ten thousand of them would keep producers waiting. So the
numbers of one partition may be of different moments.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields

from regent.actors.replica_fetcher_manager import ReplicaFetcherManager
from regent.broker.metrics.exposition import Family, counter, gauge, label_text
from regent.broker.metrics.recent import Recent
from regent.core.errors import StorageError
from regent.core.replica_logs import PartitionLog, ProducerSummary
from regent.core.replication.broker_topic_stats import TopicStats
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager

_MANAGER = "kafka_server_replicamanager_"
_PARTITION = "kafka_cluster_partition_"
_FETCHERS = "kafka_server_replicafetchermanager_"
_STATS = "kafka_server_fetcherstats_"
_SESSIONS = "kafka_server_fetchsessioncache_"
_TOPICS = "kafka_server_brokertopicmetrics_"
_LOG = "kafka_log_log_"
_REPLICA = {"clientid": "Replica"}

MAX_PARTITIONS = 20_000
"""A broker with more has no metrics for single partitions and topics."""
_NO_PRODUCERS = ProducerSummary(0, has_late_transaction=False)
_AT_ONCE = 200  # partitions; then other threads get their turn

_MEANINGS: Mapping[str, str] = {
    "partitioncount": "replicas hosted",
    "leadercount": "partitions led",
    "offlinereplicacount": "replicas in failed log directories",
    "underreplicatedpartitions": "led partitions with replicas that are not in the ISR",
    "underminisrpartitioncount": (
        "led partitions with an ISR below min.insync.replicas: they refuse acks=all"
    ),
    "atminisrpartitioncount": ("led partitions with exactly min.insync.replicas in the ISR"),
    "reassigningpartitions": "led partitions that are being reassigned",
    "partitionswithlatetransactionscount": (
        "led partitions with a transaction that is open for longer than any may be"
    ),
    "produceridcount": "idempotent producers that hosted replicas know",
}
_TOPIC_MEANINGS: Mapping[str, str] = {
    "messages_in": "records that producers have appended",
    "bytes_in": "bytes of records that producers have appended",
    "bytes_out": "bytes of records sent to consumers",
    "total_produce_requests": "produce requests, once for each partition",
    "total_fetch_requests": "fetch requests of consumers, once for each partition",
    "failed_produce_requests": "those that the log refused or could not carry out",
    "failed_fetch_requests": "those that the log could not carry out",
}


def replication_metrics(replicas: ReplicaManager) -> Iterable[Family]:
    """Yield the metrics of hosted partitions, of ISR changes, and of each partition and topic."""
    hosted = list(replicas.partitions.values())
    led = [partition for partition in hosted if partition.role is Role.LEADER]
    yield from _counts(hosted, replicas.max_transaction_timeout_ms)
    counters = replicas.counters
    for name, meaning, count in (
        ("isrexpandspersec", "replicas that joined an ISR again", counters.isr_expands),
        ("isrshrinkspersec", "ISRs that lost replicas", counters.isr_shrinks),
        ("failedisrupdatespersec", "ISR changes refused", counters.failed_isr_updates),
    ):
        yield counter(_MANAGER + name, meaning, count)
    sessions, partitions = replicas.fetch_sessions
    yield gauge(_SESSIONS + "numincrementalfetchsessions", "followers with a session", sessions)
    yield gauge(
        _SESSIONS + "numincrementalfetchpartitionscached", "partitions of sessions", partitions
    )
    yield counter(
        _SESSIONS + "incrementalfetchsessionevictionspersec",
        "sessions dropped for others: none, because every follower has one",
        0,
    )
    waiting = gauge("kafka_server_delayedoperationpurgatory_purgatorysize", "requests that wait")
    delayed = replicas.delayed_counts
    for kind in ("Produce", "Fetch", "DeleteRecords"):
        waiting.add(delayed.get(kind, 0), {"delayedoperation": kind})
    yield waiting
    yield from _of_topics(replicas)
    if len(hosted) <= MAX_PARTITIONS:
        yield from _of_partitions(led)
        yield from _of_logs(hosted)


def _counts(hosted: Collection[Partition], max_timeout_ms: int) -> Iterable[Family]:
    counts, max_lag = Counter[str](), 0
    for number, partition in enumerate(hosted):
        log = partition.log  # None: it has just failed
        seen = _NO_PRODUCERS if log is None else log.producer_summary(max_timeout_ms)
        counts["produceridcount"] += seen.producers
        if partition.role is Role.LEADER:
            size, least = len(partition.isr), _min_isr(partition)
            counts["leadercount"] += 1
            counts["underreplicatedpartitions"] += partition.is_under_replicated
            counts["underminisrpartitioncount"] += size < least
            counts["atminisrpartitioncount"] += size == least
            counts["reassigningpartitions"] += partition.assignment.is_being_reassigned
            counts["partitionswithlatetransactionscount"] += seen.has_late_transaction
        else:
            counts["offlinereplicacount"] += partition.role is Role.OFFLINE
            max_lag = max(max_lag, partition.lag)
        _give_way(number)
    counts["partitioncount"] = len(hosted)
    for name, meaning in _MEANINGS.items():
        yield gauge(_MANAGER + name, meaning, counts[name])
    meaning = "largest lag of a follower on this broker, in committed records"
    yield gauge(_FETCHERS + "maxlag", meaning).add(max_lag, _REPLICA)


def _min_isr(partition: Partition) -> int:
    log = partition.log  # None: it has just failed
    return 0 if log is None else log.config.min_insync_replicas


def fetcher_metrics(fetchers: ReplicaFetcherManager, recent: Recent) -> Iterable[Family]:
    """Yield the metrics of a follower's fetchers."""
    by_leader = fetchers.fetchers
    dead = sum(not fetcher.is_alive for fetcher in by_leader.values())
    yield gauge(_FETCHERS + "deadthreadcount", "fetchers that have died").add(dead, _REPLICA)
    requests = counter(_STATS + "requestspersec", "fetches sent")
    received = counter(_STATS + "bytespersec", "bytes of records received")
    rates = []
    for leader, fetcher in sorted(by_leader.items()):
        if fetcher.is_alive:
            labels = {
                "clientid": f"ReplicaFetcherThread-0-{leader}",
                "broker": fetcher.endpoint.removeprefix("tcp://"),
            }
            requests.add(fetcher.stats.requests, labels)
            received.add(fetcher.stats.received_bytes, labels)
            rates.append(recent.rate(f"fetches from {leader}", fetcher.stats.requests))
    yield from (requests, received)
    yield gauge(
        _FETCHERS + "minfetchrate", "fetches in a second of the slowest fetcher, in the last minute"
    ).add(min(rates, default=0.0), _REPLICA)


def _of_topics(replicas: ReplicaManager) -> Iterable[Family]:
    """Yield the counters of topics, and of all topics without a label."""
    replicas.forget_topic_stats()
    total, by_topic = replicas.topic_stats.all_topics(), replicas.topic_stats.by_topic()
    rows = [(label_text({"topic": topic}), stats) for topic, stats in by_topic.items()]
    for field in fields(TopicStats):
        name = field.name.replace("_", "") + "persec"
        family = counter(_TOPICS + name, _TOPIC_MEANINGS[field.name], getattr(total, field.name))
        if len(rows) <= MAX_PARTITIONS:
            family.samples.extend(
                f"{labels} {getattr(stats, field.name)}" for labels, stats in rows
            )
        yield family


def _of_partitions(led: Iterable[Partition]) -> Iterable[Family]:
    in_sync = gauge(_PARTITION + "insyncreplicascount", "replicas in sync")
    replicas = gauge(_PARTITION + "replicascount", "replicas assigned")
    under_replicated = gauge(_PARTITION + "underreplicated", "1 when replicas are not in the ISR")
    under_min_isr = gauge(_PARTITION + "underminisr", "1 when the ISR is below min.insync.replicas")
    at_min_isr = gauge(
        _PARTITION + "atminisr", "1 when min.insync.replicas are in the ISR and no more"
    )
    for number, partition in enumerate(led):
        labels = _labels(partition)
        size, least = len(partition.isr), _min_isr(partition)
        in_sync.samples.append(f"{labels} {size}")
        replicas.samples.append(f"{labels} {len(partition.assignment.replicas)}")
        under_replicated.samples.append(f"{labels} {int(partition.is_under_replicated)}")
        under_min_isr.samples.append(f"{labels} {int(size < least)}")
        at_min_isr.samples.append(f"{labels} {int(size == least)}")
        _give_way(number)
    yield from (in_sync, replicas, under_replicated, under_min_isr, at_min_isr)


def _of_logs(hosted: Iterable[Partition]) -> Iterable[Family]:
    """Yield the offsets of logs; a log in a failed directory has none."""
    kinds: tuple[tuple[Family, Callable[[PartitionLog], int]], ...] = (
        (gauge(_LOG + "logstartoffset", "log start offset"), lambda log: log.log_start_offset),
        (gauge(_LOG + "logendoffset", "log end offset"), lambda log: log.log_end_offset),
        (gauge(_LOG + "size", "bytes of records"), lambda log: log.size),
    )
    for number, partition in enumerate(hosted):
        log = partition.log
        if log is not None:
            labels = _labels(partition)
            for family, read in kinds:
                with suppress(StorageError):
                    family.samples.append(f"{labels} {read(log)}")
        _give_way(number)
    yield from (family for family, _ in kinds)


def _labels(partition: Partition) -> str:
    topic, number = partition.topic_partition  # a valid name needs no escapes
    return f'{{topic="{topic}",partition="{number}"}}'


def _give_way(number: int) -> None:
    """Let the threads that serve clients run: Python would make them wait for 5 ms each time."""
    if number % _AT_ONCE == _AT_ONCE - 1:
        time.sleep(0.0002)
