"""How much work of a process each broker may cause with its requests.

A broker needs little of another one: the proposals of its ISRs and some forwarded requests. Only
the controller needs much, and its requests are not counted, nor those of operators. What a request
costs is measured: the time of the thread that reads it, the time of the actor that handles it, and
its bytes, which ZeroMQ decrypts. So is what ZeroMQ does for a broker without a message, which
nobody needs: commands (PING) and repeated handshakes. What an actor does for a client, whose
request a broker forwards, is not counted: that is limited by the quotas of clients.

A broker that has not caused much work lately may cause ``_BURST_S`` at once, for example when
thousands of partitions change. The more of that it has used, the less it may do: see ``Pace``. So a
broker whose key was stolen cannot take the time of the others.

When a broker comes back, the leaders of tens of thousands of partitions propose another ISR for
each of them. That takes the controller longer than a burst. So the work for a change that was
accepted is not counted, for each partition twice in a minute: a replica leaves and comes back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from enum import IntEnum
from typing import Final, NamedTuple

from regent.core.security.roles import KeyOwner

_SHARE: Final = 0.05  # seconds of work in a second that a broker may cause for ever
_BURST_S: Final = 1.0
_UNNOTICED_S: Final = 0.02  # of a burst
_DEBT_TO_CUT_OFF_S: Final = 0.5  # work of requests that were refused already
_MOST_DEBT_S: Final = 1.0  # so a broker is served again after 20 seconds at most
_S_PER_BYTE: Final = 5e-9  # of decryption
_S_PER_CHANGE: Final = 0.0005  # at most, of a change that is not counted
_FREE_CHANGES: Final = 2  # of a partition in each ``_CHANGES_S``
_CHANGES_S: Final = 60.0
_WORK_BEFORE_REST_S: Final = 0.001
_REST: Final = 19  # times the work before it
_LONGEST_REST_S: Final = 0.02


class Leeway(IntEnum):
    """What may be done for a peer now."""

    EASY = 0
    """All."""
    SLOW = 1
    """One request after the other, with rests between them."""
    REFUSED = 2
    """Nothing: its requests are refused until some time has passed."""
    CUT_OFF = 3
    """It goes on nevertheless: its connection is ended, and it may not connect for some time."""


class _Changes(NamedTuple):
    """How often each partition was changed for a broker; they are forgotten at ``end``."""

    end: float
    counts: Counter[Hashable]


class Pace:
    """Counts the work that each broker causes. Thread-safe.

    ``now`` returns monotonic seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._left: dict[KeyOwner, tuple[float, float]] = {}  # seconds of work, and when it was so
        self._changes: dict[KeyOwner, _Changes] = {}
        self._work_since_rest = 0.0  # of peers that are slow

    def charge(
        self, peer: KeyOwner, work_s: float, changed: Collection[Hashable] = (), size: int = 0
    ) -> None:
        """Note work that a broker has caused, and the bytes of a message of it.

        ``changed``: the partitions that the work changed as the broker proposed.
        """
        work_s += size * _S_PER_BYTE
        with self._lock:
            now = self._now()
            if changed:
                work_s = max(0.0, work_s - _S_PER_CHANGE * self._free_changes(peer, changed, now))
            left = max(-_MOST_DEBT_S, self._left_of(peer, now) - work_s)
            self._left[peer] = left, now
            if left < _BURST_S - _UNNOTICED_S:
                self._work_since_rest += work_s

    def leeway(self, peer: KeyOwner) -> Leeway:
        """Return what may be done for a peer now."""
        with self._lock:
            left = self._left_of(peer, self._now())
        if left >= _BURST_S - _UNNOTICED_S:
            return Leeway.EASY
        if left >= 0:
            return Leeway.SLOW
        return Leeway.REFUSED if left >= -_DEBT_TO_CUT_OFF_S else Leeway.CUT_OFF

    def may_connect(self, peer: KeyOwner) -> bool:
        """Whether a peer may open a connection now."""
        return self.leeway(peer) < Leeway.REFUSED

    def take_rest(self) -> float:
        """Return for how many seconds no message is to be read now.

        The messages of all peers wait then, but not long. ZeroMQ gives each connection its turn.
        """
        with self._lock:
            work_s = self._work_since_rest
            if work_s < _WORK_BEFORE_REST_S:
                return 0.0
            self._work_since_rest = 0.0
            return min(_REST * work_s, _LONGEST_REST_S)

    def _free_changes(self, peer: KeyOwner, changed: Collection[Hashable], now: float) -> int:
        """Note changes; return how many of them are not counted."""
        self._changes = {who: some for who, some in self._changes.items() if some.end > now}
        counts = self._changes.setdefault(peer, _Changes(now + _CHANGES_S, Counter())).counts
        counts.update(set(changed))
        return sum(counts[partition] <= _FREE_CHANGES for partition in set(changed))

    def _left_of(self, peer: KeyOwner, now: float) -> float:
        left, at = self._left.get(peer, (_BURST_S, now))
        return min(_BURST_S, left + (now - at) * _SHARE)
