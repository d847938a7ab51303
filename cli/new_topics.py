"""What topics somebody wants, and everything that speaks against creating them.

All of it is checked before anything is written, and all problems are reported, not only the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from regent.core.admin.topic_validation import (
    TopicNames,
    assignment_problem,
    topic_config_problem,
    topic_name_problem,
)
from regent.core.errors import RegentError
from regent.core.model import BrokerId

MAX_PARTITIONS: Final = 1_000_000  # in one command: what one answer of the placement service holds
MAX_REPORTED: Final = 10

_KEYS: Final = ("topic", "partitions", "replication_factor", "config")


class InvalidTopicsError(RegentError):
    """Topics cannot be created; one line a problem, the first ten."""

    def __init__(self, problems: Sequence[str]) -> None:
        more = len(problems) - MAX_REPORTED
        lines = [*problems[:MAX_REPORTED], *([f"… and {more} more problems"] if more > 0 else [])]
        super().__init__("\n".join(lines))


class WantedTopic(NamedTuple):
    """A topic as it was asked for; without an ``assignment`` it is still to be placed."""

    topic: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    assignment: tuple[tuple[BrokerId, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class ClusterContent:
    """What new topics must fit in with."""

    brokers: Collection[BrokerId]
    topics: Collection[str]
    topics_being_deleted: Collection[str] = field(default_factory=frozenset)


# --- from the command line ------------------------------------------------------------------------


def parse_replica_assignment(text: str) -> tuple[tuple[BrokerId, ...], ...]:
    """Parse Kafka's ``0:1:2,1:2:0``: partitions separated by commas. Raises ``ValueError``."""
    assignment = []
    for partition, replicas in enumerate(text.split(",")):
        ids = [replica.strip() for replica in replicas.split(":")]
        if not all(i.isascii() and i.isdigit() and len(i) <= 10 for i in ids):
            raise ValueError(
                f"partition {partition} must be broker ids separated by colons, not {replicas!r}"
            )
        assignment.append(tuple(map(int, ids)))
    return tuple(assignment)


