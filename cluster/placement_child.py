"""The placement service of a local cluster: its process begins when a topic needs it.

A broker asks for it when a topic must be placed. The process ends by itself after a time without
topics, so an idle cluster has no JVM. When it has failed it is started again at the next request,
but not before a pause, which is longer after each failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from regent.cluster.child_process import Child, ChildProcess, DeathPipe, describe_exit
from regent.cluster.cluster_file import PlacementEntry
from regent.cluster.cluster_plan import ClusterPlan
from regent.cluster.process_supervisor import Backoff, ProcessSupervisor
from regent.core.errors import RegentError


class PlacementChild:
    """Starts the process on request, and knows its state. Used on the thread of the supervisor."""

    def __init__(
        self,
        plan: ClusterPlan,
        death_pipe: DeathPipe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.entry = PlacementEntry()
        self.child: Child = ChildProcess(
            "placement service",
            plan.placement_service_command,
            output=plan.placement_service_dir / "placement-service.out",
            death_pipe=death_pipe,
        )
        self._clock = clock
        self._pauses = Backoff(first_s=plan.restart_backoff_s)
        self._has_run = False
        self._began_at = 0.0
        self._not_before = 0.0

    def start(self, processes: ProcessSupervisor) -> PlacementEntry:
        """Start the process, unless it runs or has just failed; return the new state at once."""
        now = self._clock()
        if self.entry.pid or now < self._not_before:
            return self.entry
        self._began_at = now
        try:
            if self._has_run:
                processes.start_again(self.child)
            else:
                processes.start(self.child)
                self._has_run = True
        except RegentError as error:
            self._fail(str(error))
        else:
            assert self.child.pid is not None
            self.entry = PlacementEntry(self.child.pid)
        return self.entry

    def is_ready(self) -> None:
        """Take the endpoint that the process has printed."""
        assert self.child.pid is not None
        self.entry = PlacementEntry(self.child.pid, self.child.ready or "")

    def has_ended(self, status: int) -> None:
        """Take the end of the process; 0: it was idle, or was asked to end."""
        if status == 0:
            self.entry = PlacementEntry()
            return
        reason = self.child.last_line() if status > 0 else None
        self._fail(reason or f"its process ended {describe_exit(status)}")

    def _fail(self, reason: str) -> None:
        now = self._clock()
        self._not_before = now + self._pauses.pause_s(now - self._began_at)
        self.entry = PlacementEntry(message=reason)
