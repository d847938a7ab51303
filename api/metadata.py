"""Metadata, versions 0 to 8: the brokers, and the leader of each partition.

Topics are encoded once for each snapshot of the cluster, not once for each client. Many partitions
are encoded in steps, so that other clients do not wait. Mirrors
``kafka.server.KafkaApis.handleTopicMetadataRequest``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from regent.core.admin.topic_validation import INTERNAL_TOPICS, topic_name_problem
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.records import RecordBytes
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.metadata_view import PartitionView, alive_endpoint, topic_metadata
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.primitives import Reader, Writer

_INDEXED_PER_TURN: Final = 5_000
_ENCODED_PER_TURN: Final = 500
_PARTITION: Final = struct.Struct(">hii")  # error, index, leader
_PARTITION_V7: Final = struct.Struct(">hiii")  # and the leader epoch
_OPERATIONS_UNKNOWN: Final = -(2**31)


class _MetadataRequest(NamedTuple):
    """One request; ``topics`` None: all."""

    topics: Collection[str] | None
    may_create: bool


def metadata_apis(
    cache: MetadataCache,
    listener: str,
    cluster_id: Callable[[], str | None],
    create_missing: Callable[[Collection[str]], None] | None = None,
) -> Sequence[KafkaApi]:
    """Return Metadata as clients of ``listener`` see the cluster.

    ``create_missing`` creates requested topics that do not exist, when the client allows it. It
    must not block. It is called for every such request until the topics exist. None: topics are
    not created.
    """
    current = _TopicEncoder(MetadataSnapshot(), listener)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        nonlocal current
        version = request.api_version
        asked = _decode(request.body, version)
        snapshot = cache.snapshot
        if current.snapshot is not snapshot:
            current = _TopicEncoder(snapshot, listener)
        encoder = current
        await encoder.read()
        names = encoder.topics if asked.topics is None else asked.topics
        unknown = [name for name in names if name not in encoder.topics]
        creating: set[str] = set()
        if unknown and asked.may_create and create_missing is not None:
            creating = {name for name in unknown if _may_be_created(name)}
            if creating:
                create_missing(creating)
        writer = Writer()
        _write_cluster(writer, snapshot, listener, cluster_id(), version)
        writer.int32(len(names))
        for name in names:
            if name in encoder.topics:
                writer.encoded(await encoder.encoded(name, version))
            else:
                _write_topic(writer, name, _error_of(name, creating), 0, b"", version)
        if version >= 8:
            writer.int32(_OPERATIONS_UNKNOWN)
        return writer.pieces()

    return [KafkaApi(KafkaApiKey.METADATA, 0, 8, handle)]


def _decode(body: memoryview, version: int) -> _MetadataRequest:
    reader = Reader(body)
    topics = reader.nullable_array(reader.string)
    if version == 0 and not topics:
        topics = None
    may_create = reader.boolean() if version >= 4 else True
    return _MetadataRequest(None if topics is None else dict.fromkeys(topics), may_create)


def _may_be_created(name: str) -> bool:
    return topic_name_problem(name) is None and name not in INTERNAL_TOPICS


def _error_of(name: str, creating: Collection[str]) -> Errors:
    if name in creating:
        return Errors.LEADER_NOT_AVAILABLE
    if topic_name_problem(name) is not None:
        return Errors.INVALID_TOPIC_EXCEPTION
    return Errors.UNKNOWN_TOPIC_OR_PARTITION


def _write_cluster(
    writer: Writer,
    snapshot: MetadataSnapshot,
    listener: str,
    cluster_id: str | None,
    version: int,
) -> None:
    if version >= 3:
        writer.int32(0)  # throttle time
    reachable = [
        (broker, endpoint)
        for broker_id, broker in sorted(snapshot.brokers.items())
        if (endpoint := alive_endpoint(snapshot, broker_id, listener)) is not None
    ]
    writer.int32(len(reachable))
    for broker, endpoint in reachable:
        writer.int32(broker.broker_id)
        writer.string(endpoint.host)
        writer.int32(endpoint.port)
        if version >= 1:
            writer.nullable_string(broker.rack)
    if version >= 2:
        writer.nullable_string(cluster_id)
    if version >= 1:
        writer.int32(snapshot.controller_id)


def _write_topic(
    writer: Writer, name: str, error: Errors, count: int, partitions: RecordBytes, version: int
) -> None:
    writer.int16(error)
    writer.string(name)
    if version >= 1:
        writer.boolean(name in INTERNAL_TOPICS)
    writer.int32(count)
    writer.encoded(partitions)
    if version >= 8:
        writer.int32(_OPERATIONS_UNKNOWN)


class _TopicEncoder:
    """The topics of one snapshot, encoded when they are first asked for."""

    def __init__(self, snapshot: MetadataSnapshot, listener: str) -> None:
        self.snapshot = snapshot
        self.topics: Mapping[str, Sequence[UpdateMetadataPartition]] = {}
        self._listener = listener
        self._encoded: dict[tuple[int, str], bytes] = {}
        self._encoded_in_turn = 0
        self._reading = asyncio.Lock()
        self._is_read = False

    async def read(self) -> None:
        """Sort the partitions by topic, once for all requests that wait."""
        async with self._reading:
            if self._is_read:
                return
            # Complete before it is assigned, because this coroutine may be cancelled half way.
            topics: dict[str, list[UpdateMetadataPartition]] = {}
            for count, (topic_partition, row) in enumerate(
                self.snapshot.partitions.items(), start=1
            ):
                topics.setdefault(topic_partition.topic, []).append(row)
                if count % _INDEXED_PER_TURN == 0:
                    await asyncio.sleep(0)
            self.topics, self._is_read = topics, True

    async def encoded(self, topic: str, version: int) -> bytes:
        """Return the encoding of a topic that is in ``topics``."""
        known = self._encoded.get((version, topic))
        if known is not None:
            return known
        rows = sorted(self.topics[topic])
        partitions = bytearray()
        for start in range(0, len(rows), _ENCODED_PER_TURN):
            some = rows[start : start + _ENCODED_PER_TURN]
            for view in self._views(topic, some, version):
                partitions += _partition(view, version)
            self._encoded_in_turn += len(some)
            if self._encoded_in_turn >= _ENCODED_PER_TURN:
                self._encoded_in_turn = 0
                await asyncio.sleep(0)
        writer = Writer()
        _write_topic(writer, topic, Errors.NONE, len(rows), partitions, version)
        encoded = self._encoded[version, topic] = writer.whole()
        return encoded

    def _views(
        self, topic: str, rows: Sequence[UpdateMetadataPartition], version: int
    ) -> Sequence[PartitionView]:
        # ``topic_metadata`` looks at all partitions of a snapshot: give it one with these only.
        named = {TopicPartition(topic, row.partition_index): row for row in rows}
        (view,) = topic_metadata(
            replace(self.snapshot, partitions=named),
            (topic,),
            self._listener,
            error_unavailable_endpoints=version == 0,
            error_unavailable_listeners=version >= 6,
        )
        return view.partitions


def _partition(view: PartitionView, version: int) -> bytes:
    head = (view.error_code, view.partition, view.leader)
    encoded = (
        _PARTITION.pack(*head) if version < 7 else _PARTITION_V7.pack(*head, view.leader_epoch)
    )
    encoded += _ids(view.replicas) + _ids(view.isr)
    return encoded + _ids(view.offline_replicas) if version >= 5 else encoded


def _ids(broker_ids: tuple[int, ...]) -> bytes:
    return struct.pack(f">i{len(broker_ids)}i", len(broker_ids), *broker_ids)
