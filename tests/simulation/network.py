"""The network between brokers: messages may be late, duplicated, reordered or lost.

A request is sent to an endpoint, not to a broker: the process that listens there on arrival gets
it, even a later process on the same port. An answer finds the one ``Exchange`` it belongs to, as
with a correlation id; an exchange that was given up discards it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.control import ControlHeader, ControlRequest, ControlResponse
from regent.core.protocol.controller import ControllerRequest, ControllerResponse
from regent.core.protocol.transactions import (
    VerifyPartitionsRequest,
    VerifyPartitionsResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from tests.simulation.client_requests import ClientRequest, ClientResponse
from tests.simulation.kafka_protocol import (
    EpochEndsRequest,
    EpochEndsResponse,
    KafkaAnswer,
    KafkaCall,
)

BrokerRequest: TypeAlias = FetchRequest | WriteMarkersRequest | VerifyPartitionsRequest
BrokerResponse: TypeAlias = FetchResponse | WriteMarkersResponse | VerifyPartitionsResponse
RequestBody: TypeAlias = (
    ControlRequest
    | BrokerRequest
    | ControllerRequest
    | ClientRequest
    | KafkaCall
    | EpochEndsRequest
)
AnswerBody: TypeAlias = (
    ControlResponse
    | ControlRequestRefusedError
    | BrokerResponse
    | ControllerResponse
    | ClientResponse
    | KafkaAnswer
    | EpochEndsResponse
)


class Fate(Enum):
    """What happens to a packet."""

    AT_ONCE = "arrives at once"
    LATER = "arrives when it is let"
    TWICE = "arrives twice, when it is let"
    LOST = "never arrives"


class Peer(Protocol):
    """A process as the network sees it."""

    is_paused: bool
    is_dead: bool

    def receive(self, exchange: Exchange) -> None:
        """Take a request; the answer is given to ``Network.answer``, now or later."""
        ...


@dataclass(slots=True, eq=False)
class Exchange:
    """One attempt of a request, as its sender knows it; ``sender`` is None for admin clients."""

    number: int
    sender: Peer | None
    endpoint: str
    header: ControlHeader | None
    request: RequestBody
    on_answer: Callable[[AnswerBody], None]
    sent_ms: int
    has_arrived: bool = False  # a process has the request
    is_over: bool = False

    def give_up(self) -> None:
        """Stop waiting: a later answer is discarded."""
        self.is_over = True


class Packet(NamedTuple):
    """A request (``answer`` is None) or its answer, in flight at least until ``from_ms``."""

    number: int
    exchange: Exchange
    answer: AnswerBody | None
    from_ms: int

    @property
    def kind(self) -> str:
        """The name of the request, or of the answer."""
        if self.answer is None and isinstance(self.exchange.request, KafkaCall):
            return str(self.exchange.request)
        return type(self.exchange.request if self.answer is None else self.answer).__name__

    def __str__(self) -> str:
        return f"#{self.number} {self.kind} of {self.exchange.endpoint}"


class Network:
    """Carries packets; the caller of ``deliver`` decides which one arrives next."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.listeners: dict[str, Peer] = {}
        self.packets: dict[int, Packet] = {}
        self.fate: Callable[[Packet], Fate] = usual_fate
        self.delay_ms: Callable[[], int] = lambda: 0  # of the second copy of a packet
        self.on_sent: Callable[[Exchange], None] = lambda exchange: None
        self.on_answered: Callable[[Exchange, AnswerBody], None] = lambda exchange, answer: None
        self._now_ms = now_ms
        self._numbers = itertools.count(1)

    def listen(self, endpoint: str, peer: Peer) -> None:
        """Deliver what arrives at an endpoint to ``peer`` from now on."""
        self.listeners[endpoint] = peer

    def unlisten(self, *endpoints: str) -> None:
        """Stop deliveries to endpoints."""
        for endpoint in endpoints:
            self.listeners.pop(endpoint, None)

    def leave(self, peer: Peer) -> None:
        """Remove a dead process from its endpoints; what it sent stays in flight."""
        self.listeners = {e: p for e, p in self.listeners.items() if p is not peer}

    def ask(
        self,
        sender: Peer | None,
        endpoint: str,
        request: RequestBody,
        on_answer: Callable[[AnswerBody], None],
        header: ControlHeader | None = None,
    ) -> Exchange:
        """Send a request; ``on_answer`` is called at most once."""
        number, now_ms = next(self._numbers), self._now_ms()
        numbered = None if header is None else header._replace(sequence=number)
        exchange = Exchange(number, sender, endpoint, numbered, request, on_answer, now_ms)
        self.on_sent(exchange)
        self._send(exchange, None)
        return exchange

    def answer(self, exchange: Exchange, answer: AnswerBody) -> None:
        """Send the answer to a request."""
        self.on_answered(exchange, answer)
        self._send(exchange, answer)

    def deliverable(self) -> Iterator[int]:
        """Yield the numbers of packets that may arrive: their destinations are not paused."""
        if not self.packets:
            return
        now_ms = self._now_ms()
        for number, packet in self.packets.items():
            if packet.from_ms <= now_ms and self._is_awake(packet):
                yield number

    def deliver(self, number: int) -> bool:
        """Deliver a packet; False if there was no receiver."""
        return self._arrive(self.packets.pop(number))

    def drop(self, number: int) -> None:
        """Lose a packet."""
        del self.packets[number]

    def drop_request(self, exchange: Exchange) -> None:
        """Lose a request in flight: its sender closed the connection."""
        under_way = self.packets.values()
        for packet in [p for p in under_way if p.exchange is exchange and p.answer is None]:
            self.drop(packet.number)

    def sent_by(self, sender: Peer) -> list[int]:
        """Return the numbers of the requests of a process in flight."""
        packets = self.packets.values()
        return [p.number for p in packets if p.exchange.sender is sender and p.answer is None]

    def answers_of(self, endpoint: str) -> list[int]:
        """Return the numbers of the answers of an endpoint in flight."""
        packets = self.packets.values()
        return [
            p.number for p in packets if p.exchange.endpoint == endpoint and p.answer is not None
        ]

    def hold(self, number: int, for_ms: int) -> None:
        """Delay a packet."""
        self.packets[number] = self.packets[number]._replace(from_ms=self._now_ms() + for_ms)

    def duplicate(self, number: int) -> None:
        """Deliver a packet twice."""
        packet = self.packets[number]
        self._put(packet.exchange, packet.answer, self.delay_ms())

    # --- inside ---

    def _send(self, exchange: Exchange, answer: AnswerBody | None) -> None:
        packet = self._put(exchange, answer)
        match self.fate(packet):
            case Fate.AT_ONCE if self._is_awake(packet):
                self.deliver(packet.number)
            case Fate.TWICE:
                self.duplicate(packet.number)
            case Fate.LOST:
                self.drop(packet.number)
            case Fate.AT_ONCE | Fate.LATER:
                pass

    def _put(self, exchange: Exchange, answer: AnswerBody | None, delay_ms: int = 0) -> Packet:
        packet = Packet(next(self._numbers), exchange, answer, self._now_ms() + delay_ms)
        self.packets[packet.number] = packet
        return packet

    def _destination(self, packet: Packet) -> Peer | None:
        if packet.answer is None:
            return self.listeners.get(packet.exchange.endpoint)
        return packet.exchange.sender

    def _is_awake(self, packet: Packet) -> bool:
        destination = self._destination(packet)
        return destination is None or destination.is_dead or not destination.is_paused

    def _arrive(self, packet: Packet) -> bool:
        exchange, answer = packet.exchange, packet.answer
        if answer is None:
            receiver = self.listeners.get(exchange.endpoint)
            if receiver is None:
                return False
            exchange.has_arrived = True
            receiver.receive(exchange)
            return True
        if exchange.is_over or (exchange.sender is not None and exchange.sender.is_dead):
            return False
        exchange.is_over = True
        exchange.on_answer(answer)
        return True


def usual_fate(packet: Packet) -> Fate:
    """Fetches and requests of clients arrive at once; all others are steps of their own."""
    is_of_data = isinstance(packet.exchange.request, FetchRequest | ClientRequest)
    return Fate.AT_ONCE if is_of_data else Fate.LATER
