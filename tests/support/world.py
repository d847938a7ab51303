"""The toy world below the stages and clusters of the tests: brokers, topics, and their znodes.

``Znodes`` writes and reads topics and states, in any ZooKeeper. ``World`` adds the fake ZooKeeper
and registered brokers, each with a session of its own. ``tests/README.md`` tells what is built on
them and when to use it.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from regent.core.coordinator.group.group_metadata_manager import GroupConfig
from regent.core.model import (
    BrokerId,
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import UpdateMetadataBroker, UpdateMetadataEndPoint
from regent.zk.client.operations import ANY_VERSION, Committed, Create, Delete, WatchEvent, Znode
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.znode_store import topic_assignment
from regent.zk.znodes import (
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer

Replicas: TypeAlias = tuple[BrokerId, ...]

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NO_DELAY = GroupConfig(group_initial_rebalance_delay_ms=0)
"""Groups that complete their first rebalance at once."""


def subscription(*topics: str, user_data: bytes | None = None) -> bytes:
    """Return the metadata that a consumer of these topics sends when it joins, in version 0."""
    encoded = struct.pack(">hi", 0, len(topics))
    for topic in topics:
        encoded += struct.pack(">h", len(topic.encode())) + topic.encode()
    return (
        encoded
        + struct.pack(">i", -1 if user_data is None else len(user_data))
        + (user_data or b"")
    )


class SimulatedCrashError(Exception):
    """The controller's process ends here."""


class TopicIds:
    """Ids that count from 1; ``last_known_ids`` are those the broker remembers."""

    def __init__(self) -> None:
        self.last_known_ids: dict[str, str] = {}
        self._count = 0

    def new_topic_id(self) -> str:
        """Return the next id."""
        self._count += 1
        return topic_id(self._count)

    def last_known(self, topic: str) -> str | None:
        """Return the id that the broker remembers."""
        return self.last_known_ids.get(topic)


def topic_id(number: int) -> str:
    """Return a topic id that is easy to recognise."""
    return f"{number:022d}"


def broker_info(broker_id: BrokerId, incarnation: int = 1) -> BrokerInfo:
    """Return what a broker registers with; every incarnation has other control addresses."""
    return BrokerInfo(
        broker_id,
        (EndPoint("PLAINTEXT", f"host-{broker_id}", 9092),),
        control_endpoint=f"tcp://host-{broker_id}:{19000 + incarnation}",
        replication_endpoint=f"tcp://host-{broker_id}:{29000 + incarnation}",
    )


def live_broker(
    broker_id: BrokerId,
    broker_epoch: int = -1,
    *,
    port: int | None = None,
    rack: str | None = None,
    control_endpoint: str | None = None,
    replication_endpoint: str | None = None,
) -> UpdateMetadataBroker:
    """Return a live broker of an UpdateMetadata request; clients reach it at ``port``, if any."""
    endpoint = UpdateMetadataEndPoint("PLAINTEXT", "127.0.0.1", port or 0, "PLAINTEXT")
    endpoints = (endpoint,) if port else ()
    return UpdateMetadataBroker(
        broker_id, broker_epoch, endpoints, rack, control_endpoint, replication_endpoint
    )


def leadership(
    leader: BrokerId,
    isr: Replicas,
    *,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    controller_epoch: int = 1,
    recovery: int = 0,
) -> LeaderIsrAndControllerEpoch:
    """Return a leadership; the defaults are those of a partition just created."""
    state = LeaderRecoveryState(recovery)
    return LeaderIsrAndControllerEpoch(
        LeaderAndIsr(leader, isr, leader_epoch, partition_epoch, state), controller_epoch
    )


def full_assignment(replicas: Replicas | ReplicaAssignment) -> ReplicaAssignment:
    """Return replicas as an assignment, in which none is added or removed unless given."""
    return replicas if isinstance(replicas, ReplicaAssignment) else ReplicaAssignment(replicas)


def delete(zookeeper: FakeZooKeeper, path: str) -> None:
    """Delete one node, as a tool does."""
    assert isinstance(zookeeper.multi([Delete(path, ANY_VERSION)]), Committed)


class KeptSession(FakeZooKeeper):
    """Like ``zk.client.session.SessionKeeper``: between sessions every call raises."""

    @property
    def session_id(self) -> int:
        """The id of the session there is."""
        self.server.check_alive(self._session_id)
        return self._session_id

    def unwatch(self, paths: Iterable[str]) -> None:
        """Drop watches of the session there is."""
        super().unwatch(list(paths) if self.session_id else ())

    def expire(self) -> None:
        """End the session there is."""
        self.server.expire(self._session_id)

    def renew(self, on_watch: Callable[[WatchEvent], None]) -> None:
        """Open the next session."""
        self._session_id = self.server.open_session(on_watch)


