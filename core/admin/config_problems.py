"""Why a setting of a topic, a broker or a client cannot be used.

The same rules hold for what clients ask for and for what is in ZooKeeper, where other versions and
people write too. A setting in ZooKeeper that cannot be used is not in force: it is not applied and
not described, and the broker's log and ``status`` name it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Final

from regent.core.admin.topic_settings import TOPIC_SETTINGS, topic_config_problem
from regent.core.quota.quota_entities import entity_of, quota_value
from regent.core.setting import ConfigType, Scope, Setting

_OF_A_LISTENER: Final = re.compile(r"listener\.name\.[^.]*\.(.+)")
_CHANGED_FOR_A_LISTENER_ONLY: Final = frozenset(
    {
        *("ssl.key.password", "ssl.keystore.certificate.chain", "ssl.keystore.key"),
        *("ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type"),
        *("ssl.truststore.certificates", "ssl.truststore.location", "ssl.truststore.password"),
        "ssl.truststore.type",
    }
)
"""Kafka's ``SslConfigs.RECONFIGURABLE_CONFIGS``."""
_FOR_ALL_BROKERS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
"""Settings of a listener that all brokers may have: Kafka's ``ClusterLevelListenerConfigs``."""


def is_of_keys(name: str) -> bool:
    """Whether a setting says where the keys of a listener are: its files are read when it is set.

    Also if the value is the same, as in Kafka (KAFKA-7429).
    """
    base = base_name(name)
    return base != name and base in _CHANGED_FOR_A_LISTENER_ONLY


def base_name(name: str) -> str:
    """Return the setting that ``listener.name.LISTENER.SETTING`` sets for one listener."""
    found = _OF_A_LISTENER.fullmatch(name)
    return name if found is None else found[1]


def is_password(name: str, settings: Mapping[str, Setting]) -> bool:
    """Whether a setting is stored encoded: a password, also of a mechanism of a listener.

    ``settings`` are those of brokers by Kafka's names. Mirrors ``isPasswordConfig``.
    """
    return any(
        row.type is ConfigType.PASSWORD and (name == known or name.endswith(f".{known}"))
        for known, row in settings.items()
    )


def broker_config_problem(
    name: str, value: str, settings: Mapping[str, Setting], *, of_all: bool
) -> str | None:
    """Return why a broker, or all brokers, cannot get a setting while they run; None: they can.

    ``settings`` are those of brokers by Kafka's names. Any other name can be set, as in Kafka,
    because plug-ins have settings of their own; nothing reads it here. The text is the end of a
    sentence whose subject is the setting.
    """
    base = base_name(name)
    row = settings.get(base)
    if row is None:
        return None
    if base == name and row.scope is Scope.READ_ONLY:
        return row.change_problem(value)
    if name in _CHANGED_FOR_A_LISTENER_ONLY or (base == name and row.type is ConfigType.PASSWORD):
        return f"can be changed for one listener only: listener.name.LISTENER.{name}"
    if row.type is ConfigType.PASSWORD and of_all:
        return "cannot be set for all brokers: broker id must be specified"
    if of_all and (row.scope is Scope.PER_BROKER if base == name else base not in _FOR_ALL_BROKERS):
        return "cannot be set for all brokers: broker id must be specified"
    return row.text_problem(value)


def unusable_in_broker(
    config: Mapping[str, str], settings: Mapping[str, Setting], *, of_all: bool
) -> dict[str, str]:
    """Return why settings of one broker, or of all, in ZooKeeper cannot be used, by their names."""
    problems = {n: broker_config_problem(n, v, settings, of_all=of_all) for n, v in config.items()}
    return {name: problem for name, problem in problems.items() if problem is not None}


def unusable_in_topic(config: Mapping[str, str]) -> dict[str, str]:
    """Return why settings of a topic in ZooKeeper cannot be used, by their names."""
    problems = {
        name: topic_config_problem(name, value)
        if name in TOPIC_SETTINGS
        else _unknown(name, "a setting of topics", TOPIC_SETTINGS)
        for name, value in config.items()
    }
    return {name: problem for name, problem in problems.items() if problem is not None}


def unusable_in_quota(path: str, config: Mapping[str, str]) -> dict[str, str]:
    """Return why quotas in ZooKeeper, at a path below ``/config``, cannot be used, by their names.

    The credentials of a user (SCRAM) are no quotas, and no problem.
    """
    entity = entity_of(path)
    problems: dict[str, str] = {}
    for name, value in config.items():
        if entity is None or name.startswith("SCRAM-"):
            continue
        if name not in entity.quotas:
            problems[name] = _unknown(name, f"a quota of {path}", entity.quotas)
            continue
        try:
            quota_value(name, value)
        except ValueError as error:
            problems[name] = str(error).removeprefix(f"{name} ")
    return problems


def _unknown(name: str, what: str, names: Collection[str]) -> str:
    """Say that a name is none of ``names``, and which one it resembles."""
    similar = "".join(f"; did you mean {n}?" for n in get_close_matches(name, names, n=1))
    return f"is not {what}{similar}"
