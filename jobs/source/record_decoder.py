"""Decodes records of magic 2 into columns, thousands at a time.

Mirrors ``org.apache.kafka.common.record.DefaultRecord``. Python reads only the lengths of records
in sequence. All other numbers are decoded with numpy, and Arrow slices keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from regent.core.model import TopicPartition
from regent.core.varints import read_varint, signed
from regent.jobs.source.columns import CREATE_TIME, LOG_APPEND_TIME, constant
from regent.jobs.source.offsets import OffsetRange
from regent.storage.record_batch import BatchHeader

Numbers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_MAX_VARINT_BYTES: Final = 10
_MAX_BYTES: Final = 2**31 - 1  # the offset limit of Arrow's binary columns
_PADDING: Final = bytes(_MAX_VARINT_BYTES)  # so that a varint can be decoded at the very end


class CorruptRecordsError(Exception):
    """Records that do not match the header of their batch."""


class Payload(NamedTuple):
    """The records of one batch, decompressed."""

    header: BatchHeader
    data: bytes | memoryview


def decode(payloads: Sequence[Payload], wanted: OffsetRange, schema: pa.Schema) -> pa.RecordBatch:
    """Return the records of the batches inside a range, with the columns of ``schema``.

    The batches are sorted by offset. Raises ``CorruptRecordsError``.
    """
    data = b"".join((*(payload.data for payload in payloads), _PADDING))
    if len(data) > _MAX_BYTES:
        raise CorruptRecordsError(f"{len(data)} bytes of records at once")
    starts, counts = _record_starts(payloads, data)
    headers = [payload.header for payload in payloads]
    columns = _Columns(data, starts, headers, counts, wanted.partition)
    arrays = [columns.named(field.name, field.type) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    first, end = np.searchsorted(columns.offsets, (wanted.start, wanted.end))
    return batch.slice(first, end - first)


def _record_starts(payloads: Sequence[Payload], data: bytes) -> tuple[Numbers, Numbers]:
    """Return the start of each record's body, and the number of records of each batch."""
    starts: list[int] = []
    counts: list[int] = []
    at = 0
    for header, records in payloads:
        before, end = len(starts), at + len(records)
        while at < end:
            size = data[at]
            at += 1
            if size >= 0x80:
                shift, size = 7, size & 0x7F
                while data[at] >= 0x80 and shift < 28:
                    size |= (data[at] & 0x7F) << shift
                    at, shift = at + 1, shift + 7
                size |= data[at] << shift
                at += 1
            starts.append(at)
            at += size >> 1  # zigzag: an odd number is a negative length
            if size & 1:
                text = f"a record of the batch at {header.base_offset} has a negative length"
                raise CorruptRecordsError(text)
        if at != end or len(starts) - before != header.record_count:
            text = f"{len(starts) - before} records instead of {header.record_count}"
            raise CorruptRecordsError(f"the batch at {header.base_offset} has {text}")
        counts.append(header.record_count)
    return np.array(starts, np.int64), np.array(counts, np.int64)


class _Columns:
    """The columns of records whose bodies begin at ``starts`` in ``data``."""

    def __init__(
        self,
        data: bytes,
        starts: Numbers,
        headers: Sequence[BatchHeader],
        counts: Numbers,
        topic_partition: TopicPartition,
    ) -> None:
        self._data = data
        self._bytes: Bytes = np.frombuffer(data, np.uint8)
        self._headers = headers
        self._counts = counts
        self._partition = topic_partition
        self._time_deltas, at = self._varints(starts + 1)  # after the attributes
        offset_deltas, at = self._varints(at)
        self.offsets = self._each("base_offset") + offset_deltas
        self._key_sizes, self._keys_at = self._varints(at)
        at = self._keys_at + np.maximum(self._key_sizes, 0)
        self._value_sizes, self._values_at = self._varints(at)
        self._headers_at = self._values_at + np.maximum(self._value_sizes, 0)

    def named(self, name: str, kind: pa.DataType) -> pa.Array:
        """Return the column ``name`` with the Arrow type ``kind``."""
        rows = len(self._key_sizes)
        match name:
            case "key":
                return self._slices(self._keys_at, self._key_sizes, kind)
            case "value":
                return self._slices(self._values_at, self._value_sizes, kind)
            case "topic":
                return constant(self._partition.topic, kind, rows)
            case "partition":
                return constant(self._partition.partition, kind, rows)
            case "offset":
                return pa.array(self.offsets, kind)
            case "timestamp":
                return pa.array(self._times() * 1000, pa.int64()).cast(kind)
            case "timestampType":
                types = np.where(self._appended(), LOG_APPEND_TIME, CREATE_TIME)
                return pa.array(np.repeat(types, self._counts), pa.int64()).cast(kind)
            case "headers":
                return pa.array([self._headers_of(int(at)) for at in self._headers_at], kind)
            case _:
                raise AssertionError(name)

    def _each(self, field: str) -> Numbers:
        """Return a field of the batch header for each record."""
        values = np.array([getattr(header, field) for header in self._headers], np.int64)
        return np.repeat(values, self._counts)

    def _appended(self) -> npt.NDArray[np.bool_]:
        return np.array([header.stamps_append_time for header in self._headers], np.bool_)

    def _times(self) -> Numbers:
        created = self._each("base_timestamp") + self._time_deltas
        return np.where(
            np.repeat(self._appended(), self._counts), self._each("max_timestamp"), created
        )

    def _varints(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """Return the zigzag numbers at these positions, and their ends."""
        self._check(at)
        first = self._bytes[at]
        value = (first & 0x7F).astype(np.uint64)
        end = at + 1
        unfinished = np.flatnonzero(first >= 0x80)
        for shift in range(7, 7 * _MAX_VARINT_BYTES, 7):
            if not len(unfinished):
                break
            byte = self._bytes[end[unfinished]]
            value[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            end[unfinished] += 1
            unfinished = unfinished[byte >= 0x80]
        signed = (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64)
        return signed, end

    def _check(self, at: Numbers) -> None:
        # A wrong size leads out of the records; the padding has a number at their end.
        if len(at) and not 0 <= at.min() <= at.max() <= len(self._data) - _MAX_VARINT_BYTES:
            raise CorruptRecordsError("a record's fields do not fit into it")

    def _slices(self, at: Numbers, sizes: Numbers, kind: pa.DataType) -> pa.Array:
        """Return a binary column of slices of the data; a size of -1 is null."""
        ends = at + np.maximum(sizes, 0)
        self._check(ends)
        bounds = np.column_stack((at, ends)).astype(np.int32).ravel()
        if (np.diff(bounds) < 0).any():
            raise CorruptRecordsError("records overlap")
        # Every second slice is one of ours; the others are the gaps between them.
        pieces = pa.BinaryArray.from_buffers(
            kind, max(len(bounds) - 1, 0), [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        wanted = pa.array(np.arange(0, len(bounds), 2), mask=sizes < 0)
        return pieces.take(wanted)

    def _headers_of(self, at: int) -> list[dict[str, Any]] | None:
        rows: list[dict[str, Any]] = []
        try:
            count, at = read_varint(self._data, at)
            for _ in range(signed(count)):
                key, at = self._field(at)
                value, at = self._field(at)
                rows.append({"key": (key or b"").decode(errors="replace"), "value": value})
        except (ValueError, IndexError) as error:
            raise CorruptRecordsError(f"the headers of a record: {error}") from None
        return rows or None

    def _field(self, at: int) -> tuple[bytes | None, int]:
        number, at = read_varint(self._data, at)
        size = signed(number)
        return None if size < 0 else self._data[at : at + size], at + max(size, 0)
