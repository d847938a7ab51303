"""Which batches of a log a reader of committed transactions gets.

A transaction ends with the next marker of its producer in the log. Its end is decided before any
marker is written, so a marker beyond the high watermark counts, too. Brokers answer this from their
memory and from indexes, which are not complete on the disk of a broker that runs or has crashed. So
the markers are found by a pass over the log: only if the log has a transaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from regent.core.errors import BadDataError, StorageError
from regent.jobs.source.log_segments import SegmentFile
from regent.records.end_transaction_marker import marker_of
from regent.records.record_batch import BatchHeader


class CommittedBatches:
    """Tells the committed batches in these segments."""

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
