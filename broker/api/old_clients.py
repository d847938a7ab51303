"""What only clients older than Kafka 0.11 ask of a broker.

Produce up to version 2 and Fetch up to version 3 have records of the message formats 0 and 1, which
are converted beside the event loop. OffsetCommit and OffsetFetch of version 0, for consumers of
Kafka 0.8.1, have positions in ZooKeeper: other ones than those of the group coordinator. Mirrors
``kafka.server.KafkaApis.maybeConvertFetchedData``, ``commitOffsetsToZookeeper`` and
``handleOffsetFetchRequestFromZookeeper``.

This module, ``records/legacy_records.py`` and ``zk/stores/consumer_offsets.py`` may go when no
client of Kafka 0.8 to 0.10 is left: Kafka 4.0 refuses these versions (KIP-896).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from regent.core.errors import Errors, RecordsRefusedError, RegentError, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.client import ConsumedPartition, ConsumerFetch, ProducedPartition
from regent.core.protocol.groups import FetchedOffset, OffsetAndMetadata
from regent.core.records import NO_RECORDS, MemoryRecords
from regent.records.compression import LargeBatchError, Unpack
from regent.records.legacy_records import down_converted, is_old, up_converted

T = TypeVar("T")

logger = logging.getLogger(__name__)


# --- records of the message formats 0 and 1 -------------------------------------------------------


def replace_old_records(
    records: dict[TopicPartition, memoryview], unpack: Unpack | None
) -> tuple[dict[TopicPartition, ProducedPartition], list[TopicPartition]]:
    """Replace produced records of old formats by batches; on another thread.

    Return the partitions with records that are refused, and those with large batches: with
    ``unpack`` these are replaced, too.
    """
    refused: dict[TopicPartition, ProducedPartition] = {}
    large: list[TopicPartition] = []
    for topic_partition, data in records.items():
        if is_old(data):
            try:
                records[topic_partition] = up_converted(data, unpack)
            except LargeBatchError:
                large.append(topic_partition)
            except RecordsRefusedError as error:
                refused[topic_partition] = ProducedPartition(error.error_code, message=str(error))
    return refused, large


def converted_records(
    request: ConsumerFetch,
    consumed: Mapping[TopicPartition, ConsumedPartition],
    kept: Collection[TopicPartition],
    magic: int,
) -> Mapping[TopicPartition, ConsumedPartition]:
    """Convert fetched records, except those that are ``kept``; on another thread."""
    converted, left = dict(consumed), request.max_bytes
    for topic_partition, partition in consumed.items():
        if partition.error_code is not Errors.NONE:
            continue
        if topic_partition in kept:
            converted[topic_partition] = ConsumedPartition(Errors.UNSUPPORTED_VERSION)
        elif left <= 0:
            converted[topic_partition] = partition._replace(records=NO_RECORDS)
        else:
            position = request.positions[topic_partition]
            limit = min(position.max_bytes, left)
            outcome = _with_converted(partition, magic, position.fetch_offset, limit)
            converted[topic_partition] = outcome
            left -= outcome.records.size
    return converted


def _with_converted(
    partition: ConsumedPartition, magic: int, fetch_offset: int, max_bytes: int
) -> ConsumedPartition:
    try:
        data = memoryview(partition.records.read())
        data = memoryview(down_converted(data, magic, fetch_offset, max_bytes))
    except StorageError:
        return ConsumedPartition(Errors.KAFKA_STORAGE_ERROR)
    except (ValueError, RecordsRefusedError):
        return ConsumedPartition(Errors.CORRUPT_MESSAGE)
    return partition._replace(records=MemoryRecords(data))


# --- positions in ZooKeeper -----------------------------------------------------------------------


class ConsumerOffsets(Protocol):
    """Positions in ZooKeeper. The methods block, and raise ``RegentError``."""

    def read(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, int | Errors]:
        """Return the position of each partition, or the error."""
        ...

    def write(
        self, group_id: str, offsets: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Errors]:
        """Store positions; return the outcomes."""
        ...


class ZooKeeperOffsets:
    """Stores and reads the positions of groups in known partitions.

    Used on the listener's loop only. ``max_metadata`` is the maximum length of metadata.
    """

    def __init__(self, stored: ConsumerOffsets, executor: Executor, max_metadata: int) -> None:
        self._stored = stored
        self._executor = executor
        self._max_metadata = max_metadata
        self._in_order = asyncio.Lock()  # later requests of a client see earlier ones

    async def commit(
        self, group_id: str, positions: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, Errors]:
        """Store positions; return the outcomes. The metadata are not stored, as in Kafka."""
        offsets = {
            partition: position.offset
            for partition, position in positions.items()
            if _java_length(position.metadata) <= self._max_metadata
        }
        too_large = dict.fromkeys(positions.keys() - offsets, Errors.OFFSET_METADATA_TOO_LARGE)
        return too_large | await self._call(
            group_id, offsets, lambda: self._stored.write(group_id, offsets)
        )

    async def fetch(
        self, group_id: str, known: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, FetchedOffset]:
        """Return the positions of a group."""
        found = await self._call(group_id, known, lambda: self._stored.read(group_id, known))
        return {
            partition: FetchedOffset(value)
            if isinstance(value, Errors)
            else FetchedOffset(Errors.NONE, value)
            for partition, value in found.items()
        }

    async def _call(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition],
        call: Callable[[], Mapping[TopicPartition, T]],
    ) -> dict[TopicPartition, T | Errors]:
        if not _is_name(group_id):
            return dict.fromkeys(partitions, Errors.INVALID_GROUP_ID)
        try:
            async with self._in_order:
                loop = asyncio.get_running_loop()
                return {**await loop.run_in_executor(self._executor, call)}
        except RegentError as error:
            logger.warning("No positions in ZooKeeper for a client: %s", error)
            # Clients retry on this code.
            return dict.fromkeys(partitions, Errors.COORDINATOR_NOT_AVAILABLE)


def _is_name(group_id: str) -> bool:
    """Whether there can be a znode with this name; Kafka fails with UNKNOWN_SERVER_ERROR."""
    return group_id.isprintable() and "/" not in group_id and group_id not in ("", ".", "..")


def _java_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2
