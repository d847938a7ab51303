"""ListOffsets, versions 0 to 5, and OffsetForLeaderEpoch, versions 0 to 3.

Mirrors ``kafka.server.KafkaApis.handleListOffsetRequest`` and
``handleOffsetForLeaderEpochRequest``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery, ListedOffset, OffsetQuery
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_LISTED: Final = struct.Struct(">ihqq")  # index, error, timestamp, offset
_EPOCH_END: Final = struct.Struct(">hiiq")  # error, index, leader epoch, end offset
_EPOCH_END_V0: Final = struct.Struct(">hiq")  # without the leader epoch


class OffsetSource(Protocol):
    """Looks up offsets; ``ReplicaManager`` implements it."""

    def list_offsets(
        self, queries: Mapping[TopicPartition, OffsetQuery]
    ) -> Mapping[TopicPartition, ListedOffset]:
        """Return the offsets for timestamps."""
        ...

    def offsets_for_leader_epoch(
        self, queries: Mapping[TopicPartition, EpochQuery]
    ) -> Mapping[TopicPartition, EpochEnd]:
        """Return the end offsets of leader epochs."""
        ...


def offset_apis(source: OffsetSource) -> Sequence[KafkaApi]:
    """Return the APIs ListOffsets and OffsetForLeaderEpoch, which call ``source``."""

    async def list_offsets(request: KafkaRequest) -> KafkaAnswer:
        topics, queries, wanted = _decode_list(request.body, request.api_version)
        return _encode_list(topics, source.list_offsets(queries), wanted, request.api_version)

    async def offsets_for_leader_epoch(request: KafkaRequest) -> KafkaAnswer:
        topics, queries = _decode_epochs(request.body, request.api_version)
        ends = source.offsets_for_leader_epoch(queries)
        return _encode_epochs(topics, ends, request.api_version)

    return [
        KafkaApi(KafkaApiKey.LIST_OFFSETS, 0, 5, list_offsets),
        KafkaApi(KafkaApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 3, offsets_for_leader_epoch),
    ]


_Topics = Sequence[tuple[str, Sequence[int]]]


def _decode_list(
    body: memoryview, version: int
) -> tuple[_Topics, Mapping[TopicPartition, OffsetQuery], Mapping[TopicPartition, int]]:
    """Return partitions, queries, and the maximum number of offsets of each (version 0)."""
    reader = Reader(body)
    reader.int32()  # the replica id, which is ignored: this is a consumer
    if version >= 2:
        reader.int8()  # isolation level: there are no transactions
    queries: dict[TopicPartition, OffsetQuery] = {}
    wanted: dict[TopicPartition, int] = {}

    def partition_of(topic: str) -> int:
        topic_partition = TopicPartition(topic, reader.int32())
        epoch = reader.int32() if version >= 4 else NO_EPOCH
        queries[topic_partition] = OffsetQuery(reader.int64(), epoch)
        if version == 0:
            wanted[topic_partition] = reader.int32()
        return topic_partition.partition

    def topic_with_partitions() -> tuple[str, list[int]]:
        topic = reader.string()
        return topic, reader.array(lambda: partition_of(topic))

    return reader.array(topic_with_partitions), queries, wanted


def _encode_list(
    topics: _Topics,
    listed: Mapping[TopicPartition, ListedOffset],
    wanted: Mapping[TopicPartition, int],
    version: int,
) -> KafkaAnswer:
    writer = Writer()
    if version >= 2:
        writer.int32(0)  # throttle time
    writer.int32(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.int32(len(partitions))
        for index in partitions:
            topic_partition = TopicPartition(topic, index)
            error, timestamp_ms, offset, leader_epoch = listed[topic_partition]
            if error is Errors.OFFSET_NOT_AVAILABLE and version < 5:
                error = Errors.LEADER_NOT_AVAILABLE  # the code that older clients know (KIP-207)
            if version == 0:
                writer.int32(index)
                writer.int16(error)
                is_known = error is Errors.NONE and offset >= 0 and wanted[topic_partition] > 0
                writer.array([offset] if is_known else [], writer.int64)
                continue
            writer.pack(_LISTED, index, error, timestamp_ms, offset)
            if version >= 4:
                writer.int32(leader_epoch)
    return writer.pieces()


def _decode_epochs(
    body: memoryview, version: int
) -> tuple[_Topics, Mapping[TopicPartition, EpochQuery]]:
    reader = Reader(body)
    if version >= 3:
        reader.int32()  # the replica id, which is ignored: this is a consumer
    queries: dict[TopicPartition, EpochQuery] = {}

    def partition_of(topic: str) -> int:
        topic_partition = TopicPartition(topic, reader.int32())
        current_epoch = reader.int32() if version >= 2 else NO_EPOCH
        queries[topic_partition] = EpochQuery(reader.int32(), current_epoch)
        return topic_partition.partition

    def topic_with_partitions() -> tuple[str, list[int]]:
        topic = reader.string()
        return topic, reader.array(lambda: partition_of(topic))

    return reader.array(topic_with_partitions), queries


def _encode_epochs(
    topics: _Topics, ends: Mapping[TopicPartition, EpochEnd], version: int
) -> KafkaAnswer:
    writer = Writer()
    if version >= 2:
        writer.int32(0)  # throttle time
    writer.int32(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.int32(len(partitions))
        for index in partitions:
            error, leader_epoch, end_offset = ends[TopicPartition(topic, index)]
            if version == 0:
                writer.pack(_EPOCH_END_V0, error, index, end_offset)
            else:
                writer.pack(_EPOCH_END, error, index, leader_epoch, end_offset)
    return writer.pieces()
