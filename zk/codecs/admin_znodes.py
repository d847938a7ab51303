"""The znodes of administration: requests, notifications, configuration, producer ids, positions.

Each path has a class, named as in Kafka's ``ZkData.scala``; conventions as in ``zk.codecs.znodes``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.core.ports import ControllerFailure
from regent.zk.codecs.json_fields import (
    MAX_INT64,
    JsonObject,
    bad_field,
    decode_object,
)

_DECIMAL: Final = re.compile(rb"-?[0-9]{1,19}")
DEFAULT_ENTITY_NAME = "<default>"
"""The name of the default configuration of an entity type."""


class DeleteTopicsZNode:
    """``/admin/delete_topics``: one child for each topic to delete."""

    PATH = "/admin/delete_topics"


class DeleteTopicsTopicZNode:
    """``/admin/delete_topics/T``, empty: a request to delete a topic."""

    @staticmethod
    def path(topic: str) -> str:
        """Return the path of the request to delete ``topic``."""
        return f"{DeleteTopicsZNode.PATH}/{topic}"


class ReassignPartitionsZNode:
    """``/admin/reassign_partitions``: the target replicas of partitions to move."""

    PATH = "/admin/reassign_partitions"

    @staticmethod
    def encode(reassignments: Mapping[TopicPartition, Iterable[BrokerId]]) -> bytes:
        """Encode the pending reassignments."""
        partitions = [
            {"topic": topic, "partition": partition, "replicas": list(replicas)}
            for (topic, partition), replicas in reassignments.items()
        ]
        return orjson.dumps({"version": 1, "partitions": partitions})

    @staticmethod
    def decode(data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        """Return the target replicas by partition, in the order of the file.

        The version (tools write 1 and "1") and ``log_dirs`` are ignored. The whole file is rejected
        if a partition has no replicas or is named twice, as in Kafka's own tool.
        """
        reassignments: dict[TopicPartition, tuple[BrokerId, ...]] = {}
        for entry in decode_object(data, ReassignPartitionsZNode.PATH).objects("partitions"):
            topic_partition = _decode_partition(entry)
            replicas = entry.broker_ids("replicas")
            if not replicas:
                raise bad_field(entry.node, "replicas", "a list of broker ids", [])
            if topic_partition in reassignments:
                raise BadDataError(f"{entry.node}: {topic_partition} must be named once")
            reassignments[topic_partition] = replicas
        return reassignments


class PreferredReplicaElectionZNode:
    """``/admin/preferred_replica_election``: partitions for a preferred leader election."""

    PATH = "/admin/preferred_replica_election"

    @staticmethod
    def encode(partitions: Iterable[TopicPartition]) -> bytes:
        """Encode the partitions to elect."""
        return _encode_partitions(partitions)

    @staticmethod
    def decode(data: bytes) -> tuple[TopicPartition, ...]:
        """Return the partitions to elect, each once, in the order of the file."""
        return _decode_partitions(data, PreferredReplicaElectionZNode.PATH)


class IsrChangeNotificationZNode:
    """``/isr_change_notification``: one child for each batch of ISR changes by leaders."""

    PATH = "/isr_change_notification"


class IsrChangeNotificationSequenceZNode:
    """``/isr_change_notification/isr_change_<sequence>``: partitions whose ISR changed."""

    PATH_PREFIX = f"{IsrChangeNotificationZNode.PATH}/isr_change_"

    @staticmethod
    def encode(partitions: Iterable[TopicPartition]) -> bytes:
        """Encode the partitions whose state changed."""
        return _encode_partitions(partitions)

    @staticmethod
    def decode(data: bytes) -> tuple[TopicPartition, ...]:
        """Return the partitions whose state changed, each once."""
        return _decode_partitions(data, f"{IsrChangeNotificationSequenceZNode.PATH_PREFIX}<n>")


class LogDirEventNotificationZNode:
    """``/log_dir_event_notification``: one child for each failure of a log directory."""

    PATH = "/log_dir_event_notification"


class LogDirEventNotificationSequenceZNode:
    """``/log_dir_event_notification/log_dir_event_<sequence>``: a broker's directory failed."""

    PATH_PREFIX = f"{LogDirEventNotificationZNode.PATH}/log_dir_event_"
    LOG_DIR_FAILURE = 1

    @staticmethod
    def encode(broker_id: BrokerId) -> bytes:
        """Encode the failure of a log directory, the only type of event."""
        event = LogDirEventNotificationSequenceZNode.LOG_DIR_FAILURE
        return orjson.dumps({"version": 1, "broker": broker_id, "event": event})

    @staticmethod
    def decode(data: bytes) -> BrokerId:
        """Return the broker whose log directory failed."""
        node = f"{LogDirEventNotificationSequenceZNode.PATH_PREFIX}<n>"
        return decode_object(data, node).integer("broker")


