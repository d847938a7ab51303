"""Which leader epochs wrote a log, and from which offset on each of them did.

Mirrors ``LeaderEpochFileCache``. Truncation by leader epoch (KIP-101, KIP-279) asks here where an
epoch ends. The file is ``leader-epoch-checkpoint``: whoever changes the epochs saves them then.
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
        """Read the file. False: it is missing or damaged, and there are no epochs now.

        Then the batches of the log say which there were. Raises ``StorageError``.
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
        return rows is not None

    def save(self) -> None:
        """Write the file if anything changed: a crash of this process loses nothing any more.

        Without waiting for the disk, for a leader of many partitions does this for each. What a
        loss of power takes is in the batches again, or is an epoch without any. Raises
        ``StorageError``.
        """
        if not self._is_saved:
            self._write(is_synced=False)

    def save_or_put_off(self) -> None:
        """Save, or for want of a file descriptor let the next call, or ``flush``, do it.

        A crash loses nothing by that either: a log is flushed before it is believed.
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
        """The newest epoch; -1 when there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    @property
    def start_offset(self) -> int:
        """Where the oldest epoch begins, and so the log; -1 when there is none."""
        return self._starts[0] if self._starts else -1

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEndOffset:
        """Return the newest epoch up to ``leader_epoch``, and the first offset after it.

        Of an epoch before the first: where that begins. After the latest: unknown.
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
        """Return which epoch wrote ``offset``; -1: unknown."""
        found = bisect_right(self._starts, offset)
        return self._epochs[found - 1] if found else NO_EPOCH

    # --- changes ---

    def assign(self, leader_epoch: int, start_offset: int) -> bool:
        """Note that an epoch begins at an offset; return whether that was new.

        Entries that contradict it are of records that are gone, and go.
        """
        if self._epochs and leader_epoch == self._epochs[-1] and start_offset >= self._starts[-1]:
            return False
        if leader_epoch < 0:
            return False  # a batch of a broker that knew no epochs
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
        """Forget the epochs that begin at or after ``offset``: the log ends there now."""
        while self._starts and self._starts[-1] >= offset:
            self._epochs.pop()
            self._starts.pop()
            self._note_change()

    def truncate_from_start(self, offset: int) -> None:
        """Forget the epochs that end before ``offset``: the log begins there now."""
        before = bisect_right(self._starts, offset)
        if before > 1 or (before and self._starts[0] < offset):
            del self._epochs[: before - 1]
            del self._starts[: before - 1]
            self._starts[0] = offset
            self._note_change()

    def clear(self) -> None:
        """Forget all epochs."""
        if self._epochs:
            self._epochs, self._starts = [], []
            self._note_change()

    def _note_change(self) -> None:
        self._is_saved = self._is_flushed = False
