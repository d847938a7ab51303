"""Reads the log directories of brokers, running or not, without the brokers.

Reads from the log start offset to the high watermark in the last checkpoints, which a running
broker writes every few seconds. Of several replicas of a partition the one with the highest
watermark is read. Records of transactions that were aborted, or are still open, are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from regent.core.compression import decompressed
from regent.core.errors import BadDataError, RecordsRefusedError, StorageError
from regent.core.model import TopicPartition
from regent.jobs.source.columns import columns_schema
from regent.jobs.source.committed_batches import CommittedBatches
from regent.jobs.source.log_segments import SegmentFile, SoundBatch, log_end_offset, segments_of
from regent.jobs.source.offsets import NO_OFFSET, OffsetRange, report_data_loss
from regent.jobs.source.options import EARLIEST, LATEST, OptionError, Subscription
from regent.jobs.source.record_decoder import CorruptRecordsError, Payload, decode
from regent.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from regent.storage.log_names import log_of_directory
from regent.storage.record_batch import HEADER_SIZE

_EVERYTHING: Final = 2**63 - 1
_DAMAGE: Final = (RecordsRefusedError, CorruptRecordsError, OSError)
_log = logging.getLogger(__name__)


class ReplicaLog(NamedTuple):
    """The log of one replica; records between the two offsets are committed."""

    high_watermark: int
    log_start_offset: int
    directory: Path


class LogDirectories:
    """The logs in these directories, which every machine that reads must see."""

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
        """Return the partitions to read, sorted. Raises ``OptionError`` if one does not exist."""
        return subscription.select(self._replicas(), ", ".join(map(str, self._directories)))

    def list_offsets(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset since a time: ``NO_OFFSET`` if there is none.

        The time may be ``EARLIEST`` or ``LATEST``: the log start offset, or the high watermark
        (with ``includeUncommitted`` the log end offset). All records before a time are read.
        """
        logs = self._replicas()
        by_time = {EARLIEST: self._start_of, LATEST: self._end_of}
        if time_ms in by_time:
            return {partition: by_time[time_ms](logs[partition]) for partition in partitions}
        return {partition: self._first_since(time_ms, partition, logs) for partition in partitions}

    def _first_since(
        self,
        time_ms: int,
        topic_partition: TopicPartition,
        logs: Mapping[TopicPartition, ReplicaLog],
    ) -> int:
        start, end = (of(logs[topic_partition]) for of in (self._start_of, self._end_of))
        schema = columns_schema("timestamp", "offset")
        for batch in self.read(OffsetRange(topic_partition, start, end), schema):
            times = batch["timestamp"].cast(pa.int64())
            young = batch["offset"].filter(pa.compute.greater_equal(times, time_ms * 1000))
            if len(young):
                first: int = young[0].as_py()
                return first
        return NO_OFFSET

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

    def _end_of(self, log: ReplicaLog) -> int:
        if self._include_uncommitted:
            return max(log_end_offset(segments_of(log.directory)), log.log_start_offset)
        if log.high_watermark < 0:
            _log.warning("%s: no checkpoint has its high watermark", log.directory)
        return max(log.high_watermark, self._start_of(log))

    # --- records ---

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order. Raises ``DataLossError``."""
        log = self._replicas().get(wanted.partition)
        segments = list(_from(wanted.start, segments_of(log.directory) if log else []))
        committed = CommittedBatches(segments, wanted.start)
        position = wanted.start
        for segment in segments:
            if segment.base_offset >= wanted.end:
                break
            try:
                for block in segment.blocks(wanted.start):
                    inside = (batch for batch in block if batch.header.base_offset < wanted.end)
                    payloads = [_payload(batch) for batch in inside if committed.has(batch.header)]
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


def _from(offset: int, segments: Sequence[SegmentFile]) -> Iterable[SegmentFile]:
    """Return the segments from the one that has an offset on."""
    end = SegmentFile(_EVERYTHING, Path())
    return (s for s, following in pairwise((*segments, end)) if following.base_offset > offset)


def _payload(batch: SoundBatch) -> Payload:
    kind, records = batch.header.compression, batch.data[HEADER_SIZE:]
    try:
        return Payload(batch.header, decompressed(kind, records) if kind else records)
    except ValueError as error:
        raise CorruptRecordsError(f"records that cannot be decompressed: {error}") from None
