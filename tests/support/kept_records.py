"""Records of batches as they are on disk: compressed or not, with gaps, with their times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from regent.records.compression import decompressed
from tests.support.record_batches import (
    COMPRESSION_MASK,
    HEADER,
    LOG_APPEND_TIME_MASK,
    UNCOUNTED_BYTES,
    read_varint,
)


class KeptRecord(NamedTuple):
    """One record of a log."""

    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None


class KeptBatch(NamedTuple):
    """A batch: its first and last offset, its producer's last sequence, and its records."""

    base: int
    last: int
    attributes: int
    leader_epoch: int
    producer_id: int
    last_sequence: int
    records: list[KeptRecord]


def batches_of(data: bytes) -> Iterator[KeptBatch]:
    """Yield the batches."""
    at = 0
    while at < len(data):
        base, length, epoch, _, _, attributes, delta, base_time, max_time, *rest = (
            HEADER.unpack_from(data, at)
        )
        producer_id, _, sequence, count = rest
        end = at + UNCOUNTED_BYTES + length
        plain = decompressed(
            attributes & COMPRESSION_MASK, memoryview(data)[at + HEADER.size : end]
        )
        stamp = max_time if attributes & LOG_APPEND_TIME_MASK else None
        records = list(_records(plain, base, base_time, stamp))
        assert len(records) == count
        last_sequence = sequence + delta if sequence >= 0 else -1
        yield KeptBatch(base, base + delta, attributes, epoch, producer_id, last_sequence, records)
        at = end


def _records(plain: bytes, base: int, base_time: int, stamp: int | None) -> Iterator[KeptRecord]:
    at = 0
    while at < len(plain):
        size, at = read_varint(plain, at)
        end = at + size
        time, at = read_varint(plain, at + 1)
        delta, at = read_varint(plain, at)
        key, at = _sized(plain, at)
        value, at = _sized(plain, at)
        assert plain[at:end] == b"\0", "there are no headers"
        yield KeptRecord(base + delta, base_time + time if stamp is None else stamp, key, value)
        at = end


def _sized(plain: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(plain, at)
    return (None, at) if size < 0 else (plain[at : at + size], at + size)
