"""Record batches of magic 2: reads, checks and builds them, and sets what a broker assigns.

A log accepts batches by their headers and CRCs: ``batches_of_producer``, ``batches_of_leader``.
Before, ``record_validation`` checked each record of a producer, and that the header matches them.
The CRC covers everything from ``attributes`` on. So a broker can set the base offset and the leader
epoch without computing the CRC again. Records are decoded for few requests and for internal topics
only. Mirrors ``org.apache.kafka.common.record.DefaultRecordBatch`` and ``MemoryRecordsBuilder``,
``kafka.log.LogValidator.validateBatch`` and ``UnifiedLog.analyzeAndValidateRecords``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.model import NO_EPOCH
from regent.core.records import RecordBytes
from regent.core.replica_logs import NO_TIMESTAMP, AppendOrigin
from regent.core.setting import LONG_MAX
from regent.records.compression import NONE, compressed, decompressed
from regent.records.record import encode_record, read_records, value_of

HEADER_SIZE = 61
MAGIC = 2
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
INT32_MAX = 2**31 - 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_END = 12  # `batch_length` counts from here: after the base offset and itself
_LEADER_EPOCH_AT = 12
_CRC_AT = 17
CHECKED_FROM = 21  # `attributes`
_MAX_TIMESTAMP_AT = 35
_INT64 = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")

_COMPRESSION = 0x07
_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40
SPECIAL: Final = _COMPRESSION | _TRANSACTIONAL | _CONTROL
"""Attributes of batches whose records are not simply there, or do not count by themselves."""
_COMPRESSIONS = 4


class BatchHeader(NamedTuple):
    """The 61 bytes before the records; times in milliseconds, lengths in bytes."""

    base_offset: int = 0
    batch_length: int = 0
    partition_leader_epoch: int = NO_EPOCH
    magic: int = MAGIC
    crc: int = 0
    attributes: int = 0
    last_offset_delta: int = 0
    base_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    record_count: int = 0

    @property
    def size(self) -> int:
        """The size of the batch with its header, in bytes: ``batch_length`` and 12."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """The offset of its last record; compaction may have removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after its last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of its last record; -1 when it has none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & INT32_MAX  # after 2^31 - 1 comes 0

    @property
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & _COMPRESSION

    @property
    def stamps_append_time(self) -> bool:
        """Whether ``max_timestamp`` is the timestamp of all records (LogAppendTime)."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records."""
        return bool(self.attributes & _CONTROL)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When its tombstones and markers may go (KIP-534); None: no cleaning has set it yet."""
        return self.base_timestamp if self.attributes & _DELETE_HORIZON else None

    @property
    def first_timestamp(self) -> int | None:
        """The timestamp of the record at ``base_offset``; None: the header does not tell it.

        Compaction removes records and keeps the timestamp of the first one, or sets a horizon.
        """
        if self.stamps_append_time:
            return self.max_timestamp
        is_dense = self.record_count == self.last_offset_delta + 1
        return self.base_timestamp if is_dense and self.delete_horizon_ms is None else None

    def emptied(self) -> BatchHeader:
        """Return the header without records: it keeps the sequence numbers of a producer."""
        kept = self.attributes & (_APPEND_TIME | _TRANSACTIONAL | _CONTROL)
        return self._replace(attributes=kept, base_timestamp=NO_TIMESTAMP, record_count=0)

    def with_delete_horizon(self, horizon_ms: int) -> BatchHeader:
        """Return the header with a horizon, from which the timestamps of records then count."""
        return self._replace(
            attributes=self.attributes | _DELETE_HORIZON, base_timestamp=horizon_ms
        )


read_header_fields: Final = _HEADER.unpack_from
"""Returns the fields of ``BatchHeader`` as a tuple: for loops that need only some of them."""

_new_header: Callable[[Iterable[int]], BatchHeader] = partial(tuple.__new__, BatchHeader)
"""``BatchHeader._make``, in half the time."""

PlacedBatch: TypeAlias = tuple[int, BatchHeader]
"""The position of a batch in a buffer or file, and its header."""


def read_header(buffer: RecordBytes, position: int = 0) -> BatchHeader:
    """Return the header at ``position``, unchecked.

    Raises ``struct.error`` if there are fewer than 61 bytes.
    """
    return _new_header(_HEADER.unpack_from(buffer, position))


def batches(
    buffer: RecordBytes, position: int = 0, *, may_be_cut: bool = False
) -> Iterator[PlacedBatch]:
    """Yield the position and header of each batch, without checking the CRC.

    ``may_be_cut``: leave out the last one if it is incomplete and not the only one. Raises
    ``RecordsRefusedError`` at the first batch that is incomplete or malformed.
    """
    begin, end = position, len(buffer)
    while position < end:
        if may_be_cut and position > begin and _is_cut(buffer, position):
            return
        header = next_header(buffer, position, end - position)
        yield position, header
        position += header.size


def _is_cut(buffer: RecordBytes, position: int) -> bool:
    room = len(buffer) - position
    return room < HEADER_SIZE or read_header(buffer, position).size > room


def next_header(buffer: RecordBytes, position: int, room: int) -> BatchHeader:
    """Return the header at ``position`` of a batch that ends within ``room`` bytes.

    Raises ``RecordsRefusedError`` if the batch is longer, or does not have magic 2.
    """
    if room < HEADER_SIZE or len(buffer) - position < HEADER_SIZE:
        raise _corrupt("its header is cut")
    header = read_header(buffer, position)
    if header.magic != MAGIC:
        if header.magic in (0, 1):
            text = f"a batch of the old message format {header.magic}"
            raise RecordsRefusedError(Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)
        raise _corrupt(f"its magic is {header.magic}")
    size = header.batch_length + LENGTH_END
    if not HEADER_SIZE <= size <= room:
        raise _corrupt(f"its size is {size}, and {room} bytes are left")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
        text = f"a batch of {header.record_count} records, offsets {header.base_offset} to"
        raise RecordsRefusedError(Errors.INVALID_RECORD, f"{text} {header.last_offset}")
    return header


def has_right_crc(buffer: RecordBytes, position: int, header: BatchHeader) -> bool:
    """Whether the CRC of a batch matches."""
    return _checksum(buffer, position, header) == header.crc


def check_crc(buffer: RecordBytes, position: int, header: BatchHeader) -> None:
    """Raise ``RecordsRefusedError`` (CORRUPT_MESSAGE) if the CRC of a batch does not match."""
    if _checksum(buffer, position, header) != header.crc:
        raise _corrupt("its CRC does not match")


def check_crc_of_pieces(pieces: Iterable[bytes], header: BatchHeader) -> None:
    """As ``check_crc``, for a batch in several pieces; the first one holds the header."""
    crc, skipped = 0, CHECKED_FROM
    for piece in pieces:
        crc, skipped = crc32c(memoryview(piece)[skipped:], crc), 0
    if crc != header.crc:
        raise _corrupt("its CRC does not match")


# --- what a log accepts ---------------------------------------------------------------------------


def batches_of_producer(
    records: RecordBytes,
    config: LogConfig,
    now_ms: int,
    origin: AppendOrigin = AppendOrigin.CLIENT,
) -> list[PlacedBatch]:
    """Return the batches of a producer. Raises ``RecordsRefusedError`` if one is invalid."""
    found = []
    for position, header in batches(records):
        if header.size > config.max_message_bytes:
            raise RecordsRefusedError(
                Errors.MESSAGE_TOO_LARGE,
                f"a batch of {header.size} bytes, but max.message.bytes is"
                f" {config.max_message_bytes}",
            )
        check_crc(records, position, header)
        if config.keeps_offsets and origin is AppendOrigin.CLIENT:
            _check_restored(header)
        else:
            _check_contents(header, origin)
        _check_time(header, config, now_ms)
        found.append((position, header))
    if len(records) > config.segment_bytes:
        raise RecordsRefusedError(
            Errors.RECORD_LIST_TOO_LARGE,
            f"{len(records)} bytes of records, but segment.bytes is {config.segment_bytes}",
        )
    if not found:
        raise RecordsRefusedError(Errors.INVALID_RECORD, "no records")
    return found


def check_leader_epoch(leader_epoch: int | None, expected: int) -> None:
    """Check the epoch in which records were fetched; None: any. Raises ``RecordsRefusedError``."""
    if leader_epoch not in (None, expected):
        raise RecordsRefusedError(
            Errors.FENCED_LEADER_EPOCH, f"fetched in leader epoch {leader_epoch}, not {expected}"
        )


def batches_of_leader(
    records: RecordBytes, log_end_offset: int, *, may_overlap: bool
) -> list[PlacedBatch]:
    """Return batches fetched from a leader, which begin at or after ``log_end_offset``.

    ``may_overlap``: the first one may begin before it. A leader of Kafka cuts the last one where
    the limit of the answer is; it comes whole with the next answer. Raises ``RecordsRefusedError``
    if a batch does not follow the one before, or is corrupt.
    """
    found: list[PlacedBatch] = []
    expected = log_end_offset
    for position, header in batches(records, may_be_cut=True):
        check_crc(records, position, header)
        overlaps = may_overlap and not found and header.last_offset >= expected
        if header.base_offset < expected and not overlaps:
            raise RecordsRefusedError(
                Errors.CORRUPT_MESSAGE,
                f"offsets {header.base_offset} to {header.last_offset} do not follow: the next"
                f" offset is {expected}",
            )
        expected = header.next_offset
        found.append((position, header))
    return found


def _check_contents(header: BatchHeader, origin: AppendOrigin) -> None:
    """Refuse batches that only brokers write, and inconsistent headers."""
    problem, is_of_client = None, origin is AppendOrigin.CLIENT
    if header.is_control and is_of_client:
        problem = "producers must not write control records"
    elif header.is_transactional and header.producer_id < 0:
        problem = "a transactional batch without a producer id"
    elif header.record_count <= 0:
        problem = "a batch without records"
    elif header.last_offset_delta != header.record_count - 1:
        problem = f"{header.record_count} records but offsets up to +{header.last_offset_delta}"
    elif header.base_offset != 0:
        problem = f"a batch that begins at offset {header.base_offset}, not at 0"
    elif header.compression > _COMPRESSIONS:
        problem = f"compression {header.compression} does not exist"
    elif is_of_client and header.producer_id >= 0 and header.base_sequence < 0:
        problem = f"producer {header.producer_id} gives no sequence number"
    if problem is not None:
        raise RecordsRefusedError(Errors.INVALID_RECORD, problem)


def _check_restored(header: BatchHeader) -> None:
    """Refuse batches that ``restored_batch`` did not make: those of other producers."""
    count, is_empty = header.record_count, header.size == HEADER_SIZE
    has_all = count == (0 if is_empty else header.last_offset_delta + 1)
    is_ours = not header.attributes & ~_COMPRESSION and header.producer_id < 0
    if not has_all or not is_ours or header.next_offset > LONG_MAX:
        raise RecordsRefusedError(
            Errors.INVALID_RECORD, "the topic is being restored: it takes no other records"
        )


def _check_time(header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Refuse a producer's LogAppendTime, and a newest record too far from the broker's time.

    The first timestamp of the header need not be that of a record.
    """
    if header.stamps_append_time:
        raise RecordsRefusedError(Errors.INVALID_TIMESTAMP, "producers must not set LogAppendTime")
    if config.stamps_append_time:
        return
    timestamp, past_ms, future_ms = header.max_timestamp, config.max_past_ms, config.max_future_ms
    if timestamp != NO_TIMESTAMP and not -past_ms <= timestamp - now_ms <= future_ms:
        raise RecordsRefusedError(
            Errors.INVALID_TIMESTAMP,
            f"timestamp {timestamp} is not within {past_ms} ms before and {future_ms} ms after"
            f" {now_ms}",
        )


