"""Applies configuration changes to the logs of its broker and passes them to the controller.

Mirrors ``kafka.server.DynamicConfigManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from pykka import ActorRef

from regent.actors.inbox import Reply
from regent.actors.runtime import RegentActor, Supervisor, start_actor
from regent.actors.topic_configs import TopicConfigs
from regent.config.settings import KAFKA_SETTINGS
from regent.config.tables.controller import ControllerConfig
from regent.core.admin.config_changes import ConfigChanges
from regent.core.admin.config_descriptions import BrokerSetting
from regent.core.controller.events import ControllerEvent
from regent.core.errors import SessionExpiredError
from regent.core.model import BrokerId
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.stores.config_store import ZkConfigStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """A configuration changed, or a new session began and may have missed a change."""


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Apply every configuration change that was acknowledged before this message was sent.

    The answer is None when that is done, or ``SessionExpiredError``.
    """


class ConfigListener(RegentActor):
    """Between sessions ``ConfigsChanged`` does nothing: the next session sends it again."""

    def __init__(
        self,
        name: str,
        changes: ConfigChanges,
        tell_controller: Callable[[ControllerEvent], None],
        topic_configs: TopicConfigs,
        on_broker_config: Callable[[Mapping[str, str]], None],
        on_client_quotas: Callable[[Mapping[str, Mapping[str, str]]], None],
        *,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self._on_broker_config = on_broker_config
        self._on_client_quotas = on_client_quotas
        self._changes = changes
        self._tell_controller = tell_controller
        self._topic_configs = topic_configs
        self._changed_topics: set[str] = set()  # changed, but not applied yet

    @staticmethod
    def collapse_key(message: object) -> Hashable | None:
        """One queued message is enough: it covers all changes."""
        return message if isinstance(message, ConfigsChanged) else None

    def handle(self, message: ConfigsChanged | CatchUp, reply: Reply | None) -> None:
        """Read and apply the changes."""
        try:
            self._catch_up(sync=isinstance(message, CatchUp))
        except SessionExpiredError as expired:
            logger.info("%s: %s", self.name, expired)
            if reply is not None and isinstance(message, CatchUp):
                reply.fail(expired)
        if reply is not None:
            reply.set(None)

    def _catch_up(self, *, sync: bool) -> None:
        news = self._changes.catch_up(sync=sync)
        for event in news.events:
            self._tell_controller(event)
        if news.broker_config is not None:
            self._topic_configs.set_broker_config(news.broker_config)
            self._on_broker_config(news.broker_config)
        if news.client_quotas is not None:
            self._on_client_quotas(news.client_quotas)
        self._changed_topics.update(news.topics)
        if news.has_missed_some:
            self._changed_topics.update(self._topic_configs.topics)
        self._topic_configs.load(sorted(self._changed_topics))
        self._changed_topics.clear()


def start_config_listener(
    broker_id: BrokerId,
    zookeeper: ZooKeeper,
    config: ControllerConfig,
    tell_controller: Callable[[ControllerEvent], None],
    topic_configs: TopicConfigs,
    on_broker_config: Callable[[Mapping[str, str]], None],
    on_client_quotas: Callable[[Mapping[str, Mapping[str, str]]], None],
    settings: Mapping[str, BrokerSetting],
) -> ActorRef[ConfigListener]:
    """Start a broker's listener; it acts only on messages.

    ``settings`` are those that the broker was started with, by Kafka's names.
    ``on_broker_config`` gets the settings of this broker that are in ZooKeeper, and
    ``on_client_quotas`` all quotas, by the paths of their entities below ``/config``.
    """
    changes = ConfigChanges(
        broker_id,
        ZkConfigStore(zookeeper),
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        settings={**KAFKA_SETTINGS, **{name: row.setting for name, row in settings.items()}},
    )
    name = f"config-listener-{broker_id}"
    return start_actor(
        ConfigListener,
        name,
        changes,
        tell_controller,
        topic_configs,
        on_broker_config,
        on_client_quotas,
    )
