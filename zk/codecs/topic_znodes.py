"""The data of topics and partitions: bytes to values and back.

Each codec writes the newest version of Kafka's ZooKeeper mode. It reads every version and dialect
that Kafka and its tools write, and ignores unknown keys.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import orjson

from regent.core.errors import BadDataError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH_LEFT,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
)
from regent.core.ports import DeletedPartition, DeletedTopic
from regent.zk.codecs.json_fields import (
    MAX_INT64,
    Codec,
    JsonObject,
    bad_field,
    decode_broker_ids,
    decode_decimal,
    decode_object,
)

_TOPIC_ID = re.compile(r"[0-9A-Za-z_-]{22}")


def encode_topic_id(uuid_bytes: bytes) -> str:
    """Return Kafka's 22-character base64url form of the 16 bytes of a UUID."""
    return base64.urlsafe_b64encode(uuid_bytes).rstrip(b"=").decode("ascii")


def random_uuid() -> str:
    """Return a new UUID in that form; none that a command would take for an option.

    Mirrors ``org.apache.kafka.common.Uuid.randomUuid``.
    """
    while (text := encode_topic_id(uuid.uuid4().bytes)).startswith("-"):
        pass
    return text


def _decode_topic_id(json: JsonObject) -> str | None:
    topic_id = json.optional_string("topic_id")
    if topic_id is not None and _TOPIC_ID.fullmatch(topic_id) is None:
        raise bad_field(json.node, "topic_id", "22 characters of base64url", topic_id)
    return topic_id


@dataclass(frozen=True, slots=True)
class TopicZNodeData:
    """The data of a topic's znode; ``partitions`` is in the order of the partition ids."""

    topic_id: str | None  # 22 characters; None if the last writer does not know topic ids
    partitions: Mapping[int, ReplicaAssignment]


def _encode_topic(topic_id: str | None, partitions: Mapping[int, ReplicaAssignment]) -> bytes:
    """Encode as version 3; the key ``topic_id`` is absent when there is none.

    ``adding_replicas`` and ``removing_replicas`` list only partitions that are being reassigned.
    """
    node: dict[str, object] = {
        "removing_replicas": {
            str(partition): assignment.removing_replicas
            for partition, assignment in partitions.items()
            if assignment.removing_replicas
        },
        "partitions": {
            str(partition): assignment.replicas for partition, assignment in partitions.items()
        },
        "adding_replicas": {
            str(partition): assignment.adding_replicas
            for partition, assignment in partitions.items()
            if assignment.adding_replicas
        },
        "version": 3,
    }
    if topic_id is not None:
        node["topic_id"] = topic_id
    return orjson.dumps(node)


def _decode_topic(node: str, data: bytes) -> TopicZNodeData:
    """Read version 1, 2 or 3.

    A partition without replicas is rejected, because it can have no leader and no ISR.
    """
    json = decode_object(data, node)
    topic_id = _decode_topic_id(json)
    replicas = _decode_replica_lists(json, "partitions")
    adding = _decode_replica_lists(json, "adding_replicas")
    removing = _decode_replica_lists(json, "removing_replicas")
    if not all(replicas.values()):
        raise BadDataError(f"{json.node}: a partition has no replicas")
    partitions = {
        partition: _assignment(
            replicas[partition], adding.get(partition, ()), removing.get(partition, ())
        )
        for partition in sorted(replicas)
    }
    return TopicZNodeData(topic_id, partitions)


@lru_cache(maxsize=16_384)  # thousands of partitions share a few assignments
def _assignment(
    replicas: tuple[BrokerId, ...], adding: tuple[BrokerId, ...], removing: tuple[BrokerId, ...]
) -> ReplicaAssignment:
    return ReplicaAssignment(replicas, adding, removing)


def _decode_replica_lists(json: JsonObject, key: str) -> dict[int, tuple[BrokerId, ...]]:
    if json.values.get(key) in (None, {}):
        return {}
    lists = json.nested(key)
    node, values = lists.node, lists.values
    are_lists = set(map(type, values.values())) <= {list}
    # A cache hit takes a tenth of the time; the types are checked before, because True == 1.
    are_integers = are_lists and set(map(type, chain.from_iterable(values.values()))) <= {int}
    return {
        _partition_id(partition, node): (are_integers and _broker_ids(tuple(replicas)))
        or decode_broker_ids(replicas, node, partition)
        for partition, replicas in values.items()
    }


@lru_cache(maxsize=16_384)
def _partition_id(text: str, node: str) -> int:
    return decode_decimal(text, node, "a partition id")


@lru_cache(maxsize=16_384)
def _broker_ids(integers: tuple[int, ...]) -> tuple[BrokerId, ...]:
    """Return valid broker ids; nothing for an invalid list."""
    try:
        return decode_broker_ids(list(integers), "", "")
    except BadDataError:
        return ()


def _encode_notes(topic_id: str | None, coordinated_partitions: int = 0) -> bytes:
    """Encode as version 1; empty when there is neither an id nor a number."""
    node: dict[str, object] = {} if topic_id is None else {"topic_id": topic_id}
    if coordinated_partitions:
        node["coordinated_partitions"] = coordinated_partitions
    return orjson.dumps({"version": 1, **node}) if node else b""


