"""Parses new topics in options and files. Reports all problems, not only the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from regent.client.json_files import decode_file, unknown_keys
from regent.client.topics import TopicsRefusedError
from regent.core.errors import BadDataError
from regent.core.model import MAX_BROKER_ID, BrokerId
from regent.core.protocol.messages.topics import CreatableTopic, CreatableTopicConfig
from regent.core.setting import text_of

_MOST: Final = {"partitions": 2**31 - 1, "replication_factor": 2**15 - 1}
_NUMBERS: Final = tuple(_MOST)
_KEYS: Final = ("topic", *_NUMBERS, "config")


# --- from the command line ------------------------------------------------------------------------


def parse_replica_assignment(text: str) -> tuple[tuple[BrokerId, ...], ...]:
    """Parse Kafka's ``0:1:2,1:2:0``: partitions separated by commas. Raises ``ValueError``."""
    assignment = []
    for partition, replicas in enumerate(text.split(",")):
        ids = [replica.strip() for replica in replicas.split(":")]
        if not all(
            i.isascii() and i.isdigit() and len(i) <= 10 and int(i) <= MAX_BROKER_ID for i in ids
        ):
            raise ValueError(
                f"partition {partition} must be broker ids from 0 to {MAX_BROKER_ID} separated by"
                f" colons, not {replicas!r}"
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


def new_configs(settings: Mapping[str, str]) -> tuple[CreatableTopicConfig, ...]:
    """Return settings as the request for a new topic has them."""
    return tuple(CreatableTopicConfig(name=name, value=v) for name, v in settings.items())


# --- from a file ----------------------------------------------------------------------------------


def parse_topics_file(data: bytes, source: str) -> list[CreatableTopic]:
    """Parse ``[{"topic", "partitions", "replication_factor", "config"?}]``.

    Raises ``TopicsRefusedError``, naming ``source`` and the entries, counted from 1.
    """
    try:
        entries = decode_file(data, source)
    except BadDataError as error:
        raise TopicsRefusedError([str(error)]) from None
    if not isinstance(entries, list) or not entries:
        expected = f"a JSON list of objects with the keys {', '.join(_KEYS)}"
        raise TopicsRefusedError([f"{source}: must be {expected}"])
    problems: list[str] = []
    topics = []
    for number, entry in enumerate(entries, 1):
        found = list(_entry_problems(entry))
        if found:
            name = entry.get("topic") if isinstance(entry, dict) else None
            where = f"{source}: entry {number}" + (f" ({name})" if isinstance(name, str) else "")
            problems += [f"{where}: {problem}" for problem in found]
        else:
            topics.append(_creatable(entry))
    if problems:
        raise TopicsRefusedError(problems)
    return topics


def _entry_problems(entry: object) -> list[str]:
    if not isinstance(entry, dict):
        return [f"must be an object with the keys {', '.join(_KEYS)}"]
    problems = unknown_keys(entry, _KEYS)
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
    problems += [] if problems else out_of_range(**{key: entry[key] for key in _NUMBERS})
    if isinstance(config, dict):
        problems += [
            f"config {setting} must be a string, a number or a boolean, not {_shown(value)}"
            for setting, value in config.items()
            if not isinstance(value, str | int | float)
        ]
    return problems


def out_of_range(**numbers: int) -> list[str]:
    """Return a problem for each number that no request can have; -1 would mean the default."""
    limits = [(key, n, _MOST[key]) for key, n in numbers.items()]
    return [
        f"{key} must be at least 1, not {n}" if n <= 0 else f"{key} must be at most {most}, not {n}"
        for key, n, most in limits
        if not 0 < n <= most
    ]


def _creatable(entry: Mapping[str, Any]) -> CreatableTopic:
    return CreatableTopic(
        name=entry["topic"],
        num_partitions=entry["partitions"],
        replication_factor=entry["replication_factor"],
        configs=new_configs({n: text_of(v) for n, v in entry.get("config", {}).items()}),
    )


def _shown(value: object) -> str:
    return _brief(orjson.dumps(value).decode())


def _brief(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:60]}…"
