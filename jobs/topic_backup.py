"""A backup of topics: a directory with ``backup.json``, and the records as a table in ``records``.

``backup.json`` says what the topics were: partitions with the first offset and the one after the
last, the number of replicas, the settings of their own, and where groups had committed. It is
written after the records, so a directory with it is complete. The table is Parquet with the columns
of Spark's Kafka connector and one more, in a directory for each topic: other programs can read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from regent.core.model import TopicPartition
from regent.jobs.command import InputError
from regent.jobs.files import SUCCESS, JobFiles, inside

RECORDS: Final = "records"
COLUMNS: Final = (
    "partition int, offset long, timestamp timestamp, timestampType int, key binary, value binary,"
    " headers array<struct<key:string,value:binary>>, timestampMs long"
)
"""The columns of a record beside ``topic``. ``timestampMs`` is null, or a time (ms) that the column
``timestamp`` cannot hold; that has the nearest one which it can."""

_DOCUMENT: Final = "backup.json"
_VERSION: Final = 1


class BackedUpTopic(NamedTuple):
    """A topic at the time of the backup.

    ``configs`` has the settings of its own. ``retention_ms``: how long it kept records; -1: no
    limit. ``offsets`` has the bounds of each partition.
    """

    name: str
    replication_factor: int
    configs: Mapping[str, str]
    retention_ms: int
    offsets: tuple[tuple[int, int], ...]

    @property
    def partitions(self) -> int:
        """How many it had."""
        return len(self.offsets)

    @property
    def record_bound(self) -> int:
        """How many records it can have: offsets without a record count."""
        return sum(end - start for start, end in self.offsets)


class GroupPosition(NamedTuple):
    """What a group committed for a partition."""

    offset: int
    metadata: str


class Backup(NamedTuple):
    """What ``backup.json`` says; ``groups`` has the committed offsets of each group."""

    topics: tuple[BackedUpTopic, ...]
    groups: Mapping[str, Mapping[TopicPartition, GroupPosition]]


def write_backup(backup: Backup, location: str, files: JobFiles) -> None:
    """Write ``backup.json``, and ``_SUCCESS``, which completes the directory."""
    document = {
        "version": _VERSION,
        "topics": [topic._asdict() for topic in backup.topics],
        "groups": {
            group: [{"topic": p.topic, "partition": p.partition, **of[p]._asdict()} for p in of]
            for group, of in backup.groups.items()
        },
    }
    with files.writing(inside(location, _DOCUMENT)) as path:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    with files.writing(inside(location, SUCCESS)) as path:
        path.touch()


def read_backup(location: str, files: JobFiles) -> Backup:
    """Return what a backup has. Raises ``InputError``."""
    document = inside(location, _DOCUMENT)
    if files.entry(document) is None:
        raise InputError(f"{location} is no complete backup: it has no {_DOCUMENT}")
    try:
        found = orjson.loads(files.read(document))
        if found["version"] != _VERSION:
            raise InputError(
                f"{document} has version {found['version']}: this release reads {_VERSION}"
            )
        return Backup(
            tuple(_topic(row) for row in found["topics"]),
            {
                group: {
                    TopicPartition(r["topic"], r["partition"]): GroupPosition(
                        r["offset"], r.get("metadata", "")
                    )
                    for r in rows
                }
                for group, rows in found["groups"].items()
            },
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{document} is damaged: {error!r}") from None


def _topic(row: Mapping[str, Any]) -> BackedUpTopic:
    offsets = tuple((int(start), int(end)) for start, end in row["offsets"])
    configs = {str(name): str(text) for name, text in row["configs"].items()}
    numbers = int(row["replication_factor"]), configs, int(row["retention_ms"])
    return BackedUpTopic(str(row["name"]), *numbers, offsets)


def chosen(names: Iterable[str], pattern: str | None, where: str) -> list[str]:
    """Return the names that a regular expression matches as a whole; None: all.

    Raises ``InputError`` if there is none.
    """
    try:
        wanted = re.compile(pattern if pattern is not None else ".*", re.DOTALL)
    except re.error as error:
        raise InputError(f"--topics {pattern}: no regular expression: {error}") from None
    found = sorted(name for name in names if wanted.fullmatch(name))
    if not found:
        raise InputError(f"no topic of {where} fits {pattern or 'any name'}")
    return found