class Znodes(ABC):
    """Topics, states and the controller in a ZooKeeper, written and read as by Kafka's tools."""

    @abstractmethod
    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node and its parents, or replace its data."""

    @abstractmethod
    def node(self, path: str) -> Znode | None:
        """Return a node."""

    def put_topic(
        self,
        topic: str,
        partitions: Mapping[int, Replicas | ReplicaAssignment],
        topic_id: str | None = None,
        leaders: Mapping[int, LeaderAndIsr] | None = None,
    ) -> None:
        """Write a topic's znode and, if given, the states of its partitions."""
        assignments = {p: full_assignment(replicas) for p, replicas in partitions.items()}
        self.put(TopicZNode.path(topic), TopicZNode.encode(topic_id, assignments))
        for partition, led in (leaders or {}).items():
            self.put_leadership(
                TopicPartition(topic, partition), LeaderIsrAndControllerEpoch(led, 1)
            )

    def rewrite_topic(self, topic: str, partitions: Mapping[int, Replicas]) -> None:
        """Write a topic's znode; the topic keeps its id, if it has one."""
        is_there = self.node(TopicZNode.path(topic)) is not None
        self.put_topic(topic, partitions, self.topic(topic).topic_id if is_there else None)

    def topic(self, topic: str) -> TopicAssignment:
        """Return the content of a topic znode that exists."""
        node = self.node(TopicZNode.path(topic))
        assert node is not None, f"there is no topic {topic}"
        return topic_assignment(topic, node)

    def put_state(
        self, partition: TopicPartition, leader: BrokerId, isr: Replicas, **fields: int
    ) -> None:
        """Write a partition's state; ``fields`` as of ``leadership``."""
        self.put_leadership(partition, leadership(leader, isr, **fields))

    def put_leadership(self, partition: TopicPartition, state: LeaderIsrAndControllerEpoch) -> None:
        """Write a partition's state."""
        self.put(TopicPartitionStateZNode.path(partition), TopicPartitionStateZNode.encode(state))

    def state(self, partition: TopicPartition) -> LeaderIsrAndControllerEpoch | None:
        """Return a partition's state."""
        node = self.node(TopicPartitionStateZNode.path(partition))
        if node is None:
            return None
        return TopicPartitionStateZNode.decode(node.data, node.stat.version)

    def leads(self, partition: TopicPartition) -> tuple[BrokerId, Replicas, int]:
        """Return leader, ISR and leader epoch of a partition that has a state."""
        state = self.state(partition)
        assert state is not None, f"{partition} has no state"
        now = state.leader_and_isr
        return now.leader, now.isr, now.leader_epoch

    def controller_id(self) -> BrokerId | None:
        """Return the broker that ``/controller`` names."""
        node = self.node(ControllerZNode.PATH)
        return None if node is None else ControllerZNode.decode(node.data)


class World(Znodes):
    """A fake ZooKeeper with registered brokers; each broker has a session of its own."""

    def __init__(self, brokers: Iterable[BrokerId] = ()) -> None:
        self.zookeeper = FakeZooKeeperServer()
        self.sessions: dict[BrokerId, FakeZooKeeper] = {}
        for broker_id in brokers:
            self.register(broker_id)

    def put(self, path: str, data: bytes = b"") -> None:
        """Create a node and its parents, or replace its data."""
        self.zookeeper.put(path, data)

    def node(self, path: str) -> Znode | None:
        """Return a node."""
        return self.zookeeper.node(path)

    # --- brokers ---

    def info(self, broker_id: BrokerId, incarnation: int = 1) -> BrokerInfo:
        """Return what a broker registers with."""
        return broker_info(broker_id, incarnation)

    def register(
        self,
        broker_id: BrokerId,
        *,
        incarnation: int = 1,
        suspects: SuspectReplicas | None = None,
    ) -> BrokerRegistration:
        """Register a broker; another ``incarnation`` has another control endpoint."""
        return self.register_as(self.info(broker_id, incarnation), suspects)

    def register_as(
        self, info: BrokerInfo, suspects: SuspectReplicas | None = None
    ) -> BrokerRegistration:
        """Register a broker with these data."""
        session = self.sessions[info.broker_id] = FakeZooKeeper(self.zookeeper)
        epoch = ZkControllerStore(session).register_broker(info, suspects or SuspectReplicas())
        return BrokerRegistration(info, epoch)

    def restart(self, broker_id: BrokerId, suspects: SuspectReplicas | None = None) -> None:
        """End the session of a broker and register it again."""
        self.unregister(broker_id)
        self.register(broker_id, incarnation=2, suspects=suspects)

    def unregister(self, *broker_ids: BrokerId) -> None:
        """Let the sessions of brokers expire."""
        for broker_id in broker_ids:
            self.zookeeper.expire(self.sessions.pop(broker_id).session_id)

    # --- the controller ---

    @property
    def controller_epoch(self) -> int:
        """The controller epoch; 0 before the first election."""
        node = self.node(ControllerEpochZNode.PATH)
        return 0 if node is None else int(node.data)

    def elect(self, broker_id: BrokerId) -> None:
        """Make a registered broker the controller of the next epoch."""
        self.elect_another_controller()
        created = Create(ControllerZNode.PATH, ControllerZNode.encode(broker_id, 0), ephemeral=True)
        assert isinstance(self.sessions[broker_id].multi([created]), Committed)

    def elect_another_controller(self) -> None:
        """Raise the controller epoch, as the election of another controller does."""
        self.put(ControllerEpochZNode.PATH, ControllerEpochZNode.encode(self.controller_epoch + 1))

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's znode and all below it."""
        root = TopicZNode.path(topic)
        tool = FakeZooKeeper(self.zookeeper)
        paths = [p for p in self.zookeeper.snapshot() if p == root or p.startswith(root + "/")]
        for path in reversed(paths):
            delete(tool, path)
