"""Loads a log from the disk, after a clean shutdown or a crash.

Mirrors ``kafka.log.LogLoader``. First it deals with the temporary files that a crash left, also
those of Kafka's log cleaner: ``.deleted`` files and unfinished copies (``.cleaned``) are deleted,
finished copies (``.swap``) replace the segments they were made of.

It also finds segments that are missing: each must begin where the one before it ends. A lost file
(``rm``, ``fsck``) leaves a gap in a log whose other files are sound. Kafka does not check this: a
replica with such a gap joins the ISR, leads, and replicates the gap. Compaction also leaves gaps
between segments; those are not damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.log_config import LogConfig
from regent.core.model import NO_EPOCH, TopicPartition
from regent.records.record_batch import BatchHeader
from regent.storage.checkpoints import NEVER_CLEANED
from regent.storage.log.leader_epoch_file_cache import LeaderEpochFileCache
from regent.storage.log.log_contents import LogContents, are_missing, with_jitter
from regent.storage.log.log_file import CorruptSegmentError, LogFile, check_order
from regent.storage.log.log_segment import LogSegment
from regent.storage.log.open_files import OpenFiles
from regent.storage.log.producer_state_manager import ProducerStateManager
from regent.storage.log_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
    log_of_directory,
    log_of_future_directory,
)

_OLD_MESSAGE = struct.Struct(">qiIb")  # offset, size, CRC-32, magic: formats 0 and 1
_OLD_CHECKED_FROM = 16


class CheckpointedOffsets(NamedTuple):
    """The entries of one log in the checkpoints of its directory.

    ``first_dirty``: a log cleaner took records before this offset out of it, also from the ends of
    segments; ``NEVER_CLEANED``: none did.
    """

    log_start_offset: int = 0
    recovery_point: int = 0
    first_dirty: int = NEVER_CLEANED

    @property
    def was_compacted(self) -> bool:
        """Whether records may be missing between segments."""
        return self.first_dirty != NEVER_CLEANED


class LoadedLog(NamedTuple):
    """A log, and how many bytes recovery cut off at its end."""

    contents: LogContents
    bytes_cut: int


def load_log(
    path: Path,
    config: LogConfig,
    checkpointed: CheckpointedOffsets,
    *,
    was_closed_cleanly: bool,
    now_ms: int,
    files: OpenFiles,
) -> LoadedLog:
    """Open a log; unless it was closed cleanly, recover it from its recovery point on.

    Rebuild indexes, leader epochs and producer state from the records if they are missing or
    incomplete. Raises ``BadDataError`` or ``CorruptSegmentError`` if this log cannot be used;
    ``OSError`` and other ``StorageError`` if its directory cannot be used.
    """
    segments = _open_segments(path, config, now_ms, files)
    first = segments[0].base_offset
    start = max(checkpointed.log_start_offset, first)
    contents = LogContents(
        path,
        config,
        segments,
        LeaderEpochFileCache(path),
        ProducerStateManager(path),
        files,
        log_start_offset=start,
        first_dirty=checkpointed.first_dirty,
        has_new_files=not was_closed_cleanly,  # the crashed process may not have flushed them
    )
    knows_epochs = contents.epochs.load()
    _check_first_segment(contents)
    cut, agrees = 0, True
    if not was_closed_cleanly:
        cut, agrees = _recover(contents, checkpointed)
    try:
        contents.log_end_offset = contents.active.next_offset
    except CorruptSegmentError:  # the file was changed after the clean shutdown
        end = CheckpointedOffsets(recovery_point=contents.active.base_offset)
        cut, agrees = _recover(contents, end)
        contents.log_end_offset = contents.active.next_offset
    contents.recovery_point = contents.trusted_from = contents.log_end_offset
    if cut or not was_closed_cleanly:
        contents.recovery_point = min(checkpointed.recovery_point, contents.log_end_offset)
    if contents.log_end_offset < start:  # never drop records because of a checkpoint
        contents.log_start_offset, agrees = first, False
    _check_no_segment_is_missing(contents)
    _settle_epochs(contents, is_rebuild=not (knows_epochs and agrees))
    contents.replay_producers(now_ms)
    contents.active.file = None  # it is opened when the log is used
    return LoadedLog(contents, cut)


def _open_segments(
    path: Path, config: LogConfig, now_ms: int, files: OpenFiles
) -> list[LogSegment]:
    """Return the segments of a log, or a new one if it has none."""
    offsets = complete_swaps(path)
    if not offsets:
        return [LogSegment.create(path, 0, with_jitter(config), now_ms, files)]
    segments = [
        LogSegment.open(path, offset, with_jitter(config), now_ms, files) for offset in offsets
    ]
    for segment in segments:
        _refuse_old_format(segment)
    return segments


class _Witness:
    """Observes every batch of the recovered segments, and compares them with what is known.

    ``agrees``: the leader epochs match the batches. ``is_dense``: no segment misses records between
    two others, as a compacted one does.
    """

    def __init__(self, contents: LogContents) -> None:
        self.agrees = True
        self.is_dense = True
        self.next_offset = 0
        self._epochs = contents.epochs
        self._log_start_offset = contents.log_start_offset

    def note(self, header: BatchHeader) -> None:
        """Observe the next batch."""
        epoch, start = header.partition_leader_epoch, self._log_start_offset
        if epoch > self._epochs.latest_epoch:
            self._epochs.assign(epoch, header.base_offset)
        elif header.last_offset >= start:
            known = self._epochs.epoch_for(max(header.base_offset, start))
            self.agrees = self.agrees and known == epoch
        is_full = header.record_count == header.last_offset_delta + 1
        self.is_dense &= is_full and header.base_offset == self.next_offset
        self.next_offset = header.next_offset


def _recover(contents: LogContents, checkpointed: CheckpointedOffsets) -> tuple[int, bool]:
    """Check the segments from the recovery point on.

    Return how many bytes are dropped, and whether the known leader epochs agree with the records:
    after a power failure the epoch file may be newer or older than the records. Everything after
    the first bad batch is dropped, because records may be missing there. For the same reason,
    everything after a gap between two segments is dropped, unless the log was compacted.
    """
    contents.noted_recovery_point = checkpointed.recovery_point
    segments = contents.segments_from(checkpointed.recovery_point)
    contents.producers.retain_snapshots(range(segments[0].base_offset + 1))
    witness = _Witness(contents)
    cut, last = 0, segments[0]
    before_hole: LogSegment | None = None
    for segment in segments:
        is_next = before_hole is None and segment is not last
        if is_next and are_missing(witness.next_offset, segment.base_offset):
            before_hole = last
        witness.next_offset = segment.base_offset
        last = segment
        if not segment.size:  # its index files, if it has any, count only with records
            segment.forget_transactions()
            continue
        cut = segment.recover(witness.note)
        if cut:
            break
        if segment is not contents.active:
            segment.close()
    if before_hole is not None and witness.is_dense and not checkpointed.was_compacted:
        last = before_hole
    dropped = contents.drop_after(last)
    for beyond in dropped:
        beyond.delete()
    # The log may begin below the first epoch: the log start offset is saved after the epochs.
    is_complete = contents.epochs.epoch_for(contents.log_start_offset) != NO_EPOCH
    return cut + sum(beyond.size for beyond in dropped), witness.agrees and is_complete


def _settle_epochs(contents: LogContents, *, is_rebuild: bool) -> None:
    epochs = contents.epochs
    if is_rebuild:
        epochs.clear()
        for segment in contents.segments:
            for header in segment.headers():
                if header.partition_leader_epoch > epochs.latest_epoch:
                    epochs.assign(header.partition_leader_epoch, header.base_offset)
    # An epoch may begin at the log end offset: its leader has not written a record yet.
    epochs.truncate_from_end(contents.log_end_offset + 1)
    epochs.truncate_from_start(contents.log_start_offset)
    epochs.save()


def _refuse_old_format(segment: LogSegment) -> None:
    """Raise ``BadDataError`` if a segment begins with a message of format 0 or 1."""
    magic = _old_format_of(segment.path)
    if magic is not None:
        raise BadDataError(
            f"{segment.path}: messages of format {magic} are not supported;"
            " with Kafka, copy them to a new topic"
        )


def _old_format_of(path: Path) -> int | None:
    """Return the format of the first message of a segment if that is 0 or 1, else None.

    A matching CRC proves that it is a message, which recovery must not truncate. Raises
    ``OSError``.
    """
    with path.open("rb") as file:
        begin = file.read(_OLD_MESSAGE.size)
        if len(begin) < _OLD_MESSAGE.size:
            return None
        _, size, crc, magic = _OLD_MESSAGE.unpack(begin)
        if magic not in (0, 1) or not 0 < size <= os.fstat(file.fileno()).st_size:
            return None
        file.seek(_OLD_CHECKED_FROM)
        return magic if zlib.crc32(file.read(size - 4)) == crc else None


def logs_of_old_formats(directory: Path) -> list[TopicPartition]:
    """Return the logs in a log directory that ``load_log`` would refuse for their format.

    A broker may be using the directory. Raises ``OSError``.
    """
    names = sorted(os.listdir(directory))
    logs = [(name, log_of_directory(name) or log_of_future_directory(name)) for name in names]
    return [log for name, log in logs if log is not None and _has_old_format(directory / name)]


def _has_old_format(log: Path) -> bool:
    with suppress(FileNotFoundError):
        for name in os.listdir(log):
            with suppress(FileNotFoundError):  # retention may delete it
                if base_offset_of(name) is not None and _old_format_of(log / name) is not None:
                    return True
    return False


# --- temporary files of a crash -------------------------------------------------------------------


def complete_swaps(directory: Path) -> list[int]:
    """Complete the swaps and return the base offsets of the segments, in ascending order.

    Raises ``OSError``, and ``StorageError`` if a file cannot be read.
    """
    names = os.listdir(directory)
    if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        _finish_retention(directory, names)  # first: the files that prove it are deleted then
        _finish_swaps(directory, _without_unfinished(directory, names))
        names = os.listdir(directory)
    offsets = sorted(o for o in (base_offset_of(name) for name in names) if o is not None)
    for name in names:
        stem, dot, kind = name.partition(".")
        if dot + kind in INDEX_SUFFIXES and stem + LOG_SUFFIX not in names:
            (directory / name).unlink()
    return offsets


def _finish_retention(directory: Path, names: list[str]) -> None:
    """Let the leader epochs begin with the first segment, if those before it are being deleted.

    Kafka renames segments to ``.deleted`` before it writes the new start of the oldest epoch. If it
    stops between, the segments would count as missing.
    """
    deleted = sorted(name for name in names if name.endswith(LOG_SUFFIX + DELETED_SUFFIX))
    first = min(
        (_offset(n) for n in names if n.endswith((LOG_SUFFIX, LOG_SUFFIX + SWAP_SUFFIX))),
        default=-1,
    )
    epochs = LeaderEpochFileCache(directory)
    if not deleted or not epochs.load() or not 0 <= epochs.start_offset < first:
        return
    end = epochs.start_offset
    with suppress(CorruptSegmentError):
        for name in deleted:
            if _offset(name) <= end:
                end = max(end, _next_offset(directory / name))
    if end >= first:
        epochs.truncate_from_start(first)
        epochs.flush()


def _without_unfinished(directory: Path, names: list[str]) -> list[str]:
    """Delete unfinished files and return the names of the others.

    A swap file beyond a cleaned one is part of an unfinished split (KAFKA-6264).
    """
    cleaned = [_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min(cleaned, default=None)
    kept = []
    for name in names:
        is_unfinished = name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)) or (
            name.endswith(SWAP_SUFFIX)
            and first_cleaned is not None
            and _offset(name) >= first_cleaned
        )
        if is_unfinished:
            (directory / name).unlink()
        else:
            kept.append(name)
    return kept


def _finish_swaps(directory: Path, names: list[str]) -> None:
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if logs:
        start = min(_offset(name) for name in logs)
        end = max(_next_offset(directory / name) for name in logs)
        for name in names:
            is_of_segment = name.endswith((LOG_SUFFIX, *INDEX_SUFFIXES))
            if is_of_segment and start <= _offset(name) < end:
                (directory / name).unlink()
    for name in swaps:
        (directory / name).rename(directory / name.removesuffix(SWAP_SUFFIX))


def _next_offset(path: Path) -> int:
    """Return the offset after the last record of a file."""
    end = _offset(path.name)
    for _, header in LogFile(path).batches(0, path.stat().st_size):
        end = header.next_offset
    return end


def _offset(name: str) -> int:
    """Return the offset in the name of a file; -1: there is none."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else -1


