"""Transactions that hang are named by ``status``."""

from __future__ import annotations

from pathlib import Path

from regent.broker.late_transactions import late_transaction_warnings
from regent.core.model import TopicPartition
from regent.core.protocol.control import UpdateMetadataBroker
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.producer_state_manager import LATE_TRANSACTION_BUFFER_MS
from tests.support.disk_logs import BROKER, T0, Machine, create, log_of
from tests.support.led_partitions import lead
from tests.support.transactional_batches import in_transaction

OPEN = 7


def test_partitions_with_transactions_that_nothing_will_end_are_named(tmp_path: Path):
    machine = Machine(tmp_path / "log")
    try:
        logs = machine.start()
        names = [T0._replace(partition=number) for number in range(OPEN + 1)]
        for name in names:
            create(logs, name)
        replicas = ReplicaManager(BROKER, logs, MetadataCache())
        alive = UpdateMetadataBroker(BROKER, -1, (), None, None, None)
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