# --- what a broker assigns ------------------------------------------------------------------------


def writable(records: RecordBytes) -> bytearray | memoryview:
    """Return the same memory if it is writable, otherwise a writable copy."""
    if isinstance(records, bytearray) or (isinstance(records, memoryview) and not records.readonly):
        return records
    return bytearray(records)


def assign(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> BatchHeader:
    """Set the base offset and the leader epoch of the batch at ``position``."""
    _INT64.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)
    return read_header(buffer, position)


def stamp_append_time(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int
) -> BatchHeader:
    """Set the timestamp of all records of a batch to LogAppendTime, and update its CRC."""
    _INT16.pack_into(buffer, position + CHECKED_FROM, header.attributes | _APPEND_TIME)
    return set_max_timestamp(buffer, position, header, now_ms)


def set_max_timestamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, timestamp_ms: int
) -> BatchHeader:
    """Set the largest timestamp of a batch, and update its CRC."""
    _INT64.pack_into(buffer, position + _MAX_TIMESTAMP_AT, timestamp_ms)
    _UINT32.pack_into(buffer, position + _CRC_AT, _checksum(buffer, position, header))
    return read_header(buffer, position)


def place(
    buffer: bytearray | memoryview,
    batches: Iterable[PlacedBatch],
    base_offset: int,
    leader_epoch: int,
    append_time_ms: int,
) -> list[PlacedBatch]:
    """Set consecutive offsets in batches, and a LogAppendTime unless it is ``NO_TIMESTAMP``."""
    placed = []
    for position, header in batches:
        if append_time_ms != NO_TIMESTAMP:
            stamp_append_time(buffer, position, header, append_time_ms)
        placed.append((position, assign(buffer, position, base_offset, leader_epoch)))
        base_offset += header.last_offset_delta + 1
    return placed


