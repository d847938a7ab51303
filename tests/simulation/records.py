"""The interface of observers of writes, commits and answers; by default they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import ConsumedPartition, ProducedPartition
from tests.simulation.client_requests import ConsumeRequest, ProduceRequest
from tests.support.memory_logs import StoredBatch

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker
    from tests.simulation.simulated_logs import NamedLog, SimulatedLog

P = ParamSpec("P")
T = TypeVar("T")


class BrokenInvariantError(BaseException):
    """An invariant broke inside a call of the core, which catches every Exception."""


def past_all_guards(call: Callable[P, T]) -> Callable[P, T]:
    """Let an observer's ``AssertionError`` reach the simulation through any call.

    A broker that handles a control request catches the error of one row and takes that replica out
    of service.
    """

    @wraps(call)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except AssertionError as broken:
            raise BrokenInvariantError(*broken.args) from broken

    return wrapped


class RecordObserver:
    """Is called for everything that happens to records, at that moment."""

    def on_led(self, broker_id: BrokerId, log: SimulatedLog, batch: StoredBatch) -> None:
        """A broker appended as leader; the batch is the last one of the log."""

    def on_followed(self, broker_id: BrokerId, log: SimulatedLog, first: int) -> None:
        """A broker appended as follower; the batches are those from index ``first`` on."""

    def on_lost(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A disk lost some or all records of a log."""

    def on_out_of_service(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker is about to take a damaged log out of service."""

    def on_replaced(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker is about to drop a damaged log, to fetch it again."""

    def on_set_aside(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker is about to keep a log under another name: it is stray."""

    def on_deleted(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker deletes a log as requested."""

    def on_acted(self, broker: SimulatedBroker) -> None:
        """A broker did something: its high watermarks and leaderships may have changed."""

    def on_produced(
        self,
        broker: SimulatedBroker,
        request: ProduceRequest,
        log: SimulatedLog | None,
        outcome: ProducedPartition,
    ) -> None:
        """A producer is answered; ``log`` is the one that existed when its request arrived."""

    def on_fetch(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """A fetch of a follower arrives."""

    def on_fetch_taken(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """A fetch of a follower was handled."""

    def on_produce(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """A produce request arrives."""

    def on_produce_taken(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """A batch of a producer was appended or refused."""

    def on_truncated(self, log: SimulatedLog) -> None:
        """A follower dropped records."""

    def on_fetched(self, broker: SimulatedBroker, answer: FetchResponse) -> None:
        """A fetch of a follower is answered."""

    def on_consumed(
        self,
        broker: SimulatedBroker,
        request: ConsumeRequest,
        logs: Mapping[TopicPartition, SimulatedLog | None],
        partitions: Mapping[TopicPartition, ConsumedPartition],
    ) -> None:
        """A fetch of a consumer is answered."""

    def on_delete_records(self, log: SimulatedLog | None, offset: int) -> None:
        """A request to delete the records below an offset is handled."""
