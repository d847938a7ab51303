"""The partitions of ``__transaction_state`` as the transaction coordinator writes and reads them.

Implements ``core.coordinator.transaction.transaction_state_manager.TransactionLog``. Kafka waits
for the replicas as long as the transaction may take; here all records wait equally long, because
those of several transactions share a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from regent.actors.coordinator_log import Appended, CoordinatorLog, Flush, Loaded, PartitionReader
from regent.core.coordinator.transaction.transaction_metadata import TransactionMetadata
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    TransactionLoader,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    Respond,
    TransactionLogSettings,
)
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.records.record_batch import BatchHeader, KeyAndValue

log = logging.getLogger(__name__)


class TransactionCoordinatorLog(CoordinatorLog[Sequence[TransactionMetadata]]):
    """Used on the coordinator's thread; ``tell`` sends a message to its actor, from any thread."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        settings: TransactionLogSettings,
        tell: Callable[[Flush | Appended | Loaded], None],
    ) -> None:
        super().__init__(
            TRANSACTION_STATE_TOPIC,
            replica_manager,
            tell,
            append_timeout_ms=settings.request_timeout_ms,
            load_buffer_size=settings.transaction_state_log_load_buffer_size,
        )

    def append(
        self, partition: int, term: int, records: Sequence[EncodedRecord], respond: Respond
    ) -> None:
        """See ``TransactionLog.append``."""
        self.append_encoded(partition, term, records, lambda error, _offset: respond(error))

    def new_reader(self) -> PartitionReader[Sequence[TransactionMetadata]]:
        """See ``CoordinatorLog.new_reader``."""
        return _TransactionReader()


class _TransactionReader:
    """Passes batches to a ``TransactionLoader``."""

    def __init__(self) -> None:
        self._loader = TransactionLoader()

    def add(self, header: BatchHeader, records: Iterable[KeyAndValue]) -> None:
        if not header.is_control:
            self._loader.add_batch(records)

    def content(self) -> Sequence[TransactionMetadata]:
        found = self._loader.transactions()
        if self._loader.problems:
            log.error(
                "%d records of transactions cannot be read and are left out, the first: %s",
                len(self._loader.problems),
                self._loader.problems[0],
            )
        return found
