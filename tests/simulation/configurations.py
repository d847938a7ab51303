"""Configurations that admins change while the cluster runs, and whether brokers apply them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from regent.config.settings import KAFKA_SETTINGS
from regent.core.admin.config_handlers import DEFAULT_BROKER
from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest
from regent.core.setting import text_of
from regent.zk.znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode
from tests.simulation.broker import SimulatedBroker
from tests.simulation.cluster import Cluster
from tests.simulation.disk import TOPIC_CONFIGS
from tests.simulation.network import RequestBody
from tests.support.fake_zookeeper import FakeZooKeeperServer

CHANGING_PROBABILITY = 0.3  # of a history
ACTION_PROBABILITY = 0.04
LOWERING_HISTORIES = 0.4
LOWERING_PROBABILITY = 0.3  # in a step of such a history with an eligible replica
MAX_LOWERED_STEPS = 40
LEADER_ENDS_PROBABILITY = 0.7
RATES = ("50", "500", "1000000")  # bytes a second
RATE_KEYS = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
REPLICAS_KEYS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)


class Configurations:
    """Changes configurations, as ``kafka-configs`` does: the entity, then the notification.

    It has random numbers of its own: histories without it do not change.
    """

    def __init__(
        self, cluster: Cluster, brokers: int, seed: int, note: Callable[..., None]
    ) -> None:
        self._random = random.Random(f"configurations of {seed}")
        self._zookeeper = cluster.zookeeper
        self._brokers = [DEFAULT_BROKER, *(f"brokers/{b}" for b in range(brokers))]
        self._note = note
        self.is_on = self._random.random() < CHANGING_PROBABILITY
        is_unclean = self._random.random() < 0.3
        self._keys = (*RATE_KEYS, UNCLEAN_LEADER_ELECTION) if is_unclean else RATE_KEYS

    def act(self) -> None:
        """Sometimes change a configuration."""
        if not self.is_on or self._random.random() >= ACTION_PROBABILITY:
            return
        topics = self._zookeeper.children_of("/brokers/topics")
        if topics and self._random.random() < 0.3:
            value = self._random.choice(("*", "0:0,0:1,1:2", None))
            set_config(
                self._zookeeper,
                f"topics/{self._random.choice(topics)}",
                dict.fromkeys(REPLICAS_KEYS, value),
            )
            return
        entity, key = self._random.choice(self._brokers), self._random.choice(self._keys)
        values = RATES if key in RATE_KEYS else ("true", "false")
        value = self._random.choice((None, *values))
        self._note("%s of %s is %s", key, entity, value)
        set_config(self._zookeeper, entity, {key: value})

    def settle(self) -> None:
        """Remove the throttles, which may keep replicas from catching up."""
        for entity in self._brokers:
            set_config(self._zookeeper, entity, dict.fromkeys(RATE_KEYS))


class LoweredMinIsrs:
    """Lowers ``min.insync.replicas`` of a topic for a moment, and raises it again.

    Meanwhile a leader may commit records that eligible replicas (KIP-966) do not have.
    It has random numbers of its own.
    """

    def __init__(self, cluster: Cluster, seed: int, note: Callable[..., None]) -> None:
        self._cluster = cluster
        self._random = random.Random(f"lowered min.insync.replicas of {seed}")
        self._note = note
        self._is_on = self._random.random() < LOWERING_HISTORIES

    def act(self, meanwhile: Callable[[], None]) -> SimulatedBroker | None:
        """Sometimes lower and raise it for a partition with eligible replicas.

        Return its leader if that is to end now.
        """
        partitions = self._partitions_with_eligible_replicas() if self._is_on else {}
        if not partitions or self._random.random() >= LOWERING_PROBABILITY:
            return None
        name, leader = self._random.choice(sorted(partitions.items()))
        self._note("lower min.insync.replicas of %s", name.topic)
        self._configure(name.topic, "1", LogConfig())
        for _ in range(self._random.randrange(MAX_LOWERED_STEPS)):
            meanwhile()
        self._note("raise min.insync.replicas of %s", name.topic)
        self._configure(name.topic, None, TOPIC_CONFIGS[name.topic])
        is_to_end = self._random.random() < LEADER_ENDS_PROBABILITY
        return self._cluster.brokers.get(leader) if is_to_end else None

    def _configure(self, topic: str, min_isr: str | None, config: LogConfig) -> None:
        set_config(self._cluster.zookeeper, f"topics/{topic}", {"min.insync.replicas": min_isr})
        for disk in self._cluster.disks.values():
            disk.configure({topic: config})

    def _partitions_with_eligible_replicas(self) -> dict[TopicPartition, BrokerId]:
        """Return the partitions of which the last in-sync replica leads, with their leaders."""
        found: dict[TopicPartition, BrokerId] = {}
        for broker_id, broker in self._cluster.brokers.items():
            for name, partition in broker.replica_manager.partitions.items():
                is_it = name.topic in TOPIC_CONFIGS and partition.isr == (broker_id,)
                state = self._cluster.state(name) if is_it else None
                now = None if state is None else state.leader_and_isr
                if now is not None and now.leader == broker_id and now.eligible_leader_replicas:
                    found[name] = broker_id
        return found


def set_config(
    zookeeper: FakeZooKeeperServer, entity: str, changes: Mapping[str, str | None]
) -> None:
    """Set overrides of an entity, remove those that are None, and notify the brokers."""
    present = entity_config(zookeeper, entity)
    merged = {**present, **changes}
    config = {key: value for key, value in merged.items() if value is not None}
    if config == present:
        return
    zookeeper.put(ConfigEntityZNode.path(*entity.split("/", 1)), ConfigEntityZNode.encode(config))
    change = ConfigEntityChangeNotificationSequenceZNode
    zookeeper.put(change.PATH_PREFIX, change.encode(entity), is_sequential=True)


def entity_config(zookeeper: FakeZooKeeperServer, entity: str) -> dict[str, str]:
    """Return the overrides of an entity in ZooKeeper."""
    node = zookeeper.node(ConfigEntityZNode.path(*entity.split("/", 1)))
    return {} if node is None else dict(ConfigEntityZNode.decode(node.data))


def broker_config(zookeeper: FakeZooKeeperServer, broker_id: BrokerId) -> dict[str, str]:
    """Return the overrides of a broker in ZooKeeper, with the cluster-wide defaults."""
    own = entity_config(zookeeper, f"brokers/{broker_id}")
    return {**entity_config(zookeeper, DEFAULT_BROKER), **own}


def assert_throttled(cluster: Cluster, broker: SimulatedBroker, request: RequestBody) -> bool:
    """Check, when copying begins, that the throttles are those in ZooKeeper."""
    if not isinstance(request, LeaderAndIsrRequest) or not _begins_copying(broker, request):
        return False
    wanted = broker_config(cluster.zookeeper, broker.broker_id)
    _assert_follows(broker, wanted, RATE_KEYS, "copies under other throttles than ZooKeeper's")
    return any(key in wanted for key in RATE_KEYS)


def _assert_follows(
    broker: SimulatedBroker, wanted: Mapping[str, str], keys: Sequence[str], problem: str
) -> None:
    texts = {key: wanted.get(key, text_of(KAFKA_SETTINGS[key].default)) for key in keys}
    known = {key: text_of(broker.configs.values[key]) for key in keys}
    assert known == texts, f"broker {broker.broker_id} {problem}: {known}, not {texts}"


def _begins_copying(broker: SimulatedBroker, request: LeaderAndIsrRequest) -> bool:
    hosted = broker.replica_manager.partitions
    for topic in request.topic_states:
        for state in topic.partition_states:
            partition = hosted.get(TopicPartition(topic.topic_name, state.partition_index))
            known = () if partition is None else partition.assignment.adding_replicas
            if not set(state.adding_replicas) <= set(known):
                return True
    return False


def assert_uses_configurations(cluster: Cluster, broker: SimulatedBroker) -> None:
    """Check that a broker uses the configurations in ZooKeeper; raises ``AssertionError``."""
    zookeeper, configs = cluster.zookeeper, broker.configs
    wanted = broker_config(zookeeper, broker.broker_id)
    _assert_follows(broker, wanted, RATE_KEYS, "has other settings than ZooKeeper")
    is_unclean = wanted.get(UNCLEAN_LEADER_ELECTION) == "true"
    where = f"broker {broker.broker_id} has other settings than ZooKeeper"
    assert broker.settings.unclean_leader_election_enable is is_unclean, f"{where}: elections"
    hosted = {name.topic for name in broker.replica_manager.partitions}
    for topic in sorted(hosted & configs.loaded):
        stored = entity_config(zookeeper, f"topics/{topic}")
        wanted = {key: stored[key] for key in REPLICAS_KEYS if key in stored}
        known = configs.throttled.get(topic, {})
        assert known == wanted, f"{where}: {topic} has {known}, not {wanted}"
