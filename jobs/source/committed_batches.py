"""Which batches of a log a reader of committed transactions gets.

A transaction ends with the next marker of its producer in the log. Its end is decided before any
marker is written, so a marker beyond the high watermark counts, too. Brokers answer this from their
memory and from indexes, which are not complete on the disk of a broker that runs or has crashed. So
the markers are found by a pass over the log: only if the log has a transaction.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from regent.core.errors import BadDataError, RecordsRefusedError
from regent.jobs.source.log_segments import SegmentFile
from regent.storage.end_transaction_marker import marker_of
from regent.storage.record_batch import BatchHeader

Markers: TypeAlias = Mapping[int, list[tuple[int, bool]]]
"""By producer id: the offsets of its markers, ascending, and whether each one commits."""


class CommittedBatches:
    """Tells the committed batches in these segments."""

    def __init__(self, segments: Sequence[SegmentFile], offset: int) -> None:
        """Read nothing yet; batches before ``offset`` will not be asked for."""
        self._segments, self._offset = segments, offset
        self._markers: Markers | None = None

    def has(self, header: BatchHeader) -> bool:
        """Return whether a reader gets the records of a batch. Raises ``OSError``."""
        if header.is_control or not header.is_transactional:
            return not header.is_control
        if self._markers is None:
            self._markers = self._found_markers()
        markers = self._markers.get(header.producer_id, [])
        number = bisect_right(markers, (header.base_offset, True))
        return number < len(markers) and markers[number][1]  # without a marker it is open

    def _found_markers(self) -> Markers:
        found = defaultdict[int, list[tuple[int, bool]]](list)
        for segment in self._segments:
            try:
                for block in segment.blocks(self._offset):
                    for header, batch in block:
                        marker = marker_of(header, batch) if header.is_control else None
                        if marker is not None:
                            found[header.producer_id].append((header.base_offset, marker.is_commit))
            except (RecordsRefusedError, BadDataError):
                continue  # reading these records raises the error
        return found
