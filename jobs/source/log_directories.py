"""Reads the log directories of brokers, running or not, without the brokers.

Reads from the log start offset to the high watermark in the last checkpoints, which a running
broker writes every few seconds. Of several replicas of a partition the one with the highest
watermark is read; without a checkpoint it is not known which one, and the read fails. Records of
transactions that were aborted, or are still open, are left out.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from regent.core.errors import BadDataError, StorageError
from regent.core.model import TopicPartition
from regent.jobs.command import InputError
from regent.jobs.files import inside
from regent.jobs.source.columns import (
    OffsetRange,
    Payload,
    arrow_schema,
    decode,
)
from regent.jobs.source.log_segments import CommittedBatches, log_end_offset, segments_of
from regent.jobs.source.options import OptionError, ReadOptions
from regent.records.record_batch import uncompressed
from regent.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    PARTITION_METADATA,
    read_offsets,
    read_topic_id,
)
from regent.storage.log.log_file import WholeBatch
from regent.storage.log_names import log_of_directory

_log = logging.getLogger(__name__)


class ReplicaLog(NamedTuple):
    """The log of one replica; records between the two offsets are committed.

    ``problems`` says by the name of a checkpoint why it does not tell an offset.
    """

    high_watermark: int  # -1: not known
    log_start_offset: int
    directory: str
    log_dir: str
    problems: Mapping[str, str]


class LogReader(DataSourceReader):
    """Reads the logs of replicas, in one task for each partition with records.

    The driver and every executor must reach the directories: local ones at the same paths, remote
    ones by Hadoop's file systems.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises ``OptionError`` for columns that records do not have."""
        self._options = options
        self._schema = arrow_schema(schema)

    # --- on the driver ---

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges to read now: a snapshot.

        Raises ``OptionError``, and ``DataLossError`` if a checkpoint does not tell what to read.
        """
        options, logs = self._options, self._replicas()
        there = options.subscription.select(logs, ", ".join(options.log_dirs))
        self._check_topics({partition: logs[partition] for partition in there})
        chosen = [(partition, self._chosen(partition, logs[partition])) for partition in there]
        wanted = [
            OffsetRange(partition, self._start_of(log), self._end_of(log), log.directory)
            for partition, log in chosen
        ]
        return [found for found in wanted if found.end > found.start]

    def _replicas(self) -> dict[TopicPartition, list[ReplicaLog]]:
        logs = defaultdict[TopicPartition, list[ReplicaLog]](list)
        files = self._options.files
        for directory in self._options.log_dirs:
            if not files.is_directory(directory):
                raise OptionError(f"logDirs: {directory} is no directory")
            problems: dict[str, str] = {}
            entries = {entry.name: entry for entry in files.entries(directory)}
            high_watermarks, log_starts = (
                self._checkpoint(inside(directory, name), name in entries, problems)
                for name in (HIGH_WATERMARKS, LOG_START_OFFSETS)
            )
            for name, entry in entries.items():
                partition = log_of_directory(name)
                if partition is not None and entry.is_directory:
                    offsets = high_watermarks.get(partition, -1), log_starts.get(partition, 0)
                    logs[partition].append(
                        ReplicaLog(*offsets, entry.location, directory, problems)
                    )
        return logs

    def _checkpoint(
        self, location: str, is_there: bool, problems: dict[str, str]
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets of a log directory; note why they are not known."""
        name = location.rpartition("/")[2]
        try:
            if is_there:
                with self._options.files.here(location) as path:
                    return read_offsets(path)
            elif name == HIGH_WATERMARKS:  # Kafka's brokers have no file of no start offsets
                problems[name] = f"{location} is missing"
        except (BadDataError, StorageError, InputError) as error:
            problems[name] = str(error)
        return {}

    def _check_topics(self, logs: Mapping[TopicPartition, Sequence[ReplicaLog]]) -> None:
        """Raise ``OptionError`` if log directories have logs of two topics of one name."""
        ids: dict[str, dict[str, str]] = {}
        asked = {(p.topic, log.log_dir): log.directory for p in logs for log in logs[p]}
        for (topic, log_dir), directory in asked.items():
            topic_id = self._topic_id(directory)
            if topic_id is not None:
                ids.setdefault(topic, {}).setdefault(topic_id, log_dir)
        for topic, found in ids.items():
            if len(found) > 1:
                places = " and ".join(f"{place} (topic id {each})" for each, place in found.items())
                raise OptionError(f"logDirs: {places} have two topics {topic}: leave one out")

    def _topic_id(self, directory: str) -> str | None:
        try:
            with self._options.files.here(inside(directory, PARTITION_METADATA)) as path:
                return read_topic_id(path.parent)
        except (BadDataError, StorageError, InputError):  # brokers before Kafka 2.8 had no file
            return None

    def _chosen(self, topic_partition: TopicPartition, logs: Sequence[ReplicaLog]) -> ReplicaLog:
        """Return the replica to read. Raises ``DataLossError`` if a checkpoint does not tell."""
        is_uncommitted = self._options.include_uncommitted
        for log in logs:
            problems = dict(log.problems)
            if HIGH_WATERMARKS in problems:
                if is_uncommitted:
                    del problems[HIGH_WATERMARKS]
                else:
                    problems[HIGH_WATERMARKS] += ": includeUncommitted=true reads to the end"
            if problems and self._has_records(log):
                text = f"{topic_partition}: {'; '.join(problems.values())}"
                self._options.report_data_loss(text)
        chosen = max(logs, key=lambda log: log[:3])
        if is_uncommitted and chosen.high_watermark < 0:
            return max(logs, key=self._end_of)
        return chosen

    def _has_records(self, log: ReplicaLog) -> bool:
        segments = segments_of(log.directory, self._options.files)
        return log_end_offset(segments) > (segments[0].base_offset if segments else 0)

    def _start_of(self, log: ReplicaLog) -> int:
        segments = segments_of(log.directory, self._options.files)
        return max(log.log_start_offset, segments[0].base_offset if segments else 0)

    def _end_of(self, log: ReplicaLog) -> int:
        if self._options.include_uncommitted:
            segments = segments_of(log.directory, self._options.files)
            return max(log_end_offset(segments), log.log_start_offset)
        if log.high_watermark < 0:
            _log.warning("%s: no checkpoint has its high watermark", log.directory)
        return max(log.high_watermark, self._start_of(log))

    # --- on the executors ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order; none for the placeholder of an empty read.

        Raises ``DataLossError``.
        """
        if isinstance(partition, OffsetRange):
            yield from self._read(partition, self._schema)

    def _read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        directory, files = wanted.directory, self._options.files
        segments = segments_of(directory, files) if files.is_directory(directory) else []
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
            except (StorageError, ValueError, OSError, InputError) as error:
                where = f"{segment.location}: " if isinstance(error, ValueError) else ""
                text = f"offset {position} cannot be read: {where}{error}"
                self._options.report_data_loss(f"{wanted.partition}: {text}")
        if position < wanted.end:
            text = f"offsets {position} to {wanted.end - 1} do not exist"
            self._options.report_data_loss(f"{wanted.partition}: {text}")


def _payload(batch: WholeBatch) -> Payload:
    _, header, data = batch
    try:
        return header, uncompressed(header, data)
    except ValueError as error:
        raise ValueError(f"records that cannot be decompressed: {error}") from None