def _decode_noted_id(node: str, data: bytes) -> str | None:
    return _decode_topic_id(decode_object(data, node)) if data else None


def decode_coordinated_partitions(node: str, data: bytes) -> int:
    """Return the number of partitions of an internal topic in its notes; 0: there is none.

    Raises ``BadDataError``.
    """
    if not data:
        return 0
    return decode_object(data, node).integer("coordinated_partitions", minimum=0, default=0)


def _encode_state(state: LeaderIsrAndControllerEpoch) -> bytes:
    """Encode; ``leader_recovery_state`` is written only while RECOVERING (KIP-704).

    ``eligible_leader_replicas`` (KIP-966) are written if there are any. Kafka's ZooKeeper mode
    ignores them.
    """
    leadership = state.leader_and_isr
    recovery = (
        f',"leader_recovery_state":{leadership.leader_recovery_state:d}'
        if leadership.leader_recovery_state
        else ""
    )
    eligible = leadership.eligible_leader_replicas
    if eligible:
        recovery += f',"eligible_leader_replicas":[{",".join(map(str, eligible))}]'
    return (
        f'{{"controller_epoch":{state.controller_epoch},"leader":{leadership.leader},'
        f'"version":1,"leader_epoch":{leadership.leader_epoch},'
        f'"isr":[{",".join(map(str, leadership.isr))}]{recovery}}}'
    ).encode()


@lru_cache(maxsize=16_384)  # thousands of partitions share a few states
def _decode_state(node: str, data: bytes, partition_epoch: int) -> LeaderIsrAndControllerEpoch:
    """Return the leadership; ``partition_epoch`` is the version in the znode's stat.

    The order of the ISR is kept. A leader outside the ISR and an empty ISR are accepted: old
    implementations have written both, and an election repairs them.
    """
    json = decode_object(data, node)
    leader_epoch = json.integer("leader_epoch")
    if leader_epoch > MAX_LEADER_EPOCH:
        text = f"{json.node}: leader_epoch is {leader_epoch}: {NO_LEADER_EPOCH_LEFT}"
        raise BadDataError(text)
    recovery = json.integer("leader_recovery_state", maximum=1, default=0)
    return LeaderIsrAndControllerEpoch(
        LeaderAndIsr(
            json.integer("leader", NO_LEADER),
            json.broker_ids("isr"),
            leader_epoch,
            partition_epoch,
            LeaderRecoveryState.RECOVERING if recovery else LeaderRecoveryState.RECOVERED,
            json.optional_broker_ids("eligible_leader_replicas"),
        ),
        json.integer("controller_epoch"),
    )


def _encode_deleted(deleted: DeletedTopic) -> bytes:
    """Encode as version 1; each partition is a list: its replicas, its ISR, its leader epoch."""
    return orjson.dumps(
        {
            "version": 1,
            "topic": deleted.topic,
            "topic_id": deleted.topic_id,
            "deleted_ms": deleted.deleted_ms,
            "until_ms": deleted.until_ms,
            "partitions": {str(number): list(row) for number, row in deleted.partitions.items()},
            "config": dict(deleted.config),
            "is_complete": deleted.is_complete,
        }
    )


def _decode_deleted(node: str, data: bytes, zxid: int = -1) -> DeletedTopic:
    """Return the deleted topic; ``zxid`` is in the znode's stat."""
    json = decode_object(data, node)
    topic_id = _decode_topic_id(json)
    if topic_id is None:
        raise bad_field(json.node, "topic_id", "22 characters of base64url", topic_id)
    rows, config = json.nested("partitions"), json.optional_nested("config")
    return DeletedTopic(
        json.string("topic"),
        topic_id,
        json.integer("deleted_ms", maximum=MAX_INT64),
        json.integer("until_ms", maximum=MAX_INT64),
        {
            _partition_id(number, rows.node): _deleted_partition(rows, number)
            for number in sorted(rows.values, key=lambda number: (len(number), number))
        },
        {key: config.string(key) for key in config.values},
        json.values.get("is_complete") is True,
        zxid,
    )


def _deleted_partition(rows: JsonObject, number: str) -> DeletedPartition:
    row = rows.array(number)
    if len(row) != len(DeletedPartition._fields) or type(row[2]) is not int or not row[0]:
        raise bad_field(rows.node, number, "replicas, ISR and leader epoch", row)
    replicas, isr = (decode_broker_ids(ids, rows.node, number) for ids in row[:2])
    if not 0 <= row[2] <= MAX_LEADER_EPOCH:
        raise bad_field(rows.node, number, "a leader epoch", row[2])
    return DeletedPartition(replicas, isr, row[2])


TOPIC = Codec(_encode_topic, _decode_topic)
TOPIC_NOTES = Codec(_encode_notes, _decode_noted_id)
STATE = Codec(_encode_state, _decode_state)
DELETED_TOPIC = Codec(_encode_deleted, _decode_deleted)