class ConfigEntityZNode:
    """``/config/<type>/<name>``: what an entity's configuration overrides."""

    @staticmethod
    def path(entity_type: str, entity_name: str) -> str:
        """Return the path of an entity's configuration."""
        return f"/config/{entity_type}/{entity_name}"

    @staticmethod
    def encode(config: Mapping[str, str]) -> bytes:
        """Encode the overrides."""
        return orjson.dumps({"version": 1, "config": dict(config)})

    @staticmethod
    def decode(data: bytes, path: str = "/config/<type>/<name>") -> dict[str, str]:
        """Return the overrides, none for empty data. The version may be missing.

        Raises ``BadDataError``, which names ``path``.
        """
        if not data:
            return {}
        config = decode_object(data, path).optional_nested("config")
        return {key: config.string(key) for key in config.values}


class ConfigEntityChangeNotificationZNode:
    """``/config/changes``: one child for each change of a configuration."""

    PATH = "/config/changes"


class ConfigEntityChangeNotificationSequenceZNode:
    """``/config/changes/config_change_<sequence>``: an entity whose configuration changed."""

    PATH_PREFIX = f"{ConfigEntityChangeNotificationZNode.PATH}/config_change_"

    @staticmethod
    def encode(entity_path: str) -> bytes:
        """Encode as version 2; ``entity_path`` is ``<type>/<name>``."""
        return orjson.dumps({"version": 2, "entity_path": entity_path})

    @staticmethod
    def decode(data: bytes) -> str:
        """Return the ``<type>/<name>`` of version 2 or 1."""
        node = f"{ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX}<n>"
        json = decode_object(data, node)
        if json.integer("version", minimum=1, maximum=2) == 1:
            return f"{json.string('entity_type')}/{json.string('entity_name')}"
        return json.string("entity_path")


def sequence_number(child: str) -> int:
    """Return the number ZooKeeper appended to the name of a notification.

    Raises ``BadDataError`` for a name that does not end in ten digits.
    """
    digits = child[-10:]
    if len(digits) == 10 and digits.isascii() and digits.isdigit():
        return int(digits)
    raise bad_field("a notification", "the name", "a text that ends in ten digits", child)


class ProducerIdBlock(NamedTuple):
    """Producer ids a broker may hand out, both ends included."""

    broker_id: BrokerId
    first_producer_id: int
    last_producer_id: int


class ProducerIdBlockZNode:
    """``/latest_producer_id_block``: the last allocated block of producer ids (KIP-730)."""

    PATH = "/latest_producer_id_block"

    @staticmethod
    def encode(block: ProducerIdBlock) -> bytes:
        """Encode; the ids are strings because they have 64 bits."""
        return orjson.dumps(
            {
                "version": 1,
                "broker": block.broker_id,
                "block_start": str(block.first_producer_id),
                "block_end": str(block.last_producer_id),
            }
        )

    @staticmethod
    def decode(data: bytes) -> ProducerIdBlock | None:
        """Return the block, None before the first one is taken."""
        if not data:
            return None
        json = decode_object(data, ProducerIdBlockZNode.PATH)
        return ProducerIdBlock(
            json.integer("broker"),
            json.decimal("block_start", maximum=MAX_INT64),
            json.decimal("block_end", maximum=MAX_INT64),
        )


class ControllerFailuresZNode:
    """``/regent/controller_failures``: the failures that ended controllers; Kafka has none."""

    PATH = "/regent/controller_failures"

    @staticmethod
    def encode(failures: Sequence[ControllerFailure]) -> bytes:
        """Encode as version 1."""
        return orjson.dumps({"version": 1, "failures": [f._asdict() for f in failures]})

    @staticmethod
    def decode(data: bytes) -> tuple[ControllerFailure, ...]:
        """Return the failures, oldest first."""
        rows = decode_object(data, ControllerFailuresZNode.PATH).objects("failures")
        return tuple(
            ControllerFailure(
                row.string("what"),
                row.string("event"),
                row.string("error"),
                row.integer("controllers"),
                row.integer("broker_id"),
                row.integer("controller_epoch"),
            )
            for row in rows
        )


class ConsumerOffsetZNode:
    """``/consumers/G/offsets/T/P``: the position of a group in a partition, as decimal text."""

    @staticmethod
    def path(group_id: str, topic: str, partition: int) -> str:
        """Return the path of a position."""
        return f"/consumers/{group_id}/offsets/{topic}/{partition}"

    @staticmethod
    def parents(path: str) -> list[str]:
        """Return the znodes that a position is below, ``/consumers`` first."""
        names = path.split("/")
        return ["/".join(names[:count]) for count in range(2, len(names))]

    @staticmethod
    def decode(data: bytes, path: str) -> int:
        """Return the position."""
        if _DECIMAL.fullmatch(data) and -MAX_INT64 - 1 <= (offset := int(data)) <= MAX_INT64:
            return offset
        raise bad_field(path, "the data", "a decimal number of 64 bits", data)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    entries = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    return orjson.dumps({"version": 1, "partitions": entries})


def _decode_partitions(data: bytes, node: str) -> tuple[TopicPartition, ...]:
    entries = decode_object(data, node).objects("partitions")
    return tuple(dict.fromkeys(map(_decode_partition, entries)))


def _decode_partition(entry: JsonObject) -> TopicPartition:
    return TopicPartition(entry.string("topic"), entry.integer("partition"))
