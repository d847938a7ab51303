"""The source of records: brokers, or log directories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from regent.core.model import TopicPartition
from regent.jobs.source.kafka_port import KafkaPort
from regent.jobs.source.log_directories import LogDirectories
from regent.jobs.source.offset_range import OffsetRange
from regent.jobs.source.options import ReadOptions, Subscription


class RecordStore(Protocol):
    """The logs of partitions. Each reader opens its own store, which cannot be pickled."""

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions that exist and match the subscription, sorted.

        Raises ``OptionError`` if a named topic or partition does not exist.
        """
        ...

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the log start offset of each partition."""
        ...

    def latest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last committed record of each partition."""
        ...

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record that is not older than a time; None: no record."""
        ...

    def without_old(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges without old records at their start, if that is cheap."""
        ...

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, with the columns of ``schema``.

        Raises ``DataLossError`` when some of them are lost, with failOnDataLoss.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


def open_store(options: ReadOptions) -> RecordStore:
    """Return the store for these options, without a connection yet."""
    if options.log_dirs:
        return LogDirectories(
            options.log_dirs,
            include_uncommitted=options.include_uncommitted,
            fail_on_data_loss=options.fail_on_data_loss,
        )
    return KafkaPort(
        options.kafka,
        fail_on_data_loss=options.fail_on_data_loss,
        poll_timeout_s=options.poll_timeout_s,
    )
