"""Answers of other threads, delivered on the listener's event loop.

The loop is woken once for a burst of answers, not once for each: waking it is a system call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

from regent.core.replication.delayed_operation import DelayedOperation

T = TypeVar("T")


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

    def _run_arrived(self) -> None:
        self._is_woken = False  # first: a later answer wakes the loop again
        while self._arrived:
            self._arrived.popleft()()


class AwaitedReply(Awaitable[T]):
    """One answer, given once by any thread with ``give``, and received on the event loop's thread.

    A handler awaits it, or returns it as its own answer: then the connection sends it in the call
    that gives it, and no task waits.
    """

    __slots__ = ("_on_given", "_replies", "_value")

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._value: list[T] = []  # empty until it is given
        self._on_given: Callable[[T], None] | None = None

    @property
    def is_given(self) -> bool:
        """Whether the answer is here."""
        return bool(self._value)

    def give(self, value: T) -> None:
        """Set the answer; call it on any thread."""
        self._replies.run(lambda: self._take(value))

    def then(self, on_given: Callable[[T], None]) -> None:
        """Call ``on_given`` with the answer, now or when it is given; instead of waiting for it."""
        if self._value:
            on_given(self._value[0])
        else:
            self._on_given = on_given

    def __await__(self) -> Generator[Any, None, T]:
        if not self._value:
            waiter: asyncio.Future[None] = self._replies.loop().create_future()
            self._on_given = lambda _: None if waiter.done() else waiter.set_result(None)
            yield from waiter
        return self._value[0]

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
        on_given, self._on_given = self._on_given, None
        if on_given is not None:
            on_given(value)
