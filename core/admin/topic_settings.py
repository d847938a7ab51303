"""The settings of topics: those of ``LogConfig``, and the others, which are declared here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any

from regent.core.errors import BadDataError
from regent.core.log_config import TOPIC_LOG_SETTINGS
from regent.core.setting import (
    LONG_MAX,
    WITHOUT_EFFECT,
    ConfigType,
    Scope,
    Setting,
    setting,
    settings_of,
)

UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
DELETION_PROTECTION = "regent.deletion.protection"
_REPLICAS = {
    "type": ConfigType.LIST,
    "pattern": r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*",
    "form": "* or PARTITION:BROKER,PARTITION:BROKER,…",
}
_NO_TIERED_STORAGE: Mapping[str, Any] = {
    "choices": ("false",),
    "form": "false: there is no tiered storage",
}


def _of_topics(default: Any, meaning: str = WITHOUT_EFFECT, **declared: Any) -> Any:
    return setting(default, meaning, **{"scope": Scope.TOPIC, "limits": (0, LONG_MAX), **declared})


def _of_brokers_too(default: Any, broker_name: str, **declared: Any) -> Any:
    """Return a setting whose default is a setting of brokers, which has no effect either."""
    return _of_topics(default, **{"broker_name": broker_name, **declared})


@dataclass(frozen=True)
class OtherTopicSettings:
    """The settings of topics that are not those of ``LogConfig``. Defaults are Kafka's."""

    unclean_leader_election_enable: bool = _of_topics(
        False,
        "Whether a replica that is not in sync may lead when no other can. The partition is"
        " available again; acknowledged records may be lost.",
        broker_name=UNCLEAN_LEADER_ELECTION,
    )
    deletion_protection: bool = _of_topics(
        False,
        "Whether the requests of all clients to delete the topic are refused. Kafka's"
        " brokers do not know this setting.",
        ours=True,
        prefix="regent.",
    )
    leader_replication_throttled_replicas: str = _of_topics(
        "", "The leaders that send to followers at a limited rate (KIP-73).", **_REPLICAS
    )
    follower_replication_throttled_replicas: str = _of_topics(
        "", "The replicas that fetch from their leaders at a limited rate (KIP-73).", **_REPLICAS
    )
    compression_type: str = _of_topics(
        "producer",
        "The broker keeps the compression of the producer, for every value.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    )
    compression_gzip_level: int = _of_brokers_too(
        -1,
        "compression.gzip.level",
        limits=(-1, 9),
        choices=("-1", *map(str, range(1, 10))),
        form="-1, or a number from 1 to 9",
    )
    compression_lz4_level: int = _of_brokers_too(9, "compression.lz4.level", limits=(1, 17))
    compression_zstd_level: int = _of_brokers_too(
        3, "compression.zstd.level", limits=(-131_072, 22)
    )
    local_retention_bytes: int = _of_brokers_too(
        -2, "log.local.retention.bytes", limits=(-2, LONG_MAX)
    )
    local_retention_ms: int = _of_brokers_too(-2, "log.local.retention.ms", limits=(-2, LONG_MAX))
    message_format_version: str = _of_brokers_too(
        "3.0-IV1",
        "log.message.format.version",
        pattern=r"[0-9]+(\.[0-9]+){1,3}(-IV[0-9]+)?",
        form="a version of Kafka",
    )
    preallocate: bool = _of_brokers_too(False, "log.preallocate")
    remote_log_copy_disable: bool = _of_topics(False, **_NO_TIERED_STORAGE)
    remote_log_delete_on_disable: bool = _of_topics(False, **_NO_TIERED_STORAGE)
    remote_storage_enable: bool = _of_topics(False, **_NO_TIERED_STORAGE)


TOPIC_SETTINGS: Mapping[str, Setting] = {
    row.dotted_name: row
    for row in chain(TOPIC_LOG_SETTINGS.values(), settings_of(OtherTopicSettings()))
}
"""Every setting that a topic may override, by Kafka's names: all of Kafka 3.9, and two of ours."""


def unclean_leader_election(config: Mapping[str, str]) -> bool | None:
    """Return whether the overrides of a topic or broker allow unclean elections.

    None: it is not set, or neither to true nor to false.
    """
    text = config.get(UNCLEAN_LEADER_ELECTION)
    row = TOPIC_SETTINGS[UNCLEAN_LEADER_ELECTION]
    return None if text is None or row.text_problem(text) else bool(row.parsed(text))


def is_protected(config: Mapping[str, str]) -> bool:
    """Return whether the overrides of a topic protect it from deletion."""
    text = config.get(DELETION_PROTECTION)
    row = TOPIC_SETTINGS[DELETION_PROTECTION]
    return text is not None and row.text_problem(text) is None and bool(row.parsed(text))


def deletion_is_enabled(config: Mapping[str, str], *, default: bool) -> bool:
    """Return ``delete.topic.enable`` of brokers with these overrides."""
    text = config.get("delete.topic.enable", "").strip().lower()
    return text == "true" if text in ("true", "false") else default


def protected_topics(
    configs: Mapping[str, Mapping[str, str] | BadDataError],
) -> frozenset[str]:
    """Return the topics whose overrides protect them; those that cannot be read do not."""
    usable = {t: c for t, c in configs.items() if not isinstance(c, BadDataError)}
    return frozenset(topic for topic, config in usable.items() if is_protected(config))


def topic_config_problem(name: str, value: str) -> str | None:
    """Return why a topic cannot override setting ``name`` with ``value``; None: it can.

    The text is the end of a sentence whose subject is the setting.
    """
    row = TOPIC_SETTINGS.get(name)
    if row is not None:
        return row.text_problem(value)
    return f"is not a setting of topics; {similar_names(name, TOPIC_SETTINGS)}"


def topic_config_conflict(
    config: Mapping[str, str | None], defaults: Mapping[str, str]
) -> str | None:
    """Return which valid values contradict each other; None: none do.

    ``defaults`` has the values of the settings that ``config`` does not have.
    """
    names = ("min.compaction.lag.ms", "max.compaction.lag.ms")
    rows = [TOPIC_SETTINGS[name] for name in names]
    texts = [config.get(name) or defaults.get(name) or "" for name in names]
    least, greatest = (
        row.default if row.text_problem(text) else row.parsed(text)
        for row, text in zip(rows, texts, strict=True)
    )
    return (
        None
        if least <= greatest
        else f"{names[0]} ({least}) must not exceed {names[1]} ({greatest})"
    )


def similar_names(name: str, names: Collection[str]) -> str:
    """Return a hint for a name that is none of ``names``: the nearest one, else all."""
    similar = get_close_matches(name, names, n=1)
    return f"did you mean {similar[0]}?" if similar else f"those are {', '.join(sorted(names))}"
