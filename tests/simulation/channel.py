"""A controller's queue of requests for one broker, as in ``actors.request_send_thread``."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.responses import response_event
from regent.core.model import BrokerRegistration
from tests.simulation.network import AnswerBody, Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

REQUEST_TIMEOUT_MS = 1_000
FEW_REQUESTS = 25
MANY_REQUESTS = 1_000  # as in production


class Channel:
    """For one broker epoch: sends in order, one request at a time, and repeats until the answer."""

    def __init__(self, sender: SimulatedBroker, registration: BrokerRegistration) -> None:
        self._sender = sender
        self._broker_id = registration.info.broker_id
        self.endpoint = registration.info.control_endpoint
        self._queue: deque[fx.SendControlRequest] = deque()
        self._attempt: Exchange | None = None
        self._is_overflowed = False

    @property
    def is_idle(self) -> bool:
        """Whether everything has been answered."""
        return not self._queue

    def put(self, effect: fx.SendControlRequest) -> None:
        """Queue a request; if too many are queued, send the broker the full state again."""
        if self._is_overflowed:
            return
        if len(self._queue) >= self._sender.world.channel_limit:
            self._is_overflowed = True
            self._sender.tell(events.ChannelOverflowed(self._broker_id, effect.header))
            return
        self._queue.append(effect)
        if self._attempt is None:
            self._transmit()

    def close(self) -> None:
        """Drop the queue; a request that was sent cannot be recalled."""
        self._queue.clear()
        self._give_up()

    def _transmit(self) -> None:
        if self.endpoint is None:
            return  # this request is the test's, not the channel's
        head, world = self._queue[0], self._sender.world
        attempt = self._attempt = world.network.ask(
            self._sender, self.endpoint, head.request, self._on_answer, head.header
        )
        world.time.schedule(self._sender, REQUEST_TIMEOUT_MS, lambda: self._on_timeout(attempt))

    def _on_timeout(self, attempt: Exchange) -> None:
        if attempt is self._attempt and not attempt.is_over:
            self._give_up()
            self._transmit()

    def _on_answer(self, answer: AnswerBody) -> None:
        head = self._queue.popleft()
        self._attempt = None
        event = response_event(self._broker_id, head.header, head.request, answer)  # type: ignore[arg-type]
        if event is not None:
            self._sender.tell(event)
        if self._queue:
            self._transmit()

    def _give_up(self) -> None:
        if self._attempt is not None:
            self._attempt.give_up()
        self._attempt = None
