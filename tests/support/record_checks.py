"""Checks of record batches as in ``LogValidator`` and ``Log.append``."""

from __future__ import annotations

from typing import NamedTuple

from crc32c import crc32c

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendOrigin
from tests.support.record_batches import (
    CHECKED_FROM,
    CONTROL_MASK,
    HEADER,
    MAGIC,
    UNCOUNTED_BYTES,
)

_GREATEST_SEQUENCE = 2**31 - 1


class Header(NamedTuple):
    """The fields of a batch header."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return UNCOUNTED_BYTES + self.length

    @property
    def last_offset(self) -> int:
        """The offset of its last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; numbers wrap around."""
        return (self.base_sequence + self.last_offset_delta) & _GREATEST_SEQUENCE


def headers_of(data: RecordBytes, *, may_be_cut: bool = False) -> list[tuple[int, Header]]:
    """Return the position of each batch; raises ``RecordsRefusedError`` for other data.

    ``may_be_cut``: a later batch than the first is left out if its end is not there.
    """
    found: list[tuple[int, Header]] = []
    position, view = 0, memoryview(data)
    while position < len(view):
        room = len(view) - position
        if may_be_cut and found and (room < HEADER.size or _size_at(view, position) > room):
            break
        if room < HEADER.size:
            if room > 16 and view[position + 16] != MAGIC:
                raise _refused(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, "not of magic 2")
            raise _refused(Errors.CORRUPT_MESSAGE, "half a header")
        header = Header(*HEADER.unpack_from(view, position))
        if header.magic != MAGIC:
            raise _refused(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"magic {header.magic}")
        if header.size < HEADER.size or position + header.size > len(view):
            raise _refused(Errors.CORRUPT_MESSAGE, f"a length of {header.length}")
        if crc32c(view[position + CHECKED_FROM : position + header.size]) != header.crc:
            raise _refused(Errors.CORRUPT_MESSAGE, "the checksum is wrong")
        found.append((position, header))
        position += header.size
    return found


def _size_at(view: memoryview, position: int) -> int:
    return Header(*HEADER.unpack_from(view, position)).size


def check_appendable(
    header: Header, config: LogConfig, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
) -> None:
    """Raise ``RecordsRefusedError`` for a batch that no producer may send."""
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise _refused(Errors.INVALID_RECORD, f"{header.record_count} records: {header}")
    if header.attributes & CONTROL_MASK and origin is AppendOrigin.CLIENT:
        raise _refused(Errors.INVALID_RECORD, "a control batch")
    if header.size > config.max_message_bytes:
        raise _refused(Errors.MESSAGE_TOO_LARGE, f"{header.size} bytes")
    is_far = abs(header.max_timestamp - now_ms) > config.message_timestamp_difference_max_ms
    if is_far and not config.stamps_append_time:
        raise _refused(Errors.INVALID_TIMESTAMP, f"from {header.max_timestamp}")


def check_follows(header: Header, log_end_offset: int, *, may_overlap: bool) -> None:
    """Raise ``RecordsRefusedError`` for a batch that does not continue the log."""
    holds_end = header.base_offset < log_end_offset <= header.last_offset
    if header.base_offset != log_end_offset and not (may_overlap and holds_end):
        raise _refused(Errors.CORRUPT_MESSAGE, f"{header} at the end {log_end_offset}")


def _refused(error: Errors, what: str) -> RecordsRefusedError:
    return RecordsRefusedError(error, what)
