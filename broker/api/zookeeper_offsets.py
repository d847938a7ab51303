"""OffsetCommit and OffsetFetch, version 0: positions in ZooKeeper, for consumers of Kafka 0.8.1.

These are other positions than those of the group coordinator. Mirrors
``kafka.server.KafkaApis.commitOffsetsToZookeeper`` and ``handleOffsetFetchRequestFromZookeeper``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.groups import FetchedOffset, OffsetAndMetadata

T = TypeVar("T")

logger = logging.getLogger(__name__)


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
