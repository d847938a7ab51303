"""How much room the file system of a log directory has, how fast it fills, and who may fill it.

Producers are refused before the file system is full. A full one would take the directory offline,
and a broker without a directory ends. Followers, coordinators and the deletion of old segments may
use what is left.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_dirs import UNKNOWN_BYTES
from regent.core.quantities import bytes_text, span_text
from regent.core.replica_logs import AppendOrigin

SAMPLE_MS: Final = 10_000
_READ_AGAIN_S: Final = 0.05  # in which producers write a few megabytes
_REMEMBERED_S: Final = 3_600.0
_LEAST_S: Final = 60.0  # a rate of less time says nothing
_WEEK_S: Final = 7 * 86_400.0
_MAX_BYTES: Final = 2**63 - 1  # of Kafka's protocol
_READ: Final = "see docs/operations.md, A full disk"
_log = logging.getLogger(__name__)


class Room(NamedTuple):
    """The size of a file system, and what this process may still use of it, in bytes; -1: unknown.

    What only root may use is not usable, and counts as used.
    """

    total_bytes: int = UNKNOWN_BYTES
    usable_bytes: int = UNKNOWN_BYTES

    @property
    def used_percent(self) -> float:
        """Which part is used; 0 if it is unknown."""
        if self.total_bytes <= 0:
            return 0.0
        return 100 * (1 - self.usable_bytes / self.total_bytes)


class DiskSpace:
    """The file system of one log directory. Thread-safe."""

    def __init__(
        self,
        path: Path,
        statvfs: Callable[[Path], os.statvfs_result] = os.statvfs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.min_free_bytes = 0
        """Records of producers are refused while less is free; 0: never."""
        self.statvfs = statvfs
        self.clock = clock
        self._read_at = float("-inf")
        self._usable_bytes = UNKNOWN_BYTES
        self._is_refused = False  # as the log says
        self._samples = deque[tuple[float, int]]()

    def room(self) -> Room:
        """Ask the file system."""
        try:
            found = self.statvfs(self.path)
        except OSError:
            return Room()
        total, usable = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
        return Room(min(total, _MAX_BYTES), min(usable, _MAX_BYTES))

    def check(self, origin: AppendOrigin) -> None:
        """Raise ``RecordsRefusedError`` if a producer must not append now.

        The error is one after which clients look for the leader and try again, because room may be
        made at any moment. It says that the records were not written.
        """
        if origin is AppendOrigin.CLIENT and self.min_free_bytes and (why := self.why_refused()):
            raise RecordsRefusedError(Errors.KAFKA_STORAGE_ERROR, why)

    def why_refused(self) -> str:
        """Return why producers are refused; empty: they are not."""
        now = self.clock()
        if now >= self._read_at + _READ_AGAIN_S:
            self._read_at, self._usable_bytes = now, self.room().usable_bytes
        left = self._usable_bytes
        has_room = left == UNKNOWN_BYTES or left >= self.min_free_bytes
        why = "" if has_room else self._too_little(left)
        if bool(why) != self._is_refused:
            self._is_refused = bool(why)
            accepted = f"accepted again: log directory {self.path} has {bytes_text(left)} left"
            _log.warning("records of producers are %s", f"refused: {why}" if why else accepted)
        return why

    def _too_little(self, left: int) -> str:
        return (
            f"log directory {self.path} has {bytes_text(left)} left, less than"
            f" log_dir_min_free_bytes ({bytes_text(self.min_free_bytes)}); records are accepted"
            " again when there is more"
        )

    def sample(self) -> None:
        """Remember how much is usable now; call it every ``SAMPLE_MS``."""
        now, usable = self.clock(), self.room().usable_bytes
        if self.min_free_bytes:
            self.why_refused()  # for the log, if no producer asks
        if usable != UNKNOWN_BYTES:
            self._samples.append((now, usable))
        while self._samples and self._samples[0][0] < now - _REMEMBERED_S:
            self._samples.popleft()

    def filled_per_s(self) -> float | None:
        """Return by how many bytes a second it fills; below 0: it empties; None: unknown yet."""
        samples = list(self._samples)
        if len(samples) <= 1 or samples[-1][0] - samples[0][0] < _LEAST_S:
            return None
        (began, before), (ended, after) = samples[0], samples[-1]
        return (before - after) / (ended - began)

    def warning(self, warning_percent: int, critical_percent: int) -> str:
        """Return a line about a file system that is nearly full; empty: it is not."""
        room = self.room()
        refused = self.why_refused() if self.min_free_bytes else ""
        if refused:
            return f"producers are refused: {refused}{self._forecast(room)}; {_READ}"
        if room.used_percent < warning_percent:
            return ""
        is_critical = room.used_percent >= critical_percent
        return (
            f"log directory {self.path} is {'almost' if is_critical else 'nearly'} full:"
            f" {room.used_percent:.0f} % used, {bytes_text(room.usable_bytes)} left"
            f"{self._forecast(room)}; {_READ}"
        )

    def _forecast(self, room: Room) -> str:
        per_s = self.filled_per_s()
        if per_s is None or per_s <= 0 or room.usable_bytes / per_s > _WEEK_S:
            return ""
        return (
            f", full in {span_text(room.usable_bytes / per_s)} at the present"
            f" {bytes_text(per_s)} a second"
        )
