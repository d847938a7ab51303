"""Validation of the records in a produced batch. After this only consumers decode them.

Mirrors ``kafka.log.LogValidator``, the iterators of ``DefaultRecordBatch``, and
``DefaultRecord.readFrom`` and ``readPartiallyFrom``: the number of records and their lengths must
be as declared, with nothing after the last record. Offsets must be 0, 1, 2 …; Kafka rewrites a
compressed batch with other offsets. As in Kafka the largest timestamp in the header is corrected.

A walk through the records checks their form. Producers often send many records of one size. After
two records of the same size, the walk compares whole columns: the bytes at the same position of all
records that may be alike. The records come in pieces. The walk keeps only the last record of a
piece, if it is cut, and of a long record nothing: so a batch of any size takes little memory.

The rules for single records (keys, timestamps) look at what the walk found in all of them. Only if
that breaks a rule, the records are read again, to name those that do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import RecordError
from regent.core.replica_logs import NO_TIMESTAMP
from regent.records.compression import NONE, Unpack, pieces, unpacked_at_once
from regent.records.record import read_varint, signed
from regent.records.record_batch import HEADER_SIZE, has_right_crc, read_header, set_max_timestamp

_QUICK_RECORDS = 1_000
_QUICK_BYTES = 4 * 1024 * 1024
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
    headers = [read_header(data) for data in batches]
    if any(header.compression != NONE or header.record_count < 0 for header in headers):
        return False  # a negative count must not make up for that of another batch
    is_short = sum(map(len, batches)) <= _QUICK_BYTES
    return is_short and sum(header.record_count for header in headers) <= _QUICK_RECORDS


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
    header = read_header(data)
    count = header.record_count
    if header.size != len(data) or not 0 < count == header.last_offset_delta + 1:
        return
    walk, codec, is_append_time = RecordWalk(count), header.compression, header.stamps_append_time
    base_timestamp = header.base_timestamp
    problem = _problem(walk, codec, data, base_timestamp, unpack)
    if problem is not None:
        if has_right_crc(data, 0, header):
            raise InvalidRecordsError(f"records that cannot be read: {problem}")
        return
    if is_append_time:
        times = None
    oldest, newest = base_timestamp + walk.oldest, base_timestamp + walk.newest
    has_times = times is None or times.first_ms <= oldest <= newest <= times.last_ms
    if not has_times or (needs_keys and not walk.has_all_keys):
        rules = _RecordRules(needs_keys, times, topic_partition)
        with closing(pieces(codec, data[HEADER_SIZE:], unpack)) as records:
            rules.check(base_timestamp, read_each(records, count))
    greatest = max(NO_TIMESTAMP, newest)
    is_wrong = greatest != header.max_timestamp and not is_append_time
    if is_wrong and has_right_crc(data, 0, header):
        set_max_timestamp(data, 0, header, greatest)


def _problem(
    walk: RecordWalk, codec: int, data: memoryview, base_timestamp: int, unpack: Unpack | None
) -> str | None:
    """Walk through the records; return what is wrong with them.

    Not the exception: it refers to frames, and they to what was unpacked.
    """
    records = data[HEADER_SIZE:]
    try:
        if codec == NONE:
            walk.read((bytes(records),))
        else:
            with closing(pieces(codec, records, unpack)) as unpacked:
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


# --- the walk through the records ----------------------------------------------------------------

_INT32_BYTES = 5  # of the longest number of 32 bits
_LEAST, _GREATEST = -(2**63), 2**63 - 1
_FEW = 8  # records alike that are hardly worth the comparison
_MANY = 512  # records that are compared at once
_TRY_AGAIN_AFTER = 16  # records
_LONG_BYTES = 64 * 1024  # of a record that is not kept until all of it is there
# The bytes of the varints of 0, 1, 2 …: those of one byte, and both bytes of the longer ones.
_ONE_BYTE = bytes(number << 1 for number in range(64))
_LOW_BYTES = bytes(0x80 | (number << 1 & 0x7F) for number in range(8192))
_HIGH_BYTES = bytes(number >> 6 for number in range(8192))
_OFFSETS = {1: (_ONE_BYTE,), 2: (_LOW_BYTES, _HIGH_BYTES)}
# The bytes that varints of numbers from 0 on may have, by their length: zigzag makes them even.
_NUMBERS = {
    1: (bytes(range(0, 128, 2)),),
    2: (bytes(range(128, 256, 2)), bytes(range(128))),
}


class ReadRecord(NamedTuple):
    """What the rules for single records look at."""

    timestamp_delta: int
    has_key: bool


class RecordWalk:
    """A walk through the ``count`` records of a batch, and what it has found.

    ``oldest`` and ``newest`` are the smallest and the largest timestamp delta.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.oldest, self.newest = _GREATEST, _LEAST
        self.has_all_keys = True
        self._index = 0

    def read(self, pieces: Iterable[bytes]) -> None:
        """Check every record, and that nothing follows the last one.

        Raises ``ValueError`` for an invalid record and ``IndexError`` for one that exceeds the
        batch, before the next piece is taken.
        """
        cursor = _Cursor(pieces)
        while self._index < self.count:
            if not cursor.take_piece():
                raise IndexError(f"record {self._index} exceeds the batch")
            cursor.at = self.walk(cursor.data, cursor.at)
            while self._index < self.count and len(cursor.data) - cursor.at > _LONG_BYTES:
                self._add(*cursor.read_record(self._index))
                cursor.at = self.walk(cursor.data, cursor.at)
        while cursor.at == len(cursor.data):
            if not cursor.take_piece():
                return
        raise ValueError(f"bytes follow the last of {self.count} records")

    def _add(self, timestamp_delta: int, has_key: bool) -> None:
        self.oldest = min(self.oldest, timestamp_delta)
        self.newest = max(self.newest, timestamp_delta)
        self.has_all_keys &= has_key
        self._index += 1

    def walk(self, data: bytes, at: int) -> int:  # noqa: C901, PLR0915
        """Check the records that end in ``data``; return the position of the next one.

        Varints of one or two bytes, which are nearly all, are read in place: a call for each would
        take twice as long.
        """
        end, count, index = len(data), self.count, self._index
        oldest, newest = self.oldest << 1, self.newest << 1
        size_before, try_from, try_to = -1, 0, count - _FEW
        while index < count and at < end:
            start, size = at, data[at]
            at += 1
            if size > 127:
                try:
                    more = data[at]
                    at += 1
                    size += (more << 7) - 128
                    if more > 127:
                        size, at = read_varint(data, start, _INT32_BYTES)
                except IndexError:  # it is cut
                    at = start
                    break
            if size & 1:
                raise ValueError(f"the length of record {index} is wrong")
            stop = at + (size >> 1)
            if stop > end:
                at = start
                break
            raw = data[at + 1]  # after the unused attributes
            at += 2
            if raw > 127:
                raw, at = read_varint(data, at - 1)
            if raw & 1:
                raw = ~raw
            if raw > newest:
                newest = raw
            if raw < oldest:
                oldest = raw
            raw = data[at]
            at += 1
            if raw > 127:
                more = data[at]
                at += 1
                raw += (more << 7) - 128
                if more > 127:
                    raw, at = read_varint(data, at - 2, _INT32_BYTES)
            if raw != index << 1:
                raise ValueError(f"record {index} has another offset than {index}")
            raw = data[at]
            at += 1
            if raw > 127:
                raw, at = read_varint(data, at - 1, _INT32_BYTES)
            if not raw & 1:
                at += raw >> 1
            else:
                self.has_all_keys = False
            raw = data[at]
            at += 1
            if raw > 127:
                more = data[at]
                at += 1
                raw += (more << 7) - 128
                if more > 127:
                    raw, at = read_varint(data, at - 2, _INT32_BYTES)
            if not raw & 1:
                at += raw >> 1
            if data[at]:
                at = _after_headers(data, at, stop)
            else:
                at += 1
            if at != stop:
                raise ValueError(f"the length of record {index} is wrong")
            index += 1
            if size == size_before and try_from <= index <= try_to:
                alike, oldest_alike, newest_alike = _find_alike(data, start, stop, index, count)
                oldest, newest = min(oldest, oldest_alike << 1), max(newest, newest_alike << 1)
                if alike < _FEW:
                    try_from = index + _TRY_AGAIN_AFTER
                index += alike
                at += alike * (stop - start)
            size_before = size
        self._index, self.oldest, self.newest = index, oldest >> 1, newest >> 1
        return at


