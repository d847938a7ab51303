"""What a leader knows of one follower: how far it got, and when it last had everything.

Mirrors ``kafka.cluster.Replica``.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.model import UNKNOWN_BROKER_EPOCH

UNKNOWN_OFFSET = -1
NEVER_MS = -(2**62)  # a monotonic clock may start at 0: "never" must be longer ago than any lag


@dataclass(slots=True)
class RemoteReplica:
    """A follower's position. Times are monotonic milliseconds.

    A follower is *caught up* at a time when it has all the leader had then. It learns of records
    only by fetching, so a fetch that reaches the end the leader had at the fetch before shows that
    it was caught up at the time of that earlier fetch.
    """

    log_end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = UNKNOWN_BROKER_EPOCH  # the life of the broker that fetched last (KIP-903)
    last_caught_up_ms: int = NEVER_MS
    last_fetch_ms: int = NEVER_MS
    last_fetch_leader_end_offset: int = 0

    def on_leader_epoch(self, leader_end_offset: int, now_ms: int, *, is_in_isr: bool) -> None:
        """Begin a leader epoch: members of the ISR have a whole lag limit to show themselves."""
        self.last_caught_up_ms = now_ms if is_in_isr else NEVER_MS
        self.last_fetch_ms = now_ms
        self.last_fetch_leader_end_offset = leader_end_offset

    def on_fetch(
        self,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        leader_end_offset: int,
        now_ms: int,
    ) -> bool:
        """Take a fetch; ``leader_end_offset`` is the one before the read. True if it got on."""
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
        return is_elsewhere
