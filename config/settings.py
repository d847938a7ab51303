"""Typed settings with Kafka's names and defaults, read from TOML.

A file has the tables ``[broker]``, ``[controller]`` and ``[zookeeper]``; an unknown table or key,
or a value of the wrong type or out of range, is an error that names it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from core.errors import RegentError

T = TypeVar("T")


class SettingsError(RegentError):
    """A setting is unknown or has an impossible value; the message names it."""


@dataclass(frozen=True, slots=True)
class ZooKeeperConfig:
    """How brokers talk to ZooKeeper; times in milliseconds."""

    session_timeout_ms: int = 6_000
    connection_timeout_ms: int = 18_000


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """How the controller decides and delivers; times in milliseconds."""

    unclean_leader_election_enable: bool = False
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100  # between attempts to deliver the same request


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker is; port 0 means any free one, times in milliseconds."""

    host: str = "127.0.0.1"
    port: int = 0
    control_port: int = 0
    replication_port: int = 0
    metrics_port: int = 0
    rack: str = ""  # empty: none
    controlled_shutdown_max_retries: int = 3
    controlled_shutdown_retry_backoff_ms: int = 5_000
    controlled_shutdown_timeout_ms: int = 30_000


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process."""

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)


def load_settings(path: Path | None, overrides: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Read a TOML file (None: the defaults) and put ``overrides`` (table → key → value) on top.

    Raises ``SettingsError`` naming the file, the key and what it must be.
    """
    settings = Settings()
    if path is not None:
        settings = _merged(settings, _read_toml(path), str(path))
    return _merged(settings, overrides, "command line")


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _merged(settings: Settings, tables: Mapping[str, Any], source: str) -> Settings:
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    for name, table in tables.items():
        if name not in known:
            raise SettingsError(f"{source}: unknown table [{name}]; there are {sorted(known)}")
        if not isinstance(table, Mapping):
            raise SettingsError(f"{source}: [{name}] must be a table")
        known[name] = _updated(known[name], table, f"{source}: {name}")
    return Settings(**known)


def _updated(current: T, table: Mapping[str, Any], source: str) -> T:
    types = get_type_hints(type(current))
    for key, value in table.items():
        if key not in types:
            raise SettingsError(f"{source}.{key} is unknown; there are {sorted(types)}")
        expected = types[key]
        if type(value) is not expected:
            raise SettingsError(f"{source}.{key} must be of type {expected.__name__}: {value!r}")
        _check_range(key, value, source)
    return replace(current, **table)  # type: ignore[type-var]


def _check_range(key: str, value: object, source: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        return
    low, high = (0, 65_535) if key.endswith("port") else (0, 86_400_000)
    if key.endswith("timeout_ms"):
        low = 100
    if not low <= value <= high:
        raise SettingsError(f"{source}.{key} must be in {low}..{high}: {value}")
