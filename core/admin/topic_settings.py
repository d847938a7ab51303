"""The settings of topics: those of ``LogConfig``, and the others, which are declared here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Any

from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.core.setting import LONG_MAX, ConfigType, Scope, Setting, setting, settings_of

UNCLEAN_LEADER_ELECTION = "unclean.leader.election.enable"
_WITHOUT_EFFECT = "Accepted from Kafka's tools. It has no effect."
_REPLICAS = {
    "type": ConfigType.LIST,
    "pattern": r"|\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*",
    "form": "* or PARTITION:BROKER,PARTITION:BROKER,…",
}


def _of_topics(default: Any, meaning: str = _WITHOUT_EFFECT, **declared: Any) -> Any:
    return setting(default, meaning, **{"scope": Scope.TOPIC, "limits": (0, LONG_MAX), **declared})


@dataclass(frozen=True)
class OtherTopicSettings:
    """The settings of topics that are not those of ``LogConfig``. Defaults are Kafka's."""

    unclean_leader_election_enable: bool = _of_topics(
        False,
        "Whether a replica that is not in sync may lead when no other can. The partition is"
        " available again; acknowledged records may be lost.",
        broker_name=UNCLEAN_LEADER_ELECTION,
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
    )
    local_retention_bytes: int = _of_topics(-2, limits=(-2, LONG_MAX))
    local_retention_ms: int = _of_topics(-2, limits=(-2, LONG_MAX))
    message_downconversion_enable: bool = _of_topics(True)
    message_format_version: str = _of_topics(
        "3.0-IV1", pattern=r"[0-9]+\.[0-9]+(\.[0-9]+)?(-IV[0-9]+)?", form="a version of Kafka"
    )
    preallocate: bool = _of_topics(False)
    remote_storage_enable: bool = _of_topics(False)


TOPIC_SETTINGS: Mapping[str, Setting] = {
    row.dotted_name: row
    for row in chain(settings_of(DEFAULT_LOG_CONFIG), settings_of(OtherTopicSettings()))
}
"""Every setting that a topic may override, by Kafka's names."""


def unclean_leader_election(config: Mapping[str, str]) -> bool | None:
    """Return whether the overrides of a topic or broker allow unclean elections; None: not set."""
    text = config.get(UNCLEAN_LEADER_ELECTION)
    return None if text is None else text.strip().lower() == "true"


def has_effect(topic_setting: Setting) -> bool:
    """Whether Regent reads the setting."""
    return topic_setting.meaning != _WITHOUT_EFFECT


def topic_config_problem(name: str, value: str) -> str | None:
    """Return why a topic cannot override setting ``name`` with ``value``; None: it can.

    The text is the end of a sentence whose subject is the setting.
    """
    row = TOPIC_SETTINGS.get(name)
    if row is not None:
        return row.text_problem(value)
    names = sorted(TOPIC_SETTINGS)
    similar = get_close_matches(name, names, n=1)
    hint = f"did you mean {similar[0]}?" if similar else f"those are {', '.join(names)}"
    return f"is not a setting of topics; {hint}"


def conflict_of(overrides: Mapping[str, str]) -> str | None:
    """Return why the settings of a topic, each of which is allowed, cannot be used together."""
    config = DEFAULT_LOG_CONFIG.overridden(overrides)
    least_ms, most_ms = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if least_ms <= most_ms:
        return None
    return f"min.compaction.lag.ms ({least_ms}) must not exceed max.compaction.lag.ms ({most_ms})"