def parse_config(options: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` options. Raises ``ValueError``."""
    config: dict[str, str] = {}
    for option in options:
        name, separator, value = option.partition("=")
        name = name.strip()
        if not separator or not name:
            raise ValueError(f"must be NAME=VALUE, not {option!r}")
        if name in config:
            raise ValueError(f"{name} is given twice")
        config[name] = value.strip()
    return config


# --- from a file ----------------------------------------------------------------------------------


def parse_topics_file(data: bytes, source: str) -> list[WantedTopic]:
    """Parse ``[{"topic", "partitions", "replication_factor", "config"?}]``.

    Raises ``InvalidTopicsError``, naming ``source`` and the entries, counted from 1.
    """
    try:
        entries = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidTopicsError([f"{source}: not JSON: {error}"]) from None
    if not isinstance(entries, list) or not entries:
        expected = f"a JSON list of objects with the keys {', '.join(_KEYS)}"
        raise InvalidTopicsError([f"{source}: must be {expected}"])
    problems: list[str] = []
    topics = []
    for number, entry in enumerate(entries, 1):
        found = list(_entry_problems(entry))
        if found:
            name = entry.get("topic") if isinstance(entry, dict) else None
            where = f"{source}: entry {number}" + (f" ({name})" if isinstance(name, str) else "")
            problems += [f"{where}: {problem}" for problem in found]
        else:
            topics.append(_wanted(entry))
    if problems:
        raise InvalidTopicsError(problems)
    return topics


def _entry_problems(entry: object) -> list[str]:
    if not isinstance(entry, dict):
        return [f"must be an object with the keys {', '.join(_KEYS)}"]
    problems = [
        f"unknown key {key!r}; the keys are {', '.join(_KEYS)}" for key in entry if key not in _KEYS
    ]
    config = entry.get("config", {})
    for key, value, kind, name in (
        ("topic", entry.get("topic"), str, "a string"),
        ("partitions", entry.get("partitions"), int, "a number"),
        ("replication_factor", entry.get("replication_factor"), int, "a number"),
        ("config", config, dict, "an object"),
    ):
        if key not in entry and key != "config":
            problems.append(f"{key} is missing")
        elif not isinstance(value, kind) or isinstance(value, bool):
            problems.append(f"{key} must be {name}, not {_shown(value)}")
    if isinstance(config, dict):
        problems += [
            f"config {setting} must be a string, a number or a boolean, not {_shown(value)}"
            for setting, value in config.items()
            if not isinstance(value, str | int | float)
        ]
    return problems


def _wanted(entry: Mapping[str, Any]) -> WantedTopic:
    return WantedTopic(
        entry["topic"],
        entry["partitions"],
        entry["replication_factor"],
        {name: _config_text(value) for name, value in entry.get("config", {}).items()},
    )


def _config_text(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: object) -> str:
    return _brief(orjson.dumps(value).decode())


def _shown_name(topic: str) -> str:
    return topic if topic_name_problem(topic) is None else _brief(repr(topic))


def _brief(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"


# --- what speaks against them ---------------------------------------------------------------------


def check_topics(
    topics: Sequence[WantedTopic], cluster: ClusterContent, *, may_exist: bool
) -> list[WantedTopic]:
    """Return the topics to create: all of them, or with ``may_exist`` those that do not exist.

    Raises ``InvalidTopicsError`` with every problem of every topic.
    """
    problems: list[str] = []
    names = TopicNames(cluster.topics)
    existing = set(cluster.topics)
    seen: set[str] = set()
    missing = []
    for wanted in topics:
        if wanted.topic in seen:
            found = ["is named more than once"]
        elif wanted.topic in existing:
            found = _existence_problems(wanted.topic, cluster, may_exist=may_exist)
        else:
            found = [*_name_problems(wanted.topic, names), *_shape_problems(wanted, cluster)]
            missing.append(wanted)
        seen.add(wanted.topic)
        names.add(wanted.topic)
        problems += [f"topic {_shown_name(wanted.topic)} {problem}" for problem in found]
    total = sum(wanted.partitions for wanted in missing)
    if not problems and total > MAX_PARTITIONS:
        problems.append(f"{total} partitions in one command are more than {MAX_PARTITIONS}: split")
    if problems:
        raise InvalidTopicsError(problems)
    return missing


def _name_problems(topic: str, names: TopicNames) -> list[str]:
    problem = topic_name_problem(topic)
    if problem:
        return [problem]
    other = names.collision(topic)
    return [f'collides with topic {other}: "." and "_" are the same in metrics'] if other else []


def _existence_problems(topic: str, cluster: ClusterContent, *, may_exist: bool) -> list[str]:
    if topic in cluster.topics_being_deleted:
        return ["already exists and is being deleted"]
    return [] if may_exist else ["already exists"]


def _shape_problems(wanted: WantedTopic, cluster: ClusterContent) -> list[str]:
    problems = []
    if wanted.assignment is not None:
        problem = assignment_problem(wanted.assignment, cluster.brokers)
        problems += [f"cannot be assigned so: {problem}"] if problem else []
    else:
        if wanted.partitions <= 0:
            problems.append(f"needs at least one partition, not {wanted.partitions}")
        problems += _replication_factor_problems(wanted.replication_factor, len(cluster.brokers))
    for name, value in wanted.config.items():
        problem = topic_config_problem(name, value)
        problems += [f"config {name} {problem}"] if problem else []
    return problems


def _replication_factor_problems(replication_factor: int, live: int) -> list[str]:
    if replication_factor <= 0:
        return [f"needs a replication factor of at least 1, not {replication_factor}"]
    if replication_factor > live:
        brokers = f"{live} live broker{'' if live == 1 else 's'}"
        return [f"has replication factor {replication_factor}, but there are {brokers}"]
    return []
