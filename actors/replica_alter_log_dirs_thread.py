"""Copies the logs that are moved to another log directory, one piece after the other.

Mirrors ``kafka.server.ReplicaAlterLogDirsThread``; there is one of them. The
ReplicaAlterLogDirsManager decides what to copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass

from pykka import ActorDeadError

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import OneShotTimer, Scheduler, monotonic_ms
from regent.core.model import TopicPartition
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager

BACKOFF_MS = 1_000


@dataclass(frozen=True, slots=True)
class CopyLogs:
    """There may be something to copy."""


class ReplicaAlterLogDirsThread(RegentActor):
    """Copies one piece for each message: a piece of each log in turn.

    It continues at once while any log makes progress, and otherwise after ``BACKOFF_MS``. So often
    it also looks whether the rate limit has changed.
    """

    def __init__(
        self,
        manager: ReplicaAlterLogDirsManager,
        scheduler: Scheduler,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__("ReplicaAlterLogDirsThread-0", supervisor=supervisor)
        self._manager = manager
        self._next = OneShotTimer(scheduler, self._tell_copy)
        self._turn: deque[TopicPartition] = deque()
        self._has_progress = False

    @staticmethod
    def collapse_key(message: Hashable) -> Hashable | None:
        """One queued message is enough."""
        return message

    def on_start(self) -> None:
        """Continue the moves of the former process."""
        self._tell_copy()

    def handle(self, message: CopyLogs, reply: Reply | None) -> None:
        """Copy a piece of the next log."""
        del message, reply
        if not self._turn:
            self._turn.extend(self._manager.moving())
            self._has_progress = False
        if not self._turn:
            return
        delay_ms = self._manager.pause_ms(monotonic_ms())
        try:
            if not delay_ms:
                delay_ms = BACKOFF_MS
                self._has_progress |= self._manager.advance(self._turn.popleft(), monotonic_ms())
                if self._turn or self._has_progress:
                    delay_ms = 0
        finally:
            if delay_ms:
                self._next.set(min(delay_ms, BACKOFF_MS))
            else:
                self._tell_copy()

    def on_stop(self) -> None:
        """Do not continue."""
        self._next.cancel()

    def _tell_copy(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(CopyLogs())
