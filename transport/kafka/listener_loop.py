"""The event loop that listeners share, on a thread of its own; and who gets its time."""

from __future__ import annotations

import asyncio
import logging
import selectors
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from regent.config.threads import NamedThread
from regent.transport.kafka.request_memory import RequestBuffers

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S: Final = 5.0
SHORT_TURN_S: Final = 0.0005
_LONG_TURN_S: Final = 0.002
_READY_S: Final = 0.004
OnLoopError = Callable[[str, BaseException | None], None]
Serve: TypeAlias = Callable[[float], None]
"""Serves until an instant of the loop's clock, or one request longer."""


class IdleTimeSelector(selectors.DefaultSelector):
    """A selector that adds up the time of its waits. One thread selects, any thread reads."""

    def __init__(self) -> None:
        super().__init__()
        self._idle_s = 0.0
        self._waiting_since: float | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events; a call that must not wait is not measured."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        self._waiting_since = since = time.monotonic()
        try:
            return super().select(timeout)
        finally:
            self._waiting_since = None
            self._idle_s += time.monotonic() - since

    def idle_s(self) -> float:
        """Return the sum, with the wait in progress."""
        since = self._waiting_since
        return self._idle_s + (0.0 if since is None else max(0.0, time.monotonic() - since))


class ConnectionScheduler:
    """The connections that wait for a turn; used on the loop's thread only.

    Time is shared and not requests, so that no client waits for another's requests. Between two
    polls of all sockets, the connections that have just become ready share ``_READY_S``, each with
    a short turn first; then one connection with more work gets a longer turn. A client with few
    requests waits for milliseconds even when others send many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ready: deque[Serve] = deque()
        self._going_on: deque[Serve] = deque()
        self._is_coming = False

    @property
    def has_waiting(self) -> bool:
        """Whether a connection waits for a turn."""
        return self._is_coming

    def size(self) -> int:
        """Return how many wait. Thread-safe."""
        return len(self._ready) + len(self._going_on)

    def schedule(self, serve: Serve, *, goes_on: bool) -> None:
        """Queue ``serve`` for a turn; ``goes_on``: it just had one."""
        (self._going_on if goes_on else self._ready).append(serve)
        if not self._is_coming:
            self._is_coming = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        clock = self._loop.time
        end = clock() + _READY_S
        try:
            for _ in range(len(self._ready)):
                self._ready.popleft()(clock() + SHORT_TURN_S)
                if clock() >= end:
                    break
            if self._going_on:
                self._going_on.popleft()(clock() + _LONG_TURN_S)
        finally:
            self._is_coming = bool(self._ready or self._going_on)
            if self._is_coming:
                self._loop.call_soon(self._run)


class ListenerLoop:
    """Runs from its creation until ``close``.

    All connections of all its listeners share its time.
    """

    def __init__(self, name: str = "kafka-listener") -> None:
        self.name = name
        selector = IdleTimeSelector()
        self.idle_s = selector.idle_s
        self.loop = asyncio.SelectorEventLoop(selector)
        self.scheduler = ConnectionScheduler(self.loop)
        self.buffers = RequestBuffers()
        self._on_error: OnLoopError | None = None
        self.loop.set_exception_handler(self._handle_error)
        self._thread = NamedThread(self._run, name)
        self._thread.start()

    def call(self, function: Callable[..., object], *args: object) -> bool:
        """Call a function on the loop's thread, soon; return whether the loop still runs."""
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def on_error(self, count: OnLoopError) -> None:
        """Report errors outside of connections to ``count`` from now on."""
        self._on_error = count

    def close(self) -> None:
        """Stop the loop; what still runs on it is given up. Idempotent."""
        self.call(self.loop.stop)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("%s does not stop: a handler blocks", self.name)

    def _handle_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if self._on_error is not None:
            self._on_error(context["message"], context.get("exception"))
        else:
            logger.error("%s: %s", self.name, context["message"], exc_info=context.get("exception"))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            given_up = asyncio.all_tasks(self.loop)
            if given_up:
                with suppress(RuntimeError):
                    waiting = asyncio.wait(given_up, timeout=STOP_TIMEOUT_S)
                    self.loop.run_until_complete(waiting)
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()
