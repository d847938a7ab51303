"""What a coordinator knows of one transactional id: its state, and the transitions between states.

    Empty ───────────────► Ongoing ──► PrepareCommit ──► CompleteCommit ──► Empty, Ongoing
      ▲                       │
      │ InitProducerId        └──────► PrepareAbort ───► CompleteAbort ───► Empty, Ongoing
      └── Complete…                       (also after PrepareEpochFence)

A transition is prepared, then written to the log, then completed: what is prepared is only pending,
and while it is, no other can be. PrepareEpochFence is pending only, never written: the coordinator
is about to abort a transaction with an epoch that its producer does not have. Dead is pending while
an expired id is deleted from the log. Mirrors
``kafka.coordinator.transaction.TransactionMetadata``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_EPOCH: Final = 2**15 - 1
"""Fences a producer that has the last epoch; no producer is ever given it."""
NO_TIMESTAMP: Final = -1


class IllegalTransactionStateError(RuntimeError):
    """A transition that must not happen: an error in this program."""


class TransactionState(Enum):
    """A state; its value is Kafka's name of it."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


EMPTY: Final = TransactionState.EMPTY
ONGOING: Final = TransactionState.ONGOING
PREPARE_COMMIT: Final = TransactionState.PREPARE_COMMIT
PREPARE_ABORT: Final = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TransactionState.COMPLETE_ABORT
DEAD: Final = TransactionState.DEAD
PREPARE_EPOCH_FENCE: Final = TransactionState.PREPARE_EPOCH_FENCE

