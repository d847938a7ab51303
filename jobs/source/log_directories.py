"""Reads the log directories of brokers, running or not, without the brokers.

Reads from the log start offset to the high watermark in the last checkpoints, which a running
broker writes every few seconds. Of several replicas of a partition the one with the highest
watermark is read. Records of transactions that were aborted, or are still open, are left out.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute

from regent.core.errors import BadDataError, StorageError
from regent.core.model import TopicPartition
from regent.jobs.source.columns import Payload, columns_schema, decode
from regent.jobs.source.committed_batches import CommittedBatches
from regent.jobs.source.log_segments import log_end_offset, segments_of
from regent.jobs.source.offsets import NO_OFFSET, OffsetRange
from regent.jobs.source.options import EARLIEST, LATEST, OptionError, ReadOptions, Subscription
from regent.records.record_batch import uncompressed
from regent.storage.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, read_offsets
from regent.storage.log.log_file import WholeBatch
from regent.storage.log_names import log_of_directory

_log = logging.getLogger(__name__)


class ReplicaLog(NamedTuple):
    """The log of one replica; records between the two offsets are committed."""

    high_watermark: int
    log_start_offset: int
    directory: Path
    partition: TopicPartition


class LogDirectories:
    """The logs in these directories; every executor must be able to read them."""

    def __init__(self, options: ReadOptions) -> None:
        """Keep the options; ``partitions`` reads the directories first."""
        self._options = options

    def close(self) -> None:
        """No-op: no file is kept open."""

    # --- partitions and offsets ---

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions to read, sorted. Raises ``OptionError`` if one does not exist."""
        return subscription.select(self._replicas, ", ".join(map(str, self._options.log_dirs)))

    def list_offsets(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset whose timestamp is not before a time: else ``NO_OFFSET``.

        The time may be ``EARLIEST`` or ``LATEST``: the log start offset, or the high watermark
        (with ``includeUncommitted`` the log end offset). All records before a time are read.
        """
        by_time = {EARLIEST: self._start_of, LATEST: self._end_of}
        offset_of = by_time.get(time_ms) or (lambda log: self._first_since(time_ms, log))
        return {p: offset_of(self._replicas[p]) for p in partitions}

    def located(self, wanted: OffsetRange) -> OffsetRange:
        """Return a range with the log to read, so that no task searches it."""
        return replace(wanted, directory=self._replicas[wanted.partition].directory)

    def _first_since(self, time_ms: int, log: ReplicaLog) -> int:
        start, end = self._start_of(log), self._end_of(log)
        schema = columns_schema("timestamp", "offset")
        for batch in self.read(OffsetRange(log.partition, start, end, log.directory), schema):
            times = batch["timestamp"].cast(pa.int64())
            young = batch["offset"].filter(pa.compute.greater_equal(times, time_ms * 1000))
            if len(young):
                first: int = young[0].as_py()
                return first
        return NO_OFFSET

    @cached_property
    def _replicas(self) -> dict[TopicPartition, ReplicaLog]:
        logs: dict[TopicPartition, ReplicaLog] = {}
        for directory in self._options.log_dirs:
            if not directory.is_dir():
                raise OptionError(f"logDirs: {directory} is no directory")
            high_watermarks = _checkpoint(directory / HIGH_WATERMARKS)
            log_starts = _checkpoint(directory / LOG_START_OFFSETS)
            for path in directory.iterdir():
                partition = log_of_directory(path.name)
                if partition is not None and path.is_dir():
                    offsets = high_watermarks.get(partition, -1), log_starts.get(partition, 0)
                    log = ReplicaLog(*offsets, path, partition)
                    logs[partition] = max(log, logs.get(partition, log))
        return logs

    def _start_of(self, log: ReplicaLog) -> int:
        segments = segments_of(log.directory)
        return max(log.log_start_offset, segments[0].base_offset if segments else 0)

    def _end_of(self, log: ReplicaLog) -> int:
        if self._options.include_uncommitted:
            return max(log_end_offset(segments_of(log.directory)), log.log_start_offset)
        if log.high_watermark < 0:
            _log.warning("%s: no checkpoint has its high watermark", log.directory)
        return max(log.high_watermark, self._start_of(log))

    # --- records ---

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order. Raises ``DataLossError``."""
        directory = wanted.directory
        segments = segments_of(directory) if directory and directory.is_dir() else []
        first = bisect_right([segment.base_offset for segment in segments], wanted.start) - 1
        segments = segments[max(first, 0) :]
        committed = CommittedBatches(segments, wanted.start)
        position = wanted.start
        for segment in segments:
            if segment.base_offset >= wanted.end:
                break
            try:
                for block in segment.blocks(wanted.start):
                    inside = (b for b in block if b[1].base_offset < wanted.end)
                    payloads = [_payload(batch) for batch in inside if committed.has(batch[1])]
                    if payloads:
                        yield decode(payloads, wanted, schema)
                    position = max([position, *(header.next_offset for _, header, _ in block)])
                    if position >= wanted.end:
                        return
            except (StorageError, ValueError, OSError) as error:
                where = f"{segment.path}: " if isinstance(error, ValueError) else ""
                text = f"offset {position} cannot be read: {where}{error}"
                self._options.report_data_loss(f"{wanted.partition}: {text}")
        if position < wanted.end:
            text = f"offsets {position} to {wanted.end - 1} do not exist"
            self._options.report_data_loss(f"{wanted.partition}: {text}")


def _checkpoint(path: Path) -> Mapping[TopicPartition, int]:
    try:
        return read_offsets(path)
    except (BadDataError, StorageError) as error:
        _log.warning("%s", error)
        return {}


def _payload(batch: WholeBatch) -> Payload:
    _, header, data = batch
    try:
        return header, uncompressed(header, data)
    except ValueError as error:
        raise ValueError(f"records that cannot be decompressed: {error}") from None
