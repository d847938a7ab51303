"""Finds actors that are stuck, which Pykka does not report."""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from time import monotonic

from pykka import ActorRegistry

from regent.actors.inbox import inbox_of
from regent.config.threads import NamedThread

logger = logging.getLogger(__name__)


class Watchdog:
    """Logs each actor that handles one message for longer than ``limit_s``, once per message.

    It checks every ``limit_s``, and again when an actor that is busy now would exceed the limit.
    """

    def __init__(self, limit_s: float = 5.0) -> None:
        self.incidents = 0
        self._limit_s = limit_s
        self._reported: dict[str, float] = {}  # actor urn -> busy_since
        self._stopped = threading.Event()
        self._thread = NamedThread(self._run, "actor-watchdog")

    def start(self) -> None:
        """Check from now on."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop looking."""
        self._stopped.set()
        self._thread.join(timeout)

    def check(self, now: float) -> float:
        """Check once; return when to check next. Both are monotonic seconds."""
        seen, self._reported = self._reported, {}
        next_check = now + self._limit_s
        for ref in ActorRegistry.get_all():
            activity = inbox_of(ref).activity
            since, message = activity.busy_since, activity.message
            if since is None:
                continue
            if now - since < self._limit_s:
                next_check = min(next_check, since + self._limit_s)
                continue
            self._reported[ref.actor_urn] = since
            if seen.get(ref.actor_urn) != since:
                self._report(activity.thread, message, now - since)
        return next_check

    def _report(self, thread: threading.Thread, message: object, busy_s: float) -> None:
        self.incidents += 1
        frame = sys._current_frames().get(thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "no stack"
        logger.warning(
            "%s has been busy for %.1f s with %.300r\n%s", thread.name, busy_s, message, stack
        )

    def _run(self) -> None:
        next_check = monotonic() + self._limit_s
        while not self._stopped.wait(next_check - monotonic()):
            next_check = self.check(monotonic())
