"""Pykka actors without threads of their own, so that one process can run ten thousand of them.

A thread for each replica of each partition would need gigabytes. These actors share a few
threads, or, in a simulation, a single one that chooses the next actor by seeded dice.
"""

from __future__ import annotations

import logging
import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import pykka
from pykka._envelope import Envelope

logger = logging.getLogger(__name__)


class Dispatcher(Protocol):
    """Runs actors that have messages."""

    def submit(self, step: Callable[[], None], /) -> object:
        """Call ``step`` once, soon, on any thread."""
        ...


class ActorClock(Protocol):
    """Time and timers."""

    def now_ms(self) -> int:
        """Return a monotonic time."""
        ...

    def later(self, after_ms: int, callback: Callable[[], None], /) -> object:
        """Call ``callback`` once, after some milliseconds; it only tells an actor."""
        ...


class _Inbox(deque[Envelope[Any]]):
    """The queue of one actor; a new message wakes it."""

    wake: Callable[[], None] = staticmethod(lambda: None)

    def put(self, envelope: Envelope[Any], /) -> None:
        """Add a message."""
        self.append(envelope)
        self.wake()

    def get(self) -> Envelope[Any]:
        """Take the oldest message; raises ``IndexError`` when there is none."""
        return self.popleft()

    def empty(self) -> bool:
        """Whether there is no message."""
        return not self


class PooledActor(pykka.Actor):
    """An actor that handles one message at a time, on whatever thread the dispatcher chooses.

    A handler that raises loses its message only: the actor goes on.
    """

    actor_inbox: _Inbox

    def __init__(self, dispatcher: Dispatcher) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._submitting = threading.Lock()
        self._is_submitted = False
        self._has_started = False

    @abstractmethod
    def handle(self, message: Any) -> object:
        """Handle a message and return the answer to it."""

    def _tell_later(self, clock: ActorClock, after_ms: int, message: object) -> None:
        """Tell this actor something after a while, unless it has stopped by then."""

        def tell() -> None:
            with suppress(pykka.ActorDeadError):
                self.actor_ref.tell(message)

        clock.later(after_ms, tell)

    def on_receive(self, message: Any) -> object:
        """Pass a message on to ``handle``."""
        return self.handle(message)

    # --- Pykka's hooks ---

    @staticmethod
    def _create_actor_inbox() -> _Inbox:
        return _Inbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self.actor_inbox.wake = self._wake
        self._wake()

    # --- running ---

    def _wake(self) -> None:
        with self._submitting:
            if self._is_submitted:
                return
            self._is_submitted = True
        self._dispatcher.submit(self._run)

    def _run(self) -> None:
        """Handle one message, so that others get the thread; submit again if there are more."""
        if not self._has_started:
            self._has_started = True
            self._actor_loop_setup()
        if not self.actor_stopped.is_set() and not self.actor_inbox.empty():
            self._step(self.actor_inbox.get())
        if self.actor_stopped.is_set():
            self._actor_loop_teardown()
            return
        with self._submitting:
            if self.actor_inbox.empty():
                self._is_submitted = False
                return
        self._dispatcher.submit(self._run)

    def _step(self, envelope: Envelope[Any]) -> None:
        try:
            answer = self._handle_receive(envelope.message)
        except Exception:
            if envelope.reply_to is not None:
                envelope.reply_to.set_exception(sys.exc_info())
            else:
                logger.exception("%s: handling %.300r failed", self, envelope.message)
            return
        if envelope.reply_to is not None:
            envelope.reply_to.set(answer)
