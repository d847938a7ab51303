"""OffsetCommit, OffsetFetch and OffsetDelete: the positions of groups.

Version 0 of the first two is for positions in ZooKeeper. Mirrors the handlers of
``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from regent.broker.api.coordinator_requests import CoordinatorRequests
from regent.broker.api.old_clients import ZooKeeperOffsets
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.groups import (
    NO_TIMESTAMP,
    CommitOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    FetchOffsetsResult,
    OffsetAndMetadata,
)
from regent.core.protocol.messages.groups import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.transport.kafka.api import Answering, KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import answer, decode

_IN_ZOOKEEPER: Final = 0
_FIRST_COMMIT_WITH_THROTTLE: Final = 3
_FIRST_FETCH_WITH_ERROR: Final = 2
_FIRST_FETCH_OF_GROUPS: Final = 8
_GROUP_DENIED: Final = Errors.GROUP_AUTHORIZATION_FAILED
_TOPIC_DENIED: Final = Errors.TOPIC_AUTHORIZATION_FAILED
_COMMITTED: Final = struct.Struct(">ih")  # the number of a partition, and an error
_UNTIL_COMPLETE: Final = Errors.COORDINATOR_NOT_AVAILABLE  # see MetadataCache


def group_offset_apis(
    requests: CoordinatorRequests, cache: MetadataCache, zookeeper: ZooKeeperOffsets
) -> Sequence[KafkaApi]:
    """Return the APIs; ``cache`` knows which partitions exist."""

    def commit(request: KafkaRequest) -> Answering:
        return _commit(requests, cache, zookeeper, request)

    async def fetch(request: KafkaRequest) -> KafkaAnswer:
        if request.api_version == _IN_ZOOKEEPER:
            return await _fetch_from_zookeeper(cache, zookeeper, request)
        return await _fetch(requests, request)

    async def delete(request: KafkaRequest) -> KafkaAnswer:
        return await _delete(requests, cache, request)

    return [
        KafkaApi(KafkaApiKey.OFFSET_COMMIT, 0, 9, commit),
        KafkaApi(KafkaApiKey.OFFSET_FETCH, 0, 9, fetch),
        KafkaApi(KafkaApiKey.OFFSET_DELETE, 0, 0, delete),
    ]


def _commit(
    requests: CoordinatorRequests,
    cache: MetadataCache,
    zookeeper: ZooKeeperOffsets,
    request: KafkaRequest,
) -> Answering:
    asked = decode(OffsetCommitRequest, request)
    now_ms = time.time_ns() // 1_000_000
    errors: dict[TopicPartition, Errors] = {}
    denied = _uncommittable(asked, request)
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    snapshot = cache.snapshot
    known = snapshot.partitions
    for topic in asked.topics:
        for row in topic.partitions:
            topic_partition = TopicPartition(topic.name, row.partition_index)
            if topic.name in denied:
                errors[topic_partition] = denied[topic.name]
            elif topic_partition in known:
                offsets[topic_partition] = _position(row, now_ms, asked.retention_time_ms)
            else:
                errors[topic_partition] = snapshot.error_of_missing(_UNTIL_COMPLETE)

    def encode(stored: Mapping[TopicPartition, Errors]) -> KafkaAnswer:
        return _encode_commit(asked, {**errors, **stored} if errors else stored, request)

    if not offsets:
        return requests.given(encode({}))
    if request.api_version == _IN_ZOOKEEPER:
        return _encoded(zookeeper.commit(asked.group_id, offsets), encode)
    commit = CommitOffsets(
        asked.group_id,
        offsets,
        asked.member_id,
        asked.generation_id_or_member_epoch,
        asked.group_instance_id,
    )
    return requests.answer(commit, encode)


async def _encoded(
    stored: Awaitable[Mapping[TopicPartition, Errors]],
    encode: Callable[[Mapping[TopicPartition, Errors]], KafkaAnswer],
) -> KafkaAnswer:
    return encode(await stored)


def _encode_commit(
    asked: OffsetCommitRequest, errors: Mapping[TopicPartition, Errors], request: KafkaRequest
) -> KafkaAnswer:
    """Return an OffsetCommitResponse; as a message it would take three times as long."""
    writer, failed = request.answer_writer(), [e.name for e in errors.values() if e]
    request.errors.update(failed or (Errors.NONE.name,))
    if request.api_version >= _FIRST_COMMIT_WITH_THROTTLE:
        writer.int32(request.throttle_time_ms)
    writer.array_length(len(asked.topics))
    for topic in asked.topics:
        writer.string(topic.name)
        writer.array_length(len(topic.partitions))
        for row in topic.partitions:
            index = row.partition_index
            writer.pack(_COMMITTED, index, errors[TopicPartition(topic.name, index)])
            writer.end_struct()
        writer.end_struct()
    writer.end_struct()
    return writer.pieces()


def _uncommittable(asked: OffsetCommitRequest, request: KafkaRequest) -> Mapping[str, Errors]:
    """Return the topics in which the client may not store positions, with the errors."""
    names = [topic.name for topic in asked.topics]
    if not request.may(AclOperation.READ, ResourceType.GROUP, asked.group_id):
        return dict.fromkeys(names, _GROUP_DENIED)
    denied = request.denied(AclOperation.READ, ResourceType.TOPIC, names)
    return dict.fromkeys(denied, _TOPIC_DENIED)


def _position(
    row: OffsetCommitRequestPartition, now_ms: int, retention_ms: int
) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        row.committed_offset,
        row.committed_leader_epoch,
        row.committed_metadata or "",
        now_ms if row.commit_timestamp == NO_TIMESTAMP else row.commit_timestamp,
        NO_TIMESTAMP if retention_ms == NO_TIMESTAMP else now_ms + retention_ms,
    )


async def _fetch(requests: CoordinatorRequests, request: KafkaRequest) -> KafkaAnswer:
    asked, version = decode(OffsetFetchRequest, request), request.api_version
    groups = asked.groups
    if version < _FIRST_FETCH_OF_GROUPS:
        groups = (OffsetFetchRequestGroup(group_id=asked.group_id, topics=asked.topics),)
    results = await _fetched(requests, groups, asked.require_stable, request)
    if version >= _FIRST_FETCH_OF_GROUPS:
        fetched = tuple(
            OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=_fetched_topics(result.offsets),
                error_code=result.error_code,
            )
            for group, result in zip(groups, results, strict=True)
        )
        return answer(OffsetFetchResponse(groups=fetched), request)
    (result,) = results
    if version < _FIRST_FETCH_WITH_ERROR:
        result = _with_errors(result, _wanted(asked.topics) or ())
    response = OffsetFetchResponse(
        topics=_fetched_topics(result.offsets), error_code=result.error_code
    )
    return answer(response, request)


async def _fetched(
    requests: CoordinatorRequests,
    groups: Sequence[OffsetFetchRequestGroup],
    require_stable: bool,
    request: KafkaRequest,
) -> list[FetchOffsetsResult]:
    """Return the positions of each group in the topics that the client may describe.

    Of all topics those that it may not are left out.
    """
    group_ids = [group.group_id for group in groups]
    refused = request.denied(AclOperation.DESCRIBE, ResourceType.GROUP, group_ids)
    visible = [group for group in groups if group.group_id not in refused]
    denied = _denied_topics(request, (t.name for group in visible for t in group.topics or ()))
    questions = [
        FetchOffsets(group.group_id, _wanted(group.topics, denied), require_stable)
        for group in visible
    ]
    answers = iter(await requests.ask_all(questions))
    results = []
    for group in groups:
        if group.group_id in refused:
            results.append(FetchOffsetsResult(_GROUP_DENIED))
            continue
        result = next(answers)
        if group.topics is None:
            names = {topic_partition.topic for topic_partition in result.offsets}
            hidden = request.denied(
                AclOperation.DESCRIBE, ResourceType.TOPIC, names, is_logged=False
            )
            visible_offsets = {p: o for p, o in result.offsets.items() if p.topic not in hidden}
            result = FetchOffsetsResult(result.error_code, visible_offsets)
        elif denied and result.error_code is Errors.NONE:
            result = _with_denied(result, _wanted(group.topics) or (), denied)
        results.append(result)
    return results


def _denied_topics(request: KafkaRequest, names: Iterable[str]) -> Collection[str]:
    return request.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names)


def _with_denied(
    result: FetchOffsetsResult, wanted: Iterable[TopicPartition], denied: Collection[str]
) -> FetchOffsetsResult:
    """Return a result that also has the partitions of topics that are denied."""
    rows = {p: FetchedOffset(_TOPIC_DENIED) for p in wanted if p.topic in denied}
    return FetchOffsetsResult(result.error_code, {**result.offsets, **rows})


async def _fetch_from_zookeeper(
    cache: MetadataCache, zookeeper: ZooKeeperOffsets, request: KafkaRequest
) -> KafkaAnswer:
    asked = decode(OffsetFetchRequest, request)
    wanted, snapshot = _wanted(asked.topics) or (), cache.snapshot
    if not request.may(AclOperation.DESCRIBE, ResourceType.GROUP, asked.group_id):
        refused = dict.fromkeys(wanted, FetchedOffset(_GROUP_DENIED))
        return answer(OffsetFetchResponse(topics=_fetched_topics(refused)), request)
    denied = _denied_topics(request, (topic.name for topic in asked.topics or ()))
    visible = _wanted(asked.topics, denied) or ()
    known = snapshot.partitions
    found = await zookeeper.fetch(asked.group_id, [tp for tp in visible if tp in known])
    unknown = FetchedOffset(snapshot.error_of_missing(_UNTIL_COMPLETE))
    offsets = {topic_partition: found.get(topic_partition, unknown) for topic_partition in wanted}
    offsets |= {p: FetchedOffset(_TOPIC_DENIED) for p in wanted if p.topic in denied}
    return answer(OffsetFetchResponse(topics=_fetched_topics(offsets)), request)


def _wanted(
    topics: Iterable[OffsetFetchRequestTopic] | None, denied: Collection[str] = ()
) -> tuple[TopicPartition, ...] | None:
    """Return the partitions of topics that are not denied; None: of all topics."""
    if topics is None:
        return None
    return tuple(
        TopicPartition(topic.name, index)
        for topic in topics
        if topic.name not in denied
        for index in topic.partition_indexes
    )


def _with_errors(
    result: FetchOffsetsResult, wanted: Iterable[TopicPartition]
) -> FetchOffsetsResult:
    """Return a result whose error is that of every partition."""
    if result.error_code is Errors.NONE:
        return result
    refused = FetchedOffset(result.error_code)
    return FetchOffsetsResult(Errors.NONE, dict.fromkeys(wanted, refused))


def _fetched_topics(
    offsets: Mapping[TopicPartition, FetchedOffset],
) -> tuple[OffsetFetchResponseTopic, ...]:
    rows: dict[str, list[OffsetFetchResponsePartition]] = {}
    for topic_partition, fetched in offsets.items():
        row = OffsetFetchResponsePartition(
            partition_index=topic_partition.partition,
            committed_offset=fetched.offset,
            committed_leader_epoch=fetched.leader_epoch,
            metadata=fetched.metadata,
            error_code=fetched.error_code,
        )
        rows.setdefault(topic_partition.topic, []).append(row)
    return tuple(
        OffsetFetchResponseTopic(name=topic, partitions=tuple(partitions))
        for topic, partitions in rows.items()
    )


async def _delete(
    requests: CoordinatorRequests, cache: MetadataCache, request: KafkaRequest
) -> KafkaAnswer:
    asked = decode(OffsetDeleteRequest, request)
    named = [
        TopicPartition(topic.name, row.partition_index)
        for topic in asked.topics
        for row in topic.partitions
    ]
    if not request.may(AclOperation.DELETE, ResourceType.GROUP, asked.group_id):
        return answer(OffsetDeleteResponse(error_code=_GROUP_DENIED), request)
    denied = request.denied(
        AclOperation.READ, ResourceType.TOPIC, (topic.name for topic in asked.topics)
    )
    visible = [topic_partition for topic_partition in named if topic_partition.topic not in denied]
    snapshot = cache.snapshot
    partitions = snapshot.partitions
    known = tuple(topic_partition for topic_partition in visible if topic_partition in partitions)
    if len(known) < len(visible) and not snapshot.is_complete:
        return answer(OffsetDeleteResponse(error_code=_UNTIL_COMPLETE), request)
    deleted = await requests.ask(DeleteOffsets(asked.group_id, known))
    if deleted.error_code is not Errors.NONE:
        return answer(OffsetDeleteResponse(error_code=deleted.error_code), request)
    errors = {**dict.fromkeys(named, Errors.UNKNOWN_TOPIC_OR_PARTITION), **deleted.partitions}
    errors |= {p: _TOPIC_DENIED for p in named if p.topic in denied}
    topics = tuple(
        OffsetDeleteResponseTopic(
            name=topic.name,
            partitions=tuple(
                OffsetDeleteResponsePartition(
                    partition_index=row.partition_index,
                    error_code=errors[TopicPartition(topic.name, row.partition_index)],
                )
                for row in topic.partitions
            ),
        )
        for topic in asked.topics
    )
    return answer(OffsetDeleteResponse(error_code=Errors.NONE, topics=topics), request)
