"""The transaction coordinator: requests of producers in, answers, records and markers out.

A producer with a transactional id gets a producer id and an epoch; a newer epoch fences it. Its
transaction begins with the first partition that it adds. It ends when the decision, commit or
abort, is in the log: then the producer is told, and the partitions get their markers.

It is used on one thread only, and has no clock and no timers: call ``abort_timed_out``,
``expire_ids`` and ``markers.retry`` periodically. Mirrors
``kafka.coordinator.transaction.TransactionCoordinator``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from regent.core.coordinator.transaction.transaction_marker_manager import (
    LeaderOf,
    MarkerSender,
    TransactionMarkerManager,
)
from regent.core.coordinator.transaction.transaction_metadata import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    PREPARE_EPOCH_FENCE,
    TransactionMetadata,
    TxnTransitMetadata,
    is_epoch_exhausted,
)
from regent.core.coordinator.transaction.transaction_state_manager import (
    EpochAndMetadata,
    TransactionConfig,
    TransactionLog,
    TransactionStateManager,
)
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.messages.transactions import (
    DescribedTransactionState,
    DescribedTransactionTopic,
)
from regent.core.protocol.transactions import (
    NO_PRODUCER_EPOCH,
    AddPartitionsToTxn,
    DescribeTransaction,
    EndTxn,
    InitProducerId,
    ListTransactions,
)

Respond = Callable[[Errors], None]
RespondToInit = Callable[[InitProducerIdResponse], None]
RespondToPartitions = Callable[[Mapping[TopicPartition, Errors]], None]

NextProducerId = Callable[[], int | Errors]
"""Returns a new producer id without blocking, or the error that prevents it."""

_PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
_AGAIN: Final = Errors.CONCURRENT_TRANSACTIONS
"""The answer while a transaction ends: clients ask again soon."""


class TransactionCoordinator:
    """Answers the requests about transactional ids whose partition this broker leads."""

    def __init__(
        self,
        config: TransactionConfig,
        log: TransactionLog,
        sender: MarkerSender,
        *,
        time_ms: Callable[[], int],
        partition_of: Callable[[str], int],
        leader_of: LeaderOf,
        next_producer_id: NextProducerId,
        knows_all: Callable[[], bool] = lambda: True,
    ) -> None:
        """``partition_of`` returns the partition of a transactional id.

        ``knows_all``: whether the metadata cache has received a complete list of partitions.
        """
        self.states = TransactionStateManager(config, log, time_ms, partition_of)
        self.markers = TransactionMarkerManager(
            self.states,
            sender,
            leader_of,
            time_ms,
            knows_all=knows_all,
            missing_partition_grace_ms=config.missing_partition_grace_ms,
        )
        self._time_ms = time_ms
        self._leader_of = leader_of
        self._knows_all = knows_all
        self._next_producer_id = next_producer_id

    # --- leaderships ---

    def on_elected(self, partition: int, epoch: int, term: int) -> None:
        """This broker leads a partition of ``__transaction_state``."""
        if self.states.on_elected(partition, epoch, term):
            self.markers.forget_partition(partition)

    def on_loaded(
        self, partition: int, term: int, transactions: Iterable[TransactionMetadata] | None
    ) -> None:
        """Send the markers of decided transactions after reading a partition; None: it failed."""
        for metadata in self.states.on_loaded(partition, term, transactions):
            if metadata.state in _PREPARED:
                self.markers.add(metadata, term, metadata.prepare_complete(self._time_ms()))

    def on_resigned(self, partition: int, epoch: int | None) -> None:
        """This broker does not lead a partition any more; None: its replica was deleted."""
        if self.states.on_resigned(partition, epoch):
            self.markers.forget_partition(partition)

    # --- requests ---

    def handle(self, request: object, respond: Callable[[Any], None]) -> None:
        """Call ``respond`` with the answer to a request, now or later."""
        match request:
            case InitProducerId():
                self.init_producer_id(request, respond)
            case AddPartitionsToTxn():
                self.add_partitions(request, respond)
            case EndTxn():
                self.end(request, respond)
            case DescribeTransaction():
                respond(self.describe(request.transactional_id))
            case ListTransactions():
                respond(self.states.list_transactions(request))
            case _:
                raise TypeError(f"{request!r} is not a request about transactions")

    def init_producer_id(self, request: InitProducerId, respond: RespondToInit) -> None:
        """Give a producer its id and a new epoch; an open transaction is aborted first."""

        def refuse(error: Errors) -> None:
            error = _told(error, knows_fencing=request.knows_fencing)
            respond(InitProducerIdResponse(error_code=error))

        found = self._get_or_create(request)
        if isinstance(found, Errors):
            refuse(found)
            return
        transit = self._prepare_init(found.metadata, request)
        if isinstance(transit, Errors):
            refuse(transit)
        elif transit.state is PREPARE_EPOCH_FENCE:
            self._abort(found, transit, lambda error: refuse(error or _AGAIN))
        else:
            given = InitProducerIdResponse(
                error_code=Errors.NONE,
                producer_id=transit.producer_id,
                producer_epoch=transit.producer_epoch,
            )
            self.states.append(
                found.metadata,
                found.coordinator_epoch,
                transit,
                lambda error: refuse(error) if error else respond(given),
            )

    def _get_or_create(self, request: InitProducerId) -> EpochAndMetadata | Errors:
        if not request.transactional_id:
            return Errors.INVALID_REQUEST
        if not self.states.is_valid_timeout(request.transaction_timeout_ms):
            return Errors.INVALID_TRANSACTION_TIMEOUT
        found = self.states.get(request.transactional_id)
        if found is not None:
            return found
        producer_id = self._next_producer_id()
        if isinstance(producer_id, Errors):
            return producer_id
        created = TransactionMetadata(
            request.transactional_id,
            producer_id,
            txn_timeout_ms=request.transaction_timeout_ms,
            txn_last_update_timestamp_ms=self._time_ms(),
        )
        return self.states.put(created)

    def _prepare_init(
        self, metadata: TransactionMetadata, request: InitProducerId
    ) -> TxnTransitMetadata | Errors:
        expected, timeout_ms = request.expected, request.transaction_timeout_ms
        if metadata.pending_state is not None:
            return _AGAIN
        if not _may_continue(metadata, expected):
            return Errors.PRODUCER_FENCED
        if metadata.state in _PREPARED:
            return _AGAIN
        if metadata.state is ONGOING:
            return metadata.prepare_fence_producer_epoch()
        expected_epoch = None if expected is None else expected.producer_epoch
        is_newest = expected_epoch in (None, metadata.producer_epoch)
        if not is_newest or not is_epoch_exhausted(metadata.producer_epoch):
            return metadata.prepare_increment_producer_epoch(
                timeout_ms, expected_epoch, self._time_ms()
            )
        producer_id = self._next_producer_id()
        if isinstance(producer_id, Errors):
            return producer_id
        return metadata.prepare_producer_id_rotation(
            producer_id, timeout_ms, self._time_ms(), keeps_last_epoch=expected is not None
        )

    def add_partitions(self, request: AddPartitionsToTxn, respond: RespondToPartitions) -> None:
        """Add all partitions to a transaction, or none; or return which ones belong to it."""
        unknown = {row for row in request.partitions if self._leader_of(row) is None}
        if unknown and request.must_exist:
            error = (
                Errors.UNKNOWN_TOPIC_OR_PARTITION
                if self._knows_all()
                else Errors.COORDINATOR_LOAD_IN_PROGRESS
            )
            errors = request.refused(Errors.OPERATION_NOT_ATTEMPTED)
            respond({**errors, **dict.fromkeys(unknown, error)})
            return

        def answer(error: Errors) -> None:
            respond(request.refused(_told(error, knows_fencing=request.knows_fencing)))

        found = self._of_producer(request.transactional_id, request.producer)
        if isinstance(found, Errors):
            answer(found)
            return
        coordinator_epoch, metadata = found
        is_pending = metadata.pending_state is not None and not request.verify_only  # KAFKA-14904
        if is_pending or metadata.state in _PREPARED:
            answer(_AGAIN)
        elif request.verify_only:
            missing = set(request.partitions) - metadata.topic_partitions
            errors = dict.fromkeys(missing, Errors.TRANSACTION_ABORTABLE)
            respond({**request.refused(Errors.NONE), **errors})
        elif metadata.state is ONGOING and metadata.topic_partitions.issuperset(request.partitions):
            answer(Errors.NONE)
        else:
            added = frozenset(request.partitions)
            transit = metadata.prepare_add_partitions(added, self._time_ms())
            self.states.append(metadata, coordinator_epoch, transit, answer)

    def end(self, request: EndTxn, respond: Respond) -> None:
        """Commit or abort the transaction of a producer."""

        def answer(error: Errors) -> None:
            respond(_told(error, knows_fencing=request.knows_fencing))

        found = self._of_producer(request.transactional_id, request.producer)
        if isinstance(found, Errors):
            answer(found)
            return
        metadata, is_commit = found.metadata, request.is_commit
        if metadata.pending_state is not None:
            answer(_AGAIN)
        elif metadata.state is ONGOING:
            state = PREPARE_COMMIT if is_commit else PREPARE_ABORT
            transit = metadata.prepare_abort_or_commit(state, self._time_ms())
            self._decide(found, transit, answer)
        elif metadata.state is (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):
            # A retry: the answer was lost. Kafka answers at once; a deposed coordinator would then
            # confirm a later transaction that it has never seen.
            self.states.confirm(metadata, found.coordinator_epoch, answer)
        elif metadata.state is (PREPARE_COMMIT if is_commit else PREPARE_ABORT):
            answer(_AGAIN)
        else:
            answer(Errors.INVALID_TXN_STATE)

    def _of_producer(
        self, transactional_id: str, producer: ProducerIdAndEpoch
    ) -> EpochAndMetadata | Errors:
        """Return a transactional id if the producer is the present one."""
        if not transactional_id:
            return Errors.INVALID_REQUEST
        found = self.states.get(transactional_id)
        if isinstance(found, Errors):
            return found
        if found is None or found.metadata.producer_id != producer.producer_id:
            return Errors.INVALID_PRODUCER_ID_MAPPING
        if found.metadata.producer_epoch != producer.producer_epoch:  # also a larger (KAFKA-9600)
            return Errors.PRODUCER_FENCED
        return found

    # --- the end of a transaction ---

    def _abort(self, found: EpochAndMetadata, fence: TxnTransitMetadata, respond: Respond) -> None:
        """Abort an open transaction with an epoch that nobody has, which fences its producer."""
        coordinator_epoch, metadata = found
        metadata.pending_state = None
        metadata.producer_epoch = fence.producer_epoch
        metadata.last_producer_epoch = NO_PRODUCER_EPOCH
        transit = metadata.prepare_abort_or_commit(PREPARE_ABORT, self._time_ms())

        def decided(error: Errors) -> None:
            is_known = self.states.problem(metadata, coordinator_epoch) is Errors.NONE
            if error is not Errors.NONE and is_known:
                metadata.has_failed_epoch_fence = True
            respond(error)

        self._decide(found, transit, decided)

    def _decide(
        self, found: EpochAndMetadata, transit: TxnTransitMetadata, respond: Respond
    ) -> None:
        """Write a decision; when it is committed, answer, and send the markers."""
        coordinator_epoch, metadata = found

        def appended(error: Errors) -> None:
            if error is not Errors.NONE:
                respond(error)
                return
            complete = metadata.prepare_complete(self._time_ms())
            respond(Errors.NONE)
            self.markers.add(metadata, coordinator_epoch, complete)

        self.states.append(metadata, coordinator_epoch, transit, appended)

    # --- what takes too long ---

    def abort_timed_out(self) -> int:
        """Abort the transactions that are open for too long; return how many there are.

        Partitions that could not be read are read again.
        """
        self.states.read_again()
        timed_out = self.states.timed_out()
        for found in timed_out:
            fence = found.metadata.prepare_fence_producer_epoch()
            self._abort(found, fence, lambda _error: None)
        return len(timed_out)

    def expire_ids(self) -> int:
        """Delete the transactional ids that were not used for long; return how many."""
        return self.states.expire()

    def on_partitions_deleted(self, partitions: Collection[TopicPartition]) -> None:
        """Topics are gone."""
        self.markers.on_partitions_deleted(partitions)

    # --- tools ---

    def describe(self, transactional_id: str) -> DescribedTransactionState:
        """Return the state of a transactional id."""
        refused = DescribeTransaction(transactional_id).refused
        if not transactional_id:
            return refused(Errors.INVALID_REQUEST)
        found = self.states.get(transactional_id)
        if isinstance(found, Errors):
            return refused(found)
        if found is None:
            return refused(Errors.TRANSACTIONAL_ID_NOT_FOUND)
        metadata, topics = found.metadata, dict[str, list[int]]()
        for topic, partition in sorted(metadata.topic_partitions):
            topics.setdefault(topic, []).append(partition)
        return DescribedTransactionState(
            error_code=Errors.NONE,
            transactional_id=transactional_id,
            transaction_state=metadata.state.value,
            transaction_timeout_ms=metadata.txn_timeout_ms,
            transaction_start_time_ms=metadata.txn_start_timestamp_ms,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            topics=tuple(
                DescribedTransactionTopic(topic=topic, partitions=tuple(partitions))
                for topic, partitions in topics.items()
            ),
        )


def _may_continue(metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> bool:
    """Whether a producer that continues is not fenced by its producer id."""
    if expected is None or metadata.producer_epoch == NO_PRODUCER_EPOCH:
        return True
    is_rotated = expected.producer_id == metadata.last_producer_id
    return expected.producer_id == metadata.producer_id or (
        is_rotated and is_epoch_exhausted(expected.producer_epoch)
    )


def _told(error: Errors, *, knows_fencing: bool) -> Errors:
    is_unknown = error is Errors.PRODUCER_FENCED and not knows_fencing
    return Errors.INVALID_PRODUCER_EPOCH if is_unknown else error
