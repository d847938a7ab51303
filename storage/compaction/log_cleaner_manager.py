"""The log cleaner of a broker: chooses logs and cleans them, one after the other.

Mirrors ``kafka.log.LogCleaner`` and ``LogCleanerManager``. A truncation, a deletion or retention
does not wait for a cleaning: a copy takes the place of its segments only if they are unchanged.
What must not see a log change waits with ``pause``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from regent.core.errors import DamagedRecordsError, StorageError
from regent.core.log_config import CleanerSettings
from regent.core.model import TopicPartition
from regent.storage.compaction.cleanable_logs import CleanableLog, choose, cleanable_range
from regent.storage.compaction.log_cleaner import (
    Cleanable,
    CleanerStats,
    Cleaning,
    CleaningAbortedError,
    Work,
)
from regent.storage.compaction.offset_map import OffsetMap
from regent.storage.log.unified_log import UnifiedLog

_BREATH_S = 0.000_05  # other threads wait for the interpreter: 5 ms each time without these pauses
_WINDOW_S = 0.3  # in which a throttle counts bytes
_WAIT_S = 0.05  # until it is checked again whether a cleaning must end
_log = logging.getLogger(__name__)


class LogCleanerManager:
    """Only one thread may call ``clean_all``; the other methods are thread-safe.

    ``logs`` returns the compacted logs in use. ``checkpoint`` writes up to where a log was cleaned.
    ``on_damaged`` is called, without a lock, when records are found to be damaged.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[UnifiedLog]],
        settings: CleanerSettings,
        wall_clock_ms: Callable[[], int],
        checkpoint: Callable[[UnifiedLog], None],
        on_damaged: Callable[[TopicPartition, DamagedRecordsError], None],
    ) -> None:
        self.states = CleaningStates()
        self.max_dirty_ratio = 0.0
        self.last_stats = CleanerStats()
        self.work_s = 0.002  # between two pauses
        self._logs = logs
        self._settings = settings
        self._wall_clock_ms = wall_clock_ms
        self._checkpoint = checkpoint
        self._on_damaged = on_damaged
        self._uncleanable: frozenset[UnifiedLog] = frozenset()
        self._stopped = threading.Event()
        self._in_hand: UnifiedLog | None = None
        self._ran_at_ms = wall_clock_ms()
        self.throttle = IoThrottle(
            settings.log_cleaner_io_max_bytes_per_second, time.monotonic, self._wait
        )

    def configure(self, settings: CleanerSettings) -> None:
        """Follow changed settings: the rate at once, the others from the next cleaning on."""
        self._settings = settings
        self.throttle.bytes_per_s = settings.log_cleaner_io_max_bytes_per_second

    # --- the thread of the cleaner ---

    def clean_all(self) -> bool:
        """Clean logs until none must be cleaned, or until ``stop``; return whether any was."""
        is_any_cleaned = False
        while not self._stopped.is_set() and self.clean_dirtiest():
            is_any_cleaned = True
        return is_any_cleaned

    def clean_dirtiest(self) -> bool:
        """Clean the dirtiest log, if one is dirty enough; return whether to go on at once."""
        chosen = self._choose()
        if chosen is None:
            return False
        topic_partition = chosen.log.topic_partition
        if not self.states.begin(topic_partition):
            return False  # it was paused meanwhile
        try:
            return self._clean(chosen)
        finally:
            self._in_hand = None
            self.states.end(topic_partition)

    def stop(self) -> None:
        """End the cleaning that is under way, soon, and begin no other."""
        self._stopped.set()

    def new_map(self) -> OffsetMap:
        """Return an empty map for the keys of one cleaning."""
        settings = self._settings
        return OffsetMap.of_memory(
            settings.log_cleaner_dedupe_buffer_size, settings.log_cleaner_io_buffer_load_factor
        )

    # --- pauses ---

    def pause(self, topic_partition: TopicPartition) -> None:
        """Clean a log no more until ``resume``; wait for the end of a cleaning under way.

        The caller must not hold the lock of the log.
        """
        self.states.pause(topic_partition)
        self.states.await_pause(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Undo one ``pause``."""
        self.states.resume(topic_partition)

    # --- metrics ---

    @property
    def time_since_last_run_ms(self) -> int:
        """How long ago a log to clean was looked for."""
        return self._wall_clock_ms() - self._ran_at_ms

    def uncleanable_partitions(self) -> Mapping[Path, int]:
        """Return how many logs of each directory are not cleaned because that failed."""
        return Counter(log.directory.path for log in self._uncleanable)

    # --- inside ---

    def _choose(self) -> Cleanable | None:
        now_ms = self._ran_at_ms = self._wall_clock_ms()
        candidates = []
        logs = list(self._logs())
        self._uncleanable &= frozenset(logs)
        for log in logs:
            if self.states.of(log.topic_partition) is not None or log in self._uncleanable:
                continue
            try:
                cleanable = examine(log, now_ms)
            except DamagedRecordsError as error:
                self._give_up(log, error)
                continue
            except StorageError:
                continue  # the directory has logged it
            if cleanable.found.is_reset:
                self._reset(cleanable)
            if cleanable.found.total_bytes > 0:
                candidates.append((cleanable, log.config, cleanable.found))
        self.max_dirty_ratio = max((found.dirty_ratio for *_, found in candidates), default=0.0)
        chosen = choose(candidates)
        return None if chosen is None else chosen[0]

    def _give_up(self, log: UnifiedLog, damage: DamagedRecordsError) -> None:
        self._uncleanable |= {log}
        self._on_damaged(log.topic_partition, damage)

    def _reset(self, cleanable: Cleanable) -> None:
        log, found, truncations = cleanable
        if "delete" not in log.config.cleanup_policy:  # otherwise retention does this often
            text = "%s: cleaning begins again at offset %d: the noted offset is not in the log"
            _log.warning(text, log, found.first_dirty)
        try:
            if log.note_cleaned(found.first_dirty, truncations):
                self._checkpoint(log)
        except StorageError:
            return  # the directory has logged it

    def _clean(self, chosen: Cleanable) -> bool:
        """Clean a log; return whether another one may follow at once."""
        log = chosen.log
        begun = time.monotonic()
        try:
            cleaning = Cleaning(chosen, self._work(log), self._wall_clock_ms())
            end = cleaning.run()
        except CleaningAbortedError:
            return True
        except StorageError as error:
            if log.is_usable:
                log.directory.judge(error)
            return False
        except DamagedRecordsError as error:
            self._give_up(log, error)
            return True
        except Exception:  # noqa: BLE001 - whatever is in this log, the others must be cleaned
            self._uncleanable |= {log}
            _log.exception("%s: it is not compacted until this broker starts again", log)
            return True
        stats = cleaning.stats
        stats.elapsed_s = seconds = time.monotonic() - begun
        self.last_stats = stats
        text = "%s: compacted %d bytes to %d in %.1f s, up to offset %d; %d records had no key"
        _log.info(text, log, stats.bytes_read, stats.bytes_written, seconds, end, stats.keyless)
        return True

    def _work(self, log: UnifiedLog) -> Work:
        self._in_hand = log
        worked, begun = 0, time.monotonic()

        def on_bytes(size: int) -> None:
            nonlocal worked, begun
            worked += size
            if time.monotonic() - begun < self.work_s:
                return
            self._check(log)
            self.throttle.note(worked)
            time.sleep(_BREATH_S)
            worked, begun = 0, time.monotonic()

        buffer_bytes = self._settings.log_cleaner_io_buffer_size // 2
        return Work(self.new_map, buffer_bytes, on_bytes, self._checkpoint)

    def _wait(self, seconds: float) -> None:
        """Wait, for the throttle, as long as the cleaning need not end."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._stopped.wait(min(left, _WAIT_S))
            if self._in_hand is not None:
                self._check(self._in_hand)

    def _check(self, log: UnifiedLog) -> None:
        is_aborted = self.states.is_aborted(log.topic_partition)
        if is_aborted or self._stopped.is_set() or not log.is_usable:
            raise CleaningAbortedError


def examine(log: UnifiedLog, now_ms: int) -> Cleanable:
    """Return what of a log may be cleaned. Raises ``DamagedRecordsError``, ``StorageError``."""
    with log.reading() as contents:
        facts = CleanableLog(
            contents.segments,
            contents.config,
            contents.log_start_offset,
            contents.log_end_offset,
            log.last_stable_offset,
            contents.first_dirty,
        )
        return Cleanable(log, cleanable_range(facts, now_ms), log.truncations)


class IoThrottle:
    """Limits how many bytes a second a background task reads and writes. Mirrors ``Throttler``.

    Not thread-safe. ``clock`` returns seconds; ``wait`` waits for some.
    """

    def __init__(
        self, bytes_per_s: float, clock: Callable[[], float], wait: Callable[[float], object]
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._wait = wait
        self._begun = clock()
        self._bytes = 0

    def note(self, size: int) -> None:
        """Count bytes. After each window of 300 ms, wait for as long as they were too many."""
        self._bytes += size
        now = self._clock()
        elapsed = now - self._begun
        if elapsed < _WINDOW_S and self._bytes < self.bytes_per_s * _WINDOW_S:
            return
        excess_s = self._bytes / self.bytes_per_s - elapsed
        if excess_s > 0:
            self._wait(excess_s)
        self._begun, self._bytes = self._clock(), 0


class Busy(NamedTuple):
    """A log is being cleaned. ``is_aborted``: someone waits for the end."""

    is_aborted: bool = False


class Paused(NamedTuple):
    """Cleaning of a log is paused this many times."""

    times: int = 1


CleaningState: TypeAlias = Busy | Paused


class CleaningStates:
    """Which logs are being cleaned, and of which cleaning is paused.

    Thread-safe; calls no other part under its lock.
    """

    def __init__(self) -> None:
        self._states: dict[TopicPartition, CleaningState] = {}
        self._changed = threading.Condition()

    def of(self, topic_partition: TopicPartition) -> CleaningState | None:
        """Return the state of a log."""
        return self._states.get(topic_partition)

    def begin(self, topic_partition: TopicPartition) -> bool:
        """Begin to clean a log; False: it has a state already."""
        with self._changed:
            return self._states.setdefault(topic_partition, begun := Busy()) is begun

    def is_aborted(self, topic_partition: TopicPartition) -> bool:
        """Whether the cleaning that is under way must stop."""
        return self._states.get(topic_partition) == Busy(is_aborted=True)

    def end(self, topic_partition: TopicPartition) -> bool:
        """End what ``begin`` began; False: it was aborted, and the log is paused now."""
        with self._changed:
            state = self._states.get(topic_partition)
            if not isinstance(state, Busy):
                raise RuntimeError(f"{topic_partition} is not being cleaned: {state}")
            if state.is_aborted:
                self._states[topic_partition] = Paused()
            else:
                del self._states[topic_partition]
            self._changed.notify_all()
            return not state.is_aborted

    def pause(self, topic_partition: TopicPartition) -> None:
        """Stop cleaning a log; see ``await_pause``. Pauses nest."""
        with self._changed:
            state = self._states.get(topic_partition)
            if state is None:
                self._states[topic_partition] = Paused()
            elif isinstance(state, Paused):
                self._states[topic_partition] = Paused(state.times + 1)
            elif state.is_aborted:
                raise RuntimeError(f"cleaning of {topic_partition} is being paused already")
            else:
                self._states[topic_partition] = Busy(is_aborted=True)

    def await_pause(self, topic_partition: TopicPartition) -> None:
        """Wait until the cleaning that ``pause`` aborted has ended.

        The caller must not hold the lock of the log, which the cleaner may wait for.
        """
        with self._changed:
            self._changed.wait_for(lambda: isinstance(self._states.get(topic_partition), Paused))

    def resume(self, topic_partition: TopicPartition) -> None:
        """Undo one ``pause``."""
        with self._changed:
            state = self._states.get(topic_partition)
            if not isinstance(state, Paused):
                raise RuntimeError(f"cleaning of {topic_partition} is not paused: {state}")
            if state.times > 1:
                self._states[topic_partition] = Paused(state.times - 1)
            else:
                del self._states[topic_partition]
