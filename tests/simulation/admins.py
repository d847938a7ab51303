"""Random actions of admins and tools: topics, moves, elections, settings, mistakes."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

from regent.core.admin.config_handlers import DEFAULT_BROKER
from regent.core.admin.topic_settings import UNCLEAN_LEADER_ELECTION
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.controller import (
    ControllerRequest,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from regent.zk.codecs.topic_znodes import TopicZNodeData
from regent.zk.znodes import (
    ControllerZNode,
    DeleteTopicsTopicZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.simulation.application_topics import APPLICATION_TOPICS
from tests.simulation.cluster import Cluster
from tests.simulation.configurations import set_config
from tests.simulation.leadership_history import LeadershipHistory
from tests.simulation.odds import Menu

NAMES = tuple(f"topic-{number}" for number in range(6))
NAMES_OF_A_HISTORY = (2, 3, 6)
FEWEST_REPLICAS = (1, 1, 2, 3)
GARBAGE = b'{"version":3,"partitions":'
MAX_PARTITIONS = 10  # of a topic; reads of many more never end without a fault


class Admins:
    """All actions of admins; ``note`` writes the history."""

    def __init__(
        self,
        cluster: Cluster,
        brokers: int,
        dice: random.Random,
        history: LeadershipHistory,
        note: Callable[..., None],
    ) -> None:
        self._cluster = cluster
        self._brokers = range(brokers)
        self._random = dice
        self._history = history
        self._note = note
        self._broken: dict[str, tuple[int, bytes]] = {}  # topic -> its czxid and what it held
        # Few topics, or many replicas each, so that many actions concern the same topic.
        self._names = dice.sample(NAMES, dice.choice(NAMES_OF_A_HISTORY))
        self._fewest_replicas = dice.choice(FEWEST_REPLICAS)
        # An admin creates a topic with the name of one that was removed by hand only when no
        # controller still knows the former one: a controller cannot tell the two apart when the
        # new topic is written twice and has no id.
        self._removed: set[str] = set()
        self.menu = Menu(dice)
        self.menu.add(self.create_topic, 4, is_remedy=True)
        self.menu.add(self._expand_topic)
        self.menu.add(self.delete_topic)
        self.menu.add(self._rewrite_without_id)
        self.menu.add(self._break_a_topic)
        self.menu.add(self._restore_a_topic)
        self.menu.add(self._ask_to_reassign, 3)
        self.menu.add(self._write_reassignments)
        self.menu.add(self._ask_for_elections)
        self.menu.add(self._write_preferred_elections)
        self.menu.add(self._allow_unclean_elections)
        self.menu.add(self._list_reassignments)
        self.works = (
            self.create_topic,
            self._expand_topic,
            self.delete_topic,
            self._ask_to_reassign,
            self._ask_to_reassign,
            self._write_reassignments,
            self._write_preferred_elections,
        )
        self.mistakes = (
            (self.delete_controller_znode, 1.0),
            (self._overwrite_controller_znode, 1.0),
        )

    # --- topics ---

    def _topics(self) -> dict[str, TopicZNodeData]:
        """Return the topics whose znodes are readable."""
        topics: dict[str, TopicZNodeData] = {}
        for topic in self._cluster.zookeeper.children_of("/brokers/topics"):
            node = self._cluster.zookeeper.node(TopicZNode.path(topic))
            if node is not None and topic not in self._broken:
                topics[topic] = TopicZNode.decode(node.data)
        return topics

    def _a_topic(self) -> str | None:
        topics = sorted(self._topics().keys() - APPLICATION_TOPICS)
        return self._random.choice(topics) if topics else None

    def _some_partitions(self) -> list[TopicPartition]:
        partitions = [
            TopicPartition(topic, number)
            for topic, stored in sorted(self._topics().items())
            for number in stored.partitions
        ]
        return self._random.sample(partitions, min(len(partitions), self._random.randint(1, 4)))

    def _replicas(self) -> tuple[BrokerId, ...]:
        count = self._random.randint(self._fewest_replicas, 3)
        return tuple(self._random.sample(self._brokers, count))

    def create_topic(self) -> None:
        """Create a topic with a random name, unless the name is taken."""
        topic = self._random.choice(self._names)
        if self._cluster.zookeeper.node(TopicZNode.path(topic)):
            return
        if topic in self._removed and self._may_be_remembered(topic):
            return
        partitions = {p: self._replicas() for p in range(self._random.randint(1, 3))}
        self._note("create %s %s", topic, partitions)
        self._cluster.put_topic(topic, partitions)

    def _may_be_remembered(self, topic: str) -> bool:
        active = self._cluster.active_controllers
        known = any(topic in broker.controller.context.all_topics for broker in active)
        return known or bool(self._cluster.in_call)

    def _expand_topic(self) -> None:
        topic = self._a_topic()
        if topic is not None:
            self._expand(topic)

    def _expand(self, topic: str) -> None:
        stored = self._topics()[topic]
        grown = dict(stored.partitions)
        if len(grown) >= MAX_PARTITIONS:
            return
        grown[len(grown)] = ReplicaAssignment(self._replicas())
        self._note("expand %s to %s", topic, grown[len(grown) - 1])
        self._put_topic(topic, stored.topic_id, grown)

    def _rewrite_without_id(self) -> None:
        """Write a topic as a tool that knows neither topic ids nor pending reassignments."""
        topic = self._a_topic()
        if topic is None:
            return
        partitions = self._topics()[topic].partitions
        if not any(assignment.is_being_reassigned for assignment in partitions.values()):
            self._note("rewrite %s without its id", topic)
            self._put_topic(topic, None, dict(partitions))

    def _put_topic(
        self, topic: str, topic_id: str | None, partitions: dict[int, ReplicaAssignment]
    ) -> None:
        if topic_id is not None or topic not in self._removed:
            path = TopicZNode.path(topic)
            self._cluster.zookeeper.put(path, TopicZNode.encode(topic_id, partitions))

    def delete_topic(self, out_of_reach: Collection[str] = ()) -> None:
        """Request the deletion of a topic, if possible one with replicas on these brokers."""
        disturbed = sorted((self._topics().keys() & out_of_reach) - APPLICATION_TOPICS)
        topic = self._random.choice(disturbed) if disturbed else self._a_topic()
        if topic is not None:
            self._note("delete %s", topic)
            self._cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))

    def remove_topic_by_hand(self) -> None:
        """Remove a topic as ``zookeeper-shell rmr`` does."""
        topic = self._a_topic()
        if topic is not None:
            self._note("remove %s by hand", topic)
            self._removed.add(topic)
            path = TopicZNode.path(topic)
            nodes = [
                p for p in self._cluster.zookeeper.snapshot() if f"{p}/".startswith(f"{path}/")
            ]
            for node in reversed(nodes):
                self._cluster.zookeeper.remove(node)

    def _break_a_topic(self) -> None:
        topic = self._a_topic()
        path = None if topic is None else TopicZNode.path(topic)
        if topic is not None and path is not None and not self._is_busy(topic):
            self._note("break %s", topic)
            node = self._cluster.zookeeper.node(path)
            assert node is not None, path
            self._broken[topic] = node.stat.czxid, node.data
            self._cluster.zookeeper.put(path, GARBAGE)

    def _is_busy(self, topic: str) -> bool:
        """Whether the saved content of the znode could be out of date when it is restored."""
        is_being_deleted = (
            self._cluster.zookeeper.node(DeleteTopicsTopicZNode.path(topic)) is not None
        )
        moving = [a.is_being_reassigned for a in self._topics()[topic].partitions.values()]
        return any(moving) or topic in self._removed or is_being_deleted

    def write_first(self, paths: Collection[str]) -> bool:
        """Write one of these znodes between a broker's read and write of it.

        Return whether it was the znode of a topic.
        """
        topics = [
            topic
            for topic in sorted(self._topics().keys() - APPLICATION_TOPICS)
            if TopicZNode.path(topic) in paths
        ]
        if topics:
            self._expand(self._random.choice(topics))
        path = ReassignPartitionsZNode.PATH
        node = self._cluster.zookeeper.node(path) if path in paths else None
        if node is not None and node.data != GARBAGE:
            more = {
                topic_partition: self._replicas() for topic_partition in self._some_partitions()
            }
            wanted = {**more, **ReassignPartitionsZNode.decode(node.data)}
            self._note("write %s %s", path, wanted)
            self._cluster.zookeeper.put(path, ReassignPartitionsZNode.encode(wanted))
        return bool(topics)

    def restore_all(self) -> None:
        """Write back the former content of broken znodes."""
        while self._broken:
            self._restore_a_topic()

    def _restore_a_topic(self) -> None:
        if not self._broken:
            return
        topic = self._random.choice(sorted(self._broken))
        czxid, data = self._broken.pop(topic)
        node = self._cluster.zookeeper.node(TopicZNode.path(topic))
        if node is not None and node.stat.czxid == czxid:
            self._note("restore %s", topic)
            self._cluster.zookeeper.put(TopicZNode.path(topic), data)

    # --- moves ---

    def _ask_to_reassign(self) -> None:
        partitions = self._some_partitions()
        if not partitions:
            return
        targets = {
            topic_partition: None if self._random.random() < 0.2 else self._replicas()
            for topic_partition in partitions
        }
        self._note("reassign %s", [(str(p), replicas) for p, replicas in targets.items()])
        self._ask(AlterPartitionReassignmentsRequest.of(targets))

    def _write_reassignments(self) -> None:
        partitions = self._some_partitions()
        path = ReassignPartitionsZNode.PATH
        if not partitions or self._cluster.zookeeper.node(path):
            return  # tools wait until the former reassignment is done
        targets = {topic_partition: self._replicas() for topic_partition in partitions}
        is_garbage = self._random.random() < 0.1
        self._note("write %s %s", path, "garbage" if is_garbage else targets)
        data = GARBAGE if is_garbage else ReassignPartitionsZNode.encode(targets)
        self._cluster.zookeeper.put(path, data)

    # --- elections ---

    def _ask_for_elections(self) -> None:
        partitions = self._some_partitions()
        kind = ElectionType(self._random.random() < 0.15)
        of_all = kind is ElectionType.PREFERRED and self._random.random() < 0.2
        self._note("elect %s %s", kind.name, "all" if of_all else partitions)
        self._ask(ElectLeadersRequest.of(kind, None if of_all else tuple(partitions)))

    def _write_preferred_elections(self) -> None:
        path = PreferredReplicaElectionZNode.PATH
        if self._cluster.zookeeper.node(path):
            return
        partitions = self._some_partitions()
        is_garbage = self._random.random() < 0.1
        self._note("write %s %s", path, "garbage" if is_garbage else partitions)
        data = GARBAGE if is_garbage else PreferredReplicaElectionZNode.encode(partitions)
        self._cluster.zookeeper.put(path, data)

    def _allow_unclean_elections(self) -> None:
        topic = self._a_topic()
        if topic is None or self._random.random() < 0.5:
            return
        if self._random.random() < 0.1:
            self._note("allow unclean elections by default")
            entity = DEFAULT_BROKER
        else:
            self._note("allow unclean elections of %s", topic)
            entity = f"topics/{topic}"
        set_config(self._cluster.zookeeper, entity, {UNCLEAN_LEADER_ELECTION: "true"})

    # --- questions and mistakes ---

    def _list_reassignments(self) -> None:
        self._ask(
            self._random.choice(
                (ListPartitionReassignmentsRequest.of(()), ListPartitionReassignmentsRequest.of())
            )
        )

    def _ask(self, request: ControllerRequest) -> None:
        """Send a request to a broker that is, or was, the active controller."""
        brokers = self._cluster.active_controllers or list(self._cluster.brokers.values())
        if brokers:
            asked = self._random.choice(brokers)
            self._cluster.network.ask(None, asked.control_endpoint, request, lambda answer: None)

    def delete_controller_znode(self) -> None:
        """Let a controller be elected."""
        self._note("delete /controller")
        self._cluster.zookeeper.remove(ControllerZNode.PATH)

    def _overwrite_controller_znode(self) -> None:
        data = self._random.choice(
            [b"garbage", ControllerZNode.encode(99, 0), ControllerZNode.encode(1, 0)]
        )
        if self._cluster.zookeeper.node(ControllerZNode.PATH):
            self._note("overwrite /controller with %s", data)
            self._cluster.zookeeper.put(ControllerZNode.PATH, data)
