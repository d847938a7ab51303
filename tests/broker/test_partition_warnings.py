"""Partitions whose clients wait are named by ``status``."""

from __future__ import annotations

from pathlib import Path

from regent.broker.partition_warnings import (
    late_transaction_warnings,
    pause_warnings,
    under_min_isr_warnings,
)
from regent.core.model import TopicPartition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log.producer_state_manager import LATE_TRANSACTION_BUFFER_MS
from tests.core.replication.record_stage import TWO_IN_SYNC, RecordBroker
from tests.support.disk_logs import BROKER, T0, Machine, create, log_of
from tests.support.led_partitions import lead
from tests.support.memory_logs import MemoryLogs
from tests.support.transactional_batches import in_transaction
from tests.support.world import live_broker

OPEN = 7


def test_partitions_with_transactions_that_nothing_will_end_are_named(tmp_path: Path):
    machine = Machine(tmp_path / "log")
    try:
        logs = machine.start()
        names = [T0._replace(partition=number) for number in range(OPEN + 1)]
        for name in names:
            create(logs, name)
        replicas = ReplicaManager(BROKER, logs, MetadataCache())
        alive = live_broker(BROKER)
        lead(replicas, alive, {"t": len(names)}, (BROKER,))

        def begin(name: TopicPartition) -> None:
            records = in_transaction(b"0000", producer_id=1, sequence=0)
            log_of(logs, name).append_as_leader(bytearray(records), 0)

        begin(names[0])
        assert late_transaction_warnings(replicas) == ()
        limit_ms = replicas.max_transaction_timeout_ms + LATE_TRANSACTION_BUFFER_MS
        machine.clock.now_ms += limit_ms + 1
        assert late_transaction_warnings(replicas) == (
            "transactions hang in a partition, see docs/operations.md: t-0",
        )
        for name in names[1:OPEN]:
            begin(name)
        assert late_transaction_warnings(replicas) == (
            "transactions hang in 7 partitions, see docs/operations.md:"
            " t-0, t-1, t-2, t-3, t-4 and 2 more",
        )
    finally:
        machine.end()


def test_partitions_with_too_few_replicas_in_sync_are_named():
    leader = RecordBroker(1, TWO_IN_SYNC)
    leader.apply(1, 1, T0, isr=(1, 2))
    assert under_min_isr_warnings(leader.manager) == ()
    leader.apply(1, 2, T0, isr=(1,))
    assert under_min_isr_warnings(leader.manager) == (
        "producers with acks=all wait for a partition with fewer replicas in sync than"
        " min.insync.replicas: t-0",
    )


def test_a_process_that_often_stands_still_says_so():
    replicas = ReplicaManager(BROKER, MemoryLogs(), MetadataCache())
    times, now_s = replicas.follower_times, 100.0
    for _ in range(10):
        times.on_fetch(2, now_s, goes_on=True)
        times.tick(now_s)
        now_s += 1.0
    assert pause_warnings(replicas, now_s) == (
        "it runs slowly: its process stood still for 6 s of the last minute; look at the load and"
        " the memory of its machine, and at who stops it",
    )
    assert pause_warnings(replicas, now_s + 60) == ()
