"""Validation of the records in a produced batch. After this only consumers decode them.

Mirrors ``kafka.log.LogValidator``, the iterators of ``DefaultRecordBatch`` and
``DefaultRecord.readFrom``: the number of records and their lengths must be as declared, with
nothing after the last record. Offsets must be 0, 1, 2 …; Kafka rewrites a compressed batch with
other offsets. As in Kafka the largest timestamp in the header is corrected.

The rules for single records (keys, timestamps) look at what the walk found in all of them. Only if
that breaks a rule, the records are read again, to name those that do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import NamedTuple

from crc32c import crc32c

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import RecordError
from regent.core.replica_logs import NO_TIMESTAMP
from regent.records.compression import Unpack, pieces, unpacked_at_once
from regent.records.record_walk import ReadRecord, RecordWalk, read_each

_HEADER = struct.Struct(">8xi9xhiqq14xi")
_HEADER_BYTES = 61
_UNCOUNTED_BYTES = 12
_CRC_AT, _CHECKED_FROM, _MAX_TIMESTAMP_AT = 17, 21, 35
_CRC, _INT64 = struct.Struct(">I"), struct.Struct(">q")
_COMPRESSION, _APPEND_TIME = 0x07, 0x08
_QUICK_RECORDS = 1_000
_MAX_INT64 = 2**63 - 1
_MOST_ERRORS = 10_000  # in one answer
_SHOWN_ERRORS = 3
_TIME_REFUSED = "One or more records have been rejected due to invalid timestamp"
_REFUSED = (
    "One or more records have been rejected due to {} record errors in total, and only showing the"
    " first three errors at most: [{}]"
)


class RecordTimes(NamedTuple):
    """The timestamps that records may have besides none, in milliseconds."""

    first_ms: int
    last_ms: int


class InvalidRecordsError(Exception):
    """Records that consumers could not read, or that the topic does not take.

    ``record_errors`` has what is wrong with single records, in Kafka's words (KIP-467).
    """

    def __init__(
        self,
        message: str,
        error_code: Errors = Errors.INVALID_RECORD,
        record_errors: Sequence[RecordError] = (),
    ) -> None:
        super().__init__(message)
        self.error_code = error_code
        self.record_errors = record_errors


def is_quick(batches: Sequence[memoryview]) -> bool:
    """Whether ``validate`` takes less than about 1 ms, so that it may run on the event loop."""
    records = 0
    for data in batches:
        _, attributes, _, _, _, count = _HEADER.unpack_from(data)
        if attributes & _COMPRESSION:
            return False
        records += count
    return records <= _QUICK_RECORDS


def validate(
    data: memoryview,
    topic_partition: TopicPartition | None = None,
    *,
    needs_keys: bool,
    times: RecordTimes | None = None,
    unpack: Unpack | None = unpacked_at_once,
) -> None:
    """Check the records of one batch, and correct the largest timestamp in its header.

    ``data`` has at least the header. ``needs_keys``: the topic is compacted. ``times``: None if
    any are allowed. ``unpack`` is called for large batches; None: raise ``LargeBatchError``.
    Raises ``InvalidRecordsError``. A batch with a wrong header or CRC passes: it changed in
    transit, and the log refuses it with an error after which the producer sends it again.
    """
    length, attributes, last_offset_delta, base_timestamp, max_timestamp, count = (
        _HEADER.unpack_from(data)
    )
    if length + _UNCOUNTED_BYTES != len(data) or not 0 < count == last_offset_delta + 1:
        return
    if attributes & _APPEND_TIME:
        times = None
    walk = RecordWalk(count)
    problem = _problem(walk, attributes & _COMPRESSION, data, base_timestamp, unpack)
    if problem is not None:
        if _is_sound(data):
            raise InvalidRecordsError(f"records that cannot be read: {problem}")
        return
    oldest, newest = base_timestamp + walk.oldest, base_timestamp + walk.newest
    has_times = times is None or times.first_ms <= oldest <= newest <= times.last_ms
    if not has_times or (needs_keys and not walk.has_all_keys):
        rules = _RecordRules(needs_keys, times, topic_partition)
        records = pieces(attributes & _COMPRESSION, data[_HEADER_BYTES:], unpack)
        with closing(records):
            rules.check(base_timestamp, read_each(records, count))
    greatest = max(NO_TIMESTAMP, newest)
    if greatest != max_timestamp and not attributes & _APPEND_TIME and _is_sound(data):
        _INT64.pack_into(data, _MAX_TIMESTAMP_AT, greatest)
        _CRC.pack_into(data, _CRC_AT, crc32c(data[_CHECKED_FROM:]))


def _problem(
    walk: RecordWalk, codec: int, data: memoryview, base_timestamp: int, unpack: Unpack | None
) -> str | None:
    """Walk through the records; return what is wrong with them.

    Not the exception: it refers to frames, and they to what was unpacked.
    """
    try:
        with closing(pieces(codec, data[_HEADER_BYTES:], unpack)) as unpacked:
            walk.read(unpacked)
    except ValueError as error:
        return str(error)
    except IndexError:
        return "a record exceeds its batch"
    newest = base_timestamp + walk.newest
    return f"timestamp {newest}" if newest > _MAX_INT64 else None


class _RecordRules(NamedTuple):
    """The rules for single records. Mirrors ``LogValidator.validateRecord``."""

    needs_keys: bool
    times: RecordTimes | None
    topic_partition: TopicPartition | None

    def check(self, base_timestamp: int, records: Iterable[ReadRecord]) -> None:
        """Raise ``InvalidRecordsError`` if records are refused; it names them."""
        errors: list[RecordError] = []
        found, is_due_to_time = 0, False
        for index, (timestamp_delta, has_key) in enumerate(records):
            timestamp = base_timestamp + timestamp_delta
            if self.needs_keys and not has_key:
                text = (
                    "Compacted topic cannot accept message without key in topic partition"
                    f" {self.topic_partition}"
                )
            elif not self._has_time(timestamp):
                is_due_to_time = True
                text = self._wrong_time(index, timestamp)
            else:
                continue
            found += 1
            if found <= _MOST_ERRORS:
                errors.append(RecordError(index, text))
        if is_due_to_time:
            raise InvalidRecordsError(_TIME_REFUSED, Errors.INVALID_TIMESTAMP, errors)
        if errors:
            shown = ", ".join(map(str, errors[:_SHOWN_ERRORS]))
            raise InvalidRecordsError(_REFUSED.format(found, shown), record_errors=errors)

    def _has_time(self, timestamp: int) -> bool:
        if self.times is None or timestamp == NO_TIMESTAMP:
            return True
        return self.times.first_ms <= timestamp <= self.times.last_ms

    def _wrong_time(self, index: int, timestamp: int) -> str:
        assert self.times is not None
        return (
            f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp"
            f" should be within [{self.times.first_ms}, {self.times.last_ms}]"
        )


def _is_sound(data: memoryview) -> bool:
    return bool(crc32c(data[_CHECKED_FROM:]) == _CRC.unpack_from(data, _CRC_AT)[0])
