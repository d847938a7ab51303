"""The settings of a broker for DescribeConfigs: Kafka's names and text values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from regent.config.listeners import Listeners
from regent.config.settings import KAFKA_SETTINGS, LISTENER_OPTIONS, Settings, rows
from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.admin.kafka_only_settings import KAFKA_ONLY_SETTINGS
from regent.core.model import CONTROL_ENDPOINT_CONFIG, BrokerId, EndPoint
from regent.core.setting import INT_MAX, ConfigType, Declaration, Scope, Setting, text_of

INTER_BROKER_PROTOCOL_VERSION: Final = "3.9-IV0"

_OF_LISTENERS: Final = ("host", "port", "advertised_host", "advertised_port")
_ADVERTISED_ADDRESS: Final = (
    r"(?!0\.0\.0\.0:|\[::\]:)(?:\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+):[0-9]{1,5}"
)
_NULL_IF_EMPTY: Final = (  # in Kafka
    *("rack", "control_plane_listener_name", "inter_broker_listener_name"),
    *("ssl_keystore_location", "ssl_keystore_key"),
    *("ssl_keystore_certificate_chain", "ssl_keystore_password", "ssl_key_password"),
    *("ssl_truststore_location", "ssl_truststore_certificates", "ssl_truststore_password"),
)
# Kafka has other settings for these defaults: log.retention.hours and so on.
_NULL_BY_DEFAULT: Final = (
    *("log_retention_ms", "log_roll_ms", "log_roll_jitter_ms", "log_flush_interval_ms"),
)
_BROKER_ID = Setting("broker_id", -1, Declaration("The id of this broker.", (-1, INT_MAX)))


class StartedBroker(NamedTuple):
    """What a broker knows beside its settings when it has started."""

    zookeeper: str
    log_dirs: tuple[Path, ...]
    listeners: tuple[EndPoint, ...]
    advertised_listeners: tuple[EndPoint, ...]
    control_peer: str = ""


def broker_settings(settings: Settings, broker_id: BrokerId) -> Mapping[str, BrokerSetting]:
    """Return the values that this broker was started with, with their defaults.

    The names are Kafka's. Settings that Kafka does not have begin with ``regent``; those of the
    Kafka port are described as Kafka's, see ``described_settings``.
    """
    described = {
        name: BrokerSetting(row, None if row.default is None else text_of(row.default), False)
        for name, row in KAFKA_ONLY_SETTINGS.items()
    }
    for name in ("broker.id", "node.id"):
        described[name] = BrokerSetting(_BROKER_ID, str(broker_id), is_given=True)
    for table, row in rows():
        if table == "broker" and row.name in _OF_LISTENERS:
            continue
        value: str | None = text_of(getattr(getattr(settings, table), row.name))
        is_given = f"{table}.{row.name}" in settings.given
        if row.name in _NULL_IF_EMPTY:
            declared = replace(row.declared, type=row.type)
            row, value = replace(row, default=None, declared=declared), value or None
        if table == "log" and row.name in _NULL_BY_DEFAULT:
            declared = replace(row.declared, type=row.type)
            row = replace(row, default=None, declared=declared)
            value = value if is_given else None
        name = row.kafka_name or f"regent.{row.dotted_name}"
        described[name] = BrokerSetting(row, value, is_given)
    for listener, own in settings.listener_name.items():
        for key, given in own.items():
            _, row = LISTENER_OPTIONS[key]
            name = f"listener.name.{listener}.{row.dotted_name}"
            described[name] = BrokerSetting(row, text_of(given), is_given=True)
    return described


def described_settings(
    settings: Settings, broker_id: BrokerId, started: StartedBroker
) -> Mapping[str, BrokerSetting]:
    """Return ``broker_settings``, and those of Kafka's whose values are known after the start."""
    given = {name.partition(".")[2] for name in settings.given if name.startswith("broker.")}
    listeners, protocol_map = settings.listeners, settings.broker.listener_security_protocol_map
    log_dirs = ",".join(map(str, started.log_dirs))
    are_logs_given = "log.log_dirs" in settings.given
    return {
        **broker_settings(settings, broker_id),
        "listeners": _described(
            _unchangeable("listeners", _text_of(started.listeners)),
            _text_of(started.listeners),
            is_given=not given.isdisjoint({"listeners", "host", "port"}),
        ),
        "advertised.listeners": _described(
            _advertised_listeners(listeners),
            _text_of(started.advertised_listeners),
            is_given=not given.isdisjoint(
                {"advertised_listeners", "advertised_host", "advertised_port"}
            ),
        ),
        "listener.security.protocol.map": _described(
            _protocol_map(started.listeners),
            protocol_map,
            is_given="listener_security_protocol_map" in given,
        ),
        "inter.broker.protocol.version": _read_only(
            "inter_broker_protocol_version",
            INTER_BROKER_PROTOCOL_VERSION,
            "The version of Kafka whose protocols and znodes the brokers have.",
        ),
        "log.dirs": _read_only(
            "log_dirs", log_dirs, "The log directories.", is_given=are_logs_given
        ),
        "zookeeper.connect": _read_only(
            "zookeeper_connect", started.zookeeper, "The address of ZooKeeper.", is_given=True
        ),
        CONTROL_ENDPOINT_CONFIG: _read_only(
            CONTROL_ENDPOINT_CONFIG.replace(".", "_"),
            started.control_peer,
            "Where this broker answers commands, and its public key.",
        ),
    }


