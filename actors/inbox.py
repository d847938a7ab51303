"""The inbox of an actor, the reply that travels with a message, and what the actor is doing.

All queueing decisions are made here, under one lock, because ``ref.tell`` and ``ref.ask`` of Pykka
call no other code of ours. Three lanes, emptied in this order:

1. *control*: stop messages;
2. *preempted*: messages that were queued when a ``ClearAndPut`` arrived; they are only answered;
3. *messages*: FIFO, bounded, collapsed by key.

Mirrors the queue of ``kafka.controller.ControllerEventManager``; unlike there, preempted messages
are answered by the actor's thread when it gets to them and not by the thread that clears.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pykka import ActorDeadError, ActorRef, Future
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from regent.config.closing import Closing
from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

_IDLE_S = 60.0


def _deliver_nothing(_value: object, _error: Exception | None) -> None:
    pass


class InboxFullError(RegentError):
    """The inbox has reached its limit of messages or of unanswered replies."""


class Reply:
    """The answer to one message, which any thread may give at any time.

    The first call of ``set`` or ``fail`` counts; later ones are ignored.
    """

    __slots__ = ("_charge", "_deliver", "_once", "_unanswered")

    def __init__(
        self,
        deliver: Callable[[object, Exception | None], None],
        charge: Callable[[float], None] | None = None,
    ) -> None:
        self._deliver = deliver
        self._charge = charge
        self._once = threading.Lock()  # the first answer takes it and never releases it
        self._unanswered: dict[Reply, object] | None = None

    @classmethod
    def of(
        cls, callback: Callable[[object], None], charge: Callable[[float], None] | None = None
    ) -> Reply:
        """Return a reply that calls ``callback(value or exception)`` on the answering thread.

        ``charge`` gets the seconds of work of each actor that handles the message.
        """
        return cls(lambda value, error: callback(value if error is None else error), charge)

    @classmethod
    def to(cls, future: Future[Any]) -> Reply:
        """Return a reply that resolves ``future``."""

        def deliver(value: object, error: Exception | None) -> None:
            if error is None:
                future.set(value)
            else:
                future.set_exception((type(error), error, error.__traceback__))

        return cls(deliver)

    @property
    def answered(self) -> bool:
        """Whether an answer was given."""
        return self._once.locked()

    def set(self, value: object) -> None:
        """Answer with ``value``."""
        self._answer(value, None)

    def fail(self, error: Exception) -> None:
        """Answer with ``error``; a blocking ``ask`` raises it."""
        self._answer(None, error)

    def charge(self, work_s: float) -> None:
        """Tell the sender how many seconds its message has taken an actor's thread."""
        if self._charge is not None:
            self._charge(work_s)

    def track(self, unanswered: dict[Reply, object], message: object) -> None:
        """Stay in ``unanswered`` until answered or passed on to another inbox."""
        self._forget()
        self._unanswered = unanswered
        unanswered[self] = message
        if self.answered:  # by another thread that may not have seen the list
            self._forget()

    def _answer(self, value: object, error: Exception | None) -> None:
        if not self._once.acquire(blocking=False):
            return
        self._forget()
        # An error refers to its frames, and they to this reply: it must not refer to the error.
        deliver, self._deliver = self._deliver, _deliver_nothing
        try:
            deliver(value, error)
        except Exception:  # the callback must not abort the handler that answers
            logger.exception("Cannot deliver a reply")

    def _forget(self) -> None:
        if self._unanswered is not None:
            self._unanswered.pop(self, None)


@dataclass(frozen=True, slots=True)
class MessageWithReply:
    """A message together with its reply, for senders that cannot block."""

    message: Any
    reply: Reply


@dataclass(frozen=True, slots=True)
class ClearAndPut:
    """Preempt all queued messages and put ``message`` at the head of the queue.

    It may be a ``MessageWithReply``.
    """

    message: Any


@dataclass(slots=True)
class Delivery:
    """A message as the actor receives it; ``enqueued_at`` is monotonic, in seconds."""

    message: object
    reply: Reply | None
    enqueued_at: float
    key: Hashable | None
    preempted: bool = False


@dataclass(frozen=True, slots=True)
class Overflow:
    """How a full inbox treats a message without a reply.

    A message for which ``always_fits`` is true is queued anyway; their number must be bounded. Any
    other message is refused. With a ``substitute`` (which has a collapse key) it is not refused:
    all other queued messages are preempted, and the substitute, which repairs their loss, is put at
    the head of the queue.
    """

    always_fits: Callable[[Any], bool] = lambda _: False
    substitute: object = None


@dataclass(slots=True)
class Activity:
    """What one actor is doing. Only its thread writes; any thread reads.

    ``message`` and ``busy_since`` (monotonic seconds) are None between messages; ``last_activity``
    is when the last message ended.
    """

    thread: threading.Thread
    message: object = "on_start"
    busy_since: float | None = field(default_factory=monotonic)
    last_activity: float = field(default_factory=monotonic)

    @property
    def handling_ms(self) -> float:
        """How long the actor has been handling the current message."""
        since = self.busy_since
        return 0.0 if since is None else (monotonic() - since) * 1000

    def begin(self, message: object) -> None:
        """Record that the handling of a message begins."""
        self.message = message
        self.busy_since = monotonic()

    def end(self) -> None:
        """Record that the handling of a message ended."""
        self.last_activity = monotonic()
        self.busy_since = None
        self.message = None


