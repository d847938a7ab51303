"""ListOffsets, versions 0 to 9, and OffsetForLeaderEpoch, versions 0 to 4.

The log finds the batch with a record; this module finds the record in it. Both read files, on
another thread. A follower asks about the whole log of its leader, a consumer about committed
records. Mirrors ``kafka.server.KafkaApis.handleListOffsetRequest`` and
``handleOffsetForLeaderEpochRequest``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol, TypeAlias

from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors, RecordsRefusedError, StorageError
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.client import (
    READ_COMMITTED,
    EpochEnd,
    EpochQuery,
    ListedOffset,
    OffsetQuery,
)
from regent.core.replica_logs import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
)
from regent.core.security.acls import AclOperation, ResourceType
from regent.records.record_batch import batches, records_of
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest

_LISTED: Final = struct.Struct(">ihqq")  # index, error, timestamp, offset
_EPOCH_END: Final = struct.Struct(">hiiq")  # error, index, leader epoch, end offset
_EPOCH_END_V0: Final = struct.Struct(">hiq")  # without the leader epoch
_CONSUMER: Final = -1
_MayRead: TypeAlias = Callable[[BrokerId, TopicPartition], bool]
_Topics: TypeAlias = Sequence[tuple[str, Sequence[TopicPartition]]]
_DENIED_OFFSET: Final = ListedOffset(Errors.TOPIC_AUTHORIZATION_FAILED)
_DENIED_EPOCH: Final = EpochEnd(Errors.TOPIC_AUTHORIZATION_FAILED)
_WITHOUT_SEARCH: Final = frozenset(
    (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EARLIEST_LOCAL_TIMESTAMP, LATEST_TIERED_TIMESTAMP)
)
_FIRST_WITH: Final = {
    EARLIEST_TIMESTAMP: 0,
    LATEST_TIMESTAMP: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
}
"""The first version with each timestamp that has a meaning of its own."""


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


def offset_apis(
    source: OffsetSource,
    reader: Executor,
    *,
    serves_followers: bool = True,
    registered: RegisteredFollowers | None = None,
) -> Sequence[KafkaApi]:
    """Return the APIs ListOffsets and OffsetForLeaderEpoch, which call ``source``.

    ``reader`` decodes records beside the event loop. Without ``serves_followers`` every partition
    is refused to them; with ``registered`` all but those that they have replicas of. Who logs in
    as a broker is served as that one.
    """
    may_read = partial(_may_read, registered, serves_followers)

    async def list_offsets(request: KafkaRequest) -> KafkaAnswer:
        topics, queries, refused = _decode_list(request, partial(may_read, request))
        denied = _denied(topics, request, has_cluster=_has_cluster(queries, request))
        if denied:
            queries = {p: query for p, query in queries.items() if p.topic not in denied}
            rows = [partition for name, rows in topics if name in denied for partition in rows]
            refused = {**dict.fromkeys(rows, _DENIED_OFFSET), **refused}
        listed = await _records_found(source, reader, queries)
        return _encode_list(request, topics, {**listed, **refused})

    async def offsets_for_leader_epoch(request: KafkaRequest) -> KafkaAnswer:
        topics, queries, replica_id = _decode_epochs(request)
        refused = EpochEnd(Errors.CLUSTER_AUTHORIZATION_FAILED)
        ends = {p: refused for p in queries if not may_read(request, replica_id, p)}
        has_cluster = request.may(
            AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False
        )
        denied = _denied(topics, request, has_cluster=has_cluster)
        ends |= {p: _DENIED_EPOCH for p in queries if p.topic in denied and p not in ends}
        allowed = {p: query for p, query in queries.items() if p not in ends}
        return _encode_epochs(request, topics, {**ends, **source.offsets_for_leader_epoch(allowed)})

    return [
        KafkaApi(KafkaApiKey.LIST_OFFSETS, 0, 9, list_offsets),
        KafkaApi(KafkaApiKey.OFFSET_FOR_LEADER_EPOCH, 0, 4, offsets_for_leader_epoch),
    ]


def _may_read(
    registered: RegisteredFollowers | None,
    serves_followers: bool,
    request: KafkaRequest,
    replica_id: BrokerId,
    topic_partition: TopicPartition,
) -> bool:
    """Whether the sender may be told offsets of a partition as this replica; -1: as a consumer."""
    if replica_id < 0:
        return True
    if not request.may_act_as(replica_id):
        return False
    if registered is None:
        return serves_followers
    return registered.may_read(replica_id, topic_partition)


def _has_cluster(queries: Mapping[TopicPartition, OffsetQuery], request: KafkaRequest) -> bool:
    """Whether a broker asks, which may follow every partition."""
    is_of_follower = any(query.is_of_follower for query in queries.values())
    return is_of_follower and request.may(
        AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_logged=False
    )


def _denied(topics: _Topics, request: KafkaRequest, *, has_cluster: bool) -> Collection[str]:
    """Return the topics whose offsets the client may not know."""
    names = () if has_cluster else (name for name, _ in topics)
    return request.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names)


def _decode_list(
    request: KafkaRequest, may_read: _MayRead
) -> tuple[_Topics, Mapping[TopicPartition, OffsetQuery], Mapping[TopicPartition, ListedOffset]]:
    """Return the partitions, the queries, and the answers to those that are refused."""
    version, reader = request.api_version, request.reader()
    replica_id = reader.int32()
    is_read_committed = version >= 2 and reader.int8() == READ_COMMITTED
    topics: list[tuple[str, Sequence[TopicPartition]]] = []
    queries: dict[TopicPartition, OffsetQuery] = {}
    refused: dict[TopicPartition, ListedOffset] = {}
    for _ in range(reader.array_length()):
        topic, partitions = reader.string(), list[TopicPartition]()
        for _ in range(reader.array_length()):
            topic_partition = TopicPartition(topic, reader.int32())
            epoch = reader.int32() if version >= 4 else NO_EPOCH
            timestamp_ms = reader.int64()
            max_num_offsets = reader.int32() if version == 0 else None
            reader.end_struct()
            partitions.append(topic_partition)
            if not may_read(replica_id, topic_partition):
                refused[topic_partition] = ListedOffset(Errors.CLUSTER_AUTHORIZATION_FAILED)
            elif timestamp_ms < 0 and version < _FIRST_WITH.get(timestamp_ms, version + 1):
                refused[topic_partition] = ListedOffset(Errors.UNSUPPORTED_VERSION)
            elif topic_partition in queries and version >= 1:
                refused[topic_partition] = ListedOffset(Errors.INVALID_REQUEST)
            else:
                queries[topic_partition] = OffsetQuery(
                    timestamp_ms,
                    epoch,
                    max_num_offsets=max_num_offsets,
                    is_read_committed=is_read_committed,
                    is_of_follower=replica_id >= 0,
                )
        reader.end_struct()
        topics.append((topic, partitions))
    reader.end_struct()
    return topics, queries, refused


async def _records_found(
    source: OffsetSource,
    reader: Executor,
    queries: Mapping[TopicPartition, OffsetQuery],
) -> Mapping[TopicPartition, ListedOffset]:
    """Return the offsets, those of records where the log has those of batches.

    The log may start inside a batch. If the record is before its start, look in later batches.
    """
    answers, found = await _ask(source, reader, queries), dict[TopicPartition, ListedOffset]()
    searched = _with_batch(answers)
    while searched:
        asked = {topic_partition: queries[topic_partition] for topic_partition in searched}
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(reader, _search_all, asked, searched)
        further: dict[TopicPartition, OffsetQuery] = {}
        for topic_partition, (answer, next_offset) in results.items():
            earlier = found.get(topic_partition)
            if answer is not None and (
                earlier is None or answer.timestamp_ms > earlier.timestamp_ms
            ):
                found[topic_partition] = answer
            if next_offset is not None:
                further[topic_partition] = asked[topic_partition]._replace(from_offset=next_offset)
        later = await _ask(source, reader, further) if further else {}
        answers.update(later)
        searched = _with_batch(later)
    return {**answers, **found}


async def _ask(
    source: OffsetSource, reader: Executor, queries: Mapping[TopicPartition, OffsetQuery]
) -> dict[TopicPartition, ListedOffset]:
    """Look up offsets; a search by time may open files of every segment: beside the event loop."""
    if all(query.timestamp_ms in _WITHOUT_SEARCH for query in queries.values()):
        return dict(source.list_offsets(queries))
    loop = asyncio.get_running_loop()
    return dict(await loop.run_in_executor(reader, source.list_offsets, queries))


def _with_batch(
    listed: Mapping[TopicPartition, ListedOffset],
) -> Mapping[TopicPartition, ListedOffset]:
    return {
        topic_partition: answer
        for topic_partition, answer in listed.items()
        if answer.batch is not None
    }


def _search_all(
    queries: Mapping[TopicPartition, OffsetQuery], listed: Mapping[TopicPartition, ListedOffset]
) -> Mapping[TopicPartition, tuple[ListedOffset | None, int | None]]:
    return {
        topic_partition: _search(queries[topic_partition].timestamp_ms, answer)
        for topic_partition, answer in listed.items()
    }


def _search(timestamp_ms: int, listed: ListedOffset) -> tuple[ListedOffset | None, int | None]:
    """Return the record, if it is in the batch, and from where on to look further, if necessary.

    Runs on another thread.
    """
    assert listed.batch is not None
    try:
        batch = memoryview(listed.batch.read())
        ((_, header),) = batches(batch)
        visible = [r for r in records_of(header, batch) if r.offset >= listed.offset]
    except StorageError:
        return ListedOffset(Errors.KAFKA_STORAGE_ERROR), None
    except (ValueError, RecordsRefusedError):
        return ListedOffset(Errors.CORRUPT_MESSAGE), None
    if timestamp_ms == MAX_TIMESTAMP:
        record = max(visible, key=lambda record: record.timestamp, default=None)
        is_final = record is not None and record.timestamp >= header.max_timestamp
    else:
        record = next((record for record in visible if record.timestamp >= timestamp_ms), None)
        is_final = record is not None
    found = (
        None
        if record is None
        else ListedOffset(Errors.NONE, record.timestamp, record.offset, listed.leader_epoch)
    )
    return found, None if is_final else header.next_offset


def _encode_list(
    request: KafkaRequest, topics: _Topics, listed: Mapping[TopicPartition, ListedOffset]
) -> KafkaAnswer:
    version, writer = request.api_version, request.answer_writer()
    if version >= 2:
        writer.int32(request.throttle_time_ms)
    writer.array_length(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.array_length(len(partitions))
        for topic_partition in partitions:
            answer = listed[topic_partition]
            index, error = topic_partition.partition, answer.error_code
            if error is Errors.OFFSET_NOT_AVAILABLE and version < 5:
                error = Errors.LEADER_NOT_AVAILABLE  # the code that older clients know (KIP-207)
            if version >= 1:
                writer.pack(_LISTED, index, error, answer.timestamp_ms, answer.offset)
            else:
                writer.int32(index)
                writer.int16(error)
                writer.array(answer.old_style_offsets, writer.int64)
            if version >= 4:
                writer.int32(answer.leader_epoch)
            writer.end_struct()
        writer.end_struct()
    writer.end_struct()
    return writer.pieces()


def _decode_epochs(
    request: KafkaRequest,
) -> tuple[_Topics, Mapping[TopicPartition, EpochQuery], BrokerId]:
    """Return the partitions, the queries, and the follower that asks; negative: a client."""
    version, reader = request.api_version, request.reader()
    replica_id = reader.int32() if version >= 3 else _CONSUMER
    topics: list[tuple[str, Sequence[TopicPartition]]] = []
    queries: dict[TopicPartition, EpochQuery] = {}
    for _ in range(reader.array_length()):
        topic, partitions = reader.string(), list[TopicPartition]()
        for _ in range(reader.array_length()):
            topic_partition = TopicPartition(topic, reader.int32())
            current_epoch = reader.int32() if version >= 2 else NO_EPOCH
            queries[topic_partition] = EpochQuery(reader.int32(), current_epoch)
            reader.end_struct()
            partitions.append(topic_partition)
        reader.end_struct()
        topics.append((topic, partitions))
    reader.end_struct()
    return topics, queries, replica_id


def _encode_epochs(
    request: KafkaRequest, topics: _Topics, ends: Mapping[TopicPartition, EpochEnd]
) -> KafkaAnswer:
    version, writer = request.api_version, request.answer_writer()
    if version >= 2:
        writer.int32(request.throttle_time_ms)
    writer.array_length(len(topics))
    for topic, partitions in topics:
        writer.string(topic)
        writer.array_length(len(partitions))
        for topic_partition in partitions:
            error, leader_epoch, end_offset = ends[topic_partition]
            index = topic_partition.partition
            if version >= 1:
                writer.pack(_EPOCH_END, error, index, leader_epoch, end_offset)
            else:
                writer.pack(_EPOCH_END_V0, error, index, end_offset)
            writer.end_struct()
        writer.end_struct()
    writer.end_struct()
    return writer.pieces()