def _text_of(listeners: Iterable[EndPoint]) -> str:
    return ",".join(endpoint.connection_string for endpoint in listeners)


def _unchangeable(name: str, value: str) -> Setting:
    """Return a setting that clients may only set to the value that it has."""
    form = f"{value} while the broker runs: restart it to change this"
    return _of_form(name, re.escape(value), form)


def _advertised_listeners(listeners: Listeners) -> Setting:
    """Return the setting for a running broker; brokers must find it further on."""
    names = "|".join(map(re.escape, listeners.registered_names))
    entry = rf"\s*(?i:{names})://{_ADVERTISED_ADDRESS}\s*"
    once = r"(?!(?:.*,)?\s*([^:,/]+)://.*,\s*(?i:\1)://)"
    must = ""
    form = ",".join(f"{name}://HOST:PORT" for name in listeners.registered_names)
    if listeners.are_named:
        inter_broker = listeners.inter_broker_name
        must = rf"(?=(?:.*,)?\s*(?i:{re.escape(inter_broker)})://)"
        form = f"{form} or some of them, with {inter_broker}"
    pattern = f"{once}{must}{entry}(?:,{entry})*"
    return _of_form("advertised.listeners", pattern, f"{form}, with a host that clients can reach")


def _protocol_map(listeners: Iterable[EndPoint]) -> Setting:
    """Return the setting for a running broker; the protocols of its listeners stay."""
    present = [f"{e.listener}:{e.security_protocol}" for e in listeners]
    must = "".join(rf"(?=(?:.*,)?\s*{re.escape(entry)}\s*(?:,|$))" for entry in present)
    entry = r"\s*[A-Za-z0-9_.-]+:(PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)\s*"
    form = f"LISTENER:PROTOCOL,LISTENER:PROTOCOL,… with {','.join(present)}"
    return _of_form("listener.security.protocol.map", f"{must}{entry}(?:,{entry})*", form)


def _of_form(name: str, pattern: str, form: str) -> Setting:
    row = KAFKA_SETTINGS[name]
    declared = replace(row.declared, pattern=pattern, form=form, scope=Scope.PER_BROKER)
    return replace(row, declared=declared)


def _read_only(name: str, value: str, meaning: str, *, is_given: bool = False) -> BrokerSetting:
    row = Setting(name, None, Declaration(meaning, type=ConfigType.STRING))
    return _described(row, value, is_given=is_given)


def _described(row: Setting, value: str, *, is_given: bool = False) -> BrokerSetting:
    """Return a setting whose default is not known before the start."""
    return BrokerSetting(replace(row, default=None if is_given else value), value, is_given)
