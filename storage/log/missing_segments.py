"""Finds segments that are missing: each must begin where the one before it ends.

A lost file (``rm``, ``fsck``) leaves a gap in a log whose other files are sound. Kafka does not
check this: a replica with such a gap joins the ISR, leads, and replicates the gap. Compaction also
leaves gaps between segments; those are not damage.
"""

from __future__ import annotations

from regent.records.record_batch import INT32_MAX
from regent.storage.log.batch_order_check import check_order
from regent.storage.log.log_contents import LogContents
from regent.storage.log.log_file import CorruptSegmentError, LogFile
from regent.storage.log.log_segment import LogSegment


def check_first_segment(contents: LogContents) -> None:
    """Raise ``CorruptSegmentError`` if the first segments are missing and retention did not drop
    them: ``LogContents.drop_first`` saves the new start of the oldest epoch before it drops any.
    """
    start, first = contents.epochs.start_offset, contents.segments[0].base_offset
    if 0 <= start < first and not contents.is_compacted:
        raise CorruptSegmentError(_missing(contents, start, first))


def check_no_segment_is_missing(contents: LogContents) -> None:
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
            check_next_segment(contents, end, after)


def check_next_segment(contents: LogContents, end: int, after: LogSegment) -> None:
    """Raise ``CorruptSegmentError`` if segment ``after`` does not begin at offset ``end``.

    A gap of more offsets than one segment can have occurs only in a compacted log.
    """
    if not contents.is_compacted and end < after.base_offset <= end + INT32_MAX:
        raise CorruptSegmentError(_missing(contents, end, after.base_offset))


def _missing(contents: LogContents, start: int, end: int) -> str:
    return (
        f"{contents.path}: offsets {start} to {end - 1} are missing: the segment file that held"
        " them is gone"
    )


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
