"""The partitions in ZooKeeper, for ``topics describe`` and ``status``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from regent.core.controller.election.election import PartitionReplicas, waiting_reason
from regent.core.errors import BadDataError
from regent.core.model import (
    MAX_LEADER_EPOCH,
    NO_EPOCH,
    NO_LEADER,
    NO_LEADER_EPOCH_LEFT,
    NO_SUSPECTS,
    BrokerId,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LogEnd,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import TopicAssignment
from regent.core.replication.partition import is_under_replicated
from regent.zk.stores.admin_store import ZkAdminStore

_NO_STATE = LeaderIsrAndControllerEpoch(
    LeaderAndIsr(NO_LEADER, (), leader_epoch=NO_EPOCH, partition_epoch=-1), controller_epoch=-1
)


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """One partition; before its first election there is no leader and every epoch is -1."""

    topic_partition: TopicPartition
    topic_id: str | None
    assignment: ReplicaAssignment
    state: LeaderIsrAndControllerEpoch

    @property
    def leader(self) -> BrokerId:
        """The leader, -1 for none."""
        return self.state.leader_and_isr.leader

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are out of sync; replicas being added do not count (KIP-352)."""
        return is_under_replicated(self.state.leader_and_isr.isr, self.assignment)

    def is_unavailable(self, live_brokers: Collection[BrokerId]) -> bool:
        """Whether no live broker leads it."""
        return self.leader not in live_brokers

    def waiting_reason(self, brokers: Mapping[BrokerId, BrokerRegistration | BadDataError]) -> str:
        """Say which broker a partition without a leader waits for, and why; empty: for none."""
        known = {b: r for b, r in brokers.items() if isinstance(r, BrokerRegistration)}
        if self.leader in known:
            return ""
        if self.state.leader_and_isr.leader_epoch >= MAX_LEADER_EPOCH:
            return f"has leader epoch {MAX_LEADER_EPOCH}: {NO_LEADER_EPOCH_LEFT}"

        def suspect_end(replica: BrokerId) -> LogEnd | None:
            suspects = known[replica].suspects if replica in known else NO_SUSPECTS
            return suspects.end_of(self.topic_partition)

        replicas = PartitionReplicas(
            self.assignment,
            is_online=lambda r: r in known,
            is_reachable=lambda r: r in known,
            is_shutting_down=lambda _: False,
            suspect_end=suspect_end,
        )
        return waiting_reason(self.state.leader_and_isr, replicas)

    def as_json(self) -> dict[str, object]:
        """Return its JSON object for ``-o json``."""
        leadership = self.state.leader_and_isr
        return {
            "topic": self.topic_partition.topic,
            "topic_id": self.topic_id,
            "partition": self.topic_partition.partition,
            "leader": leadership.leader,
            "leader_epoch": leadership.leader_epoch,
            "controller_epoch": self.state.controller_epoch,
            "isr": leadership.isr,
            "replicas": self.assignment.replicas,
            "adding_replicas": self.assignment.adding_replicas,
            "removing_replicas": self.assignment.removing_replicas,
            "partition_epoch": leadership.partition_epoch,
        }


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics and their partitions, sorted; ``unreadable`` has the reasons why some are missing."""

    assignments: Mapping[str, TopicAssignment]
    partitions: tuple[DescribedPartition, ...]
    unreadable: tuple[str, ...]


def read_partitions(admin: ZkAdminStore, topics: Collection[str]) -> Topics:
    """Read topics and the states of all their partitions; absent topics are missing."""
    assignments: dict[str, TopicAssignment] = {}
    unreadable: list[str] = []
    for topic, assignment in admin.topics.read_topics(sorted(topics)).items():
        if isinstance(assignment, BadDataError):
            unreadable.append(str(assignment))
        else:
            assignments[topic] = assignment
    partitions = [
        TopicPartition(topic, partition)
        for topic, assignment in assignments.items()
        for partition in assignment.partitions
    ]
    states = admin.read_partition_states(partitions)
    rows = []
    for partition in partitions:
        state = states.get(partition, _NO_STATE)
        if isinstance(state, BadDataError):
            unreadable.append(f"partition {partition}: {state}")
            state = _NO_STATE
        of_topic = assignments[partition.topic]
        replicas = of_topic.partitions[partition.partition]
        rows.append(DescribedPartition(partition, of_topic.topic_id, replicas, state))
    return Topics(assignments, tuple(rows), tuple(unreadable))
