"""The leader epochs of a log, each with its start offset.

Mirrors ``LeaderEpochFileCache``. Truncation by leader epoch (KIP-101, KIP-279) asks here where an
epoch ends. The file is ``leader-epoch-checkpoint``; callers must save after a change.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from regent.core.errors import BadDataError, ShortageError
from regent.core.model import NO_EPOCH
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset
from regent.storage.checkpoints import LEADER_EPOCHS, parse_numbers, read_rows, write_rows


class LeaderEpochFileCache:
    """Invariant: epochs and start offsets both grow. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._is_saved = True
        self._is_flushed = True

    def __len__(self) -> int:
        return len(self._epochs)

    # --- the file ---

    def load(self) -> bool:
        """Read the file. False: it is missing or damaged, and the cache is empty now.

        Recovery then rebuilds the epochs from the batches of the log. Raises ``StorageError``.
        """
        path = self.directory / LEADER_EPOCHS
        self._epochs, self._starts = [], []
        try:
            rows = read_rows(path, columns=2)
            entries = [parse_numbers(path, row) for row in rows or ()]
        except BadDataError:
            return False
        if not all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries)):
            return False
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self._is_flushed = False  # an earlier process may not have waited for the disk
        return rows is not None

    def save(self) -> None:
        """Write the file if anything changed, so that a crash of this process loses no epoch.

        Do not wait for the disk, because a leader of many partitions saves each of them. After a
        power failure the epochs are rebuilt from the batches; epochs without batches may be lost.
        Raises ``StorageError``.
        """
        if not self._is_saved:
            self._write(is_synced=False)

    def save_or_put_off(self) -> None:
        """Save; if there is no free file descriptor, leave it to the next call or to ``flush``.

        A crash loses no epoch that matters: the epochs are flushed before the recovery point moves.
        """
        with suppress(ShortageError):
            self.save()

    def flush(self) -> None:
        """Write the file if anything changed, and wait until it is on the disk.

        Raises ``StorageError``.
        """
        if not self._is_flushed:
            self._write(is_synced=True)

    def _write(self, *, is_synced: bool) -> None:
        rows = [f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)]
        write_rows(self.directory / LEADER_EPOCHS, rows, is_synced=is_synced)
        self._is_saved = True
        self._is_flushed = is_synced

    # --- questions ---

    @property
    def latest_epoch(self) -> int:
        """The newest epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def start_offset(self) -> int:
        """The start offset of the oldest epoch, where the log began; -1 if there is none."""
        return self._starts[0] if self._starts else -1

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return the newest epoch up to ``leader_epoch``, and the first offset after it.

        For an epoch before the first one, return the start offset of the first. For an epoch after
        the latest one, return ``NO_EPOCH_END_OFFSET``.
        """
        if leader_epoch < 0 or leader_epoch > self.latest_epoch:
            return NO_EPOCH_END_OFFSET
        if leader_epoch == self.latest_epoch:
            return EpochEndOffset(leader_epoch, log_end_offset)
        higher = bisect_right(self._epochs, leader_epoch)
        if higher == 0:
            return EpochEndOffset(leader_epoch, self._starts[0])
        return EpochEndOffset(self._epochs[higher - 1], self._starts[higher])

    def epoch_for(self, offset: int) -> int:
        """Return the epoch of the record at ``offset``; -1: unknown."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else NO_EPOCH

    # --- changes ---

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Add an epoch that begins at an offset; return whether that changed anything.

        Entries that contradict it belong to truncated records and are removed.
        """
        if self._epochs and leader_epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        if leader_epoch < 0:
            return False  # a batch of a broker without leader epochs
        while self._epochs and (
            self._epochs[-1] >= leader_epoch or self._starts[-1] >= start_offset
        ):
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(leader_epoch)
        self._starts.append(start_offset)
        self._note_change()
        return True

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that begin at or after ``offset``, the new end of the log."""
        while self._starts and self._starts[-1] >= offset:
            self._epochs.pop()
            self._starts.pop()
            self._note_change()

    def truncate_from_start(self, offset: int) -> None:
        """Remove the epochs that end before ``offset``, the new start of the log."""
        before = bisect_right(self._starts, offset)
        if before > 1 or (before and self._starts[0] < offset):
            del self._epochs[: before - 1]
            del self._starts[: before - 1]
            self._starts[0] = offset
            self._note_change()

    def clear(self) -> None:
        """Remove all epochs."""
        if self._epochs:
            self._epochs, self._starts = [], []
            self._note_change()

    def copy_from(self, other: LeaderEpochFileCache) -> None:
        """Take over all epochs of another log."""
        self._epochs, self._starts = list(other._epochs), list(other._starts)
        self._note_change()

    def _note_change(self) -> None:
        self._is_saved = self._is_flushed = False
