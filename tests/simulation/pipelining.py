"""A producer as librdkafka's: several batches in flight, each stored once and in order.

Its connection to a broker keeps requests, and their answers, in order. It sends nothing to
another broker while requests to the former one are unanswered. After a short time it repeats the
refused batches in order; in between it may send batches that it has not sent before, and these may
reach a new leader first.
After an out-of-order error it waits for the batches in flight, takes a new producer epoch, and
sends all unacknowledged batches from sequence 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ACKS_ALL
from tests.simulation.client_requests import ProduceRequest, ProduceResponse
from tests.simulation.network import AnswerBody, Exchange, Network
from tests.support.record_batches import batch

MAX_IN_FLIGHT = 5
REQUEST_TIMEOUT_MS = 3_000
RETRY_BACKOFF_MS = 100

APPENDED = (Errors.NONE, Errors.DUPLICATE_SEQUENCE_NUMBER, Errors.REQUEST_TIMED_OUT)
LOST_PLACES = (
    Errors.OUT_OF_ORDER_SEQUENCE_NUMBER,
    Errors.INVALID_PRODUCER_EPOCH,
    Errors.UNKNOWN_PRODUCER_ID,
)


@dataclass(slots=True, eq=False)
class PipelinedBatch:
    """A batch that is not acknowledged."""

    values: tuple[bytes, ...]
    sequence: int
    number: int
    is_in_flight: bool = False
    is_retried: bool = False


@dataclass(slots=True, eq=False)
class _Request:
    batch: PipelinedBatch
    exchange: Exchange | None = None
    answer: ProduceResponse | None = None


class Connection:
    """A connection to one broker: requests are handled and answered in the sequence of sending."""

    def __init__(
        self,
        network: Network,
        endpoint: str,
        on_answer: Callable[[PipelinedBatch, ProduceResponse], None],
    ) -> None:
        self._network = network
        self._endpoint = endpoint
        self._on_answer = on_answer
        self._requests: deque[_Request] = deque()

    @property
    def is_in_use(self) -> bool:
        """Whether an answer is missing."""
        return bool(self._requests)

    @property
    def is_clear(self) -> bool:
        """Whether all sent requests have arrived."""
        return all(r.exchange is not None and r.exchange.has_arrived for r in self._requests)

    def send(self, batch: PipelinedBatch, request: ProduceRequest) -> None:
        """Send a batch; ``on_answer`` is called once, unless the connection is closed."""
        sent = _Request(batch)
        self._requests.append(sent)
        batch.is_in_flight = True

        def on_answer(answer: AnswerBody) -> None:
            assert isinstance(answer, ProduceResponse)
            sent.answer = answer
            self._hand_over()

        sent.exchange = self._network.ask(None, self._endpoint, request, on_answer)

    def close_if_overdue(self, now_ms: int) -> bool:
        """Give up all requests when one times out; those in flight never arrive.

        Return whether a request had arrived, so that its batch may have been appended.
        """
        exchanges = [r.exchange for r in self._requests if r.exchange is not None]
        if all(now_ms - exchange.sent_ms < REQUEST_TIMEOUT_MS for exchange in exchanges):
            return False
        for exchange in exchanges:
            exchange.give_up()
            self._network.drop_request(exchange)
        while self._requests:
            given_up = self._requests.popleft().batch
            given_up.is_in_flight, given_up.is_retried = False, True
        return any(exchange.has_arrived for exchange in exchanges)

    def _hand_over(self) -> None:
        while self._requests and self._requests[0].answer is not None:
            answered = self._requests.popleft()
            assert answered.answer is not None
            answered.batch.is_in_flight = False
            self._on_answer(answered.batch, answered.answer)


class PipeliningProducer:
    """Writes to one partition. ``note`` writes the history."""

    def __init__(
        self,
        name: TopicPartition,
        producer_id: int,
        network: Network,
        now_ms: Callable[[], int],
        note: Callable[..., None],
    ) -> None:
        self.name = name
        self.pending: list[PipelinedBatch] = []
        self._producer_id = producer_id
        self._producer_epoch = 0
        self._sequence = 0
        self._taken = 0
        self._lost_its_place = False
        self._may_retry_from_ms = 0
        self._appended_at: set[str] = set()  # the last appender, and possible later ones
        self._connections: dict[str, Connection] = {}
        self._network = network
        self._now_ms = now_ms
        self._note = note

    @property
    def has_room(self) -> bool:
        """Whether one more batch may be in flight.

        Batches acknowledged after an unacknowledged one count too: a log stores the last five.
        """
        return not self.pending or self._taken - self.pending[0].number < MAX_IN_FLIGHT

    def take(self, values: tuple[bytes, ...]) -> None:
        """Add a batch to send."""
        self.pending.append(PipelinedBatch(values, self._sequence, self._taken))
        self._taken += 1
        self._sequence += len(values)

    def send(self, endpoint: str) -> None:
        """Send the batches that are not in flight to the presumed leader, in order."""
        for asked, known in self._connections.items():
            if known.close_if_overdue(self._now_ms()):
                self._appended_at.add(asked)
        if self._lost_its_place:
            self._start_new_epoch()
        if endpoint not in self._connections:
            on_answer = partial(self._on_answer, endpoint)
            made = Connection(self._network, endpoint, on_answer)
            self._connections[endpoint] = made
        if self._is_waiting_to_retry and endpoint in self._appended_at:
            return
        connection = self._connections[endpoint]
        if any(c.is_in_use for c in self._connections.values() if c is not connection):
            return
        waits = self._is_waiting_to_retry
        for pending in list(self.pending):
            may_send = connection.is_clear and not self._lost_its_place
            if may_send and not pending.is_in_flight and not (waits and pending.is_retried):
                connection.send(pending, self._request(pending, endpoint))

    @property
    def _is_waiting_to_retry(self) -> bool:
        is_soon = self._now_ms() < self._may_retry_from_ms
        return is_soon and any(pending.is_retried for pending in self.pending)

    def _start_new_epoch(self) -> None:
        if any(pending.is_in_flight for pending in self.pending):
            return
        self._lost_its_place = False
        self._producer_epoch += 1
        self._sequence = 0
        for pending in self.pending:
            pending.sequence, pending.is_retried = self._sequence, False
            self._sequence += len(pending.values)
        self._note("%s: epoch %d", self, self._producer_epoch)

    def _request(self, pending: PipelinedBatch, endpoint: str) -> ProduceRequest:
        self._note("%s: %d.. %s to %s", self, pending.sequence, pending.values, endpoint)
        data = batch(
            *pending.values,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=pending.sequence,
        )
        return ProduceRequest(self.name, ACKS_ALL, data)

    def _on_answer(self, endpoint: str, pending: PipelinedBatch, answer: ProduceResponse) -> None:
        error, offset = answer.outcome.error_code, answer.outcome.base_offset
        self._note("  %s: %d.. %s at %d", self, pending.sequence, error.name, offset)
        if error in APPENDED:
            self._appended_at = {endpoint}
        if error in (Errors.NONE, Errors.DUPLICATE_SEQUENCE_NUMBER):
            self.pending.remove(pending)
            return
        self._lost_its_place |= error in LOST_PLACES
        pending.is_retried = True
        self._may_retry_from_ms = self._now_ms() + RETRY_BACKOFF_MS

    def __str__(self) -> str:
        return f"{self.name} of {self._producer_id}"
