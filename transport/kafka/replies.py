"""How a request is answered later: its exchange, its task, and answers of other threads.

The first step of a handler runs in the call that reads the request. What is left of it is a task
(``BegunSteps``), or an ``AwaitedReply``, which needs no task. Other threads give their answers with
it. The event loop is woken once for a burst of answers: waking it is a system call.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, Final, TypeVar

from regent.core.replication.delayed_operation import DelayedOperation
from regent.transport.kafka.api import KafkaAnswer, KafkaRequest
from regent.transport.kafka.metrics import RequestMetrics
from regent.transport.kafka.request_memory import Reservation
from regent.transport.kafka.throttle import Throttle

R = TypeVar("R")
T = TypeVar("T")

_SIZE: Final = struct.Struct(">i")
_ANSWER_HEADER: Final = struct.Struct(">ii")  # size of what follows, correlation id
_CORRELATION_ID_BYTES: Final = 4


class Exchange:
    """A request in progress and, when there is one, its response.

    ``end``: how many bytes have been sent on its connection when its response has.
    """

    __slots__ = (
        "answer",
        "answered_at",
        "arrived_at",
        "begun_at",
        "correlation_id",
        "end",
        "first_waited_at",
        "header_end",
        "in_turn_at",
        "is_done",
        "is_raw_token",
        "later",
        "metrics",
        "reservation",
        "task",
        "throttle",
    )

    def __init__(
        self,
        request: KafkaRequest,
        reservation: Reservation | None,
        metrics: RequestMetrics,
        arrived_at: float,
        begun_at: float,
    ) -> None:
        self.metrics = metrics
        self.arrived_at = arrived_at
        self.begun_at = begun_at
        self.first_waited_at = self.answered_at = self.in_turn_at = 0.0
        self.end = 0
        self.correlation_id = request.correlation_id
        self.header_end = request.response_header_end
        self.is_raw_token = request.is_raw_token
        self.reservation = reservation  # of the listener's memory, when it is large
        self.throttle = request.throttle
        self.task: asyncio.Task[KafkaAnswer] | None = None
        self.later: AwaitedReply[KafkaAnswer] | None = None
        self.answer: KafkaAnswer = None
        self.is_done = False

    def header(self, size: int) -> bytes:
        """Return what precedes a body of ``size`` bytes."""
        if self.is_raw_token:
            return _SIZE.pack(size)
        end = self.header_end
        size += _CORRELATION_ID_BYTES + len(end)
        return _ANSWER_HEADER.pack(size, self.correlation_id) + end

    def take(self, later: AwaitedReply[KafkaAnswer]) -> KafkaAnswer:
        """Return an answer that is here; the work on it counts for the quota of the client."""
        if self.throttle is None:
            return later.outcome()
        self.throttle.begin_step()
        try:
            return later.outcome()
        finally:
            self.throttle.end_step()

    def on_sent(self, now: float) -> None:
        """Record the times of the request: its response was sent, or there is none."""
        if not self.metrics.is_to_be_timed(now):
            return
        self.metrics.record(
            self.arrived_at,
            self.begun_at,
            self.first_waited_at or self.answered_at,
            self.answered_at,
            self.in_turn_at,
            now,
        )


class TimedSteps(Generator[Any, Any, T]):
    """The steps of a request, each of which counts for the quota of its client."""

    def __init__(self, steps: Generator[Any, Any, T], throttle: Throttle) -> None:
        self._steps = steps
        self._throttle = throttle

    def send(self, value: object) -> object:
        self._throttle.begin_step()
        try:
            return self._steps.send(value)
        finally:
            self._throttle.end_step()

    def throw(self, *error: Any) -> object:
        return self._steps.throw(*error)


class BegunSteps(Coroutine[Any, Any, T]):
    """The rest of an awaitable after its first step, which returned ``awaited``."""

    def __init__(self, steps: Generator[Any, Any, T], awaited: object) -> None:
        self._steps = steps
        self._awaited: list[object] = [awaited]

    def send(self, value: object) -> object:
        return self._awaited.pop() if self._awaited else self._steps.send(value)

    def throw(self, *error: Any) -> object:
        # A task that is cancelled before its first step does not know what it would wait for.
        while self._awaited:
            awaited = self._awaited.pop()
            if isinstance(awaited, asyncio.Future):
                awaited.cancel()
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise NotImplementedError("only a task runs it")


def monotonic_ms() -> int:
    """Return the monotonic time in milliseconds, the clock of the core."""
    return time.monotonic_ns() // 1_000_000


class Replies:
    """The awaited replies of one event loop, the one that runs when they are made."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._arrived: deque[Callable[[], None]] = deque()
        self._is_woken = False
        self._sends: list[Callable[[], None]] | None = None  # None: no burst is being delivered

    def new(self) -> AwaitedReply[Any]:
        """Return a new reply to wait for; call it on the loop's thread."""
        self.loop()
        return AwaitedReply(self)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the present thread, on which replies are delivered from now on.

        It is not looked up each time: in Python 3.11 this takes a system call.
        """
        thread = threading.get_ident()
        if self._loop is None or self._thread != thread or self._loop.is_closed():
            self._loop, self._thread = asyncio.get_running_loop(), thread
        return self._loop

    def run(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop, at once when this is its thread; never raises."""
        if threading.get_ident() == self._thread:
            call()
            return
        self._arrived.append(call)
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            with suppress(RuntimeError):  # the loop is closed: no reply is awaited any more
                self._loop.call_soon_threadsafe(self._run_arrived)

    def send(self, call: Callable[[], None]) -> None:
        """Run ``call`` after the answers that have arrived together; on the loop's thread.

        So a connection sends those of its requests with one system call. ``call`` never raises.
        """
        if self._sends is None:
            call()
        else:
            self._sends.append(call)

    def _run_arrived(self) -> None:
        self._is_woken = False  # first: a later answer wakes the loop again
        sends: list[Callable[[], None]] = []
        self._sends = sends
        try:
            for _ in range(len(self._arrived)):
                self._arrived.popleft()()
        finally:
            self._sends = None
            for send in sends:
                send()


