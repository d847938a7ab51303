"""A controller's queue of requests for one broker, as in ``actors.request_send_thread``."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.brokers.responses import response_event
from regent.core.errors import Errors
from regent.core.model import BrokerInfo, BrokerRegistration
from regent.core.protocol.control import may_be_unanswered_together
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from tests.simulation.network import AnswerBody, Exchange

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

REQUEST_TIMEOUT_MS = 1_000
FEW_REQUESTS = 25
MANY_REQUESTS = 1_000  # as in production


class Channel:
    """For one broker epoch: sends in order, and repeats until the answer.

    At most two requests are unanswered at a time, see ``may_be_unanswered_together``. The network
    may exchange them, as a connection that breaks between them would. If the world has only one at
    a time, they are like two of which the second is slow.
    """

    def __init__(self, sender: SimulatedBroker, registration: BrokerRegistration) -> None:
        self._sender = sender
        self._broker_id = registration.info.broker_id
        self.endpoint = self._endpoint_of(registration.info)
        self._queue: deque[fx.SendControlRequest] = deque()
        self._unanswered: list[fx.SendControlRequest] = []  # sent, one or two
        self._attempts: list[Exchange] = []
        self._is_overflowed = False

    def _endpoint_of(self, info: BrokerInfo) -> str | None:
        return info.control_endpoint

    @property
    def is_idle(self) -> bool:
        """Whether everything has been answered."""
        return not self._queue and not self._unanswered

    def put(self, effect: fx.SendControlRequest) -> None:
        """Queue a request for ``send_next``; if too many are queued, ask for the full state."""
        if self._is_overflowed:
            return
        if len(self._queue) + len(self._unanswered) >= self._sender.world.channel_limit:
            self._is_overflowed = True
            self._sender.tell(events.ChannelOverflowed(self._broker_id, effect.header))
            return
        self._queue.append(effect)
        if not self._sender.world.channels_send_two:
            self.send_next()

    def send_next(self) -> None:
        """Send the next one or two requests if all earlier ones are answered."""
        if self._unanswered or not self._queue or self.endpoint is None:
            return  # without an end point, the request is the test's, not the channel's
        self._unanswered = [self._queue.popleft()]
        if self._queue and self._may_send_with(self._unanswered[0], self._queue[0]):
            self._unanswered.append(self._queue.popleft())
        self._transmit()

    def _may_send_with(self, first: fx.SendControlRequest, second: fx.SendControlRequest) -> bool:
        are_two_allowed = self._sender.world.channels_send_two
        return are_two_allowed and may_be_unanswered_together(first.request, second.request)

    def close(self) -> None:
        """Drop the queue; a request that was sent cannot be recalled."""
        self._queue.clear()
        self._give_up()
        self._unanswered = []

    def _transmit(self) -> None:
        attempts = self._attempts = [self._attempt(effect) for effect in self._unanswered]
        self._sender.world.time.schedule(
            self._sender, REQUEST_TIMEOUT_MS, lambda: self._on_timeout(attempts)
        )

    def _attempt(self, effect: fx.SendControlRequest) -> Exchange:
        assert self.endpoint is not None
        return self._sender.world.network.ask(
            self._sender,
            self.endpoint,
            effect.request,
            partial(self._on_answer, effect),
            effect.header,
        )

    def _on_timeout(self, attempts: list[Exchange]) -> None:
        if attempts is self._attempts and self._unanswered:
            self._give_up()
            self._transmit()

    def _on_answer(self, effect: fx.SendControlRequest, answer: AnswerBody) -> None:
        if isinstance(answer, ControlRequestRefusedError):  # it is sent again at the timeout
            if answer.error_code is Errors.NOT_CONTROLLER:
                self._sender.tell(events.ElectionDoubted())
            return
        self._unanswered = [sent for sent in self._unanswered if sent is not effect]
        event = response_event(self._broker_id, effect.header, effect.request, answer)  # type: ignore[arg-type]
        if event is not None:
            self._sender.tell(event)
        self.send_next()

    def _give_up(self) -> None:
        for attempt in self._attempts:
            attempt.give_up()
        self._attempts = []
