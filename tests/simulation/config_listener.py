"""A broker that applies the configurations below ``/config``, as ``actors.config_listener``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from regent.core.admin.config_changes import ConfigChanges
from regent.core.errors import SessionExpiredError
from regent.core.model import TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrTopic
from regent.zk.stores.config_store import ZkConfigStore

if TYPE_CHECKING:
    from tests.simulation.broker import SimulatedBroker

SOON_MS = 1


class ConfigListener:
    """Applies ``broker_config`` and ``topic_configs`` to one broker's controller and replicas.

    It stands for a thread of its own: faults in the controller's calls do not happen in it.
    """

    def __init__(self, broker: SimulatedBroker) -> None:
        self._broker = broker
        self._store = ZkConfigStore(broker.session)
        default = broker.settings.unclean_leader_election_enable
        self._changes = ConfigChanges(
            broker.broker_id, self._store, unclean_leader_election_enable=default
        )
        self.broker_config: Mapping[str, str] = {}
        self.topic_configs: dict[str, Mapping[str, str]] = {}

    def look_soon(self) -> None:
        """Read the changes soon: a watch has fired, or a session has begun."""
        self._broker.world.time.schedule(self._broker, SOON_MS, self._look)

    def prepare(self, request: LeaderAndIsrRequest) -> bool:
        """Apply the configurations that a request needs first; False: it must be sent again."""
        replicas = self._broker.replica_manager
        if replicas.begins_copying(request) and not self._without_faults(self._sync):
            return False
        topics = {t.topic_name for t in request.topic_states if self._is_new(t)}
        return self._without_faults(lambda: self._load(topics))

    def _is_new(self, topic: LeaderAndIsrTopic) -> bool:
        """Whether logs of a topic will be created, or its configuration has never been read."""
        names = [
            TopicPartition(topic.topic_name, row.partition_index) for row in topic.partition_states
        ]
        logs = [self._broker.disk.get(name) for name in names]
        is_missing = any(log is None or log.topic_id != topic.topic_id for log in logs)
        return is_missing or topic.topic_name not in self.topic_configs

    def _look(self) -> None:
        self._without_faults(self._catch_up)

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

    def _sync(self) -> None:
        self._catch_up(sync=True)

    def _catch_up(self, *, sync: bool = False) -> None:
        news = self._changes.catch_up(sync=sync)
        for event in news.events:
            self._broker.tell(event)
        if news.broker_config is not None:
            self.broker_config = news.broker_config
            self._broker.replica_manager.on_broker_config(news.broker_config)
        self._load({*news.topics, *(self.topic_configs if news.has_missed_some else ())})

    def _load(self, topics: Collection[str]) -> None:
        configs = self._store.read_configs([f"topics/{topic}" for topic in sorted(topics)])
        for topic in sorted(topics):
            self.topic_configs[topic] = configs.get(f"topics/{topic}", {})
            self._broker.replica_manager.on_topic_config(topic, self.topic_configs[topic])