_VALID_PREVIOUS_STATES: Final = {
    EMPTY: {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    ONGOING: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: {ONGOING, PREPARE_EPOCH_FENCE},
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
    DEAD: {EMPTY, COMPLETE_ABORT, COMPLETE_COMMIT},
    PREPARE_EPOCH_FENCE: {ONGOING},
}
EXPIRABLE: Final = frozenset({EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT})
"""In these states a transactional id may be forgotten."""


def is_epoch_exhausted(producer_epoch: int) -> bool:
    """Whether no epoch follows that a producer may be given."""
    return producer_epoch >= MAX_EPOCH - 1


@dataclass(frozen=True, slots=True)
class TxnTransitMetadata:
    """What a transactional id will be after a transition."""

    producer_id: int
    last_producer_id: int
    producer_epoch: int
    last_producer_epoch: int
    txn_timeout_ms: int
    state: TransactionState
    topic_partitions: frozenset[TopicPartition]
    txn_start_timestamp_ms: int
    txn_last_update_timestamp_ms: int


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """One transactional id.

    ``last_producer_id`` and ``last_producer_epoch`` are those before the last InitProducerId, for a
    producer that repeats it because the answer was lost. The log does not have them.
    ``has_failed_epoch_fence``: an epoch that fences was not written. It is used again by the next
    attempt, so that repeated failures do not use up all epochs (KAFKA-9666).
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    txn_timeout_ms: int = 0
    state: TransactionState = EMPTY
    topic_partitions: set[TopicPartition] = field(default_factory=set)
    txn_start_timestamp_ms: int = NO_TIMESTAMP
    txn_last_update_timestamp_ms: int = 0
    last_producer_id: int = NO_PRODUCER_ID
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    pending_state: TransactionState | None = None
    has_failed_epoch_fence: bool = False

    def prepare_no_transit(self) -> TxnTransitMetadata:
        """Return what it is, without a transition."""
        return TxnTransitMetadata(
            self.producer_id,
            self.last_producer_id,
            self.producer_epoch,
            self.last_producer_epoch,
            self.txn_timeout_ms,
            self.state,
            frozenset(self.topic_partitions),
            self.txn_start_timestamp_ms,
            self.txn_last_update_timestamp_ms,
        )

    # --- the first step of a transition ---

    def prepare_fence_producer_epoch(self) -> TxnTransitMetadata:
        """Prepare an epoch that fences the producer of an open transaction."""
        bumped = self.producer_epoch if self.has_failed_epoch_fence else self.producer_epoch + 1
        if bumped > MAX_EPOCH:
            raise IllegalTransactionStateError(f"{self.transactional_id}: no epoch is left")
        return self._prepare(
            PREPARE_EPOCH_FENCE,
            self.txn_last_update_timestamp_ms,
            producer_epoch=bumped,
            last_producer_epoch=NO_PRODUCER_EPOCH,
        )

    def prepare_increment_producer_epoch(
        self, txn_timeout_ms: int, expected_epoch: int | None, now_ms: int
    ) -> TxnTransitMetadata | Errors:
        """Prepare the next epoch of a producer; PRODUCER_FENCED: it is not the newest one.

        A producer that expects the epoch before the present one repeats a request whose answer was
        lost: it gets the present one (KIP-360). Without an epoch that is left, Kafka fails here.
        """
        if is_epoch_exhausted(self.producer_epoch):
            return Errors.PRODUCER_FENCED
        next_epoch, last_epoch = self.producer_epoch + 1, self.producer_epoch
        if expected_epoch is None:
            last_epoch = NO_PRODUCER_EPOCH
        elif self.producer_epoch not in (NO_PRODUCER_EPOCH, expected_epoch):
            if expected_epoch != self.last_producer_epoch:
                return Errors.PRODUCER_FENCED
            next_epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        return self._prepare(
            EMPTY,
            now_ms,
            producer_epoch=next_epoch,
            last_producer_epoch=last_epoch,
            txn_timeout_ms=txn_timeout_ms,
            topic_partitions=frozenset(),
            txn_start_timestamp_ms=NO_TIMESTAMP,
        )

    def prepare_producer_id_rotation(
        self, producer_id: int, txn_timeout_ms: int, now_ms: int, *, keeps_last_epoch: bool
    ) -> TxnTransitMetadata:
        """Prepare another producer id, because the epochs of the present one are used up."""
        last_epoch = self.producer_epoch if keeps_last_epoch else NO_PRODUCER_EPOCH
        return self._prepare(
            EMPTY,
            now_ms,
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=last_epoch,
            txn_timeout_ms=txn_timeout_ms,
            topic_partitions=frozenset(),
            txn_start_timestamp_ms=NO_TIMESTAMP,
        )

    def prepare_add_partitions(
        self, added: frozenset[TopicPartition], now_ms: int
    ) -> TxnTransitMetadata:
        """Prepare that partitions become part of the transaction, which may begin with them."""
        start_ms = self.txn_start_timestamp_ms if self.state is ONGOING else now_ms
        return self._prepare(
            ONGOING,
            now_ms,
            topic_partitions=added.union(self.topic_partitions),
            txn_start_timestamp_ms=start_ms,
        )

    def prepare_abort_or_commit(self, state: TransactionState, now_ms: int) -> TxnTransitMetadata:
        """Prepare the decision about the transaction."""
        return self._prepare(state, now_ms)

    def prepare_complete(self, now_ms: int) -> TxnTransitMetadata:
        """Prepare the end of the transaction, which markers have told all its partitions."""
        is_commit = self.state is PREPARE_COMMIT
        self.has_failed_epoch_fence = False
        state = COMPLETE_COMMIT if is_commit else COMPLETE_ABORT
        return self._prepare(state, now_ms, topic_partitions=frozenset())

    def prepare_dead(self) -> TxnTransitMetadata:
        """Prepare that the transactional id is forgotten."""
        no_partitions: frozenset[TopicPartition] = frozenset()
        return self._prepare(
            DEAD, self.txn_last_update_timestamp_ms, topic_partitions=no_partitions
        )

    def _prepare(
        self,
        state: TransactionState,
        now_ms: int,
        *,
        producer_id: int | None = None,
        producer_epoch: int | None = None,
        last_producer_epoch: int | None = None,
        txn_timeout_ms: int | None = None,
        topic_partitions: frozenset[TopicPartition] | None = None,
        txn_start_timestamp_ms: int | None = None,
    ) -> TxnTransitMetadata:
        """Note a transition as pending, and return it; None: that does not change."""
        transit = TxnTransitMetadata(
            _or(producer_id, self.producer_id),
            self.producer_id,
            _or(producer_epoch, self.producer_epoch),
            _or(last_producer_epoch, self.last_producer_epoch),
            _or(txn_timeout_ms, self.txn_timeout_ms),
            state,
            frozenset(self.topic_partitions) if topic_partitions is None else topic_partitions,
            _or(txn_start_timestamp_ms, self.txn_start_timestamp_ms),
            now_ms,
        )
        # An id whose first epoch was never written has epoch -1, and can expire (KAFKA-14880).
        has_epoch = state is DEAD or transit.producer_epoch >= 0
        is_legal = self.state in _VALID_PREVIOUS_STATES[state] and transit.producer_id >= 0
        if self.pending_state is not None or not has_epoch or not is_legal:
            raise IllegalTransactionStateError(f"{self} cannot become {transit}")
        self.pending_state = state
        return transit

    # --- the last step ---

    def complete_transition_to(self, transit: TxnTransitMetadata) -> None:
        """Become what is in the log now. Timestamps may go backwards (KAFKA-8803)."""
        if self.pending_state is not transit.state or not self._may_become(transit):
            raise IllegalTransactionStateError(f"{self} cannot become {transit}")
        if transit.state is EMPTY:
            self.txn_timeout_ms = transit.txn_timeout_ms
            self.producer_epoch = transit.producer_epoch
            self.last_producer_epoch = transit.last_producer_epoch
            self.producer_id = transit.producer_id
            self.last_producer_id = transit.last_producer_id
        elif transit.state is ONGOING:
            self.topic_partitions.update(transit.topic_partitions)
        elif transit.state in (COMPLETE_COMMIT, COMPLETE_ABORT):
            self.topic_partitions.clear()
        self.txn_start_timestamp_ms = transit.txn_start_timestamp_ms
        self.txn_last_update_timestamp_ms = transit.txn_last_update_timestamp_ms
        self.pending_state = None
        self.state = transit.state

    def _may_become(self, transit: TxnTransitMetadata) -> bool:
        has_same_producer = (transit.producer_id, transit.producer_epoch) == (
            self.producer_id,
            self.producer_epoch,
        )
        has_same_timeout = transit.txn_timeout_ms == self.txn_timeout_ms
        match transit.state:
            case TransactionState.EMPTY:
                is_rotated = transit.producer_epoch == 0 and transit.producer_id != self.producer_id
                return (
                    transit.producer_epoch - self.producer_epoch in (0, 1) or is_rotated
                ) and not transit.topic_partitions
            case TransactionState.ONGOING:
                has_all = transit.topic_partitions >= self.topic_partitions
                return has_same_producer and has_same_timeout and has_all
            case TransactionState.PREPARE_COMMIT | TransactionState.PREPARE_ABORT:
                return (
                    has_same_producer
                    and has_same_timeout
                    and transit.topic_partitions == self.topic_partitions
                    and transit.txn_start_timestamp_ms == self.txn_start_timestamp_ms
                )
            case TransactionState.COMPLETE_COMMIT | TransactionState.COMPLETE_ABORT:
                has_start = transit.txn_start_timestamp_ms != NO_TIMESTAMP
                return has_same_producer and has_same_timeout and has_start
            case _:
                return False


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value
