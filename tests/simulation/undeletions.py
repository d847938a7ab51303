"""An operator brings deleted topics back; what was committed before a deletion is there again.

Brokers hold their deleted logs at once; the request to the controller may be late, lost, repeated,
or reach a controller that is deposed. The operator's command may pause before it sends it, and a
broker that has answered may start again without a directory meanwhile.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from regent.core.model import NO_LEADER, BrokerId, TopicPartition
from regent.core.ports import DeletedTopic, TopicAssignment
from regent.core.protocol.broker import HoldDeletedLogsRequest
from regent.core.protocol.controller import HeldLogs, UndeleteTopicRequest
from regent.core.replication.held_logs import hold_deleted_logs
from regent.zk.client.operations import Create, Delete, Operation
from regent.zk.codecs.topic_znodes import DELETED_TOPIC
from regent.zk.stores.deleted_topic_store import read_deleted_topics
from regent.zk.stores.znode_store import decode_each, topic_assignment
from regent.zk.znodes import (
    DeletedTopicZNode,
    DeleteTopicsTopicZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)
from tests.simulation.application_topics import APPLICATION_TOPICS
from tests.simulation.cluster import Cluster
from tests.simulation.committed_records import CommittedRecords, LogKey
from tests.simulation.disk import Disk
from tests.simulation.simulated_logs import SimulatedLog
from tests.simulation.situations import Situation, Situations
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.memory_logs import StoredBatch

PROBABILITIES = (0.0, 0.1, 0.3)
DELETION_PROBABILITY = 0.1
PURGE_PROBABILITY = 0.1
SILENCE_PROBABILITIES = (0.1, 0.4, 0.8)
PAUSE_PROBABILITY = 0.3
LAGGING_PROBABILITY = 0.7
LOSS_PROBABILITY = 0.5
COMPLETE_PROBABILITY = 0.7


class Undeletions:
    """The actions of the operator; they have dice of their own."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        note: Callable[..., None],
        lose_a_directory: Callable[[BrokerId], None],
    ) -> None:
        self._cluster = cluster
        self._note = note
        self._lose_a_directory = lose_a_directory
        self._random = random.Random(f"{seed}, undeletions")
        self._probability = self._random.choice(PROBABILITIES)
        self._asked_at_rest: set[int] = set()  # zxids of deletions
        self._paused: list[UndeleteTopicRequest] = []

    def act(self) -> None:
        """Sometimes bring a deleted topic back, or delete one, or let brokers delete files."""
        if self._random.random() >= self._probability:
            return
        if self._random.random() < DELETION_PROBABILITY:
            self._delete()
        if self._paused and self._random.random() < PAUSE_PROBABILITY:
            self._ask(self._paused.pop(0))
        session = FakeZooKeeper(self._cluster.zookeeper)
        found = [of for _, of in sorted(read_deleted_topics(session).items())]
        topics = [deleted for deleted in found if isinstance(deleted, DeletedTopic)]
        if self._random.random() < COMPLETE_PROBABILITY:
            topics = [deleted for deleted in topics if deleted.is_complete] or topics
        if not topics:
            return
        deleted = self._random.choice(topics)
        if self._random.random() < PURGE_PROBABILITY:
            self._purge()
        self._undelete(deleted, self._random.choice(SILENCE_PROBABILITIES))

    def act_at_rest(self) -> None:
        """Bring each deleted topic back that is complete, when nothing else happens any more."""
        for deleted in read_deleted_topics(FakeZooKeeper(self._cluster.zookeeper)).values():
            assert isinstance(deleted, DeletedTopic)
            is_due = deleted.is_complete and deleted.zxid not in self._asked_at_rest
            if is_due and self._probability:
                self._asked_at_rest.add(deleted.zxid)
                self._undelete(deleted, silence=0.0)
                self._purge()  # before the controller decides

    def _undelete(self, deleted: DeletedTopic, silence: float) -> None:
        topic = deleted.topic
        if self._cluster.zookeeper.node(TopicZNode.path(topic)) is not None:
            return
        asked = [b for b in sorted(self._cluster.brokers) if self._random.random() >= silence]
        held = [row for b in asked if (row := self._hold(b, topic, deleted)) is not None]
        self._note("undelete %s, held by %s", topic, [row.broker_id for row in held])
        request = UndeleteTopicRequest(topic, deleted.topic_id, deleted.zxid, tuple(held))
        if silence and self._random.random() < PAUSE_PROBABILITY:
            self._paused.append(request)
            return
        if held and silence and self._random.random() < LOSS_PROBABILITY:
            self._lose_a_directory(self._random.choice(held).broker_id)
        self._ask(request)

    def _ask(self, request: UndeleteTopicRequest) -> None:
        self._note("ask the controller to bring %s back", request.topic)
        for broker in self._cluster.active_controllers or list(self._cluster.brokers.values()):
            self._cluster.network.ask(None, broker.control_endpoint, request, lambda _: None)

    def _hold(self, broker_id: BrokerId, topic: str, deleted: DeletedTopic) -> HeldLogs | None:
        broker = self._cluster.brokers[broker_id]
        if broker.is_of_kafka or broker.is_paused or broker.broker_epoch < 0:
            return None
        request = HoldDeletedLogsRequest(topic, deleted.topic_id, tuple(deleted.partitions))
        answer = hold_deleted_logs(broker_id, broker.broker_epoch, broker.disk, request)
        return HeldLogs(broker_id, answer.broker_epoch, answer.held) if answer.held else None

    def _delete(self) -> None:
        """Delete a topic whose znode is readable, as other administrators do."""
        names = set(self._cluster.zookeeper.children_of("/brokers/topics")) - APPLICATION_TOPICS
        found = FakeZooKeeper(self._cluster.zookeeper).get_many(list(map(TopicZNode.path, names)))
        read = decode_each(names, found, topic_assignment)
        topics = sorted(topic for topic, of in read.items() if isinstance(of, TopicAssignment))
        if self._random.random() < LAGGING_PROBABILITY:
            topics = [topic for topic in topics if self._lags(topic)] or topics
        if topics:
            topic = self._random.choice(topics)
            self._note("delete %s, which may come back", topic)
            self._cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))

    def _lags(self, topic: str) -> bool:
        """Whether the logs of a partition end at several offsets."""
        ends: dict[TopicPartition, set[int]] = {}
        for disk in self._cluster.disks.values():
            for name in disk.hosted():
                log = disk.get(name) if name.topic == topic else None
                if log is not None:
                    ends.setdefault(name, set()).add(log.log_end_offset)
        return any(len(several) > 1 for several in ends.values())

    def _purge(self) -> None:
        for broker_id in sorted(self._cluster.brokers):
            disk = self._cluster.brokers[broker_id].disk
            if isinstance(disk, Disk) and self._random.random() < 0.5:
                self._note("%d deletes the files of deleted logs", broker_id)
                disk.deleted.purge()


