"""Faults that happen to a topic under load, one after the other, and what they broke."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from regent.core.model import TopicPartition
from tests.support.breakable_cluster import BROKERS, BreakableCluster
from tests.support.cluster_security import READER, WRITER
from tests.support.faults import Fault
from tests.support.histories import Violation, check
from tests.support.load import Load
from tests.support.transaction_load import TransactionLoad, check_transactions, read_committed

_TRANSACTIONAL_PARTITIONS = 4


class Round(NamedTuple):
    """What happened to one topic; ``committed`` counts transactions."""

    violations: list[Violation]
    acknowledged: int
    committed: int


def run_round(
    cluster: BreakableCluster,
    topic: str,
    faults: Sequence[Fault],
    chance: random.Random,
    *,
    partitions: int,
    records_per_s: float = 1_000,
    transactional_producers: int = 2,
    before: Callable[[Load, Fault], None] = lambda load, _: load.await_progress(),
    after: Callable[[Fault], None] = lambda _: None,
) -> Round:
    """Create a topic, and one for transactions; have the faults happen; check and delete both.

    Without ``transactional_producers`` there are no transactions.

    ``before`` and ``after`` are called around each fault. Raises what faults raise that are not
    repaired in time: ``AssertionError``, ``TimeoutError``, ``KafkaException``.
    """
    writer, reader = cluster.client_settings(WRITER), cluster.client_settings(READER)
    servers = cluster.bootstrap_servers
    written = cluster.create_safe_topic(topic, partitions)
    in_transactions: list[TopicPartition] = []
    if transactional_producers:
        in_transactions = cluster.create_safe_topic(f"{topic}-t", _TRANSACTIONAL_PARTITIONS)
    transactions = [
        TransactionLoad(f"{topic}-{number}", servers, in_transactions, chance.random(), writer)
        for number in range(transactional_producers)
    ]
    with Load(
        servers,
        written,
        records_per_s=records_per_s,
        producer_settings=writer,
        consumer_settings=reader,
        transactions=transactions,
    ) as load:
        for producer in transactions:
            producer.await_progress()
        for fault in faults:
            before(load, fault)
            fault(cluster, load, chance)
            cluster.await_isr(topic, set(BROKERS))
            after(fault)
        load.await_progress()
        for producer in transactions:
            producer.await_progress()
        load.stop_producers()
        logs = cluster.agreed_logs(written)
        load.finish_consumers({p: len(next(iter(logs[p].values()))) for p in written})
    violations = check(load.history, logs)
    if transactions:
        values = read_committed(servers, in_transactions, reader)
        violations += check_transactions(transactions, values)
    for name in dict.fromkeys(partition.topic for partition in (*written, *in_transactions)):
        cluster.delete_topic(name)
    return Round(violations, load.acknowledged, sum(t.committed for t in transactions))
