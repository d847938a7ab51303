"""Names that depend on earlier steps, and the steps that wait."""

from __future__ import annotations

from typing import Any

from regent.core.controller.states import ReplicaState
from regent.core.model import BrokerId, TopicPartition
from tests.conformance.fields import Fields, one_of, partition
from tests.conformance.machines import REPLICA_STATES
from tests.conformance.stage import Stage


class Waits:
    """Waits for conditions; knows the stopped brokers and the former controllers."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cluster = stage.cluster
        self.stopped: list[BrokerId] = []
        self.old_controller: BrokerId | None = None

    def broker(self, name: Any) -> BrokerId:
        """Return the broker with that name, also a bound one."""
        if name in ("that follower", "that broker", "the follower"):
            return self.stopped[-1]
        if name in ("a follower", "follower"):
            return self._a_follower()
        if name in ("leader", "the leader"):
            return self.leader()
        return self.stage.broker(name)

    def leader(self) -> BrokerId:
        """Return the leader of the first topic."""
        leads = self.stage.leads(TopicPartition(self.stage.topics[0], 0))
        assert leads is not None
        return leads[0]

    def _a_follower(self) -> BrokerId:
        """Return the last replica that is not the first topic's leader and not the controller."""
        stored = self.stage.topic(self.stage.topics[0])
        assert stored is not None
        busy = {self.leader(), self.stage.controller.broker_id}
        return [r for r in stored.partitions[0].replicas if r not in busy][-1]

    def do_wait_broker_unregistered(self, step: Fields) -> None:
        """Wait until the last stopped broker has no registration."""
        broker_id = self.stopped[-1]
        self.stage.eventually("unregistered", lambda: not self.stage.is_registered(broker_id))
        self.stage.eventually(
            "the controller knows",
            lambda: broker_id not in self.stage.context.live_or_shutting_down_broker_ids,
        )

    def do_wait_new_controller(self, step: Fields) -> None:
        """Wait until another broker is the controller than before the last shutdown."""
        none: list[list[BrokerId | None]] = [[], [self.old_controller]]

        def active() -> list[BrokerId]:
            return [b.broker_id for b in self.cluster.active_controllers]

        self.stage.eventually("a new controller", lambda: active() not in none)

    def do_wait_isr(self, step: Fields) -> None:
        """Wait for an ISR."""
        topic_partition, isr = self._partition(step), sorted(self.stage.brokers(step.take("isr")))
        self.stage.eventually(
            f"{topic_partition} has ISR {isr}", lambda: self.stage.isr(topic_partition) == isr
        )

    def do_wait_isr_contains(self, step: Fields) -> None:
        """Wait for a member."""
        topic_partition, broker_id = self._partition(step), self.broker(step.take("broker"))
        self.stage.eventually(
            f"{broker_id} is in sync", lambda: broker_id in self.stage.isr(topic_partition)
        )

    def do_wait_isr_size(self, step: Fields) -> None:
        """Wait for a number of members."""
        topic_partition, count = self._partition(step), step.take("n")
        self.stage.eventually(
            f"{count} in sync", lambda: len(self.stage.isr(topic_partition)) == count
        )

    def _partition(self, step: Fields) -> TopicPartition:
        return partition(step.take("tp", f"{self.stage.topics[0]}-0"))

    def do_wait_replica_states(self, step: Fields) -> None:
        """Wait until every replica of the first topic is in one of these states."""
        states: set[ReplicaState] = {
            one_of(state, REPLICA_STATES, "a replica state") for state in step.take("in")
        }

        def in_states() -> bool:
            context = self.stage.context
            replicas = context.replicas_of(context.partitions_of(self.stage.topics[0]))
            return {context.replica_state(replica) for replica in replicas} <= states

        self.stage.eventually(f"replicas in {states}", in_states)

    def do_wait_topic_absent_from_metadata(self, step: Fields) -> None:
        """Wait until no broker knows the first topic."""
        topic = self.stage.topics[0]

        def is_absent() -> bool:
            brokers = self.cluster.brokers.values()
            return not any(
                topic_partition.topic == topic
                for b in brokers
                for topic_partition in b.cache.snapshot.partitions
            )

        self.stage.eventually(f"no broker knows {topic}", is_absent)
