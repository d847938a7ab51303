"""Reads settings from a TOML file and from the command line.

A file has the tables of ``config.settings.Settings``. An unknown table or key, and a value of the
wrong type or out of range, is an error that names it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from os.path import normpath
from pathlib import Path
from typing import Any, TypeVar

from regent.config.addresses import is_every_address
from regent.config.listeners import ListenersError
from regent.config.private_files import read_private
from regent.config.settings import LISTENER_OPTIONS, TABLES, Settings, rows
from regent.config.tables.broker import BrokerConfig
from regent.config.tables.log import LogsConfig
from regent.config.tables.logging import LoggingConfig
from regent.core.errors import RegentError
from regent.core.security.session import SecurityProtocol
from regent.core.setting import INT_MAX, ConfigType, Setting, settings_of

T = TypeVar("T")

_LISTENER_NAME = "listener_name"
_HOST = re.compile(r"[0-9A-Za-z\-%._:]*", re.ASCII)  # what clients understand in a registration


class SettingsError(RegentError):
    """A setting is unknown or has an impossible value; the message names it."""


def load_settings(
    path: Path | None,
    overrides: Mapping[str, Mapping[str, Any]],
    *,
    are_complete: bool = True,
    kafka_properties: tuple[Path, Mapping[str, Mapping[str, Any]]] | None = None,
) -> Settings:
    """Read a TOML file (None: the defaults) and put ``overrides`` (table → key → value) on top.

    Between them are those of a file of Kafka's: ``config.kafka_properties`` has read it. If they
    are not complete, the addresses are not checked: single brokers have more settings.
    Raises ``SettingsError`` naming the file, the key and what it must be.
    """
    settings = Settings()
    if path is not None:
        settings = _merged(settings, _read_tables(path), str(path))
        _check_private(settings, path)
    source = "command line" if path is None else str(path)
    if kafka_properties is not None:
        source = str(kafka_properties[0])
        settings = _merged(settings, kafka_properties[1], source)
    settings = _merged(settings, overrides, "command line")
    if are_complete:
        _check_host(settings.broker, source)
        _check_listeners(settings, source)
        _check_logins(settings, source)
    _check_replication(settings.broker, source)
    _check_directories(settings.log, source)
    connections_per_ip_overrides(settings.broker, source)
    return settings


def _read_tables(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def _check_private(settings: Settings, path: Path) -> None:
    """Check that no other user can read the secrets in a file of settings."""
    given = [(f"{t}.{row.name}", row, getattr(getattr(settings, t), row.name)) for t, row in rows()]
    for listener, own in settings.listener_name.items():
        names = {key: f"{_LISTENER_NAME}.{listener}.{key}" for key in own}
        given += [(names[key], LISTENER_OPTIONS[key][1], value) for key, value in own.items()]
    for name, row, value in given:
        if row.type is ConfigType.PASSWORD and value:
            try:
                read_private(path, name)
            except RegentError as error:
                raise SettingsError(str(error)) from None


def _merged(settings: Settings, tables: Mapping[str, Any], source: str) -> Settings:
    changed: dict[str, Any] = {}
    for name, table in tables.items():
        if name == _LISTENER_NAME:
            changed[name] = _of_listeners(table, source)
            continue
        if name not in TABLES:
            raise SettingsError(
                f"{source}: unknown table [{name}]; the tables are {', '.join(TABLES)}"
            )
        if not isinstance(table, Mapping):
            raise SettingsError(f"{source}: [{name}] must be a table")
        changed[name] = _updated(getattr(settings, name), name, table, source)
    given = settings.given.union(f"{name}.{key}" for name, table in tables.items() for key in table)
    return replace(settings, **changed, given=given)


def _updated(current: T, table_name: str, table: Mapping[str, Any], source: str) -> T:
    known = {row.name: row for row in settings_of(type(current)())}
    for key, value in table.items():
        if key not in known:
            hint = _hint(table_name, key, known)
            raise SettingsError(f"{source}: {table_name}.{key} is not a setting; {hint}")
        problem = known[key].problem(value)
        if problem is not None:
            default = known[key].default
            raise SettingsError(
                f"{source}: {table_name}.{key} {problem}: correct it, or remove it for the"
                f" default, {default!r}"
            )
    changes: dict[str, Any] = dict(table)
    if isinstance(current, LoggingConfig) and "levels" in changes:
        changes["levels"] = {**current.levels, **changes["levels"]}
    return replace(current, **changes)  # type: ignore[type-var]


def _of_listeners(tables: object, source: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings of single listeners by their names in lower case."""
    known = {row.name: row for _, row in LISTENER_OPTIONS.values()}
    of_listeners: dict[str, Mapping[str, Any]] = {}
    for name, table in tables.items() if isinstance(tables, Mapping) else [("", tables)]:
        where = f"{source}: [{_LISTENER_NAME}.{name}]"
        if not name or not isinstance(table, Mapping):
            raise SettingsError(
                f"{source}: [{_LISTENER_NAME}] must have tables: [{_LISTENER_NAME}.NAME]"
            )
        if name != name.lower():
            raise SettingsError(f"{where} must have the name in lower case: {name.lower()}")
        for key, value in table.items():
            if key not in known:
                similar = get_close_matches(key, known, n=1)
                hint = f"did you mean {similar[0]}?" if similar else f"it has {', '.join(known)}"
                raise SettingsError(f"{where}: {key} is not a setting of a listener; {hint}")
            problem = known[key].problem(value)
            if problem is not None:
                raise SettingsError(f"{where}: {key} {problem}")
        of_listeners[name] = table
    return of_listeners