class PromisedRecords:
    """What was committed when a topic was remembered; its leaders have it when it is back."""

    def __init__(self, cluster: Cluster, situations: Situations) -> None:
        self._cluster = cluster
        self._situations = situations
        self._sound: set[LogKey] = set()  # when the deletion was requested
        self._promised: dict[LogKey, dict[int, StoredBatch]] = {}
        self._created = ""  # the path of the znode that was created last
        self._back: set[LogKey] = set()
        self._returned = "", ""  # the name and the id of the topic that came back last

    def on_deletion_requested(self, key: LogKey, known: CommittedRecords) -> None:
        """Note whether losses of a partition were checked until now."""
        self._back.discard(key)
        if not known.is_tainted and not known.unclean_epochs:
            self._sound.add(key)

    def on_operation(
        self, operation: Operation, records: Callable[[LogKey], CommittedRecords]
    ) -> None:
        """Note what is committed when a topic is remembered first, and that a topic is back.

        Its znode is created, and what is remembered is deleted next.
        """
        names, created = DeletedTopicZNode.names(operation.path), self._created
        self._created = operation.path if isinstance(operation, Create) else ""
        if names is not None and isinstance(operation, Delete):
            topic = TopicZNode.names(created)
            if topic is not None:
                self._returned = topic[0], names[0]
                self._back |= {k for k in self._promised if k.topic_id == names[0]}
        if isinstance(operation, Create):
            self._check_held(operation)
        if names is None or not isinstance(operation, Create):
            return
        deleted = DELETED_TOPIC.decode(operation.path, operation.data)
        for number in deleted.partitions:
            key = LogKey(TopicPartition(deleted.topic, number), deleted.topic_id)
            self._promised.pop(key, None)
            if key in self._sound:
                self._promised[key] = dict(records(key).committed)

    def _check_held(self, operation: Create) -> None:
        """Each member of the ISR with which a partition comes back holds its log.

        A controller may not know yet that a broker has ended since it answered.
        """
        names = TopicPartitionStateZNode.names(operation.path)
        if names is None or names[0] != self._returned[0]:
            return
        now = TopicPartitionStateZNode.decode(operation.data, 0).leader_and_isr
        name = TopicPartition(names[0], int(names[1]))
        for member in now.isr if now.leader == NO_LEADER else ():
            broker = self._cluster.brokers.get(member)
            known = {
                controller.controller.context.live_broker_epochs.get(member)
                for controller in self._cluster.active_controllers
            }
            if not known or known - {None, broker and broker.broker_epoch}:
                continue
            disk = self._cluster.disks[member]
            is_held = not isinstance(disk, Disk) or disk.deleted.is_held(name, self._returned[1])
            assert is_held, f"HeldLogsStay: broker {member} does not hold {name}: {now}"

    def give_up(self, key: LogKey) -> None:
        """Promise nothing more of a partition."""
        self._promised.pop(key, None)
        self._sound.discard(key)

    def check_leader(
        self, key: LogKey, broker_id: BrokerId, log: SimulatedLog, known: CommittedRecords
    ) -> None:
        """A leader of a topic that came back has what was committed before its deletion."""
        if key not in self._back:
            return
        self._situations.meet(Situation.TOPIC_BROUGHT_BACK)
        promised = self._promised.get(key, {})
        there = {batch.base_offset: batch.data for batch in log.batches}
        start = max(known.deleted_to, log.log_start_offset)
        lost = [
            batch.base_offset
            for batch in promised.values()
            if batch.last_offset >= start and there.get(batch.base_offset) != batch.data
        ]
        assert not lost, f"UndeletedTopicsAreWhole: {key}: broker {broker_id} leads without {lost}"
