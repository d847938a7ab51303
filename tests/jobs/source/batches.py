"""Batches for tests: encoded by aiokafka, compressed as different clients do."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.support.record_batches import HEADER, resealed

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
_ATTRIBUTES_AT: Final = 21
_LENGTH_AT: Final = 8


class LogRecord(NamedTuple):
    """A record for the log of a test."""

    offset: int
    timestamp_ms: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def row(self, topic: str, partition: int) -> dict[str, Any]:
        """Return the expected DataFrame row, with times in milliseconds."""
        return {
            "key": self.key,
            "value": self.value,
            "topic": topic,
            "partition": partition,
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "timestampType": 0,
            "headers": [{"key": k, "value": v} for k, v in self.headers] or None,
        }


def encoded(records: Sequence[LogRecord]) -> bytes:
    """Return one batch; offsets may have gaps, as compaction leaves them."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    base = records[0].offset
    for record in records:
        headers = list(record.headers)
        offset = record.offset - base
        assert builder.append(offset, record.timestamp_ms, record.key, record.value, headers)
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    return bytes(batch)


def with_attributes(batch: bytes, attributes: int) -> bytes:
    """Return a batch with other attributes and a correct CRC."""
    changed = bytearray(batch)
    struct.pack_into(">h", changed, _ATTRIBUTES_AT, attributes)
    return resealed(changed)


def compressed(batch: bytes, kind: int, by: Callable[[bytes], bytes]) -> bytes:
    """Return a batch with its records compressed."""
    changed = bytearray(batch[: HEADER.size] + by(batch[HEADER.size :]))
    struct.pack_into(">i", changed, _LENGTH_AT, len(changed) - 12)
    return with_attributes(bytes(changed), kind)


def framed(kind: str) -> Callable[[bytes], bytes]:
    """Return the compressor of lz4's or zstd's standard frames."""

    def compress(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, kind) as stream:
            stream.write(data)
        whole: bytes = sink.getvalue().to_pybytes()
        return whole

    return compress


def raw_snappy(data: bytes) -> bytes:
    """Compress as librdkafka does."""
    whole: bytes = pa.compress(data, codec="snappy", asbytes=True)
    return whole


def xerial_snappy(data: bytes) -> bytes:
    """Compress as Java's clients do: blocks, each after its length."""
    blocks = [raw_snappy(data[at : at + 1000]) for at in range(0, len(data), 1000)]
    framed_blocks = b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    return b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + framed_blocks


COMPRESSIONS: Final[dict[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (GZIP, gzip.compress),
    "snappy": (SNAPPY, raw_snappy),
    "snappy-java": (SNAPPY, xerial_snappy),
    "lz4": (LZ4, framed("lz4")),
    "zstd": (ZSTD, framed("zstd")),
}
