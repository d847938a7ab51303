"""Where records are read from: brokers, or the log directories that brokers left."""

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
    """Logs of partitions. Each reader opens its own: it cannot be sent to another process."""

    def partitions(self, subscription: Subscription) -> list[TopicPartition]:
        """Return the partitions that exist and match the subscription, sorted.

        Raises ``OptionError`` when a topic or partition that is named does not exist.
        """
        ...

    def earliest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of the first record of each."""
        ...

    def latest(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last committed record of each."""
        ...

    def at_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record that is not older than a time; None: none is."""
        ...

    def without_old(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return ranges without what they begin with that is older than they want, if cheap."""
        ...

    def read(self, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the records of a range in order, with the columns of ``schema``.

        Raises ``DataLossError`` when some of them are gone and that was not to be overlooked.
        """
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


def open_store(options: ReadOptions) -> RecordStore:
    """Return where these options say that records are; nothing is connected to yet."""
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
