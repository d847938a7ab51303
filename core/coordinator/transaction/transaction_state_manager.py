"""The transactional ids of this coordinator: which partitions it owns, what it stores and reads.

A transactional id belongs to a partition of ``__transaction_state``, and to the leader of that
partition, which reads the log of the partition before it answers. Its *coordinator epoch* is the
term of its leadership. Nothing is done about a transition before its record is committed. A write
that has failed may still be in the log, and become committed: this is harmless, because nobody was
told, and the next record of the same id replaces it. Mirrors
``kafka.coordinator.transaction.TransactionStateManager``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from regent.core.coordinator.owned_partitions import OwnedPartitions
from regent.core.coordinator.transaction.transaction_metadata import (
    DEAD,
    EXPIRABLE,
    ONGOING,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from regent.core.coordinator.transaction.transaction_records import (
    EncodedRecord,
    StoredTransaction,
    encode_transaction,
    encode_transaction_key,
)
from regent.core.errors import Errors
from regent.core.protocol.messages.transactions import (
    ListedTransactionState,
    ListTransactionsResponse,
)
from regent.core.protocol.transactions import ListTransactions

Respond = Callable[[Errors], None]

_TOMBSTONES_TOGETHER: Final = 1_000
"""How many ids that have expired are deleted by one append."""

_APPEND_ERRORS: Final[Mapping[Errors, Errors]] = {
    Errors.UNKNOWN_TOPIC_OR_PARTITION: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.REQUEST_TIMED_OUT: Errors.COORDINATOR_NOT_AVAILABLE,
    Errors.NOT_LEADER_OR_FOLLOWER: Errors.NOT_COORDINATOR,
    Errors.KAFKA_STORAGE_ERROR: Errors.NOT_COORDINATOR,
    Errors.MESSAGE_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
    Errors.RECORD_LIST_TOO_LARGE: Errors.UNKNOWN_SERVER_ERROR,
}


@dataclass(frozen=True)
class TransactionConfig:
    """Kafka's settings of the same names, and Kafka's defaults.

    ``missing_partition_grace_ms`` (ours): how long a partition that the metadata cache does not
    have may be one that it does not have *yet*. After that its topic counts as deleted.
    """

    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    missing_partition_grace_ms: int = 30_000


@dataclass(frozen=True)
class TransactionLogSettings:
    """How transactions are stored: Kafka's settings of the same names, and Kafka's defaults."""

    request_timeout_ms: int = 30_000
    transaction_state_log_load_buffer_size: int = 5 * 1024 * 1024


class TransactionLog(Protocol):
    """The partitions of ``__transaction_state`` that this broker leads."""

    def append(
        self, partition: int, term: int, records: Sequence[EncodedRecord], respond: Respond
    ) -> None:
        """Append records, all or none; ``respond`` when all replicas in sync have them.

        NOT_LEADER_OR_FOLLOWER if the leadership of ``term`` has ended, also if another began.
        """
        ...

    def load(self, partition: int, term: int) -> None:
        """Begin to read a partition; ``TransactionCoordinator.on_loaded`` is called at the end."""
        ...


class EpochAndMetadata(NamedTuple):
    """A transactional id with the coordinator epoch of its partition."""

    coordinator_epoch: int
    metadata: TransactionMetadata


class TransactionStateManager:
    """Used on the coordinator's thread only."""

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        time_ms: Callable[[], int],
        partition_of: Callable[[str], int],
    ) -> None:
        """``partition_of`` returns the partition that has the records of a transactional id."""
        self._config = config
        self._log = log
        self._time_ms = time_ms
        self._partition_of = partition_of
        self._owned = OwnedPartitions()
        self._unread: dict[int, int] = {}  # partitions that could not be read, with their terms
        self._ids: dict[int, dict[str, TransactionMetadata]] = {}  # of owned partitions

    # --- ownership ---

    def on_elected(self, partition: int, epoch: int, term: int) -> bool:
        """This broker leads a partition: read it, unless it did so already or knows of a later.

        Return whether it is read now.
        """
        is_read = self._owned.on_elected(partition, epoch, term)
        if is_read:
            self._ids.pop(partition, None)
            self._log.load(partition, term)
        return is_read

    def on_loaded(
        self, partition: int, term: int, transactions: Iterable[TransactionMetadata] | None
    ) -> list[TransactionMetadata]:
        """A partition was read; None: it could not be, and has to be read again.

        Return the ids that are owned now.
        """
        if transactions is None:
            self._unread[partition] = term
        is_owned = self._owned.on_loaded(partition, term, is_read=transactions is not None)
        if not is_owned or transactions is None:
            return []
        self._ids[partition] = {row.transactional_id: row for row in transactions}
        return list(self._ids[partition].values())

    def read_again(self) -> None:
        """Read the partitions that could not be read, unless their leaderships have ended."""
        unread, self._unread = self._unread, {}
        for partition, term in unread.items():
            if self._owned.is_awaited(partition, term):
                self._log.load(partition, term)

    def on_resigned(self, partition: int, epoch: int | None) -> bool:
        """This broker does not lead a partition any more; return False if this is old news."""
        is_news = self._owned.on_resigned(partition, epoch)
        if is_news:
            self._ids.pop(partition, None)
        return is_news

    def partition_of(self, transactional_id: str) -> int:
        """Return the partition that has the records of a transactional id."""
        return self._partition_of(transactional_id)

    # --- transactional ids ---

    def get(self, transactional_id: str) -> EpochAndMetadata | Errors | None:
        """Return a transactional id, why it cannot be had here, or None: it is unknown."""
        partition = self._partition_of(transactional_id)
        term = self._owned.term(partition)
        if term is None:
            return self._owned.problem(partition)
        metadata = self._ids[partition].get(transactional_id)
        return None if metadata is None else EpochAndMetadata(term, metadata)

    def put(self, metadata: TransactionMetadata) -> EpochAndMetadata:
        """Add a transactional id, of an owned partition."""
        partition = self._partition_of(metadata.transactional_id)
        term = self._owned.term(partition)
        assert term is not None
        self._ids[partition][metadata.transactional_id] = metadata
        return EpochAndMetadata(term, metadata)

    def problem(self, metadata: TransactionMetadata, coordinator_epoch: int) -> Errors:
        """Return NONE if a transactional id is the one that was known in a coordinator epoch."""
        found = self.get(metadata.transactional_id)
        if isinstance(found, Errors):
            return found
        is_same = found == EpochAndMetadata(coordinator_epoch, metadata)
        return Errors.NONE if is_same else Errors.NOT_COORDINATOR

    def leader_epoch(self, metadata: TransactionMetadata) -> int:
        """Return the present leader epoch of the partition of a transactional id."""
        return self._owned.leader_epoch(self._partition_of(metadata.transactional_id))

    def is_valid_timeout(self, transaction_timeout_ms: int) -> bool:
        """Whether a transaction may take so long."""
        return 0 < transaction_timeout_ms <= self._config.transaction_max_timeout_ms

    def append(
        self,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        transit: TxnTransitMetadata,
        respond: Respond,
        *,
        is_retried: bool = False,
    ) -> None:
        """Write a transition, then complete it.

        If it fails, it is not pending any more, except with ``is_retried``: then the caller will
        append it again, while this broker is the coordinator (``problem`` says it; the error of an
        append does not: a log that lacks descriptors answers as one that is led elsewhere).
        """

        def appended(error: Errors) -> None:
            if error is Errors.NONE:
                metadata.complete_transition_to(transit)
            elif not is_retried and self.problem(metadata, coordinator_epoch) is Errors.NONE:
                metadata.pending_state = None
            respond(error)

        self._write(metadata, coordinator_epoch, transit, appended)

    def confirm(
        self, metadata: TransactionMetadata, coordinator_epoch: int, respond: Respond
    ) -> None:
        """Write once more what is in the log: only the present coordinator can.

        A former one, which has not heard of its successor, may know of an earlier transaction only.
        """
        self._write(metadata, coordinator_epoch, metadata.prepare_no_transit(), respond)

    def _write(
        self,
        metadata: TransactionMetadata,
        coordinator_epoch: int,
        transit: TxnTransitMetadata,
        respond: Respond,
    ) -> None:
        """Write a record; NONE: it is committed, and this broker is the coordinator as before."""
        problem = self.problem(metadata, coordinator_epoch)
        if problem is not Errors.NONE:
            respond(problem)
            return

        def appended(error: Errors) -> None:
            if error is Errors.NONE:
                error = self.problem(metadata, coordinator_epoch)
            respond(_APPEND_ERRORS.get(error, error))

        key = encode_transaction_key(metadata.transactional_id)
        value = encode_transaction(StoredTransaction.of(transit))
        partition = self._partition_of(metadata.transactional_id)
        self._log.append(partition, coordinator_epoch, [(key, value)], appended)

    # --- what takes too long ---

    def timed_out(self) -> Sequence[EpochAndMetadata]:
        """Return the ids whose transaction has been open for longer than its timeout."""
        now_ms = self._time_ms()
        return [
            EpochAndMetadata(term, metadata)
            for term, metadata in self._all()
            if metadata.pending_state is None
            and metadata.state is ONGOING
            and metadata.txn_start_timestamp_ms + metadata.txn_timeout_ms < now_ms
        ]

    def expire(self) -> int:
        """Delete the ids that were not used for long; return how many."""
        last_used_ms = self._time_ms() - self._config.transactional_id_expiration_ms
        expired = [
            EpochAndMetadata(term, metadata)
            for term, metadata in self._all()
            if metadata.pending_state is None
            and metadata.state in EXPIRABLE
            and metadata.txn_last_update_timestamp_ms <= last_used_ms
        ]
        by_partition: dict[int, list[EpochAndMetadata]] = {}
        for row in expired:
            row.metadata.prepare_dead()
            partition = self._partition_of(row.metadata.transactional_id)
            by_partition.setdefault(partition, []).append(row)
        for partition, rows in by_partition.items():
            for first in range(0, len(rows), _TOMBSTONES_TOGETHER):
                self._delete(partition, rows[first : first + _TOMBSTONES_TOGETHER])
        return len(expired)

    def _delete(self, partition: int, rows: Sequence[EpochAndMetadata]) -> None:
        def appended(error: Errors) -> None:
            for coordinator_epoch, metadata in rows:
                if self.problem(metadata, coordinator_epoch) is not Errors.NONE:
                    continue
                if error is Errors.NONE and metadata.pending_state is DEAD:
                    del self._ids[partition][metadata.transactional_id]
                else:  # else the id would be blocked for ever (KAFKA-7519)
                    metadata.pending_state = None

        records = [(encode_transaction_key(row.metadata.transactional_id), None) for row in rows]
        self._log.append(partition, rows[0].coordinator_epoch, records, appended)

    # --- tools ---

    def list_transactions(self, request: ListTransactions) -> ListTransactionsResponse:
        """Return the ids that match, unless a partition is being read."""
        if self._owned.is_loading:
            return ListTransactionsResponse(error_code=Errors.COORDINATOR_LOAD_IN_PROGRESS)
        known = {state.value for state in TransactionState}
        now_ms = self._time_ms()
        return ListTransactionsResponse(
            error_code=Errors.NONE,
            transaction_states=tuple(
                ListedTransactionState(
                    transactional_id=metadata.transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.value,
                )
                for _, metadata in self._all()
                if (not request.states or metadata.state.value in request.states)
                and (not request.producer_ids or metadata.producer_id in request.producer_ids)
                and (
                    request.duration_ms < 0
                    or now_ms - metadata.txn_start_timestamp_ms > request.duration_ms
                )
            ),
            unknown_state_filters=tuple(
                state for state in dict.fromkeys(request.states) if state not in known
            ),
        )

    def _all(self) -> Iterable[EpochAndMetadata]:
        for partition, ids in self._ids.items():
            term = self._owned.term(partition)
            assert term is not None
            for metadata in ids.values():
                yield EpochAndMetadata(term, metadata)
