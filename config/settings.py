"""Typed settings with Kafka's names and defaults, read from TOML.

A file has the tables ``[broker]``, ``[controller]``, ``[log]`` and ``[zookeeper]``; an unknown
table or key, or a value of the wrong type or out of range, is an error that names it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from os.path import normpath
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from regent.config.addresses import is_every_address
from regent.core.errors import RegentError

T = TypeVar("T")

ISR_CHANGES_THROUGH_ZOOKEEPER = "zookeeper"
_CHOICES = {
    "isr_change_protocol": {"controller", ISR_CHANGES_THROUGH_ZOOKEEPER},
    "log_cleanup_policy": {"delete"},
    "log_message_timestamp_type": {"CreateTime", "LogAppendTime"},
}
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1
_RANGES = {  # of integers, by the end of their name; the first that fits counts
    "retention_bytes": (-1, _LONG_MAX),
    "retention_ms": (-1, _LONG_MAX),
    "log_segment_bytes": (14, _INT_MAX),
    "log_roll_ms": (1, _LONG_MAX),
    "log_flush_interval_messages": (1, _LONG_MAX),
    "log_flush_interval_ms": (0, _LONG_MAX),
    "after_max_ms": (0, _LONG_MAX),
    "before_max_ms": (0, _LONG_MAX),
    "difference_max_ms": (0, _LONG_MAX),
    # Answers to followers travel in messages of 64 MiB: what they may have, and one batch on top.
    "replica_fetch_max_bytes": (1, 32 * 1024 * 1024),
    "replica_fetch_response_max_bytes": (1, 32 * 1024 * 1024),
    "message_max_bytes": (0, 31 * 1024 * 1024),
    "_bytes": (0, _INT_MAX),
    "broker_answer_timeout_ms": (0, 86_400_000),
    "min_insync_replicas": (1, 32_767),
    "replication_factor": (1, 32_767),
    "num_partitions": (1, 1_000_000),
    "max_connections": (1, _INT_MAX),
    "max_connections_per_ip": (0, _INT_MAX),
    "per_connection": (1, 100_000),
    "per_data_dir": (1, 1_000),
    "interval_ms": (1, 86_400_000),
    "port": (0, 65_535),
    "percentage": (0, 100),
    "seconds": (1, 86_400),
    "timeout_ms": (100, 86_400_000),
    "lag_time_max_ms": (100, 86_400_000),
    "": (0, 86_400_000),
}


_HOST = re.compile(r"[0-9A-Za-z\-%._:]*", re.ASCII)  # what clients understand in a registration


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
    delete_topic_enable: bool = True
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_per_broker_percentage: int = 10
    leader_imbalance_check_interval_seconds: int = 300
    request_timeout_ms: int = 30_000
    retry_backoff_ms: int = 100  # between attempts to deliver the same request
    broker_answer_timeout_ms: int = 0  # 0: a registered broker leads, whether it answers or not


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """What a broker is; port 0 means any free one, times in milliseconds."""

    host: str = "127.0.0.1"
    port: int = 0
    control_port: int = 0
    replication_port: int = 0
    metrics_port: int = 0
    # Where others find the broker, if not where it listens; "" and 0: there.
    advertised_host: str = ""
    advertised_port: int = 0
    advertised_control_port: int = 0
    advertised_replication_port: int = 0
    rack: str = ""  # empty: none
    controlled_shutdown_max_retries: int = 3
    controlled_shutdown_retry_backoff_ms: int = 5_000
    controlled_shutdown_timeout_ms: int = 30_000
    replica_lag_time_max_ms: int = 30_000
    replica_fetch_wait_max_ms: int = 500
    replica_fetch_backoff_ms: int = 1_000
    replica_fetch_min_bytes: int = 1
    replica_fetch_max_bytes: int = 1_048_576  # of a partition
    replica_fetch_response_max_bytes: int = 10_485_760
    isr_change_protocol: str = "controller"  # or "zookeeper"
    auto_create_topics_enable: bool = True
    num_partitions: int = 1
    default_replication_factor: int = 1
    placement_service: str = ""  # endpoint or cluster.json; empty: none
    socket_request_max_bytes: int = 104_857_600
    max_connections: int = _INT_MAX
    max_connections_per_ip: int = _INT_MAX
    max_connections_per_ip_overrides: str = ""  # host:count,…
    queued_requests_per_connection: int = 64
    queued_max_request_bytes: int = 268_435_456
    connections_max_idle_ms: int = 600_000


@dataclass(frozen=True, slots=True)
class LogsConfig:
    """Where logs are, when they are looked after, and what holds for a topic that does not say.

    Times in milliseconds; ``log_retention_*`` -1: no limit.
    """

    log_dirs: str = "log"  # comma-separated; relative ones are below the data directory
    num_recovery_threads_per_data_dir: int = 1
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    log_flush_scheduler_interval_ms: int = 3_000
    log_retention_check_interval_ms: int = 300_000
    log_verification_bytes_per_s: int = 8_388_608
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_cleanup_policy: str = "delete"
    log_flush_interval_messages: int = _LONG_MAX
    log_flush_interval_ms: int = _LONG_MAX
    log_index_interval_bytes: int = 4_096
    log_index_size_max_bytes: int = 10_485_760
    log_message_timestamp_after_max_ms: int = _LONG_MAX
    log_message_timestamp_before_max_ms: int = _LONG_MAX
    log_message_timestamp_difference_max_ms: int = _LONG_MAX
    log_message_timestamp_type: str = "CreateTime"
    log_retention_bytes: int = -1
    log_retention_ms: int = 604_800_000
    log_roll_jitter_ms: int = 0
    log_roll_ms: int = 604_800_000
    log_segment_bytes: int = 1_073_741_824
    log_segment_delete_delay_ms: int = 60_000
    message_max_bytes: int = 1_048_588
    min_insync_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process."""

    broker: BrokerConfig = field(default_factory=BrokerConfig)
    controller: ControllerConfig = field(default_factory=ControllerConfig)
    log: LogsConfig = field(default_factory=LogsConfig)
    zookeeper: ZooKeeperConfig = field(default_factory=ZooKeeperConfig)


def load_settings(path: Path | None, overrides: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Read a TOML file (None: the defaults) and put ``overrides`` (table → key → value) on top.

    Raises ``SettingsError`` naming the file, the key and what it must be.
    """
    settings = Settings()
    if path is not None:
        settings = _merged(settings, _read_toml(path), str(path))
    settings = _merged(settings, overrides, "command line")
    source = "command line" if path is None else str(path)
    _check_host(settings.broker, source)
    _check_replication(settings.broker, source)
    _check_directories(settings.log, source)
    connections_per_ip_overrides(settings.broker, source)
    return settings


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
    choices = _CHOICES.get(key)
    if choices is not None and value not in choices:
        raise SettingsError(f"{source}.{key} must be one of {sorted(choices)}: {value!r}")
    if not isinstance(value, int) or isinstance(value, bool):
        return
    low, high = next(r for suffix, r in _RANGES.items() if key.endswith(suffix))
    if not low <= value <= high:
        raise SettingsError(f"{source}.{key} must be in {low}..{high}: {value}")


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
        if not host or not count.isdecimal() or int(count) > _INT_MAX:
            raise SettingsError(f"{key} must be HOST:COUNT,…: {item!r}")
        overrides[host.strip("[] ")] = int(count)
    if not broker.max_connections_per_ip and not overrides:
        raise SettingsError(f"{key} must name a host when max_connections_per_ip is 0")
    return overrides
