"""Finds how many batches of a segment can be returned to a reader who must not get damaged ones.

Reads of a segment that was not verified yet check the CRC and the order of what they return.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from regent.records.record_batch import PlacedBatch
from regent.storage.log.batch_order_check import check_order
from regent.storage.log.log_file import CorruptSegmentError, LogFile

# A read returns no more than this, so that it takes only some milliseconds.
_MAX_BYTES: Final = 1024 * 1024
_MAX_BATCHES: Final = 2_000
_AT_ONCE: Final = 8 * 1024, 256 * 1024  # the least and most bytes to read from the file at once


def sound_end(
    file: LogFile, size: int, start: PlacedBatch, max_bytes: int, limit: int, end_offset: int
) -> tuple[int, int]:
    """Return the last boundary before which all batches from ``start`` on are sound.

    A boundary is the next offset and its position. The file ends at ``size``; the batches are
    below offset ``limit``, and must be below ``end_offset``. At least one is returned. Raises
    ``CorruptSegmentError`` if the first one is not sound.
    """
    begin, first = start
    room = min(max_bytes, _MAX_BYTES)
    least, most = _AT_ONCE
    at_once = min(max(least, room), most)
    batches = file.batches(begin, size, is_checked=True, at_once=at_once)
    end, next_offset = begin, first.base_offset
    sound = check_order(batches, file.path, next_offset, end_offset)
    try:
        for position, header in islice(sound, _MAX_BATCHES):
            is_too_much = position + header.size - begin > room and end > begin
            if is_too_much or header.next_offset > limit:
                break
            end, next_offset = position + header.size, header.next_offset
    except CorruptSegmentError:
        if end == begin:
            raise
    return next_offset, end
