"""Measurements of the controller's thread.

Mirrors the timers of ``kafka.controller.ControllerStats`` and the metrics of
``ControllerEventManager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from regent.core.controller.events import ControllerEvent
from regent.core.controller.gauges import ControllerGauges, ControllerState, state_of
from regent.core.timers import Timer

IDLE_RESET_MS = 300_000  # after this time without an event, the queue times are reset


class EventManagerStats:
    """Timers by state, queue times, and gauges and counts as of the last event.

    The controller's thread writes, any thread reads.
    """

    def __init__(self, idle_reset_ms: int = IDLE_RESET_MS) -> None:
        self.state = ControllerState.IDLE
        self.gauges = ControllerGauges()
        self.unclean_leader_elections = 0
        self.timers = {state.timer: Timer() for state in ControllerState if state.timer is not None}
        self._queue_time = Timer()
        self._idle_reset_ms = idle_reset_ms
        self._last_event_at = monotonic()

    @property
    def event_queue_time(self) -> Timer:
        """How long events waited in the queue; empty if there was none for a while."""
        if (monotonic() - self._last_event_at) * 1000 >= self._idle_reset_ms:
            self._queue_time.clear()
        return self._queue_time

    @contextmanager
    def handling(self, event: ControllerEvent, queue_ms: float) -> Iterator[None]:
        """Measure the time that the block takes, even if it raises."""
        self.event_queue_time.record(queue_ms)
        started = self._last_event_at = monotonic()
        self.state = state_of(event)
        try:
            yield
        finally:
            ended = self._last_event_at = monotonic()
            if self.state.timer is not None:
                self.timers[self.state.timer].record((ended - started) * 1000)
            self.state = ControllerState.IDLE
