"""A leader's view of one follower: its position, and when it was last caught up.

Mirrors ``kafka.cluster.Replica``.
"""

from __future__ import annotations

from dataclasses import dataclass

from regent.core.model import UNKNOWN_BROKER_EPOCH
from regent.core.replica_logs import UNKNOWN_OFFSET

NEVER_MS = -(2**62)  # a monotonic clock may start at 0: "never" must be longer ago than any lag


@dataclass(slots=True)
class LastFetch:
    """When a follower last fetched in a session; shared by the partitions it did not list.

    One assignment then counts as a fetch of each of them.
    """

    at_ms: int


@dataclass(slots=True)
class Replica:
    """A follower's position. Times are monotonic milliseconds.

    A follower was *caught up* at a time if it has all records that the leader had at that time. So
    a fetch from the leader's log end offset at the previous fetch shows that the follower was
    caught up at the time of the previous fetch.

    ``silent_fetch`` is set while fetches of a session do not list the partition: each of them
    counts as a repetition of the last fetch that did.
    """

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH  # of the broker at its last fetch (KIP-903)
    last_caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end_offset: int = 0
    silent_fetch: LastFetch | None = None

    def on_leader_epoch(self, leader_end_offset: int, now_ms: int, *, is_in_isr: bool) -> None:
        """Begin a leader epoch: members of the ISR have ``replica.lag.time.max.ms`` to fetch."""
        self.last_caught_up_ms = now_ms if is_in_isr else NEVER_MS
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset
        self.silent_fetch = None

    def on_fetch(
        self,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
        session: LastFetch | None = None,
    ) -> bool:
        """Record a fetch; ``leader_end_offset`` is that before the read. True: position changed.

        Until it is listed again, every fetch in ``session`` counts as this one.
        """
        self.end_silence()
        if fetch_offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif fetch_offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        is_elsewhere = fetch_offset != self.log_end_offset
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch
        self.last_fetch_leader_end_offset = leader_end_offset
        self.last_fetch_ms = now_ms
        self.silent_fetch = session
        return is_elsewhere

    def caught_up_ms(self) -> int:
        """Return when it was last caught up, also by fetches that did not list the partition."""
        silent = self.silent_fetch
        if silent is None or self.log_end_offset < self.last_fetch_leader_end_offset:
            return self.last_caught_up_ms
        return max(self.last_caught_up_ms, silent.at_ms)

    def fetched_ms(self) -> int:
        """Return when it last fetched, also without listing the partition."""
        silent = self.silent_fetch
        return self.last_fetch_ms if silent is None else max(self.last_fetch_ms, silent.at_ms)

    def end_silence(self) -> None:
        """Stop counting fetches of the session that do not list this partition."""
        if self.silent_fetch is not None:
            self.last_caught_up_ms = self.caught_up_ms()
            self.last_fetch_ms = self.fetched_ms()
            self.silent_fetch = None