def _hint(table_name: str, key: str, known: Mapping[str, Setting]) -> str:
    """Return a hint for a setting that does not exist: where it is, or a similar name."""
    elsewhere = [table for table, row in rows() if row.name == key]
    if elsewhere:
        return f"move it to the table [{elsewhere[0]}]"
    similar = get_close_matches(key, known, n=1)
    if similar:
        return f"did you mean {similar[0]}?"
    return f"those of [{table_name}] are {', '.join(known)}"


def _check_listeners(settings: Settings, source: str) -> None:
    """Check that the listeners are right, and that none is open to strangers by mistake."""
    try:
        listeners = settings.listeners
    except ListenersError as error:
        raise SettingsError(f"{source}: {error}") from None
    names = [endpoint.listener.lower() for endpoint in listeners.listening]
    for name in settings.listener_name:
        if name not in names:
            similar = get_close_matches(name, names, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"they are {', '.join(names)}"
            raise SettingsError(
                f"{source}: [{_LISTENER_NAME}.{name}]: the broker has no such listener; {hint}"
            )
    unauthenticated = settings.unauthenticated_listeners()
    if unauthenticated and not settings.broker.allow_unauthenticated:
        raise SettingsError(
            f"{source}: anybody who reaches {unauthenticated[0].connection_string} could read and"
            " write all topics: listen on loopback, or set broker.allow_unauthenticated = true"
            " (--allow-unauthenticated true)"
        )


def _check_logins(settings: Settings, source: str) -> None:
    """Check what Kafka checks of the logins of each listener."""
    idle_ms = settings.broker.connections_max_idle_ms
    for endpoint in settings.listeners.listening:
        name, of_listener = endpoint.listener, settings.of_listener(endpoint.listener)
        has_logins = SecurityProtocol(endpoint.security_protocol).has_sasl
        delay_ms = of_listener.sasl.connection_failed_authentication_delay_ms
        matters = (
            has_logins or "sasl.connection_failed_authentication_delay_ms" in of_listener.given
        )
        if matters and 0 <= idle_ms <= delay_ms:
            raise SettingsError(
                f"{source}: sasl.connection_failed_authentication_delay_ms ({delay_ms}) must be"
                f" below broker.connections_max_idle_ms ({idle_ms}): change one (listener {name})"
            )
    of_brokers = settings.listeners.inter_broker
    sasl = settings.of_listener(of_brokers.listener).sasl
    mechanism = sasl.sasl_mechanism_inter_broker_protocol
    enabled = [one.strip() for one in sasl.sasl_enabled_mechanisms.split(",")]
    if SecurityProtocol(of_brokers.security_protocol).has_sasl and mechanism not in enabled:
        raise SettingsError(
            f"{source}: sasl.sasl_mechanism_inter_broker_protocol ({mechanism}) must be one of"
            f" sasl.sasl_enabled_mechanisms ({', '.join(enabled)}): brokers log in to each other at"
            f" the listener {of_brokers.listener}"
        )


def _check_replication(broker: BrokerConfig, source: str) -> None:
    """Check what Kafka checks: a follower that waits for longer than the lag is never in sync."""
    wait_ms, lag_ms = broker.replica_fetch_wait_max_ms, broker.replica_lag_time_max_ms
    if wait_ms > lag_ms:
        raise SettingsError(
            f"{source}: broker.replica_fetch_wait_max_ms ({wait_ms}) must not exceed"
            f" replica_lag_time_max_ms ({lag_ms})"
        )


def _check_host(broker: BrokerConfig, source: str) -> None:
    """Check that others can be told where to find the broker."""
    for key, host in (("host", broker.host), ("advertised_host", broker.advertised_host)):
        if not _HOST.fullmatch(host):
            raise SettingsError(
                f"{source}: broker.{key} must be a name or an address, IPv6 without brackets:"
                f" {host!r}"
            )
    if not broker.host:
        raise SettingsError(f"{source}: broker.host must not be empty")
    if is_every_address(broker.advertised_host):
        raise SettingsError(
            f"{source}: broker.advertised_host must be an address others can connect to:"
            f" {broker.advertised_host!r}"
        )
    if is_every_address(broker.host) and not broker.advertised_host:
        raise SettingsError(
            f"{source}: broker.host {broker.host!r} listens on every address of this machine, which"
            " tells others nothing: set broker.advertised_host (--advertised-host) to the name or"
            " address at which they find it"
        )


def _check_directories(log: LogsConfig, source: str) -> None:
    names = [name.strip() and normpath(name.strip()) for name in log.log_dirs.split(",")]
    mistake = "an empty directory" if "" in names else "a directory twice"
    if "" in names or len(set(names)) < len(names):
        raise SettingsError(f"{source}: log.log_dirs names {mistake}: {log.log_dirs!r}")


def connections_per_ip_overrides(
    broker: BrokerConfig, source: str = "settings"
) -> Mapping[str, int]:
    """Return the limit of each host that has its own; raises ``SettingsError``."""
    key = f"{source}: broker.max_connections_per_ip_overrides"
    overrides: dict[str, int] = {}
    for item in filter(None, map(str.strip, broker.max_connections_per_ip_overrides.split(","))):
        host, _, count = item.rpartition(":")
        if not host or not count.isdecimal() or int(count) > INT_MAX:
            raise SettingsError(f"{key} must be HOST:COUNT,…: {item!r}")
        overrides[host.strip("[] ")] = int(count)
    if not broker.max_connections_per_ip and not overrides:
        raise SettingsError(f"{key} must name a host when max_connections_per_ip is 0")
    return overrides
