"""Metadata, as of version 12, from the client's side; the brokers have their own codec."""

from __future__ import annotations

from regent.core.protocol.message import Int16, Int32, Uuid, message


@message
class MetadataRequestTopic:
    """A topic by its name."""

    topic_id: Uuid = None
    name: str | None


@message
class MetadataRequest:
    """Asks for topics."""

    topics: tuple[MetadataRequestTopic, ...] | None
    allow_auto_topic_creation: bool = False
    include_topic_authorized_operations: bool = False


@message
class MetadataResponseBroker:
    """A live broker."""

    node_id: Int32
    host: str
    port: Int32
    rack: str | None


@message
class MetadataResponsePartition:
    """A partition, its leader and its replicas."""

    error_code: Int16
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    replica_nodes: tuple[Int32, ...]
    isr_nodes: tuple[Int32, ...]
    offline_replicas: tuple[Int32, ...]


@message
class MetadataResponseTopic:
    """A topic and its partitions."""

    error_code: Int16
    name: str | None
    topic_id: Uuid
    is_internal: bool
    partitions: tuple[MetadataResponsePartition, ...]
    topic_authorized_operations: Int32


@message
class MetadataResponse:
    """What a broker knows of topics."""

    throttle_time_ms: Int32
    brokers: tuple[MetadataResponseBroker, ...]
    cluster_id: str | None
    controller_id: Int32
    topics: tuple[MetadataResponseTopic, ...]
