"""What administrators read and write in ZooKeeper, in bulk; nothing here is fenced or watched.

Mirrors ``kafka.zk.AdminZkClient`` and the reading half of ``KafkaZkClient``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from regent.core.errors import BadDataError, BrokerNotFoundError, RegentError
from regent.core.model import (
    BrokerId,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import ControllerFailure, TopicAssignment, WriteError
from regent.core.protocol.control import TopicId
from regent.zk.client.conflicts import MAX_ATTEMPTS, ConflictError
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    Committed,
    ConnectionLossError,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.requests import MAX_REQUEST_BYTES
from regent.zk.codecs import znodes
from regent.zk.codecs.admin_znodes import (
    ConfigEntityChangeNotificationZNode,
    ConfigEntityZNode,
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
)
from regent.zk.stores.broker_store import broker_registration
from regent.zk.stores.controller_store import read_partition_states, topic_assignment
from regent.zk.stores.failure_store import ControllerFailuresZNode
from regent.zk.stores.fenced_writes import (
    BYTES_BESIDE_DATA,
    Outcome,
    Write,
    WriteRefused,
    write_unfenced,
)
from regent.zk.stores.progress_mark import read_mark
from regent.zk.stores.topic_config_admin import TopicConfigAdmin

_MAX_DATA_BYTES = MAX_REQUEST_BYTES - 4096  # beside paths and headers

_LOOKED_AT = (
    znodes.ClusterIdZNode.PATH,
    znodes.ControllerZNode.PATH,
    znodes.ControllerEpochZNode.PATH,
    ControllerFailuresZNode.PATH,
    znodes.BrokerIdsZNode.PATH,
    znodes.TopicsZNode.PATH,
    DeleteTopicsZNode.PATH,
    ReassignPartitionsZNode.PATH,
    PreferredReplicaElectionZNode.PATH,
    IsrChangeNotificationZNode.PATH,
    LogDirEventNotificationZNode.PATH,
    ConfigEntityChangeNotificationZNode.PATH,
)


class NoClusterError(RegentError):
    """No broker ever started at this address."""


class TopicTooLargeError(RegentError):
    """The assignment of a topic does not fit into a znode."""


@dataclass(frozen=True, slots=True)
class RulingController:
    """Who holds ``/controller``, by which epoch; ``broker_id`` is -1 when the data is garbage."""

    broker_id: BrokerId
    controller_epoch: int
    epoch_zk_version: int
    zk_version: int  # of `/controller` itself


class NewTopic(NamedTuple):
    """A topic to create."""

    topic_id: TopicId
    partitions: Mapping[int, ReplicaAssignment]
    config: Mapping[str, str]


class CreateTopicOutcome(Enum):
    """What became of a topic to create."""

    CREATED = "created"
    ALREADY_EXISTS = "already exists"


class DeleteTopicOutcome(Enum):
    """What became of a topic to delete; the controller does the deleting."""

    MARKED = "marked"
    ALREADY_MARKED = "already marked"
    UNKNOWN_TOPIC = "does not exist"


class AddPartitionsOutcome(Enum):
    """What became of partitions to add."""

    ADDED = "added"
    UNKNOWN_TOPIC = "does not exist"
    BEING_DELETED = "is being deleted"
    BEING_REASSIGNED = "is being reassigned"
    OTHER_PARTITIONS = "was given other partitions at the same time"


class ZkAdminStore(TopicConfigAdmin):
    """Reads and writes of an administrator, over one ZooKeeper session.

    Every call raises ``SessionExpiredError`` when the session is over.
    """

    # --- controller ---

    def read_controller(self) -> RulingController | None:
        """Read who rules. Raises ``BadDataError`` for an epoch that cannot be understood."""
        path, epoch_path = znodes.ControllerZNode.PATH, znodes.ControllerEpochZNode.PATH
        for _ in range(MAX_ATTEMPTS):
            node, epoch, again = self._zookeeper.get_many([path, epoch_path, path])
            if node is None or epoch is None:
                return None
            # Both change in one transaction: the same controller before and after has this epoch.
            if again is not None and again.stat.czxid == node.stat.czxid:
                return _ruling_controller(again, epoch)
        raise ConflictError(f"{path} keeps changing; try again")

    def read_controller_epoch(self) -> int | None:
        """Read how many controllers there have been. Raises ``BadDataError``."""
        path = znodes.ControllerEpochZNode.PATH
        (node,) = self._zookeeper.get_many([path])
        return None if node is None else znodes.ControllerEpochZNode.decode(node.data)

    def read_controller_endpoint(self) -> str:
        """Return where the controller takes requests.

        Raises ``BrokerNotFoundError`` when there is none that does, and ``BadDataError``.
        """
        controller = self.read_controller()
        if controller is None:
            raise BrokerNotFoundError("there is no controller")
        try:
            return control_endpoint(controller.broker_id, self.read_broker(controller.broker_id))
        except BrokerNotFoundError as error:
            raise BrokerNotFoundError(f"the controller does not answer: {error}") from None

    def depose_controller(self, controller: RulingController) -> bool:
        """Delete ``/controller`` while it is still this one's.

        False when it had gone already, or the answer was lost: either way it rules no more.
        """
        operations: list[Operation] = [
            Check(znodes.ControllerEpochZNode.PATH, controller.epoch_zk_version),
            Delete(znodes.ControllerZNode.PATH, controller.zk_version),
        ]
        while True:
            try:
                return isinstance(self._zookeeper.multi(operations), Committed)
            except ConnectionLossError:
                self._zookeeper.wait_connected()

    def read_failures(self) -> tuple[ControllerFailure, ...]:
        """Read what ended controllers, oldest first. Raises ``BadDataError``."""
        node = self._zookeeper.get(ControllerFailuresZNode.PATH)
        return () if node is None else ControllerFailuresZNode.decode(node.data)

    def forget_failures(self) -> list[str]:
        """Have the controller try again whatever ended controllers; return what that is.

        Raises ``BadDataError`` and ``ConflictError``.
        """
        path = ControllerFailuresZNode.PATH
        for _ in range(MAX_ATTEMPTS):
            node = self._zookeeper.get(path)
            if node is None:
                return []
            failures = ControllerFailuresZNode.decode(node.data)
            write = SetData(path, ControllerFailuresZNode.encode(()), node.stat.version)
            try:
                if isinstance(self._zookeeper.multi([write]), Committed):
                    return [failure.what for failure in failures]
            except ConnectionLossError:
                self._zookeeper.wait_connected()
        raise ConflictError(f"{path} keeps changing; try again")

    # --- brokers ---

    def read_brokers(self) -> dict[BrokerId, BrokerRegistration | BadDataError]:
        """Read every registration, ascending by id.

        Raises ``NoClusterError`` when there is no place for registrations.
        """
        names = self._children_of_cluster(znodes.BrokerIdsZNode.PATH)
        broker_ids = sorted(int(name) for name in names if name.isdecimal())
        nodes = self._zookeeper.get_many([znodes.BrokerIdZNode.path(b) for b in broker_ids])
        return {
            broker_id: broker_registration(self._zookeeper, node, broker_id)
            for broker_id, node in zip(broker_ids, nodes, strict=True)
            if node is not None
        }

    def read_broker(self, broker_id: BrokerId) -> BrokerRegistration | BadDataError | None:
        """Read one registration."""
        node = self._zookeeper.get(znodes.BrokerIdZNode.path(broker_id))
        return None if node is None else broker_registration(self._zookeeper, node, broker_id)

    # --- topics, as read ---

    def read_topic_names(self) -> list[str]:
        """List the topics, sorted. Raises ``NoClusterError``, as ``read_brokers``."""
        return self._children_of_cluster(znodes.TopicsZNode.PATH)

    def read_topics_being_deleted(self) -> set[str]:
        """List the topics that somebody wants to be deleted."""
        return set(self._zookeeper.children(DeleteTopicsZNode.PATH) or ())

    def read_topics(self, topics: Collection[str]) -> dict[str, TopicAssignment | BadDataError]:
        """Read topic znodes, in the order of ``topics``; absent ones are missing."""
        nodes = self._zookeeper.get_many([znodes.TopicZNode.path(topic) for topic in topics])
        return {
            topic: topic_assignment(node, topic)
            for topic, node in zip(topics, nodes, strict=True)
            if node is not None
        }

    def read_partition_states(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, LeaderIsrAndControllerEpoch | BadDataError]:
        """Read ``state`` znodes; absent ones are missing."""
        return read_partition_states(self._zookeeper, partitions)

    def read_pending_reassignments(self) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        """Read what other tools left in ``/admin/reassign_partitions``, done or still to be begun.

        Raises ``BadDataError``.
        """
        node = self._zookeeper.get(ReassignPartitionsZNode.PATH)
        return {} if node is None else ReassignPartitionsZNode.decode(node.data)

    # --- topics, as written ---

    def create_topics(self, topics: Mapping[str, NewTopic]) -> dict[str, CreateTopicOutcome]:
        """Create topics, each with its configuration or not at all.

        After a lost answer a topic is ours if it has the topic id we gave it. Raises
        ``TopicTooLargeError`` before anything is written, ``NoClusterError``, ``ConflictError``.
        """
        writes = {topic: self._encode(topic, new) for topic, new in topics.items()}
        outcomes: dict[str, CreateTopicOutcome] = {}
        for _ in range(MAX_ATTEMPTS):
            undecided = [topic for topic in topics if topic not in outcomes]
            outcomes |= self._existing(undecided, topics)
            undecided = [topic for topic in undecided if topic not in outcomes]
            results = write_unfenced(self._zookeeper, self._writes(undecided, writes))
            outcomes |= {
                topic: CreateTopicOutcome.CREATED
                for topic, result in zip(undecided, results, strict=True)
                if not isinstance(result, WriteRefused)
            }
            if len(outcomes) == len(topics):
                return {topic: outcomes[topic] for topic in topics}
        raise self._refused(next(topic for topic in topics if topic not in outcomes))

    def mark_for_deletion(self, topics: Collection[str]) -> dict[str, DeleteTopicOutcome]:
        """Ask the controller to delete topics, as Kafka's tool does; only those that exist.

        After a lost answer a topic of ours may be ALREADY_MARKED, or gone. Raises
        ``NoClusterError``.
        """
        self._children_of_cluster(DeleteTopicsZNode.PATH)
        writes: list[Write] = [
            [
                Check(znodes.TopicZNode.path(topic), ANY_VERSION),
                Create(DeleteTopicsTopicZNode.path(topic)),
            ]
            for topic in topics
        ]
        results = write_unfenced(self._zookeeper, writes)
        return {
            topic: _deletion_outcome(result) for topic, result in zip(topics, results, strict=True)
        }

    def add_partitions(
        self, topic: str, added: Mapping[int, ReplicaAssignment]
    ) -> AddPartitionsOutcome:
        """Add partitions whose ids continue those that the topic has; its topic id stays.

        The write is conditional on what was read, so that it cannot undo a controller's. Raises
        ``BadDataError``, ``TopicTooLargeError`` and ``ConflictError``.
        """
        path, first = znodes.TopicZNode.path(topic), min(added)
        for _ in range(MAX_ATTEMPTS):
            current = self.read_topics([topic]).get(topic)
            if current is None:
                return AddPartitionsOutcome.UNKNOWN_TOPIC
            if isinstance(current, BadDataError):
                raise current
            wanted = {p: a for p, a in current.partitions.items() if p < first} | dict(added)
            if wanted == current.partitions:  # our own attempt, whose answer was lost
                return AddPartitionsOutcome.ADDED
            refusal = self._refusal_to_grow(topic, current, first)
            if refusal is not None:
                return refusal
            data = znodes.TopicZNode.encode(current.topic_id, wanted)
            _check_size(topic, len(wanted), len(data))
            write = SetData(path, data, current.zk_version)
            try:
                if isinstance(self._zookeeper.multi([write]), Committed):
                    return AddPartitionsOutcome.ADDED
            except ConnectionLossError:
                self._zookeeper.wait_connected()
        raise self._refused(topic)

    # --- whose data these are, and whether they can be read ---

    def read_denied(self) -> list[str]:
        """Return in a line each what brokers look at for orders and requests, but may not see."""
        nodes = self._zookeeper.get_many(_LOOKED_AT)
        return [node.reason for node in nodes if isinstance(node, UnreadableZnode)]

    def read_cluster_id(self) -> str | None:
        """Return the cluster id; None when there is none. Raises ``BadDataError``."""
        node = self._zookeeper.get(znodes.ClusterIdZNode.PATH)
        return None if node is None else znodes.ClusterIdZNode.decode(node.data)

    def latest_zxid(self) -> int:
        """Return the newest transaction."""
        return self._zookeeper.latest_zxid()

    def read_mark(self) -> int | None:
        """Return the transaction that wrote ``/regent/progress_mark`` last, as ``read_mark``."""
        return read_mark(self._zookeeper)

    # --- inside ---

    def _children_of_cluster(self, path: str) -> list[str]:
        names = self._zookeeper.children(path)
        if names is None:
            raise NoClusterError(
                f"it has no {path}: no broker ever started there, or that was deleted"
            )
        return names

    def _encode(self, topic: str, new: NewTopic) -> tuple[bytes, bytes]:
        """Return the data of the configuration's and of the topic's znode."""
        config = ConfigEntityZNode.encode(new.config)
        data = znodes.TopicZNode.encode(new.topic_id, new.partitions)
        _check_size(topic, len(new.partitions), len(config) + len(data) + 2 * BYTES_BESIDE_DATA)
        return config, data

    def _existing(
        self, topics: Collection[str], wanted: Mapping[str, NewTopic]
    ) -> dict[str, CreateTopicOutcome]:
        outcomes = {}
        for topic, found in self.read_topics(topics).items():
            is_ours = isinstance(found, TopicAssignment) and (
                found.topic_id == wanted[topic].topic_id
            )
            outcomes[topic] = (
                CreateTopicOutcome.CREATED if is_ours else CreateTopicOutcome.ALREADY_EXISTS
            )
        return outcomes

    def _writes(
        self, topics: Collection[str], encoded: Mapping[str, tuple[bytes, bytes]]
    ) -> list[Write]:
        """Return the writes that create topics: configuration first, as Kafka's own tools do."""
        config_paths = [ConfigEntityZNode.path("topics", topic) for topic in topics]
        leftovers: list[Znode | None] = self._zookeeper.get_many(config_paths)
        writes: list[Write] = []
        for topic, path, leftover in zip(topics, config_paths, leftovers, strict=True):
            config, data = encoded[topic]
            set_config = (
                Create(path, config) if leftover is None else (SetData(path, config, ANY_VERSION))
            )
            writes.append([set_config, Create(znodes.TopicZNode.path(topic), data)])
        return writes

    def _refusal_to_grow(
        self, topic: str, current: TopicAssignment, first: int
    ) -> AddPartitionsOutcome | None:
        if topic in self.read_topics_being_deleted():
            return AddPartitionsOutcome.BEING_DELETED
        if any(a.is_being_reassigned for a in current.partitions.values()):
            return AddPartitionsOutcome.BEING_REASSIGNED
        if sorted(current.partitions) != list(range(first)):
            return AddPartitionsOutcome.OTHER_PARTITIONS
        return None

    def _refused(self, topic: str) -> RegentError:
        self.read_brokers()  # raises when it was in vain from the start
        return ConflictError(f"topic {topic}: others keep changing it; try again")


