"""The data of requests, notifications and configurations; see ``zk.codecs.topic_znodes``."""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import orjson

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.codecs.json_fields import MAX_INT64, Codec, JsonObject, bad_field, decode_object

DEFAULT_ENTITY_NAME = "<default>"
"""The name of the default configuration of an entity type."""

_DECIMAL: Final = re.compile(rb"-?[0-9]{1,19}")
_LOG_DIR_FAILURE: Final = 1
_PLAIN_BYTES: Final = 256 * 1024  # of the znode of a pause; a longer note is compressed


def _encode_reassignments(reassignments: Mapping[TopicPartition, Iterable[BrokerId]]) -> bytes:
    partitions = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in reassignments.items()
    ]
    return orjson.dumps({"version": 1, "partitions": partitions})


def _decode_reassignments(node: str, data: bytes) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Return the target replicas by partition, in the order of the file.

    The version (tools write 1 and "1") and ``log_dirs`` are ignored. The whole file is rejected
    if a partition has no replicas or is named twice, as in Kafka's own tool.
    """
    reassignments: dict[TopicPartition, tuple[BrokerId, ...]] = {}
    for entry in decode_object(data, node).objects("partitions"):
        topic_partition = _decode_partition(entry)
        replicas = entry.broker_ids("replicas")
        if not replicas:
            raise bad_field(entry.node, "replicas", "a list of broker ids", [])
        if topic_partition in reassignments:
            raise BadDataError(f"{entry.node}: {topic_partition} must be named once")
        reassignments[topic_partition] = replicas
    return reassignments


class MovesPause(NamedTuple):
    """Since when moves are paused, and the note of what their throttle has changed, as JSON.

    ``throttle`` is empty while the throttle is being prepared.
    """

    at_ms: int  # wall clock
    throttle: str = ""


def _encode_pause(pause: MovesPause) -> bytes:
    data = orjson.dumps({"version": 1, **pause._asdict()})
    if len(data) <= _PLAIN_BYTES:
        return data
    deflated = b64encode(zlib.compress(pause.throttle.encode())).decode()
    return orjson.dumps({"version": 1, "at_ms": pause.at_ms, "deflated_throttle": deflated})


def _decode_pause(node: str, data: bytes) -> MovesPause:
    fields = decode_object(data, node)
    at_ms = fields.integer("at_ms", maximum=MAX_INT64)
    deflated = fields.optional_string("deflated_throttle")
    if deflated is None:
        return MovesPause(at_ms, fields.string("throttle"))
    try:
        throttle = zlib.decompress(b64decode(deflated)).decode()
    except (ValueError, zlib.error) as error:
        raise BadDataError(f"{node}: deflated_throttle: {error}") from error
    return MovesPause(at_ms, throttle)


def _encode_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    entries = [{"topic": topic, "partition": partition} for topic, partition in partitions]
    return orjson.dumps({"version": 1, "partitions": entries})


def _decode_partitions(node: str, data: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions, each once, in the order of the file."""
    entries = decode_object(data, node).objects("partitions")
    return tuple(dict.fromkeys(map(_decode_partition, entries)))


def _decode_partition(entry: JsonObject) -> TopicPartition:
    return TopicPartition(entry.string("topic"), entry.integer("partition"))


def _encode_log_dir_event(broker_id: BrokerId) -> bytes:
    """Encode the failure of a log directory, the only type of event."""
    return orjson.dumps({"version": 1, "broker": broker_id, "event": _LOG_DIR_FAILURE})


def sequence_number(child: str) -> int:
    """Return the number ZooKeeper appended to the name of a notification.

    Raises ``BadDataError`` for a name that does not end in ten digits.
    """
    digits = child[-10:]
    if len(digits) == 10 and digits.isascii() and digits.isdigit():
        return int(digits)
    raise bad_field("a notification", "the name", "a text that ends in ten digits", child)


def _encode_config(config: Mapping[str, str]) -> bytes:
    return orjson.dumps({"version": 1, "config": dict(config)})


def _decode_config(node: str, data: bytes, path: str = "") -> dict[str, str]:
    """Return the overrides, none for empty data. The version may be missing.

    Raises ``BadDataError``, which names ``path``, if it is given.
    """
    if not data:
        return {}
    config = decode_object(data, path or node).optional_nested("config")
    return {key: config.string(key) for key in config.values}


def _encode_config_change(entity_path: str) -> bytes:
    """Encode as version 2; ``entity_path`` is ``<type>/<name>``."""
    return orjson.dumps({"version": 2, "entity_path": entity_path})


def _decode_config_change(node: str, data: bytes) -> str:
    """Return the ``<type>/<name>`` of version 2 or 1."""
    json = decode_object(data, node)
    if json.integer("version", minimum=1, maximum=2) == 1:
        return f"{json.string('entity_type')}/{json.string('entity_name')}"
    return json.string("entity_path")


class ProducerIdBlock(NamedTuple):
    """Producer ids a broker may hand out, both ends included."""

    broker_id: BrokerId
    first_producer_id: int
    last_producer_id: int


def _encode_block(block: ProducerIdBlock) -> bytes:
    """Encode; the ids are strings because they have 64 bits."""
    return orjson.dumps(
        {
            "version": 1,
            "broker": block.broker_id,
            "block_start": str(block.first_producer_id),
            "block_end": str(block.last_producer_id),
        }
    )


def _decode_block(node: str, data: bytes) -> ProducerIdBlock | None:
    """Return the block, None before the first one is taken."""
    if not data:
        return None
    json = decode_object(data, node)
    return ProducerIdBlock(
        json.integer("broker"),
        json.decimal("block_start", maximum=MAX_INT64),
        json.decimal("block_end", maximum=MAX_INT64),
    )


def _encode_position(offset: int) -> bytes:
    return b"%d" % offset


def _decode_position(node: str, data: bytes, path: str = "") -> int:
    """Return the position; an error names ``path``, if it is given."""
    if _DECIMAL.fullmatch(data) and -MAX_INT64 - 1 <= (offset := int(data)) <= MAX_INT64:
        return offset
    raise bad_field(path or node, "the data", "a decimal number of 64 bits", data)


REASSIGNMENTS = Codec(_encode_reassignments, _decode_reassignments)
PARTITIONS = Codec(_encode_partitions, _decode_partitions)
LOG_DIR_EVENT = Codec(
    _encode_log_dir_event, lambda node, data: decode_object(data, node).integer("broker")
)
CONFIG = Codec(_encode_config, _decode_config)
CONFIG_CHANGE = Codec(_encode_config_change, _decode_config_change)
PRODUCER_ID_BLOCK = Codec(_encode_block, _decode_block)
MOVES_PAUSE = Codec(_encode_pause, _decode_pause)
POSITION = Codec(_encode_position, _decode_position)
