"""Kafka's JSON files about partitions: targets to move to, topics, partitions to elect.

Every mistake is a ``BadDataError`` that names the file, the number of the entry, from 1, and the
expected form. An unknown key is a mistake: it would have no effect.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

from regent.client.json_files import decode_file, unknown_keys
from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.codecs.json_fields import JsonObject, bad_field

T = TypeVar("T")

ANY_LOG_DIR: Final = "any"
"""The broker chooses the log directory of a new replica, and an old one stays where it is."""

_REASSIGNMENT: Final = '{"topic": "t", "partition": 0, "replicas": [0, 1]}'
_PARTITION: Final = '{"topic": "t", "partition": 0}'
_TOPIC: Final = '{"topic": "t"}'
_VERSIONS: Final = (None, 1, "1")


class TopicPartitionReplica(NamedTuple):
    """A replica of a partition. Sorted as in Kafka's output: by the broker first."""

    broker_id: BrokerId
    topic_partition: TopicPartition

    def __str__(self) -> str:
        """Return ``topic-partition-broker``, as Kafka's ``TopicPartitionReplica``."""
        return f"{self.topic_partition}-{self.broker_id}"


class ReassignmentFile(NamedTuple):
    """The target replicas of partitions, and the log directories of some of these replicas."""

    replicas: dict[TopicPartition, tuple[BrokerId, ...]]
    log_dirs: dict[TopicPartitionReplica, str]


def read_reassignment_file(file: BinaryIO) -> ReassignmentFile:
    """Read ``--reassignment-json-file``, also ``plan.json``, which has the bytes of partitions."""
    keys = ("topic", "partition", "replicas", "log_dirs", "bytes")
    rows = _read(file, "partitions", keys, _REASSIGNMENT, _reassignment)
    log_dirs: dict[TopicPartitionReplica, str] = {}
    for partition, (replicas, paths) in rows:
        places = zip(replicas, paths, strict=True)
        log_dirs |= {
            TopicPartitionReplica(b, partition): path for b, path in places if path != ANY_LOG_DIR
        }
    return ReassignmentFile({partition: replicas for partition, (replicas, _) in rows}, log_dirs)


def read_topics_to_move_file(file: BinaryIO) -> list[str]:
    """Read ``--topics-to-move-json-file``: the topics."""
    rows = _read(file, "topics", ("topic",), _TOPIC, lambda e: (e.string("topic"), None))
    return [topic for topic, _ in rows]


def read_partitions_file(file: BinaryIO) -> list[TopicPartition]:
    """Read ``--path-to-json-file``: partitions to elect leaders for."""
    keys = ("topic", "partition")
    rows = _read(file, "partitions", keys, _PARTITION, lambda e: (_partition(e), None))
    return [partition for partition, _ in rows]


def reassignment_json(
    assignments: Mapping[TopicPartition, Iterable[BrokerId]],
    log_dirs: Mapping[TopicPartitionReplica, str] | None = None,
) -> dict[str, object]:
    """Return the content of a ``--reassignment-json-file``, sorted.

    Replicas without an entry in ``log_dirs`` get "any".
    """
    entries = []
    for partition, replicas in sorted(assignments.items()):
        paths = [
            (log_dirs or {}).get(TopicPartitionReplica(b, partition), ANY_LOG_DIR) for b in replicas
        ]
        row = {**partition._asdict(), "replicas": list(replicas), "log_dirs": paths}
        entries.append(row)
    return {"version": 1, "partitions": entries}


def _read(
    file: BinaryIO,
    key: str,
    keys: tuple[str, ...],
    example: str,
    parse: Callable[[JsonObject], tuple[Any, T]],
) -> list[tuple[Any, T]]:
    """Return what ``parse`` makes of each entry of the list ``key``; entries have ``keys``."""
    source = getattr(file, "name", "the file")
    try:
        content = decode_file(file.read(), source)
        if type(content) is not dict:
            raise BadDataError(f"{source}: must be a JSON object, not {reprlib.repr(content)}")
        whole = JsonObject(content, source)
        _refuse_unknown(whole, ("version", key))
        if content.get("version") not in _VERSIONS:
            raise bad_field(source, "version", "1", content["version"])
        parsed: dict[Any, T] = {}
        for number, entry in enumerate(whole.objects(key), 1):
            entry = JsonObject(entry.values, f"{source}: entry {number} of {key}")
            _refuse_unknown(entry, keys)
            subject, value = parse(entry)
            if subject in parsed:
                raise BadDataError(f"{entry.node}: {subject} is named twice")
            parsed[subject] = value
        if not parsed:
            raise BadDataError(f"{source}: {key} is empty")
    except BadDataError as error:
        raise BadDataError(f'{error}; it must be {{"{key}": [{example}, …]}}') from None
    return list(parsed.items())


def _refuse_unknown(found: JsonObject, keys: tuple[str, ...]) -> None:
    for problem in unknown_keys(found.values, keys):
        raise BadDataError(f"{found.node}: {problem}")


def _reassignment(
    entry: JsonObject,
) -> tuple[TopicPartition, tuple[tuple[BrokerId, ...], list[str]]]:
    partition, replicas = _partition(entry), entry.broker_ids("replicas")
    if not replicas:
        raise BadDataError(f"{entry.node}: {partition} has no replicas (--cancel stops a move)")
    paths = [ANY_LOG_DIR] * len(replicas)
    if entry.values.get("log_dirs") is not None:
        paths = entry.array("log_dirs")
    for path in paths:
        if type(path) is not str or not path:
            raise bad_field(entry.node, "log_dirs", 'a list of paths or "any"', path or "")
    if len(paths) != len(replicas):
        raise BadDataError(
            f"{entry.node}: Size of replicas list [{', '.join(map(str, replicas))}] is different"
            f" from size of log dirs list [{', '.join(paths)}] for partition {partition}"
        )
    return partition, (replicas, paths)


def _partition(entry: JsonObject) -> TopicPartition:
    return TopicPartition(entry.string("topic"), entry.integer("partition"))
