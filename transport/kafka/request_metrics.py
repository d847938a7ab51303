"""The counters of one kind of request, and how long each part of its handling took.

Mirrors ``kafka.network.RequestMetrics``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from regent.core.timers import Durations

MAX_VERSIONS: Final = 32  # more than any API has
_TIMED: Final = 16
_TIMED_AFTER_S: Final = 0.005
NO_ERROR: Final = "NONE"


class RequestMetrics:
    """Counters since the start. One thread writes, any thread reads.

    The parts of a request's time follow each other: it waits to be handled, it is handled until it
    is answered or first waits, it waits (for other brokers, for records), its response waits for
    the responses to earlier requests, and its response is sent. To record this takes as long as a
    twentieth of a small request. So of requests that follow each other within 5 ms one in 16 is
    timed.
    """

    __slots__ = (
        "_due_at",
        "_untimed",
        "errors",
        "local_time",
        "remote_time",
        "request_queue_time",
        "response_queue_time",
        "response_send_time",
        "total_time",
        "versions",
    )

    def __init__(self) -> None:
        self._untimed = 0
        self._due_at = 0.0
        self.versions = [0] * MAX_VERSIONS
        """How many requests there were of each version."""
        self.errors: Counter[str] = Counter()
        """How many responses had each error, by Kafka's names; ``NONE``: no error."""
        self.request_queue_time = Durations()
        self.local_time = Durations()
        self.remote_time = Durations()
        self.response_queue_time = Durations()
        self.response_send_time = Durations()
        self.total_time = Durations()

    @property
    def count(self) -> int:
        """How many requests there were."""
        return sum(self.versions)

    def is_to_be_timed(self, now: float) -> bool:
        """Whether to call ``record`` with the times of a request that has ended ``now``."""
        self._untimed += 1
        if self._untimed < _TIMED and now < self._due_at:
            return False
        self._untimed = 0
        self._due_at = now + _TIMED_AFTER_S
        return True

    def record(
        self,
        arrived: float,
        begun: float,
        first_waited: float,
        answered: float,
        in_turn: float,
        sent: float,
    ) -> None:
        """Record the times of a request; these are instants of one clock, in seconds."""
        self.request_queue_time.record((begun - arrived) * 1000)
        self.local_time.record((first_waited - begun) * 1000)
        self.remote_time.record((answered - first_waited) * 1000)
        self.response_queue_time.record((in_turn - answered) * 1000)
        self.response_send_time.record((sent - in_turn) * 1000)
        self.total_time.record((sent - arrived) * 1000)
