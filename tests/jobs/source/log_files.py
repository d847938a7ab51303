"""Log directories as brokers write them, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regent.core.model import TopicPartition
from regent.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    read_offsets,
    write_offsets,
)
from tests.jobs.source.batches import LogRecord, encoded


def numbered(start: int, end: int, time_ms: int = 0) -> list[LogRecord]:
    """Return records with their offsets as values, each a millisecond younger than the last."""
    return [LogRecord(o, time_ms + o, b"key", b"value-%d" % o) for o in range(start, end)]


def write_segment(
    directory: Path, partition: TopicPartition, batches: Sequence[bytes], base_offset: int = 0
) -> Path:
    """Write one segment of a log and return it."""
    log = directory / str(partition)
    log.mkdir(parents=True, exist_ok=True)
    segment = log / f"{base_offset:020}.log"
    segment.write_bytes(b"".join(batches))
    return segment


def set_offsets(
    directory: Path, partition: TopicPartition, *, high_watermark: int, log_start: int = 0
) -> None:
    """Write the checkpoints of a directory: high watermark and log start offset."""
    for name, offset in ((HIGH_WATERMARKS, high_watermark), (LOG_START_OFFSETS, log_start)):
        path = directory / name
        write_offsets(path, {**read_offsets(path), partition: offset})


def write_log(
    directory: Path, partition: TopicPartition, count: int, *, batch: int = 10, segment: int = 50
) -> None:
    """Write ``count`` numbered records, all of them committed, ``batch`` to a batch."""
    for base in range(0, max(count, 1), segment):
        end = min(base + segment, count)
        starts = range(base, end, batch)
        batches = [encoded(numbered(start, min(start + batch, end))) for start in starts]
        write_segment(directory, partition, batches, base)
    set_offsets(directory, partition, high_watermark=count)
