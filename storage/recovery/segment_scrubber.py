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
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_file import CorruptSegmentError, LogFile, check_order
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.unified_log import UnifiedLog

_VERIFIED_FOR_MS = 7 * 24 * 60 * 60 * 1000
_DAMAGED_FOR_MS = 60 * 1000  # until a damaged segment is checked again
_LOOKS = 200  # logs and segments to look at per search for a due one: about a millisecond
_PREFERRED = 100  # preferred segments to remember at most
_log = logging.getLogger(__name__)


class SegmentScrubber:
    """Checks the closed segments; those that were just read come first.

    ``logs`` returns the logs in use. ``on_damaged`` is called each time damage is found, without a
    lock. Only one thread may call ``run``; it does not lock a log while it reads.
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
        """Check a segment before others. Thread-safe; the caller may hold any lock."""
        if len(self._preferred) < _PREFERRED:
            self._preferred[segment] = log

    def run(self, max_bytes: int) -> int:
        """Check about ``max_bytes`` from where the last call ended; return how many it checked."""
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
        """Check about ``max_bytes`` more of a segment; return whether its end is reached."""
        damage: CorruptSegmentError | None = None
        try:
            if not current.scrub(max_bytes):
                return False
        except CorruptSegmentError as error:
            damage = error.with_traceback(None)
        except StorageError:
            return True  # the directory has logged it
        with suppress(StorageError):  # the log may be closed or deleted
            if self._settle(current, damage) and damage is not None:
                self._tell(current.log, current.segment, damage)
        return True

    def _settle(self, ended: _Pass, damage: CorruptSegmentError | None) -> bool:
        """Record the result of a pass; False: discarded, because the segment has changed."""
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
            _log.error("%s: records are damaged: %s", topic_partition, damage)
        self._on_damaged(topic_partition, DamagedRecordsError(str(damage)))

    def _begin_next(self) -> _Pass | None:
        """Begin a segment that is due; None: this search found none."""
        for log, segment in self._due():
            damage: CorruptSegmentError | None = None
            with suppress(StorageError), log.exclusively() as contents:
                if segment in contents.segments[:-1]:
                    try:
                        return _Pass(log, segment, contents)
                    except CorruptSegmentError as error:
                        damage = error.with_traceback(None)  # its file is gone
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
        for _ in range(2):  # the rest of this round, and the next round
            for found in islice(self._round, self._looks_left):
                self._looks_left -= 1
                if found is not None:
                    yield found
            if self._looks_left == 0:
                return
            self._round = self._look_around()

    def _look_around(self) -> Iterator[tuple[UnifiedLog, LogSegment] | None]:
        """Yield each segment that is due, and None for each that is not."""
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
    """A check of one segment, through its own open file, which stays readable after a deletion."""

    def __init__(self, log: UnifiedLog, segment: LogSegment, contents: LogContents) -> None:
        """The caller holds the lock of the log. Raises ``StorageError``."""
        self.log = log
        self.segment = segment
        self.position = 0  # the segment is sound up to here
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

    def scrub(self, max_bytes: int) -> bool:
        """Check about ``max_bytes``; return whether the end is reached.

        Raises ``CorruptSegmentError`` at the first damaged batch, and ``StorageError`` if the
        directory failed.
        """
        end = self.position + max_bytes
        with self.log.directory:
            for position, header in self._batches:
                self.position = position + header.size
                self._next_offset = header.next_offset
                if end <= self.position < self._size:
                    return False
        self._contents.check_next_segment(self._next_offset, self._following)
        return True

    def is_of_now(self, contents: LogContents) -> bool:
        """Whether the segment is unchanged since this check began. Raises ``StorageError``.

        The caller holds the lock of the log.
        """
        segment = self.segment
        return (
            segment in contents.segments[:-1]
            and segment.size == self._size
            and self._file.modified_ns() == self.modified_ns
        )
