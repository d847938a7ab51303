"""The levels of this process's loggers, which clients can read and change (KIP-412).

Levels have log4j's names and are not kept over a restart. Mirrors
``kafka.server.logger.RuntimeLoggerManager`` and ``kafka.utils.Log4jController``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from regent.core.admin.config_alterations import RefusedError
from regent.core.admin.config_descriptions import ConfigDescription, ConfigSource
from regent.core.errors import Errors
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation
from regent.core.setting import ConfigType

logger = logging.getLogger(__name__)

ROOT: Final = "root"
LEVELS: Final[Mapping[str, int]] = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": 5,
}
"""Log4j's levels, and those of Python that they stand for."""

KAFKA_LOGGERS: Final[Mapping[str, str]] = {
    "kafka": "regent",
    "kafka.authorizer.logger": "kafka.authorizer.logger",
    "kafka.cluster.Partition": "regent.core.replication",
    "kafka.controller": "regent.core.controller",
    "kafka.controller.ControllerChannelManager": "regent.actors.controller_channel_manager",
    "kafka.controller.ControllerEventManager": "regent.actors.controller_event_manager",
    "kafka.controller.KafkaController": "regent.core.controller",
    "kafka.controller.RequestSendThread": "regent.actors.request_send_thread",
    "kafka.coordinator.group.GroupCoordinator": "regent.core.coordinator.group",
    "kafka.coordinator.transaction.TransactionCoordinator": "regent.core.coordinator.transaction",
    "kafka.log": "regent.storage",
    "kafka.log.LogCleaner": "regent.storage.compaction.log_cleaner",
    "kafka.log.LogManager": "regent.storage.log_manager",
    "kafka.log.UnifiedLog": "regent.storage.log.unified_log",
    "kafka.network.Processor": "regent.transport.kafka",
    "kafka.network.RequestChannel$": "regent.transport.kafka",
    "kafka.network.SocketServer": "regent.transport.kafka",
    "kafka.request.logger": "regent.transport.kafka",
    "kafka.server": "regent.broker",
    "kafka.server.KafkaApis": "regent.broker.api",
    "kafka.server.KafkaServer": "regent.broker.broker_process",
    "kafka.server.ReplicaAlterLogDirsThread": "regent.actors.replica_alter_log_dirs_thread",
    "kafka.server.ReplicaFetcherThread": "regent.actors.replica_fetcher_thread",
    "kafka.server.ReplicaManager": "regent.core.replication",
    "kafka.zk.KafkaZkClient": "regent.zk.stores",
    "kafka.zookeeper.ZooKeeperClient": "regent.zk.client",
    "state.change.logger": "state.change",
}
"""Kafka's names of loggers, which runbooks have, and the loggers here that they stand for."""


def describe_loggers() -> list[ConfigDescription]:
    """Return the level in effect of every logger, sorted by name; Kafka's names are listed too."""
    return [
        ConfigDescription(
            name,
            _level_name(found.getEffectiveLevel()),
            ConfigSource.DYNAMIC_BROKER_LOGGER,
            ConfigType.UNKNOWN,
            is_read_only=False,
            synonyms=(),
        )
        for name, found in sorted(_loggers().items())
    ]


def alter_loggers(alterations: Sequence[AlterableConfig], *, validate_only: bool) -> None:
    """Set levels, or let loggers have those of their parents again (DELETE).

    Raises ``RefusedError`` before anything is changed.
    """
    loggers = _loggers()
    for row in alterations:
        _check(row, loggers)
    for row in () if validate_only else alterations:
        name, value = row.name, row.value
        is_set = row.config_operation == AlterOperation.SET and value is not None
        loggers[name].setLevel(LEVELS[value] if is_set and value is not None else logging.NOTSET)
        logger.warning("The level of the logger %s is now %s", name, value if is_set else "unset")


def _check(alteration: AlterableConfig, loggers: Mapping[str, logging.Logger]) -> None:
    name, operation, value = alteration.name, alteration.config_operation, alteration.value
    if operation not in (AlterOperation.SET, AlterOperation.DELETE):
        message = "the level of a logger can only be set and deleted"
        raise RefusedError(Errors.INVALID_REQUEST, message)
    if name not in loggers:
        raise RefusedError(Errors.INVALID_CONFIG, f"Logger {name} does not exist!")
    if operation == AlterOperation.DELETE:
        if name == ROOT:
            message = f"Removing the log level of the {ROOT} logger is not allowed"
            raise RefusedError(Errors.INVALID_REQUEST, message)
    elif value not in LEVELS:
        raise RefusedError(
            Errors.INVALID_CONFIG,
            f"Cannot set the log level of {name} to {value} as it is not a supported log level."
            f" Valid log levels are {', '.join(sorted(LEVELS))}",
        )


def _loggers() -> Mapping[str, logging.Logger]:
    known = logging.Logger.manager.loggerDict.copy()
    loggers = {name: found for name, found in known.items() if isinstance(found, logging.Logger)}
    names = {**{ours: ours for ours in KAFKA_LOGGERS.values()}, **KAFKA_LOGGERS}
    loggers |= {name: logging.getLogger(ours) for name, ours in names.items()}
    return {**loggers, ROOT: logging.getLogger()}


def _level_name(level: int) -> str:
    return next((name for name, least in LEVELS.items() if level >= least), "TRACE")
