"""Says that packets of this machine get lost, for ``status``; any thread may ask.

Linux counts the segments of TCP that it sent, and those that it sent again because nobody had
acknowledged them: of all processes of this network namespace. The first segment of a connection
(SYN) is left out. It is sent again as long as its receiver is down, and tells nothing of a loss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

LOOK_MS: Final = 10_000
_LOOKS: Final = 7  # of about a minute
_SHARE: Final = 0.03
_MIN_RESENT: Final = 10  # fewer say nothing about a link that is hardly used


class _Sent(NamedTuple):
    """Segments since the start of the machine."""

    once: int
    again: int


class PacketLoss:
    """What this machine sent again during the last minute.

    ``folder`` has Linux's counters ``snmp`` and ``netstat``; without them nothing is known.
    """

    def __init__(self, folder: Path = Path("/proc/self/net")) -> None:
        self._folder = folder
        self._looks: deque[_Sent] = deque(maxlen=_LOOKS)

    def look(self) -> None:
        """Read the counters; to be called every ``LOOK_MS``, by one thread."""
        try:
            tcp = _counters(self._folder / "snmp", "Tcp:")
            more = _counters(self._folder / "netstat", "TcpExt:")
            again = tcp["RetransSegs"] - more["TCPSynRetrans"]
            self._looks.append(_Sent(tcp["OutSegs"], again))
        except (OSError, ValueError, KeyError):
            self._looks.clear()

    def warnings(self) -> Sequence[str]:
        """Return a line if more than three in a hundred segments were sent again."""
        looks = list(self._looks)
        if not looks:
            return ()
        again = looks[-1].again - looks[0].again
        share = again / max(looks[-1].once - looks[0].once + again, 1)
        if again < _MIN_RESENT or share < _SHARE:
            return ()
        return (
            f"packets get lost: its machine sent {share:.0%} of its TCP segments again in the last"
            " minute; look at the network of the broker that says the highest share",
        )


def _counters(path: Path, kind: str) -> dict[str, int]:
    """Return the counters of one kind: a line has their names, the next one their values."""
    names, values = (
        line.split() for line in path.read_text().splitlines() if line[: len(kind)] == kind
    )
    return {name: int(value) for name, value in zip(names[1:], values[1:], strict=True)}
