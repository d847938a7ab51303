"""Who looks on as brokers write, commit and answer; by itself nobody cares."""

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
    """An invariant broke inside a call of the core, which guards itself against every Exception."""


def past_all_guards(call: Callable[P, T]) -> Callable[P, T]:
    """Let the ``AssertionError`` of who looks on reach the simulation, whoever made the call.

    A broker that obeys catches whatever one row raises, and takes that replica out of service.
    """

    @wraps(call)
    def judged(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except AssertionError as broken:
            raise BrokenInvariantError(*broken.args) from broken

    return judged


class RecordObserver:
    """Hears of everything that happens to records, as it happens."""

    def on_led(self, broker_id: BrokerId, log: SimulatedLog, batch: StoredBatch) -> None:
        """A broker appended as leader; the batch is the last one of the log."""

    def on_followed(self, broker_id: BrokerId, log: SimulatedLog, first: int) -> None:
        """A broker appended as follower; the batches are those from index ``first`` on."""

    def on_lost(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A disk lost records, be it all of them."""

    def on_condemned(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker is about to take a damaged log out of use."""

    def on_replaced(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker is about to drop a damaged log, to fetch it anew."""

    def on_deleted(self, broker_id: BrokerId, log: NamedLog) -> None:
        """A broker deletes a log, because it was told to."""

    def on_acted(self, broker: SimulatedBroker) -> None:
        """A broker did something: its high watermarks, its leaderships may be others."""

    def on_produced(
        self,
        broker: SimulatedBroker,
        request: ProduceRequest,
        log: SimulatedLog | None,
        outcome: ProducedPartition,
    ) -> None:
        """A producer is answered; ``log`` is the one there was when its request came."""

    def on_fetch(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """A follower asks."""

    def on_fetch_taken(self, broker: SimulatedBroker, request: FetchRequest) -> None:
        """What a follower asked is noted."""

    def on_produce(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """A producer asks."""

    def on_produce_taken(self, broker: SimulatedBroker, request: ProduceRequest) -> None:
        """What a producer sent is appended, or refused."""

    def on_truncated(self, log: SimulatedLog) -> None:
        """A follower dropped records."""

    def on_fetched(self, broker: SimulatedBroker, answer: FetchResponse) -> None:
        """A follower is answered."""

    def on_consumed(
        self,
        broker: SimulatedBroker,
        request: ConsumeRequest,
        logs: Mapping[TopicPartition, SimulatedLog | None],
        partitions: Mapping[TopicPartition, ConsumedPartition],
    ) -> None:
        """A consumer is answered."""

    def on_delete_records(self, log: SimulatedLog | None, offset: int) -> None:
        """Somebody asks to delete the records below an offset."""