class Inbox:
    """The queue of an actor; every method is thread-safe.

    ``limit`` bounds the queued messages, and separately the unanswered replies (queued or being
    handled). Stop messages, ``ClearAndPut`` and messages that ``overflow`` admits are always
    queued. A message with a collapse key is dropped while one with the same key is queued; a
    message with a reply is never dropped.

    If a message is not accepted, ``ask`` fails its future; ``tell`` raises ``InboxFullError`` or
    ``pykka.ActorDeadError`` and does not answer a ``MessageWithReply``.
    """

    def __init__(
        self,
        name: str,
        activity: Activity,
        *,
        limit: int,
        collapse_key: Callable[[Any], Hashable | None],
        overflow: Overflow | None = None,
    ) -> None:
        self.name = name
        self.activity = activity
        self.closing = Closing()
        """Set before a stop message is queued, so that a blocked actor can see it."""
        self.unanswered: dict[Reply, object] = {}
        """Unanswered replies, with the messages they belong to."""
        self._limit = limit
        self._collapse_key = collapse_key
        self._overflow = overflow or Overflow()
        # Re-entrant: a signal handler may tell while its thread holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._control: deque[Envelope[Any]] = deque()
        self._preempted: deque[Envelope[Any]] = deque()
        self._messages: deque[Envelope[Any]] = deque()
        self._queued_keys: set[Hashable] = set()
        self._closed = False

    @property
    def size(self) -> int:
        """How many messages are queued, including preempted ones."""
        return len(self._messages) + len(self._preempted)

    def put(self, envelope: Envelope[Any], /) -> None:
        """Queue a message of ``ref.tell`` or ``ref.ask``; the class describes the errors."""
        asker = envelope.reply_to
        try:
            if isinstance(envelope.message, _ActorStop):
                self._put_stop(envelope)
            else:
                self._put_message(envelope)
        except (ActorDeadError, InboxFullError) as error:
            if asker is None:
                raise
            asker.set_exception((type(error), error.with_traceback(None), None))

    def get(self) -> Envelope[Any]:
        """Wait for the next message and remove it.

        The message of the envelope is a ``Delivery``, or pykka's own stop message.
        """
        with self._changed:
            while True:
                if self._control:
                    return self._control.popleft()
                if self._preempted:
                    envelope = self._preempted.popleft()
                    envelope.message.preempted = True
                    return envelope
                if self._messages:
                    envelope = self._messages.popleft()
                    self._queued_keys.discard(envelope.message.key)
                    return envelope
                self._changed.wait(_IDLE_S)

    def empty(self) -> bool:
        """Whether ``get`` would block."""
        with self._changed:
            return not (self._control or self._preempted or self._messages)

    def close(self) -> list[Delivery]:
        """Refuse new messages; remove and return the queued ones except stop messages."""
        self.closing.set()
        with self._changed:
            self._closed = True
            self._preempt_messages()
            left = [envelope.message for envelope in self._preempted]
            self._preempted.clear()
            return left

    def _put_stop(self, envelope: Envelope[Any]) -> None:
        self.closing.set()
        with self._changed:
            self._check_open()
            self._control.append(envelope)
            self._changed.notify()

    def _put_message(self, envelope: Envelope[Any]) -> None:
        message = envelope.message
        reply = None if envelope.reply_to is None else Reply.to(envelope.reply_to)
        clear = isinstance(message, ClearAndPut)
        if clear:
            message = message.message
        if isinstance(message, MessageWithReply):
            assert reply is None, "use tell, not ask: a MessageWithReply has its own reply"
            message, reply = message.message, message.reply
        key = self._collapse_key(message) if reply is None else None
        envelope.message = Delivery(message, reply, monotonic(), key)
        envelope.reply_to = None  # else pykka would answer it when the handler returns
        with self._changed:
            self._check_open()
            if clear:
                self._preempt_messages()
            elif key is not None and key in self._queued_keys:
                return
            elif not self._has_room(message, reply):
                return  # the substitute replaces it
            if key is not None:
                self._queued_keys.add(key)
            if reply is not None:
                reply.track(self.unanswered, message)
            self._messages.append(envelope)
            self._changed.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise ActorDeadError(f"{self.name} has stopped")

    def _check_room(self, reply: Reply | None) -> None:
        if len(self._messages) >= self._limit:
            raise InboxFullError(f"{self.name}: {self._limit} messages are already queued")
        if reply is not None and len(self.unanswered) >= self._limit:
            raise InboxFullError(f"{self.name}: {self._limit} messages are not answered yet")

    def _has_room(self, message: object, reply: Reply | None) -> bool:
        """Whether to queue a message; raises ``InboxFullError``."""
        overflow = self._overflow
        if overflow.always_fits(message):
            return True
        if reply is not None or overflow.substitute is None or len(self._messages) < self._limit:
            self._check_room(reply)
            return True
        self._substitute(overflow)
        return False

    def _substitute(self, overflow: Overflow) -> None:
        """Put the substitute at the head of the queue, unless it is queued already."""
        key = self._collapse_key(overflow.substitute)
        if key in self._queued_keys:
            return
        logger.error("%s: dropping all %d queued messages", self.name, self._limit)
        kept: deque[Envelope[Any]] = deque()
        for envelope in self._messages:
            delivery: Delivery = envelope.message
            if overflow.always_fits(delivery.message):
                kept.append(envelope)
            else:
                self._preempted.append(envelope)
                self._queued_keys.discard(delivery.key)
        self._queued_keys.add(key)
        kept.appendleft(Envelope(Delivery(overflow.substitute, None, monotonic(), key)))
        self._messages = kept
        self._changed.notify()

    def _preempt_messages(self) -> None:
        self._preempted.extend(self._messages)
        self._messages.clear()
        self._queued_keys.clear()


def inbox_of(ref: ActorRef[Any]) -> Inbox:
    """Return the inbox of an actor, which also has the actor's activity. Thread-safe."""
    inbox = ref.actor_inbox
    assert isinstance(inbox, Inbox)
    return inbox
