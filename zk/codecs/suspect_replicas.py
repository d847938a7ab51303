"""The suspect replicas of a registered broker, in znodes that only Regent has.

A key of the registration says how many ephemeral znodes of the same session list the replicas, and
their generation. They are created before the registration names them, and never changed. So a
controller never sees a broker without its list, or parts of two lists. Kafka's tools and
controllers ignore the key and the znodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import orjson

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, LogEnd, SuspectReplicas, TopicPartition
from regent.zk.codecs.json_fields import MAX_INT32, MAX_INT64, JsonObject, decode_object

PARENT = "/brokers/suspect_replicas"
MAX_ROWS = 2_000  # per znode: 0.7 MB with the longest topic names
_NODE = f"{PARENT}/<broker>-<session>-<generation>-<number>"
_MAX_ZNODES = 10_000


@dataclass(frozen=True, slots=True)
class SuspectZnodes:
    """What a registration says of these znodes: their generation and their number."""

    generation: int = 0
    count: int = 0

    def paths(self, broker_id: BrokerId, session_id: int) -> list[str]:
        """Return the paths of the znodes."""
        stem = f"{PARENT}/{broker_id}-{session_id:x}-{self.generation}"
        return [f"{stem}-{number}" for number in range(self.count)]

    def encode(self) -> dict[str, int] | None:
        """Return the value of the registration's key; None: the key is absent."""
        return {"generation": self.generation, "znodes": self.count} if self.count else None

    @staticmethod
    def decode(registration: bytes, node: str) -> SuspectZnodes:
        """Decode the key of a registration. Raises ``BadDataError``."""
        json = decode_object(registration, node).optional_nested("suspect_replicas")
        if not json.values:
            return SuspectZnodes()
        return SuspectZnodes(json.integer("generation"), json.integer("znodes", 1, _MAX_ZNODES))


def encode(suspects: SuspectReplicas) -> list[bytes]:
    """Return the contents of the znodes; none when nothing is suspect."""
    if not suspects:
        return []
    rows = [
        (topic_partition, [topic_partition.partition, *end])
        for topic_partition, end in sorted(suspects.ends.items())
    ]
    rows += [
        (topic_partition, [topic_partition.partition])
        for topic_partition in sorted(suspects.sound or ())
    ]
    chunks = [rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS)] or [[]]
    return [
        orjson.dumps(
            {
                "version": 1,
                "knows_all": suspects.sound is None,
                "replicas": [
                    {"topic": topic, "partitions": [row for _, row in of_topic]}
                    for topic, of_topic in groupby(chunk, key=lambda row: row[0].topic)
                ],
            }
        )
        for chunk in chunks
    ]


def decode(chunks: Sequence[bytes]) -> SuspectReplicas:
    """Decode the contents of the znodes. Raises ``BadDataError``."""
    ends: dict[TopicPartition, LogEnd] = {}
    sound: set[TopicPartition] = set()
    knows_all = True
    for data in chunks:
        json = decode_object(data, _NODE)
        knows_all = knows_all and json.values.get("knows_all") is True
        for topic_partition, row in _rows(json.objects("replicas")):
            if len(row) == 1:
                sound.add(topic_partition)
            else:
                ends[topic_partition] = LogEnd(row[1], row[2])
    return SuspectReplicas(ends, None if knows_all else frozenset(sound))


def _rows(topics: Iterable[JsonObject]) -> Iterator[tuple[TopicPartition, list[int]]]:
    for topic in topics:
        name = topic.string("topic")
        for row in topic.array("partitions"):
            limits = (MAX_INT32, MAX_INT32, MAX_INT64)
            is_row = type(row) is list and len(row) in (1, 3)
            if not is_row or not all(
                type(number) is int and -1 <= number <= limit
                for number, limit in zip(row, limits, strict=False)
            ):
                raise BadDataError(f"{_NODE}: {str(row)[:60]} is not a partition and its log's end")
            yield TopicPartition(name, row[0]), row