# --- missing segments -----------------------------------------------------------------------------


def _check_first_segment(contents: LogContents) -> None:
    """Raise ``CorruptSegmentError`` if the first segments are missing and retention did not drop
    them: ``LogContents.drop_first`` flushes the new start of the oldest epoch before it drops any.
    For Kafka, see ``_finish_retention``.
    """
    start, first = contents.epochs.start_offset, contents.segments[0].base_offset
    if 0 <= start < first and not contents.is_compacted:
        raise contents.missing(start, first)


def _check_no_segment_is_missing(contents: LogContents) -> None:
    """Raise ``CorruptSegmentError`` at the first gap; set ``is_compacted`` if the log is compacted.

    Other damage is ignored here: the scrubber finds segments whose end cannot be read.
    """
    for segment, after in zip(contents.segments, contents.segments[1:], strict=False):
        if contents.is_compacted:
            return
        try:
            end = segment.find_end()
            if end < after.base_offset:
                end = _end_in_order(segment, after.base_offset)
        except CorruptSegmentError:
            continue
        if end < after.base_offset:
            contents.is_compacted = _was_compacted(contents)
            contents.check_next_segment(end, after)


def _end_in_order(segment: LogSegment, end_offset: int) -> int:
    """Return the end of a segment after checking all of its headers: the last may be damaged."""
    end = segment.base_offset
    batches = LogFile(segment.path).batches(0, segment.size)
    for _, header in check_order(batches, segment.path, segment.base_offset, end_offset):
        end = header.next_offset
    return end


def _was_compacted(contents: LogContents) -> bool:
    """Whether offsets are missing inside a segment; reads all headers."""
    for segment in contents.segments:
        expected = segment.base_offset
        try:
            for header in segment.headers():
                is_full = header.record_count == header.last_offset_delta + 1
                if not is_full or header.base_offset != expected:
                    return True
                expected = header.next_offset
        except CorruptSegmentError:
            continue
    return False
