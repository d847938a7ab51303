"""One RequestSendThread for every registered broker, the controller's own included.

Mirrors ``kafka.controller.ControllerChannelManager``. Owned by the ControllerEventManager's thread.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import ceil
from typing import NamedTuple

from pykka import ActorDeadError, ActorRef

from regent.actors.inbox import InboxFullError, MessageWithReply, Reply, inbox_of
from regent.actors.request_send_thread import (
    UNANSWERED_WARNING_S,
    AwaitAnswers,
    ControlBody,
    DeliverySettings,
    Dispatch,
    OpenChannel,
    QueuedRequest,
    RequestSendThread,
    SendStats,
    in_dispatches,
)
from regent.actors.runtime import Supervisor, start_actor, stop_actor
from regent.core.controller.brokers.responses import response_event
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import ChannelOverflowed, ControllerEvent
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.protocol.control import ControlHeader, ControlRequest, ControlResponse
from regent.core.protocol.controller import (
    AnswerTimes,
    BrokerSoftware,
    DepartedBroker,
    ReturnedBroker,
    UnansweredRequest,
)
from regent.core.timers import count_beyond, quantile
from regent.transport.control.codec import encode_request
from regent.transport.kafka.control_channel import KafkaControlBody

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0
_SILENT_FACTOR = 3
_HOUR_MS = 3_600_000
_MAX_ABSENCES = 1_000
SLOW_ANSWER_MS = 1_000
"""An answer that takes longer is slow."""


class BrokerChannel(NamedTuple):
    """The thread that sends to one broker, and what it has done."""

    thread: ActorRef[RequestSendThread]
    stats: SendStats
    encode: Callable[[ControlRequest], ControlBody]
    """Raises ``BadDataError``."""

    @property
    def queue_size(self) -> int:
        """How many dispatches are queued, of one or two requests."""
        return inbox_of(self.thread).size

    @property
    def in_flight(self) -> bool:
        """Whether a request is being sent, or waits for its answer."""
        return isinstance(inbox_of(self.thread).activity.message, Dispatch)


class ControllerChannelManager:
    """Starts and stops RequestSendThreads, and hands requests to them."""

    def __init__(
        self,
        controller_id: BrokerId,
        open_channel: OpenChannel,
        tell: Callable[[ControllerEvent], None],
        *,
        may_announce: Callable[[], bool],
        settings: DeliverySettings,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._controller_id = controller_id
        self._open_channel = open_channel
        self._tell = tell
        self._may_announce = may_announce
        self._settings = settings
        self._supervisor = supervisor
        self._channels: dict[BrokerId, BrokerChannel] = {}
        self._overflowed: set[BrokerId] = set()
        self._offline: set[BrokerId] = set()  # brokers without a channel that were warned of
        self._departed: dict[BrokerId, int] = {}  # when the channel was closed (wall clock, ms)
        self._broker_epochs: dict[BrokerId, int] = {}  # of the last channel to each broker
        # When brokers left and when they came back with another epoch (wall clock, ms).
        self._absences: dict[BrokerId, deque[tuple[int, int]]] = {}

    def add_broker(self, registration: BrokerRegistration) -> None:
        """Start sending to this incarnation of a broker."""
        broker_id = registration.info.broker_id
        self.remove_broker(broker_id)
        self._note_return(registration)
        stats = SendStats(software=registration.info.software)
        thread = start_actor(
            RequestSendThread,
            f"Controller-{self._controller_id}-to-broker-{broker_id}-send-thread",
            registration,
            self._open_channel,
            partial(self._on_response, broker_id),
            tell=self._tell,
            may_announce=self._may_announce,
            settings=self._settings,
            stats=stats,
            supervisor=self._supervisor,
        )
        encode = KafkaControlBody if registration.info.is_of_kafka else encode_request
        self._channels[broker_id] = BrokerChannel(thread, stats, encode)

    def remove_broker(self, broker_id: BrokerId) -> None:
        """Stop sending and drop queued requests, so that no later incarnation receives them."""
        self._overflowed.discard(broker_id)
        self._offline.discard(broker_id)
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            self._departed[broker_id] = _now_ms()
            stop_actor(channel.thread, _STOP_TIMEOUT_S)

    def send(self, effects: list[SendControlRequest]) -> None:
        """Queue requests; encode a request to several brokers of a kind only once."""
        bodies: dict[tuple[int, object], ControlBody] = {}
        by_broker: dict[BrokerId, list[SendControlRequest]] = {}
        for effect in effects:
            by_broker.setdefault(effect.broker_id, []).append(effect)
        for broker_id, requests in by_broker.items():
            channel = self._channels.get(broker_id)
            encode = encode_request if channel is None else channel.encode
            for dispatch in in_dispatches(_encoded(requests, encode, bodies)):
                self._put(broker_id, dispatch)

    @property
    def channels(self) -> dict[BrokerId, BrokerChannel]:
        """The channel to every broker. Thread-safe."""
        return self._channels.copy()

    def unanswered(self) -> Iterator[UnansweredRequest]:
        """Yield the requests that brokers have not answered for too long."""
        for broker_id, channel in sorted(self.channels.items()):
            activity = inbox_of(channel.thread).activity
            message, waiting_ms = activity.message, activity.handling_ms
            name = message.name if isinstance(message, Dispatch) else ""
            reason = channel.stats.refusal
            if name and (reason or waiting_ms > UNANSWERED_WARNING_S * 1000):
                reason = reason or channel.stats.last_error
                yield UnansweredRequest(broker_id, name, round(waiting_ms), reason)

    def software(self) -> Iterator[BrokerSoftware]:
        """Yield what each broker is."""
        for broker_id, channel in sorted(self.channels.items()):
            yield BrokerSoftware(broker_id, channel.stats.software)

    def departed(self) -> Iterator[DepartedBroker]:
        """Yield the brokers that have left while this controller was active."""
        for broker_id, at_ms in sorted(self._departed.copy().items()):
            yield DepartedBroker(broker_id, at_ms)

    def returned(self) -> Iterator[ReturnedBroker]:
        """Yield the brokers that have left and come back in the last hour."""
        since_ms = _now_ms() - _HOUR_MS
        for broker_id, absences in sorted(self._absences.items()):
            recent = [absence for absence in absences if absence[1] >= since_ms]
            if recent:
                left_ms, back_ms = recent[-1]
                yield ReturnedBroker(broker_id, len(recent), back_ms, back_ms - left_ms)

    def answer_times(self) -> Iterator[AnswerTimes]:
        """Yield how long each broker took in the last minute, if it answered."""
        for broker_id, channel in sorted(self.channels.items()):
            counts = channel.stats.recent_latency.counts(time.monotonic())
            if answers := sum(counts):
                median_ms, slowest_ms = (ceil(quantile(counts, share)) for share in (0.5, 0.99))
                slow = count_beyond(counts, SLOW_ANSWER_MS)
                yield AnswerTimes(broker_id, answers, median_ms, slowest_ms, slow)

    def await_answers(
        self, timeout_ms: int, on_answered: Callable[[BrokerId], None]
    ) -> set[BrokerId]:
        """Call ``on_answered`` for each broker that has answered all that is queued now.

        It is called on any thread. Return the brokers that will not be reported: they have been
        silent for much longer than ``timeout_ms``, or cannot be asked.
        """
        behind: set[BrokerId] = set()
        for broker_id, channel in self._channels.items():
            activity = inbox_of(channel.thread).activity
            if channel.in_flight and activity.handling_ms > _SILENT_FACTOR * timeout_ms:
                behind.add(broker_id)
                continue
            reply = Reply.of(_reporting(on_answered, broker_id))
            try:
                channel.thread.tell(MessageWithReply(AwaitAnswers(), reply))
            except (ActorDeadError, InboxFullError):
                behind.add(broker_id)
        return behind

    def close(self) -> None:
        """Stop sending to all brokers."""
        for broker_id in list(self._channels):
            self.remove_broker(broker_id)
        self._departed.clear()
        self._broker_epochs.clear()
        self._absences.clear()

    def _note_return(self, registration: BrokerRegistration) -> None:
        """Note an absence, unless only the channel is another one."""
        broker_id, epoch = registration.info.broker_id, registration.broker_epoch
        left_ms = self._departed.pop(broker_id, None)
        if left_ms is not None and self._broker_epochs.get(broker_id) != epoch:
            kept = self._absences.setdefault(broker_id, deque(maxlen=_MAX_ABSENCES))
            kept.append((left_ms, _now_ms()))
        self._broker_epochs[broker_id] = epoch

    def _put(self, broker_id: BrokerId, dispatch: Dispatch) -> None:
        channel = self._channels.get(broker_id)
        if channel is None:
            for queued in dispatch.unanswered:
                self._report_offline(broker_id, queued)
            return
        if broker_id in self._overflowed:
            return  # the broker will get the complete state
        header = dispatch.unanswered[0].header
        try:
            channel.thread.tell(dispatch)
        except ActorDeadError:
            logger.error("the RequestSendThread of broker %d has died", broker_id)
            self._overflow(broker_id, header)
        except InboxFullError as full:
            logger.warning("%s; broker %d will get the complete state again", full, broker_id)
            self._overflow(broker_id, header)

    def _report_offline(self, broker_id: BrokerId, dropped: QueuedRequest) -> None:
        """Warn of a request that is not sent; of later ones only after the broker came or went."""
        logger.log(
            logging.DEBUG if broker_id in self._offline else logging.WARNING,
            "event %s: Not sending %s request with %d partitions to broker %d, since it is offline",
            dropped.header.cause,
            dropped.name,
            sum(len(topic.partition_states) for topic in dropped.request.topic_states),
            broker_id,
        )
        self._offline.add(broker_id)

    def _overflow(self, broker_id: BrokerId, header: ControlHeader) -> None:
        self._overflowed.add(broker_id)
        self._tell(ChannelOverflowed(broker_id, header))

    def _on_response(
        self,
        broker_id: BrokerId,
        header: ControlHeader,
        request: ControlRequest,
        response: ControlResponse,
        answered_ms: float,
    ) -> None:
        """Send the answer as an event to the controller; runs on the RequestSendThread."""
        event = response_event(broker_id, header, request, response, answered_ms)
        if event is not None:
            self._tell(event)


def _now_ms() -> int:
    """Return the wall clock."""
    return time.time_ns() // 1_000_000


def _reporting(
    on_answered: Callable[[BrokerId], None], broker_id: BrokerId
) -> Callable[[object], None]:
    return lambda _: on_answered(broker_id)


def _encoded(
    requests: Iterable[SendControlRequest],
    encode: Callable[[ControlRequest], ControlBody],
    bodies: dict[tuple[int, object], ControlBody],
) -> Iterator[QueuedRequest]:
    """Yield requests with their bodies; ``bodies`` has those that are made, by object and form."""
    for sent in requests:
        key = id(sent.request), encode
        body = bodies.get(key)
        if body is None:
            try:
                body = bodies[key] = encode(sent.request)
            except BadDataError as error:  # no other controller could send it either
                logger.error("cannot send a request to broker %d: %s", sent.broker_id, error)
                continue
        yield QueuedRequest(sent.header, sent.request, body)
