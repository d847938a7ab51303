"""Kafka's JSON files about partitions: targets to move to, topics, partitions to elect.

Unknown keys (``version``, ``log_dirs`` …) are ignored. Every other mistake is a ``BadDataError``
that names the file, the number of the entry, from 1, and the expected form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Final, TypeVar

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, TopicPartition
from regent.zk.codecs.json_fields import JsonObject, decode_object

T = TypeVar("T")

_REASSIGNMENT: Final = '{"topic": "t", "partition": 0, "replicas": [0, 1]}'
_PARTITION: Final = '{"topic": "t", "partition": 0}'
_TOPIC: Final = '{"topic": "t"}'


def read_reassignment_file(file: BinaryIO) -> dict[TopicPartition, tuple[BrokerId, ...]]:
    """Read ``--reassignment-json-file``: the target replicas of partitions."""
    return dict(_read(file, "partitions", _REASSIGNMENT, _reassignment))


def read_topics_to_move_file(file: BinaryIO) -> list[str]:
    """Read ``--topics-to-move-json-file``: the topics."""
    return [
        topic for topic, _ in _read(file, "topics", _TOPIC, lambda e: (e.string("topic"), None))
    ]


def read_partitions_file(file: BinaryIO) -> list[TopicPartition]:
    """Read ``--path-to-json-file``: partitions to elect leaders for."""
    entries = _read(file, "partitions", _PARTITION, lambda e: (_partition(e), None))
    return [partition for partition, _ in entries]


def reassignment_json(
    assignments: Mapping[TopicPartition, Iterable[BrokerId]],
) -> dict[str, object]:
    """Return the content of a ``--reassignment-json-file``, sorted."""
    entries = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in sorted(assignments.items())
    ]
    return {"version": 1, "partitions": entries}


def _read(
    file: BinaryIO, key: str, example: str, parse: Callable[[JsonObject], tuple[Any, T]]
) -> list[tuple[Any, T]]:
    source = getattr(file, "name", "the file")
    try:
        entries = [
            JsonObject(entry.values, f"{source}: entry {number} of {key}")
            for number, entry in enumerate(decode_object(file.read(), source).objects(key), 1)
        ]
        if not entries:
            raise BadDataError(f"{source}: {key} is empty")
        parsed: dict[Any, T] = {}
        for entry in entries:
            subject, value = parse(entry)
            if subject in parsed:
                raise BadDataError(f"{entry.node}: {subject} is named twice")
            parsed[subject] = value
    except BadDataError as error:
        raise BadDataError(f'{error}; it must be {{"{key}": [{example}, …]}}') from None
    return list(parsed.items())


def _reassignment(entry: JsonObject) -> tuple[TopicPartition, tuple[BrokerId, ...]]:
    partition, replicas = _partition(entry), entry.broker_ids("replicas")
    if not replicas:
        raise BadDataError(f"{entry.node}: {partition} has no replicas (--cancel stops a move)")
    return partition, replicas


def _partition(entry: JsonObject) -> TopicPartition:
    return TopicPartition(entry.string("topic"), entry.integer("partition"))