def control_endpoint(
    broker_id: BrokerId, registration: BrokerRegistration | BadDataError | None
) -> str:
    """Return where a registered broker takes requests; raises ``BrokerNotFoundError``."""
    if isinstance(registration, BadDataError):
        raise registration
    endpoint = None if registration is None else registration.info.control_endpoint
    if endpoint is None:
        raise BrokerNotFoundError(
            f"broker {broker_id} is not registered"
            if registration is None
            else f"broker {broker_id} has no control endpoint: it is not one of Regent's"
        )
    return endpoint


def _ruling_controller(node: Znode, epoch: Znode) -> RulingController:
    try:
        broker_id = znodes.ControllerZNode.decode(node.data)
    except BadDataError:
        broker_id = -1
    return RulingController(
        broker_id,
        znodes.ControllerEpochZNode.decode(epoch.data),
        epoch.stat.version,
        node.stat.version,
    )


def _deletion_outcome(result: Outcome) -> DeleteTopicOutcome:
    if not isinstance(result, WriteRefused):
        return DeleteTopicOutcome.MARKED
    is_unknown = result.error is WriteError.NO_NODE
    return DeleteTopicOutcome.UNKNOWN_TOPIC if is_unknown else DeleteTopicOutcome.ALREADY_MARKED


def _check_size(topic: str, partitions: int, size: int) -> None:
    if size > _MAX_DATA_BYTES:
        raise TopicTooLargeError(
            f"topic {topic}: {partitions} partitions take {size} bytes in ZooKeeper, which accepts"
            f" {_MAX_DATA_BYTES}: use fewer partitions or replicas"
        )