class AwaitedReply(Awaitable[T]):
    """One answer, given once by any thread with ``give``, and received on the event loop's thread.

    A handler awaits it, or returns it as its own answer: then the connection sends it in the call
    that gives it, and no task waits.
    """

    __slots__ = ("_make", "_on_given", "_replies", "_value")

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._value: list[T] = []  # empty until it is given
        self._make: Callable[[], T] | None = None  # what makes the answer of another one
        self._on_given: Callable[[], None] | None = None

    @property
    def is_given(self) -> bool:
        """Whether the answer is here."""
        return bool(self._value) or self._make is not None

    def outcome(self) -> T:
        """Return the answer, which is here; call it once. Raises what ``mapped`` says."""
        return self._value[0] if self._make is None else self._make()

    def give(self, value: T) -> None:
        """Set the answer; call it on any thread."""
        self._replies.run(lambda: self._take(value))

    def then(self, on_given: Callable[[], None]) -> None:
        """Call ``on_given`` when the result is here, perhaps now; instead of waiting for it."""
        if self.is_given:
            on_given()
        else:
            self._on_given = on_given

    def send(self, call: Callable[[], None]) -> None:
        """See ``Replies.send``."""
        self._replies.send(call)

    def mapped(self, convert: Callable[[T], R]) -> AwaitedReply[R]:
        """Return the reply ``convert(answer)``: its ``outcome`` calls ``convert``, which may raise.

        So this is work of the connection that sends the answer, and its error closes only that.
        """
        mapped: AwaitedReply[R] = AwaitedReply(self._replies)
        self.then(lambda: mapped._take_maker(lambda: convert(self.outcome())))
        return mapped

    def __await__(self) -> Generator[Any, None, T]:
        if not self.is_given:
            waiter: asyncio.Future[None] = self._replies.loop().create_future()
            self._on_given = lambda: None if waiter.done() else waiter.set_result(None)
            yield from waiter
        return self.outcome()

    async def wait_for(
        self,
        operation: DelayedOperation | None,
        timeout_ms: int,
        expire: Callable[[DelayedOperation, int], None],
    ) -> T:
        """Wait for the answer of an operation; None: it has answered already.

        After ``timeout_ms``, or when the wait is cancelled, ``expire`` is called with the operation
        and the time, and makes the operation answer.
        """
        if operation is None:
            return await self

        def expire_now() -> None:
            expire(operation, monotonic_ms())

        timer = self._replies.loop().call_later(timeout_ms / 1000, expire_now)
        try:
            return await self
        except asyncio.CancelledError:
            expire_now()
            raise
        finally:
            timer.cancel()

    def hurry(self) -> None:
        """The client does not want to wait for more: it asks for the versions meanwhile."""

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""

    def _take(self, value: T) -> None:
        self._value.append(value)
        self._on_taken()

    def _take_maker(self, make: Callable[[], T]) -> None:
        self._make = make
        self._on_taken()

    def _on_taken(self) -> None:
        on_given, self._on_given = self._on_given, None
        if on_given is not None:
            on_given()