def read_each(pieces: Iterable[bytes], count: int) -> Iterator[ReadRecord]:
    """Yield the records one by one, which takes longer than a walk and finds the same errors."""
    cursor = _Cursor(pieces)
    for index in range(count):
        yield cursor.read_record(index)


class _Cursor:
    """A position in records that come in pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.data, self.at = b"", 0

    def take_piece(self) -> bool:
        """Add a piece to what is left of the last ones; False: there is none."""
        for piece in self._pieces:
            self.data = self.data[self.at :] + piece if self.at < len(self.data) else piece
            self.at = 0
            return True
        return False

    def read_record(self, index: int) -> ReadRecord:
        """Read a record, without keeping its key and value. Raises as ``RecordWalk.read``."""
        size, _ = self._number(_INT32_BYTES)
        if size < 0:
            raise ValueError(f"the length of record {index} is wrong")
        left = size - 1
        self._skip(1)  # the unused attributes
        timestamp_delta, taken = self._number()
        left -= taken
        offset, taken = self._number(_INT32_BYTES)
        left -= taken
        if offset != index:
            raise ValueError(f"record {index} has another offset than {index}")
        key_bytes, left = self._skip_sized(left)
        _, left = self._skip_sized(left)
        headers, taken = self._number(_INT32_BYTES)
        left -= taken
        if not 0 <= headers <= max(left, 0):
            raise ValueError("the number of headers of a record is wrong")
        for _ in range(headers):
            header_key_bytes, left = self._skip_sized(left)
            if header_key_bytes < 0:
                raise ValueError("a record has a header without a key")
            _, left = self._skip_sized(left)
        if left != 0:
            raise ValueError(f"the length of record {index} is wrong")
        return ReadRecord(timestamp_delta, key_bytes >= 0)

    def _number(self, max_bytes: int = 10) -> tuple[int, int]:
        """Return a number and how many bytes it has."""
        while True:
            try:
                raw, at = read_varint(self.data, self.at, max_bytes)
            except IndexError:  # it is cut
                if not self.take_piece():
                    raise
                continue
            taken, self.at = at - self.at, at
            return signed(raw), taken

    def _skip_sized(self, left: int) -> tuple[int, int]:
        """Skip a key or a value; return its size, -1 for null, and what is left of its record."""
        size, taken = self._number(_INT32_BYTES)
        left -= taken + max(size, 0)
        if left < 0:
            raise ValueError("a key or value exceeds its record")
        self._skip(size)
        return size, left

    def _skip(self, size: int) -> None:
        while size > len(self.data) - self.at:
            size -= len(self.data) - self.at
            self.at = len(self.data)
            if not self.take_piece():
                raise IndexError
        self.at += max(size, 0)


def _after_headers(data: bytes, at: int, stop: int) -> int:
    """Return the end of the headers of a record; they begin with their number."""
    raw, at = read_varint(data, at, _INT32_BYTES)
    if raw & 1 or raw >> 1 > stop - at:
        raise ValueError("the number of headers of a record is wrong")
    for _ in range(raw >> 1):
        key_size, at = read_varint(data, at, _INT32_BYTES)
        if key_size & 1:
            raise ValueError("a record has a header without a key")
        at += key_size >> 1
        value_size, at = read_varint(data, at, _INT32_BYTES)
        if not value_size & 1:
            at += value_size >> 1
    return at


def _find_alike(data: bytes, start: int, stop: int, index: int, count: int) -> tuple[int, int, int]:
    """Return how many records like a valid one follow it; their least and largest timestamp delta.

    They differ from it only in key, value, timestamp and offset, not in a size. They have no
    headers, and the offsets ``index``, ``index + 1`` …, below ``count``. 0 if the record has
    headers or a timestamp delta below 0, or if the delta or the offset has more than two bytes.
    """
    _, at = read_varint(data, start, _INT32_BYTES)
    timestamp_at = at + 1
    _, offset_at = read_varint(data, timestamp_at)
    _, key_size_at = read_varint(data, offset_at, _INT32_BYTES)
    raw, key_at = read_varint(data, key_size_at, _INT32_BYTES)
    value_size_at = key_at if raw & 1 else key_at + (raw >> 1)
    raw, value_at = read_varint(data, value_size_at, _INT32_BYTES)
    headers_at = value_at if raw & 1 else value_at + (raw >> 1)
    offsets = _OFFSETS.get(key_size_at - offset_at)
    timestamps = _NUMBERS.get(offset_at - timestamp_at)
    if offsets is None or timestamps is None or headers_at != stop - 1:
        return 0, _GREATEST, _LEAST
    stride = stop - start
    alike = min(_MANY, count - index, len(offsets[0]) - index, (len(data) - stop) // stride)
    allowed = dict(enumerate(timestamps, timestamp_at))
    for column in (
        *range(start, offset_at),
        headers_at,
        *range(key_size_at, key_at),
        *range(value_size_at, value_at),
    ):
        if alike <= 0:
            break
        found = data[column + stride : column + alike * stride + 1 : stride]
        alike -= len(found.lstrip(allowed.get(column, data[column : column + 1])))
    if alike <= 0 or any(
        data[column + stride : column + alike * stride + 1 : stride]
        != expected[index : index + alike]
        for column, expected in enumerate(offsets, offset_at)
    ):
        return 0, _GREATEST, _LEAST
    digits = [
        data[column + stride : column + alike * stride + 1 : stride]
        for column in range(offset_at - 1, timestamp_at - 1, -1)  # the last byte is the highest
    ]
    if len(digits) == 1:
        return alike, min(digits[0]) >> 1, max(digits[0]) >> 1
    rows = list(zip(*digits, strict=True))
    oldest, _ = read_varint(bytes(reversed(min(rows))), 0)
    newest, _ = read_varint(bytes(reversed(max(rows))), 0)
    return alike, oldest >> 1, newest >> 1
