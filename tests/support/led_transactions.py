"""The transaction coordinator of one broker, with real replicas and groups; markers are faked."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from regent.actors.request_channel import RequestChannel
from regent.actors.scheduler import Scheduler
from regent.broker.transaction_service import BrokerTransactionService
from regent.config.settings_file import load_settings
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.coordinator import CoordinatorRequest, Question
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.protocol.messages.producer_ids import InitProducerIdResponse
from regent.core.protocol.messages.transactions import DescribedTransactionState
from regent.core.protocol.transactions import (
    AddPartitionsToTxn,
    DescribeTransaction,
    EndTxn,
    InitProducerId,
    PartitionOutcome,
    TransactionToVerify,
    TxnMarker,
    TxnMarkerResult,
)
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from regent.testing.waits import eventually
from tests.support.led_groups import BROKER, ORDERS_0, LedGroups
from tests.support.led_partitions import lead
from tests.support.stage import TIMEOUT_S
from tests.support.world import live_broker

A = TypeVar("A")


class FakeMarkerTarget:
    """Takes markers; answers with ``error``. Implements ``MarkerTarget``."""

    def __init__(self) -> None:
        self.error = Errors.NONE
        self.written: queue.Queue[TxnMarker] = queue.Queue()

    def write_markers(
        self,
        markers: Sequence[TxnMarker],
        respond: Callable[[Sequence[TxnMarkerResult]], None],
    ) -> None:
        for marker in markers:
            self.written.put(marker)
        respond([outcome(marker, self.error) for marker in markers])


def outcome(marker: TxnMarker, error: Errors) -> TxnMarkerResult:
    rows = tuple(PartitionOutcome(*tp, error) for tp in marker.partitions)
    return TxnMarkerResult(marker.producer_id, rows)


class LedTransactions:
    """Leads the only partition of ``__transaction_state``, and what ``LedGroups`` leads."""

    def __init__(
        self,
        undo: ExitStack,
        isr: tuple[BrokerId, ...] = (BROKER,),
        open_channel: Callable[[str], RequestChannel[Any, Any]] | None = None,
        take_block: Callable[[], range] = lambda: range(1_000, 2_000),
        **settings: Any,
    ) -> None:
        self.groups = LedGroups(undo, isr=isr)
        self.manager, self.cache = self.groups.manager, self.groups.cache
        self.target = FakeMarkerTarget()
        self._isr = isr
        scheduler = Scheduler("scheduler-of-transactions")
        undo.callback(scheduler.shutdown)
        given = {"transaction_state_log_num_partitions": 1, **settings}
        self.service = BrokerTransactionService(
            BROKER,
            load_settings(None, {"transactions": given}),
            self.cache,
            open_channel or _no_channel,
        )
        self.service.start(
            self.manager,
            scheduler,
            target=self.target,
            groups=self.groups.service,
            take_block=take_block,
        )
        undo.callback(self.service.stop)
        self.lead(0)

    def lead(self, leader_epoch: int, leader: BrokerId = BROKER, partitions: int = 1) -> None:
        """Let a broker lead; wait until this one has read its partition, which came first."""
        lead(
            self.manager,
            live_broker(BROKER, port=9092),
            {TRANSACTION_STATE_TOPIC: partitions},
            self._isr,
            leader=leader,
            leader_epoch=leader_epoch,
            coordinated_partitions=1,
        )
        self.service.on_metadata_changed()
        if leader == BROKER:
            loading = Errors.COORDINATOR_LOAD_IN_PROGRESS
            eventually(
                lambda: self.describe("nobody").error_code is not loading,
                "the transactions are read",
                TIMEOUT_S,
            )

    def send(self, request: CoordinatorRequest[A]) -> queue.Queue[A]:
        """Send a request; its answer comes into the queue."""
        answers: queue.Queue[A] = queue.Queue()
        self.service.coordinator.ask([Question(request, answers.put)])
        return answers

    def ask(self, request: CoordinatorRequest[A]) -> A:
        """Return the answer to a request."""
        return self.send(request).get(timeout=TIMEOUT_S)

    def init(self, transactional_id: str = "x", timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        """Return the id and epoch of a new producer; ask until there is one."""
        not_yet = (Errors.COORDINATOR_LOAD_IN_PROGRESS, Errors.CONCURRENT_TRANSACTIONS)

        def given() -> InitProducerIdResponse | None:
            result = self.ask(InitProducerId(transactional_id, timeout_ms))
            return None if result.error_code in not_yet else result

        result = eventually(given, "there is a producer id", TIMEOUT_S)
        assert result is not None
        assert result.error_code is Errors.NONE, result
        return ProducerIdAndEpoch(result.producer_id, result.producer_epoch)

    def begin(
        self,
        producer: ProducerIdAndEpoch,
        partitions: tuple[TopicPartition, ...] = (ORDERS_0,),
    ) -> None:
        """Begin a transaction; ask until the one before it is complete."""
        adding = AddPartitionsToTxn("x", producer, partitions)

        def told() -> set[Errors]:
            return set(self.ask(adding).values()) - {Errors.CONCURRENT_TRANSACTIONS}

        errors = eventually(told, "the transaction before it is complete", TIMEOUT_S)
        assert errors == {Errors.NONE}

    def end(self, producer: ProducerIdAndEpoch, *, is_commit: bool) -> Errors:
        """Commit or abort."""
        return self.ask(EndTxn("x", producer, is_commit))

    def describe(self, transactional_id: str = "x") -> DescribedTransactionState:
        """Return what tools see."""
        return self.ask(DescribeTransaction(transactional_id))

    def verify(self, question: TransactionToVerify) -> Mapping[TopicPartition, Errors]:
        """Ask the coordinator, wherever it is."""
        answers: queue.Queue[Mapping[TopicPartition, Errors]] = queue.Queue()
        self.service.verify(question, answers.put)
        return answers.get(timeout=TIMEOUT_S)

    def wait_for(self, state: str) -> DescribedTransactionState:
        """Wait for a state of ``x``."""
        eventually(
            lambda: self.describe().transaction_state == state, f"the state {state}", TIMEOUT_S
        )
        return self.describe()


def _no_channel(endpoint: str) -> RequestChannel[Any, Any]:
    raise AssertionError(f"a request to {endpoint}")


OFFSETS_0 = TopicPartition(GROUP_METADATA_TOPIC, 0)
