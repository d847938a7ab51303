"""Reads the files of a log without its broker: complete batches with a valid CRC, in sequence."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple

from regent.core.errors import BadDataError, StorageError
from regent.jobs.source.worker_files import WorkerFiles
from regent.records.end_transaction_marker import marker_of
from regent.records.record_batch import BatchHeader
from regent.storage.log.log_file import CorruptSegmentError, LogFile, WholeBatch
from regent.storage.log_names import base_offset_of

_BLOCK_BYTES: Final = 1024 * 1024


class SegmentFile(NamedTuple):
    """One file of a log."""

    base_offset: int
    location: str
    files: WorkerFiles = WorkerFiles()

    def batches(self, offset: int) -> Iterator[WholeBatch]:
        """Yield the batches that end at or after ``offset``.

        A remote file is copied to this machine meanwhile. Raises ``CorruptSegmentError`` at the
        first one that is incomplete or damaged, and ``StorageError``, ``OSError``, ``InputError``.
        """
        with self.files.here(self.location) as path:
            try:
                file, size = LogFile(path, is_written=False), path.stat().st_size
                for batch in file.whole_batches(0, size, _BLOCK_BYTES):
                    if batch[1].last_offset >= offset:
                        yield batch
            except StorageError as error:
                raise type(error)(str(error).replace(str(path), self.location)) from None

    def blocks(self, offset: int) -> Iterator[list[WholeBatch]]:
        """As ``batches``, about a mebibyte at a time; sound batches come before an error."""
        block: list[WholeBatch] = []
        try:
            for batch in self.batches(offset):
                block.append(batch)
                if batch[0] + batch[1].size - block[0][0] >= _BLOCK_BYTES:
                    yield block
                    block = []
        except StorageError:
            yield block
            raise
        yield block


def segments_of(directory: str, files: WorkerFiles) -> list[SegmentFile]:
    """Return the segments of a log in sequence. Raises ``InputError``."""
    found = ((base_offset_of(entry.name), entry.location) for entry in files.entries(directory))
    return [SegmentFile(base, location, files) for base, location in found if base is not None]


def log_end_offset(segments: list[SegmentFile]) -> int:
    """Return the end offset of the valid batches of a log. Raises ``StorageError``, ``OSError``."""
    end = 0
    for last in segments[-1:]:
        end = last.base_offset
        with suppress(CorruptSegmentError):  # an incomplete write of a broker that ended
            for _, header, _ in last.batches(end):
                end = header.next_offset
    return end


class CommittedBatches:
    """Which batches of these segments a reader of committed transactions gets.

    A transaction ends with the next marker of its producer in the log. Its end is decided before
    any marker is written, so a marker beyond the high watermark counts, too. Brokers answer this
    from their memory and from indexes, which are not complete on the disk of a broker that runs or
    has crashed. So the markers are found by a pass over the log: only if the log has a transaction.
    """

    def __init__(self, segments: Sequence[SegmentFile], offset: int) -> None:
        """Read nothing yet; batches before ``offset`` will not be asked for."""
        self._segments, self._offset = segments, offset

    def has(self, header: BatchHeader) -> bool:
        """Return whether a reader gets the records of a batch. Raises ``OSError``."""
        if header.is_control or not header.is_transactional:
            return not header.is_control
        markers = self._markers[header.producer_id]
        number = bisect_right(markers, (header.base_offset, True))
        return number < len(markers) and markers[number][1]  # without a marker it is open

    @cached_property
    def _markers(self) -> defaultdict[int, list[tuple[int, bool]]]:
        """By producer id: the offsets of its markers, ascending, and whether each one commits."""
        found = defaultdict[int, list[tuple[int, bool]]](list)
        for segment in self._segments:
            with suppress(StorageError, BadDataError):  # reading these records raises the error
                for _, header, batch in segment.batches(self._offset):
                    marker = marker_of(header, batch) if header.is_control else None
                    if marker is not None:
                        found[header.producer_id].append((header.base_offset, marker.is_commit))
        return found
