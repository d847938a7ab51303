"""Reads the log directories of brokers, running or not, without the brokers.

Reads from the log start offset to the high watermark in the last checkpoints, which a running
broker writes every few seconds. Of several replicas of a partition the one with the highest
watermark is read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from regent.core.errors import BadDataError, RecordsRefusedError, StorageError
from regent.core.model import TopicPartition
from regent.jobs.source.columns import columns_schema
from regent.jobs.source.compression import CompressionError, decompress
from regent.jobs.source.log_segments import SegmentFile, SoundBatch, log_end_offset, segments_of
from regent.jobs.source.offset_range import OffsetRange, report_data_loss
from regent.jobs.source.options import OptionError, Subscription
from regent.jobs.source.record_decoder import CorruptRecordsError, Payload, decode
from regent.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from regent.storage.log_names import log_of_directory

_EVERYTHING: Final = 2**63 - 1
_DAMAGE: Final = (RecordsRefusedError, CompressionError, CorruptRecordsError, OSError)
_log = logging.getLogger(__name__)


class ReplicaLog(NamedTuple):
    """The log of one replica; records between the two offsets are committed."""

    high_watermark: int
    log_start_offset: int
    directory: Path


class LogDirectories:
    """Implements ``record_store.RecordStore``."""

    def __init__(
        self, directories: Sequence[Path], *, include_uncommitted: bool, fail_on_data_loss: bool
    ) -> None:
        """Keep the directories; ``partitions`` reads them first."""
        self._directories = directories
        self._include_uncommitted = include_uncommitted
        self._fail_on_data_loss = fail_on_data_loss

    def close(self) -> None:
        """No-op: no file is kept open."""

    # --- partitions and offsets ---

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions that a subscription matches; see ``RecordStore``."""
        there = self._replicas()
        places = ", ".join(map(str, self._directories))
        for partition in subscription.assigned:
            if partition not in there:
                raise OptionError(f"there is no {partition} in {places}")
        for topic in subscription.topics:
            if not any(topic == name for name, _ in there):
                raise OptionError(f"there is no topic {topic} in {places}")
        if subscription.assigned:
            return list(subscription.assigned)
        return sorted(p for p in there if subscription.matches(p.topic))

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each, or the first offset of its segments."""
        logs = self._replicas()
        return {partition: self._start_of(logs[partition]) for partition in partitions}

    def latest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the high watermark; with ``includeUncommitted``, the log end offset."""
        logs = self._replicas()
        return {partition: self._end_of(partition, logs[partition]) for partition in partitions}

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record since a time, by a scan of all older ones."""
        starts, ends = self.earliest(list(times)), self.latest(list(times))
        found: dict[TopicPartition, int | None] = dict.fromkeys(times)
        for partition, time_ms in times.items():
            wanted = OffsetRange(partition, starts[partition], ends[partition], time_ms)
            for batch in self.read(wanted, columns_schema("timestamp", "offset")):
                times_ms = batch["timestamp"].cast(pa.int64())
                young = batch["offset"].filter(pa.compute.greater_equal(times_ms, time_ms * 1000))
                if len(young):
                    found[partition] = young[0].as_py()
                    break
        return found

    def _replicas(self) -> dict[TopicPartition, ReplicaLog]:
        logs: dict[TopicPartition, ReplicaLog] = {}
        for directory in self._directories:
            if not directory.is_dir():
                raise OptionError(f"logDirs: {directory} is no directory")
            high_watermarks = _checkpoint(directory / HIGH_WATERMARKS)
            log_starts = _checkpoint(directory / LOG_START_OFFSETS)
            for path in directory.iterdir():
                partition = log_of_directory(path.name)
                if partition is not None and path.is_dir():
                    start = log_starts.get(partition, 0)
                    log = ReplicaLog(high_watermarks.get(partition, -1), start, path)
                    logs[partition] = max(log, logs.get(partition, log))
        return logs

    def _start_of(self, log: ReplicaLog) -> int:
        segments = segments_of(log.directory)
        return max(log.log_start_offset, segments[0].base_offset if segments else 0)

    def _end_of(self, topic_partition: TopicPartition, log: ReplicaLog) -> int:
        if self._include_uncommitted:
            return max(log_end_offset(segments_of(log.directory)), log.log_start_offset)
        if log.high_watermark < 0:
            _log.warning("%s: no high watermark in %s", topic_partition, log.directory.parent)
        return max(log.high_watermark, self._start_of(log))

    def without_old(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges unchanged: reading skips old batches by their headers."""
        return list(ranges)

    # --- records ---

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range; see ``RecordStore``."""
        log = self._replicas().get(wanted.partition)
        segments = _overlapping(segments_of(log.directory) if log else [], wanted)
        position = wanted.start
        for segment in segments:
            try:
                for block in segment.blocks(wanted.start):
                    payloads = [_payload(b) for b in block if _is_wanted(b, wanted)]
                    if payloads:
                        yield decode(payloads, wanted, schema)
                    position = max([position, *(b.header.next_offset for b in block[-1:])])
                    if position >= wanted.end:
                        return
            except _DAMAGE as error:
                text = f"{wanted.partition}: {segment.path} cannot be read from offset {position}"
                report_data_loss(f"{text}: {error}", is_error=self._fail_on_data_loss)
        if position < wanted.end:
            text = f"{wanted.partition}: offsets {position} to {wanted.end - 1} do not exist"
            report_data_loss(text, is_error=self._fail_on_data_loss)


def _checkpoint(path: Path) -> Mapping[TopicPartition, int]:
    try:
        return read_offsets(path)
    except (BadDataError, StorageError) as error:
        _log.warning("%s", error)
        return {}


def _overlapping(segments: Sequence[SegmentFile], wanted: OffsetRange) -> Iterable[SegmentFile]:
    end = SegmentFile(_EVERYTHING, Path())
    for segment, following in pairwise((*segments, end)):
        if segment.base_offset < wanted.end and following.base_offset > wanted.start:
            yield segment


def _is_wanted(batch: SoundBatch, wanted: OffsetRange) -> bool:
    header = batch.header
    is_young = header.max_timestamp >= wanted.since_ms
    return header.base_offset < wanted.end and is_young and not header.is_control


def _payload(batch: SoundBatch) -> Payload:
    kind = batch.header.compression
    return Payload(batch.header, decompress(kind, batch.records) if kind else batch.records)