def place_restored(
    buffer: bytearray | memoryview,
    batches: Iterable[PlacedBatch],
    log_end_offset: int,
    leader_epoch: int,
) -> list[PlacedBatch]:
    """Leave the offsets of restored batches as they are. Raises ``RecordsRefusedError``.

    They must be in order, and begin at or after the log end offset: what lies between is left out,
    as in a compacted log.
    """
    placed = []
    for position, header in batches:
        if header.base_offset < log_end_offset:
            offsets = f"{header.base_offset} to {header.last_offset}"
            raise RecordsRefusedError(
                Errors.INVALID_RECORD,
                f"the topic is being restored, and its offsets {offsets} have other records",
            )
        placed.append((position, assign(buffer, position, header.base_offset, leader_epoch)))
        log_end_offset = header.next_offset
    return placed


# --- records --------------------------------------------------------------------------------------


class DefaultRecord(NamedTuple):
    """One record; its timestamp is in milliseconds. Headers are left out."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


KeyAndValue: TypeAlias = tuple[bytes, bytes | None]
"""A record of an internal topic; None: a tombstone."""


def uncompressed(header: BatchHeader, batch: memoryview) -> bytes:
    """Return the records of a whole batch. Raises ``ValueError``."""
    return decompressed(header.compression, batch[HEADER_SIZE:])


def records_of(header: BatchHeader, batch: memoryview) -> Iterator[DefaultRecord]:
    """Yield the records of a whole batch. Raises ``ValueError`` if they are not well-formed."""
    data = uncompressed(header, batch)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    append_time = header.max_timestamp if header.stamps_append_time else None
    for _, end, time, delta, key, value_at in read_records(
        data, header.record_count, is_exact=False
    ):
        timestamp = base_timestamp + time if append_time is None else append_time
        yield DefaultRecord(base_offset + delta, timestamp, key, value_of(data, value_at, end))


def keys_and_values(header: BatchHeader, batch: memoryview) -> Iterator[KeyAndValue]:
    """Yield the records of a whole batch that have a key. Raises ``ValueError``."""
    data = uncompressed(header, batch)
    for _, end, _, _, key, value_at in read_records(data, header.record_count, is_exact=False):
        if key is not None:
            yield key, value_of(data, value_at, end)


def encode(header: BatchHeader, records: bytes) -> bytearray:
    """Return a batch with these records, as they are compressed; sets its length and its CRC."""
    length = HEADER_SIZE - LENGTH_END + len(records)
    batch = bytearray(_HEADER.pack(*header._replace(batch_length=length, crc=0)))
    batch += records
    _UINT32.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CHECKED_FROM:]))
    return batch


def build_batch(
    records: Sequence[KeyAndValue],
    timestamp_ms: int,
    *,
    codec: int = NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_control: bool = False,
) -> bytearray:
    """Return a batch, without offset and leader epoch; with a producer it is transactional."""
    data = b"".join(encode_record(n, 0, *record) for n, record in enumerate(records))
    attributes = codec | (_TRANSACTIONAL if producer_id != NO_PRODUCER_ID else 0)
    header = BatchHeader(
        attributes=attributes | (_CONTROL if is_control else 0),
        last_offset_delta=len(records) - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return encode(header, compressed(codec, data))


class RestoredRecord(NamedTuple):
    """A record of a backup, with its offset and timestamp (ms)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def restored_batches(
    records: Iterable[RestoredRecord], codec: int, max_bytes: int
) -> Iterator[bytearray]:
    """Yield batches that have the offsets of their records, which ascend.

    A batch ends before a gap, and when it has about ``max_bytes`` of records. The same records
    always make the same batches.
    """
    base, encoded, size, newest = RestoredRecord(-1, 0, None, None), list[bytes](), 0, NO_TIMESTAMP
    for record in records:
        if encoded and (record.offset != base.offset + len(encoded) or size >= max_bytes):
            yield _restored_batch(base, encoded, newest, codec)
            encoded = []
        if not encoded:
            base, size, newest = record, 0, NO_TIMESTAMP
        delta = record.timestamp - base.timestamp
        data = encode_record(len(encoded), delta, record.key, record.value, record.headers)
        encoded.append(data)
        size += len(data)
        newest = max(newest, record.timestamp)
    if encoded:
        yield _restored_batch(base, encoded, newest, codec)


def empty_batch(offset: int) -> bytearray:
    """Return a batch without records that takes an offset, as compaction leaves some."""
    return encode(BatchHeader(base_offset=offset), b"")


def _restored_batch(
    base: RestoredRecord, encoded: Sequence[bytes], max_timestamp: int, codec: int
) -> bytearray:
    header = BatchHeader(
        base_offset=base.offset,
        attributes=codec,
        last_offset_delta=len(encoded) - 1,
        base_timestamp=base.timestamp,
        max_timestamp=max_timestamp,
        record_count=len(encoded),
    )
    return encode(header, compressed(codec, b"".join(encoded)))


def _checksum(buffer: RecordBytes, position: int, header: BatchHeader) -> int:
    return crc32c(memoryview(buffer)[position + CHECKED_FROM : position + header.size])


def _corrupt(why: str) -> RecordsRefusedError:
    return RecordsRefusedError(Errors.CORRUPT_MESSAGE, f"a corrupt batch: {why}")
