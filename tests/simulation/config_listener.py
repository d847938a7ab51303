"""A broker that applies the configurations below ``/config``, as ``actors.config_listener``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from regent.broker.machine_settings import dynamic_values
from regent.config.settings import KAFKA_SETTINGS, Settings
from regent.core.admin.config_handlers import TopicConfigHandler
from regent.core.admin.dynamic_config_manager import DynamicConfigManager
from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION
from regent.core.errors import SessionExpiredError
from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrTopic
from regent.core.replication.replication_quota import (
    THROTTLED_RATES,
    THROTTLED_REPLICAS,
)
from regent.core.setting import SettingValues
from regent.zk.stores.config_store import ZkConfigStore

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

SOON_MS = 1


class _NoLogs:
    """The logs of the simulation keep the configurations that they were made with."""

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Do nothing."""

    def set_defaults(self, defaults: LogConfig) -> None:
        """Do nothing."""


class ConfigListener:
    """Applies configurations to one broker's controller and replicas.

    It stands for a thread of its own: faults in the controller's calls do not happen in it.
    """

    reconfigurable_configs: Final = (*THROTTLED_RATES, UNCLEAN_LEADER_ELECTION)

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        started = {
            **dynamic_values(Settings()),
            UNCLEAN_LEADER_ELECTION: broker.settings.unclean_leader_election_enable,
        }
        self._configs = DynamicConfigManager(
            broker.broker_id,
            ZkConfigStore(broker.session),
            KAFKA_SETTINGS,
            started,
            TopicConfigHandler(_NoLogs(), self, started, nullcontext()),
            (broker.replica_manager.quotas, self),
            tell_controller=broker.tell,
            set_client_quotas=lambda _: None,
        )
        self.values: SettingValues = started
        self.loaded: set[str] = set()
        self.throttled: dict[str, Mapping[str, str]] = {}  # of topics that have, or had, some

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Remember the values in force."""
        del old
        self.values = new

    def on_topic_config(self, topic: str, overrides: Mapping[str, str]) -> None:
        """Pass the throttled replicas of a topic on, and remember them."""
        self.throttled[topic] = {n: overrides[n] for n in THROTTLED_REPLICAS if n in overrides}
        self._broker.replica_manager.quotas.on_topic_config(topic, overrides)

    def look_soon(self) -> None:
        """Read the changes soon: a watch has fired, or a session has begun."""
        self._broker.world.time.schedule(self._broker, SOON_MS, self._look)

    def prepare(self, request: LeaderAndIsrRequest) -> bool:
        """Apply the configurations that a request needs first; False: it must be sent again."""
        replicas = self._broker.replica_manager
        if replicas.begins_copying(request) and not self._without_faults(self._sync):
            return False
        topics = sorted({t.topic_name for t in request.topic_states if self._is_new(t)})
        if not self._without_faults(lambda: self._configs.load(topics)):
            return False
        self.loaded.update(topics)
        return True

    def _is_new(self, topic: LeaderAndIsrTopic) -> bool:
        """Whether logs of a topic will be created, or its configuration has never been read."""
        names = [
            TopicPartition(topic.topic_name, row.partition_index) for row in topic.partition_states
        ]
        logs = [self._broker.disk.get(name) for name in names]
        is_missing = any(log is None or log.topic_id != topic.topic_id for log in logs)
        return is_missing or topic.topic_name not in self.loaded

    def _look(self) -> None:
        self._without_faults(self._configs.catch_up)

    def _sync(self) -> None:
        self._configs.catch_up(sync=True)

    def _without_faults(self, act: Callable[[], None]) -> bool:
        session = self._broker.session
        hook, session.hook = session.hook, None
        try:
            act()
        except SessionExpiredError:
            return False
        finally:
            session.hook = hook
        return True
