"""Metadata, versions 0 to 12: the brokers, and the leader of each partition.

Topics are encoded once for each snapshot of the cluster, not once for each client. Many partitions
are encoded in steps, so that other clients do not wait. Mirrors
``kafka.server.KafkaApis.handleTopicMetadataRequest``.

Until the first complete list of partitions has arrived, every topic is LEADER_NOT_AVAILABLE: after
that every client asks again, and keeps what it knows. For all topics there is no such error, and a
list without brokers confuses clients. So the connection is closed: then they ask another broker,
or again.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from regent.broker.api.authorized_operations import operations_if
from regent.broker.api.first_metadata import FirstMetadata
from regent.core.admin.admin_requests import PASSING, CreateMissingTopics
from regent.core.errors import ApiError, Errors
from regent.core.protocol.control import (
    TopicId,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.metadata_view import PartitionView, alive_endpoints, topic_metadata
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.security.authorizer import ALLOW_ALL
from regent.core.topic_validation import INTERNAL_TOPICS, topic_name_problem
from regent.transport.kafka.api import (
    FIRST_FLEXIBLE_VERSION,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.message_codec import note_left_out
from regent.transport.kafka.primitives import OUT_OF_RANGE, Reader, Writer
from regent.transport.kafka.replies import AwaitedReply, Replies

_DENIED: Final = Errors.TOPIC_AUTHORIZATION_FAILED
_ENCODED_PER_TURN: Final = 500
_FIRST_FLEXIBLE_VERSION: Final = FIRST_FLEXIBLE_VERSION[KafkaApiKey.METADATA]
_NO_TAGGED_FIELDS: Final = b"\0"
_OF_THE_REQUEST: Final = (Errors.INVALID_REQUEST, Errors.INVALID_TOPIC_EXCEPTION)
_PARTITION: Final = struct.Struct(">hii")  # error, index, leader
_PARTITION_V7: Final = struct.Struct(">hiii")  # and the leader epoch


class _AskedTopic(NamedTuple):
    """A topic of a request: its id, or its name if the id is None."""

    topic_id: TopicId | None
    name: str | None


class _MetadataRequest(NamedTuple):
    """One request; ``topics`` None: all."""

    topics: Collection[_AskedTopic] | None
    may_create: bool
    cluster_operations: bool
    topic_operations: bool


def metadata_apis(
    cache: MetadataCache,
    cluster_id: Callable[[], str | None],
    create_missing: CreateMissingTopics | None = None,
) -> Sequence[KafkaApi]:
    """Return Metadata; clients see the brokers that have the listener they came by.

    ``create_missing`` creates requested topics that do not exist, when the client allows it. It is
    called for every such request until the topics exist. None: topics are not created.
    """
    topics = _Topics(cache, create_missing)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        version, listener = request.api_version, request.session.listener_name
        asked = _decode(request.reader(), version)
        encoder, names, failed = await topics.find(asked, request)
        snapshot = encoder.snapshot
        writer = request.answer_writer()
        _write_cluster(writer, snapshot, listener, cluster_id(), version, request.throttle_time_ms)

        def end_of_topic(name: str, *, is_told: bool = True) -> bytes:
            is_asked = asked.topic_operations and is_told
            operations = operations_if(is_asked, request, ResourceType.TOPIC, name)
            return _end_of_topic(version, operations)

        writer.array_length(len(names) + len(failed))
        for name in names:
            writer.encoded(await encoder.encoded(name, version, listener))
            writer.encoded(end_of_topic(name))
        for topic, error in failed.items():
            _write_topic(writer, error, topic, 0, version)
            is_told = topic.topic_id is None and error is not _DENIED
            writer.encoded(end_of_topic(topic.name or "", is_told=is_told))
        if 8 <= version <= 10:
            cluster = operations_if(asked.cluster_operations, request, ResourceType.CLUSTER)
            writer.int32(cluster)
        writer.end_struct()
        return writer.pieces()

    return [KafkaApi(KafkaApiKey.METADATA, 0, 12, handle)]


def _decode(reader: Reader, version: int) -> _MetadataRequest:
    def topic() -> _AskedTopic:
        if version < 10:
            asked = _AskedTopic(None, reader.string())
        else:
            asked = _AskedTopic(reader.uuid(), reader.nullable_string())
        reader.end_struct()
        return asked

    topics = reader.nullable_array(topic)
    if version == 0 and not topics:
        topics = None
    asked = _MetadataRequest(
        None if topics is None else dict.fromkeys(topics),
        may_create=reader.boolean() if version >= 4 else True,
        cluster_operations=reader.boolean() if 8 <= version <= 10 else False,
        topic_operations=reader.boolean() if version >= 8 else False,
    )
    reader.end_struct()
    return asked


def _creatable(failed: Mapping[_AskedTopic, Errors]) -> Collection[str]:
    """Return the unknown topics that are created for clients that ask about them."""
    return [
        topic.name
        for topic, error in failed.items()
        if error is Errors.UNKNOWN_TOPIC_OR_PARTITION
        and topic.name is not None
        and topic.name not in INTERNAL_TOPICS
    ]


def _uncreatable(topics: Collection[str], request: KafkaRequest) -> Collection[str]:
    """Return the topics that the client may not create."""
    if request.may(AclOperation.CREATE, ResourceType.CLUSTER, is_logged=False):
        return ()
    return request.denied(AclOperation.CREATE, ResourceType.TOPIC, topics)


async def _create(
    topics: Collection[str], create_missing: CreateMissingTopics, replies: Replies
) -> Mapping[str, ApiError]:
    """Have topics created, and return why some are not; this takes a moment at most."""
    reply: AwaitedReply[Mapping[str, ApiError]] = replies.new()
    create_missing(topics, reply.give)
    return await reply


def _errors_of_creation(
    failed: Mapping[_AskedTopic, Errors], refused: Mapping[str, ApiError]
) -> Mapping[_AskedTopic, Errors]:
    """Return the errors for a client whose unknown topics are created, except those refused.

    A client that gets LEADER_NOT_AVAILABLE asks again.
    """
    errors = dict.fromkeys(_creatable(failed), Errors.LEADER_NOT_AVAILABLE)
    for name, refusal in refused.items():
        if name in errors and refusal.error_code not in PASSING:
            errors[name] = refusal.error_code
    return {topic: errors.get(topic.name or "", error) for topic, error in failed.items()}


def _until_complete(
    asked: _MetadataRequest, snapshot: MetadataSnapshot, failed: Mapping[_AskedTopic, Errors]
) -> Mapping[_AskedTopic, Errors]:
    """Return the errors of topics of which this broker was not told all partitions.

    Raises ``UnansweredRequestError`` if no answer would be right.
    """
    if asked.topics is None or not snapshot.brokers:
        raise UnansweredRequestError("this broker does not know all topics yet")
    found = {topic: failed.get(topic, Errors.LEADER_NOT_AVAILABLE) for topic in asked.topics}
    return {
        topic: error if error in _OF_THE_REQUEST else Errors.LEADER_NOT_AVAILABLE
        for topic, error in found.items()
    }


def _write_cluster(
    writer: Writer,
    snapshot: MetadataSnapshot,
    listener: str,
    cluster_id: str | None,
    version: int,
    throttle_time_ms: int,
) -> None:
    if version >= 3:
        writer.int32(throttle_time_ms)

    def write(reachable: tuple[UpdateMetadataBroker, UpdateMetadataEndPoint]) -> None:
        broker, endpoint = reachable
        writer.int32(broker.broker_id)
        writer.string(endpoint.host)
        writer.int32(endpoint.port)
        if version >= 1:
            writer.nullable_string(broker.rack)
        writer.end_struct()

    left_out = writer.left_out = []
    writer.rows(alive_endpoints(snapshot, listener), write)
    note_left_out("MetadataResponse", left_out)
    if version >= 2:
        writer.nullable_string(cluster_id)
    if version >= 1:
        writer.int32(snapshot.controller_id)


def _write_topic(
    writer: Writer, error: Errors, topic: _AskedTopic, partitions: int, version: int
) -> None:
    """Write a topic up to its ``partitions``."""
    writer.int16(error)
    if version >= 12:
        writer.nullable_string(topic.name)
    else:
        writer.string(topic.name or "")
    if version >= 10:
        writer.uuid(topic.topic_id)
    if version >= 1:
        writer.boolean(topic.name in INTERNAL_TOPICS and error is not _DENIED)
    writer.array_length(partitions)


@lru_cache
def _end_of_topic(version: int, operations: int) -> bytes:
    """Return what follows the partitions of every topic of a response."""
    writer = Writer(is_flexible=version >= _FIRST_FLEXIBLE_VERSION)
    if version >= 8:
        writer.int32(operations)
    writer.end_struct()
    return writer.whole()


class _Topics:
    """Finds the topics of requests, and has missing ones created. Belongs to one event loop."""

    def __init__(self, cache: MetadataCache, create_missing: CreateMissingTopics | None) -> None:
        self._cache = cache
        self._create_missing = create_missing
        self._first_metadata = FirstMetadata(cache)
        self._replies = Replies()
        self._encoder = _TopicEncoder(MetadataSnapshot())

    async def find(
        self, asked: _MetadataRequest, request: KafkaRequest
    ) -> tuple[_TopicEncoder, Collection[str], Mapping[_AskedTopic, Errors]]:
        """Return the topics that exist, what encodes them, and the errors of the others.

        Whether a topic exists is told only to a client that may describe it.
        Raises ``UnansweredRequestError``.
        """
        is_complete = await self._first_metadata.arrived()
        encoder = self._newest()
        denied: Mapping[_AskedTopic, Errors] = {}
        if request.authorizer is not ALLOW_ALL and asked.topics is not None:
            asked, denied = self._without_denied(asked, request)
        version = request.api_version
        names, failed = encoder.find(asked.topics, version)
        if not is_complete:
            late = _until_complete(asked, encoder.snapshot, failed)
            return encoder, (), {**late, **denied}
        missing = _creatable(failed) if asked.may_create else ()
        if missing and self._create_missing is not None:
            uncreatable = _uncreatable(missing, request)
            missing = [name for name in missing if name not in uncreatable]
            create = self._create_missing
            refused = await _create(missing, create, self._replies) if missing else {}
            refused = {**refused, **dict.fromkeys(uncreatable, ApiError(_DENIED))}
            encoder = self._newest()
            names, failed = encoder.find(asked.topics, version)
            failed = _errors_of_creation(failed, refused)
        if request.authorizer is not ALLOW_ALL and asked.topics is None:
            describe = AclOperation.DESCRIBE
            hidden = request.denied(describe, ResourceType.TOPIC, names, is_logged=False)
            names = [name for name in names if name not in hidden]
        return encoder, names, {**failed, **denied} if denied else failed

    def _without_denied(
        self, asked: _MetadataRequest, request: KafkaRequest
    ) -> tuple[_MetadataRequest, Mapping[_AskedTopic, Errors]]:
        """Return the request without the topics that the client may not describe, and these."""
        topics = asked.topics or ()
        named = {topic: self._encoder.name_of(topic) for topic in topics}
        names = [name for name in named.values() if name is not None]
        denied = request.denied(AclOperation.DESCRIBE, ResourceType.TOPIC, names)
        # For an id the name is not told.
        errors = {
            topic if topic.topic_id is None else _AskedTopic(topic.topic_id, None): _DENIED
            for topic, name in named.items()
            if name in denied
        }
        return asked._replace(topics=[t for t in topics if named[t] not in denied]), errors

    def _newest(self) -> _TopicEncoder:
        if self._encoder.snapshot is not self._cache.snapshot:
            self._encoder = _TopicEncoder(self._cache.snapshot)
        return self._encoder


class _TopicEncoder:
    """The topics of one snapshot, encoded for each listener when they are first asked for."""

    def __init__(self, snapshot: MetadataSnapshot) -> None:
        self.snapshot = snapshot
        self.topics = snapshot.topics
        self._encoded: dict[tuple[str, int, str], bytes] = {}
        self._encoded_in_turn = 0

    @cached_property
    def _names(self) -> Mapping[TopicId | None, str]:
        return {topic_id: name for name, topic_id in self.snapshot.topic_ids.items()}

    def find(
        self, asked: Collection[_AskedTopic] | None, version: int
    ) -> tuple[Collection[str], Mapping[_AskedTopic, Errors]]:
        """Return the names of the known topics, and an error for each of the others."""
        if asked is None:
            return self.topics, {}
        if 10 <= version < 12 and any(t.topic_id is not None or t.name is None for t in asked):
            # These versions have the field, but Kafka's brokers did not serve it (KAFKA-10774).
            return (), dict.fromkeys(asked, Errors.INVALID_REQUEST)
        names: dict[str, None] = {}
        failed: dict[_AskedTopic, Errors] = {}
        for topic in asked:
            name = self.name_of(topic)
            if name is not None and name in self.topics:
                names[name] = None
            else:
                failed[topic] = _error_of(topic)
        return names, failed

    def name_of(self, topic: _AskedTopic) -> str | None:
        """Return the name of a topic; None: no topic has the id."""
        return topic.name if topic.topic_id is None else self._names.get(topic.topic_id)

    async def encoded(self, topic: str, version: int, listener: str) -> bytes:
        """Return the encoding of a topic that is in ``topics``, without ``_end_of_topic``."""
        known = self._encoded.get((topic, version, listener))
        if known is not None:
            return known
        rows = sorted(self.topics[topic].values())
        writer = Writer(is_flexible=version >= _FIRST_FLEXIBLE_VERSION)
        encoded_rows: list[bytes] = []
        for start in range(0, len(rows), _ENCODED_PER_TURN):
            some = rows[start : start + _ENCODED_PER_TURN]
            for view in self._views(topic, some, version, listener):
                try:
                    encoded_rows.append(_partition(view, version))
                except OUT_OF_RANGE:  # the other partitions are right
                    note_left_out("MetadataResponse", [(topic, view)])
            self._encoded_in_turn += len(some)
            if self._encoded_in_turn >= _ENCODED_PER_TURN:
                self._encoded_in_turn = 0
                await asyncio.sleep(0)
        named = _AskedTopic(self.snapshot.topic_ids.get(topic), topic)
        _write_topic(writer, Errors.NONE, named, len(encoded_rows), version)
        writer.encoded(b"".join(encoded_rows))
        encoded = self._encoded[topic, version, listener] = writer.whole()
        return encoded

    def _views(
        self, topic: str, rows: Sequence[UpdateMetadataPartition], version: int, listener: str
    ) -> Sequence[PartitionView]:
        named = {row.partition_index: row for row in rows}
        (view,) = topic_metadata(
            replace(self.snapshot, topics={topic: named}),
            (topic,),
            listener,
            error_unavailable_endpoints=version == 0,
            error_unavailable_listeners=version >= 6,
        )
        return view.partitions


def _error_of(topic: _AskedTopic) -> Errors:
    """Return the error of a topic that is not known."""
    if topic.topic_id is not None:
        return Errors.UNKNOWN_TOPIC_ID
    if topic.name is None:
        return Errors.INVALID_REQUEST
    if topic_name_problem(topic.name) is not None:
        return Errors.INVALID_TOPIC_EXCEPTION
    return Errors.UNKNOWN_TOPIC_OR_PARTITION


def _partition(view: PartitionView, version: int) -> bytes:
    is_flexible = version >= _FIRST_FLEXIBLE_VERSION
    head = (view.error_code, view.partition, view.leader)
    encoded = (
        _PARTITION.pack(*head) if version < 7 else _PARTITION_V7.pack(*head, view.leader_epoch)
    )
    encoded += _ids(view.replicas, is_flexible) + _ids(view.isr, is_flexible)
    if version >= 5:
        encoded += _ids(view.offline_replicas, is_flexible)
    return encoded + _NO_TAGGED_FIELDS if is_flexible else encoded


@lru_cache(maxsize=10_000)
def _ids(broker_ids: tuple[int, ...], is_flexible: bool) -> bytes:
    writer = Writer(is_flexible=is_flexible)
    writer.array(broker_ids, writer.int32)
    return writer.whole()
