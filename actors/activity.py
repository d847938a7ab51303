"""What an actor publishes about itself: other threads read this instead of the actor."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True)
class Activity:
    """What one actor is doing. Only its thread writes; any thread reads.

    ``message`` and ``busy_since`` (monotonic seconds) are None between messages; ``last_activity``
    is when the last message ended; ``failures`` counts the messages whose handling failed.
    """

    thread: threading.Thread
    message: object = "on_start"
    busy_since: float | None = field(default_factory=monotonic)
    last_activity: float = field(default_factory=monotonic)
    failures: int = 0

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
