"""Scrubs segments: reads all of them periodically to find damage while other replicas are sound.

A fetch also finds damage, but followers are not fetched from, and old records may not be read for
months: by then the last good copy may be gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from weakref import WeakSet

from regent.core.errors import DamagedRecordsError, StorageError
from regent.core.model import TopicPartition
from regent.storage.batch_order_check import check_order
from regent.storage.log_contents import LogContents
from regent.storage.log_file import CorruptSegmentError, LogFile
from regent.storage.log_segment import LogSegment
from regent.storage.missing_segments import check_next_segment
from regent.storage.unified_log import UnifiedLog

_VERIFIED_FOR_MS = 7 * 24 * 60 * 60 * 1000
_DAMAGED_FOR_MS = 60 * 1000  # until a damaged segment is looked at again
_LOOKS = 200  # at logs and segments, in search of one that is due: about a millisecond
_PREFERRED = 100  # segments at most that come before others
_log = logging.getLogger(__name__)


class SegmentScrubber:
    """Checks the segments that are no longer written; those read without a check come first.

    ``logs`` returns those in use. ``on_damaged`` is told where damage is each time it is met, while
    no log is locked. One thread at a time verifies, and locks no log while it reads.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        wall_clock_ms: Callable[[], int],
        on_damaged: Callable[[TopicPartition, DamagedRecordsError], None],
    ) -> None:
        self._logs = logs
        self._wall_clock_ms = wall_clock_ms
        self._on_damaged = on_damaged
        self._lock = threading.Lock()
        self._preferred: dict[LogSegment, UnifiedLog] = {}
        self._round = self._look_around()
        self._looks_left = 0
        self._pass: _Pass | None = None
        self._known_as_damaged: WeakSet[LogSegment] = WeakSet()

    def prefer(self, log: UnifiedLog, segment: LogSegment) -> None:
        """Check a segment before others. On any thread, whatever locks it holds."""
        if len(self._preferred) < _PREFERRED:
            self._preferred[segment] = log

    def run(self, max_bytes: int) -> int:
        """Check about ``max_bytes`` from where the last call ended; return how many it were."""
        checked = 0
        with self._lock:
            self._looks_left = _LOOKS
            while checked < max_bytes:
                current, self._pass = self._pass or self._begin_next(), None
                if current is None:
                    break
                before = current.position
                if not self._has_ended(current, max_bytes - checked):
                    self._pass = current
                checked += current.position - before
        return checked

    # --- inside ---

    def _has_ended(self, current: _Pass, max_bytes: int) -> bool:
        """Check about so many bytes more of a segment; return whether that was all there is."""
        damage: CorruptSegmentError | None = None
        try:
            if not current.go_on(max_bytes):
                return False
        except CorruptSegmentError as error:
            damage = error
        except StorageError:
            return True  # the directory has said so
        with suppress(StorageError):  # or the log is gone
            if self._settle(current, damage) and damage is not None:
                self._tell(current.log, current.segment, damage)
        return True

    def _settle(self, ended: _Pass, damage: CorruptSegmentError | None) -> bool:
        """Note what a pass found; False: nothing, as somebody changed the segment meanwhile."""
        now_ms = self._wall_clock_ms()
        with ended.log.exclusively() as contents:
            if not ended.is_of_now(contents):
                return False
            if damage is None:
                ended.segment.verified.note(ended.modified_ns, now_ms + _VERIFIED_FOR_MS)
                self._known_as_damaged.discard(ended.segment)
            else:
                ended.segment.verified.forget(now_ms + _DAMAGED_FOR_MS)
        return True

    def _tell(self, log: UnifiedLog, segment: LogSegment, damage: CorruptSegmentError) -> None:
        topic_partition = log.topic_partition
        if segment not in self._known_as_damaged:
            self._known_as_damaged.add(segment)
            _log.error("%s: records are not what was written: %s", topic_partition, damage)
        self._on_damaged(topic_partition, DamagedRecordsError(str(damage)))

    def _begin_next(self) -> _Pass | None:
        """Begin with a segment that is due; None: there is none, or none is found so soon."""
        for log, segment in self._due():
            damage: CorruptSegmentError | None = None
            with suppress(StorageError), log.exclusively() as contents:
                if segment in contents.segments[:-1]:
                    try:
                        return _Pass(log, segment, contents)
                    except CorruptSegmentError as error:
                        damage = error  # its file is gone
                        segment.verified.forget(self._wall_clock_ms() + _DAMAGED_FOR_MS)
            if damage is not None:
                self._tell(log, segment, damage)
        return None

    def _due(self) -> Iterator[tuple[UnifiedLog, LogSegment]]:
        now_ms = self._wall_clock_ms()
        while self._preferred:
            segment, log = self._preferred.popitem()
            if segment.verified.due_ms <= now_ms:
                yield log, segment
        for _ in range(2):  # the rest of a round, and another one
            for found in islice(self._round, self._looks_left):
                self._looks_left -= 1
                if found is not None:
                    yield found
            if self._looks_left == 0:
                return
            self._round = self._look_around()

    def _look_around(self) -> Iterator[tuple[UnifiedLog, LogSegment] | None]:
        """Yield each segment of each log that is due, and None for what else was looked at."""
        for log in self._logs():
            yield None
            with suppress(StorageError):
                with log.exclusively() as contents:
                    sealed = contents.segments[:-1]
                for segment in sealed:
                    with log.directory:
                        is_due = segment.verified.is_due(segment.path, self._wall_clock_ms())
                    yield (log, segment) if is_due else None


class _Pass:
    """A segment that is being checked, through a file of our own, which it may outlive."""

    def __init__(self, log: UnifiedLog, segment: LogSegment, contents: LogContents) -> None:
        """Begin; the log is locked. Raises ``StorageError``."""
        self.log = log
        self.segment = segment
        self.position = 0  # up to where it is sound
        self._next_offset = segment.base_offset
        self._file = LogFile(segment.path)
        self.modified_ns = self._file.modified_ns()
        self._size = segment.size
        self._contents = contents
        following = contents.segments[contents.segments.index(segment) + 1]
        self._following = following
        end_offset = following.base_offset
        batches = self._file.batches(0, self._size, is_checked=True)
        self._batches = check_order(batches, segment.path, segment.base_offset, end_offset)

    def go_on(self, max_bytes: int) -> bool:
        """Check about so many bytes; return whether there are no more.

        Raises ``CorruptSegmentError`` at the first that are not what was written, and
        ``StorageError`` when the directory failed.
        """
        end = self.position + max_bytes
        with self.log.directory:
            for position, header in self._batches:
                self.position = position + header.size
                self._next_offset = header.next_offset
                if end <= self.position < self._size:
                    return False
        check_next_segment(self._contents, self._next_offset, self._following)
        return True

    def is_of_now(self, contents: LogContents) -> bool:
        """Whether the segment is what it was; the log is locked. Raises ``StorageError``."""
        segment = self.segment
        return (
            segment in contents.segments[:-1]
            and segment.size == self._size
            and self._file.modified_ns() == self.modified_ns
        )
