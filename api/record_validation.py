"""Validation of the records in a produced batch. After this only consumers decode them.

Mirrors ``kafka.log.LogValidator``, the iterators of ``DefaultRecordBatch`` and
``DefaultRecord.readFrom``: the number of records and their lengths must be as declared, with
nothing after the last record. Offsets must be 0, 1, 2 …; Kafka rewrites a compressed batch with
other offsets. As in Kafka the largest timestamp in the header is corrected.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from crc32c import crc32c

from regent.api.record_walk import walk
from regent.core.compression import decompressed

_HEADER = struct.Struct(">8xi9xhiqq14xi")
_HEADER_BYTES = 61
_UNCOUNTED_BYTES = 12
_CRC_AT, _CHECKED_FROM, _MAX_TIMESTAMP_AT = 17, 21, 35
_CRC, _INT64 = struct.Struct(">I"), struct.Struct(">q")
_COMPRESSION, _APPEND_TIME = 0x07, 0x08
_NO_TIMESTAMP = -1
_QUICK_RECORDS = 1_000
_MAX_INT64 = 2**63 - 1


class InvalidRecordsError(Exception):
    """Records that consumers could not read, or records without a key in a compacted topic.

    ``keyless`` has the positions of records without a key.
    """

    def __init__(self, message: str, keyless: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.keyless = keyless


def is_quick(batches: Sequence[memoryview]) -> bool:
    """Whether ``validate`` takes less than about 1 ms, so that it may run on the event loop."""
    records = 0
    for data in batches:
        _, attributes, _, _, _, count = _HEADER.unpack_from(data)
        if attributes & _COMPRESSION:
            return False
        records += count
    return records <= _QUICK_RECORDS


def validate(data: memoryview, *, needs_keys: bool) -> None:
    """Check the records of one batch, and correct the largest timestamp in its header.

    ``data`` has at least the header. ``needs_keys``: the topic is compacted. Raises
    ``InvalidRecordsError``. A batch with a wrong header or CRC passes: it changed in transit, and
    the log refuses it with an error after which the producer sends it again.
    """
    length, attributes, last_offset_delta, base_timestamp, max_timestamp, count = (
        _HEADER.unpack_from(data)
    )
    if length + _UNCOUNTED_BYTES != len(data) or not 0 < count == last_offset_delta + 1:
        return
    keyless: list[int] | None = [] if needs_keys else None
    try:
        records = decompressed(attributes & _COMPRESSION, data[_HEADER_BYTES:])
        greatest = max(_NO_TIMESTAMP, base_timestamp + walk(records, count, keyless))
        if greatest > _MAX_INT64:
            raise ValueError(f"timestamp {greatest}")
    except (ValueError, IndexError) as error:
        if _is_sound(data):
            what = "a record exceeds its batch" if isinstance(error, IndexError) else error
            raise InvalidRecordsError(f"records that cannot be read: {what}") from None
        return
    if keyless:
        raise InvalidRecordsError("a compacted topic takes no records without a key", keyless)
    if greatest != max_timestamp and not attributes & _APPEND_TIME and _is_sound(data):
        _INT64.pack_into(data, _MAX_TIMESTAMP_AT, greatest)
        _CRC.pack_into(data, _CRC_AT, crc32c(data[_CHECKED_FROM:]))


def _is_sound(data: memoryview) -> bool:
    return bool(crc32c(data[_CHECKED_FROM:]) == _CRC.unpack_from(data, _CRC_AT)[0])
