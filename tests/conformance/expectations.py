"""The expectations of a scenario, which must hold in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.control import UpdateMetadataPartition
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.zk.znodes import ControllerEpochZNode, DeleteTopicsTopicZNode, TopicZNode
from tests.conformance.actions import Actions
from tests.conformance.fields import Fields, UnknownInCaseError, partition

_PATH = re.compile(
    "/(admin|brokers|cluster|config|consumers|controller|controller_epoch|feature"
    "|isr_change_notification|latest_producer_id_block|log_dir_event_notification)(/[^ /]+)*$"
)
_DELETED_MEANS = {
    "delete marker absent",
    "topic znode absent",
    "no broker hosts it",
    "no logs, including renamed ones",
    "no cleaner offsets",
}


class Expectations:
    """Compares one step after the other with the state."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions
        self.stage = actions.stage
        self.cluster = actions.cluster
        self.by_op: Mapping[str, Callable[[Fields], None]] = {
            op: getattr(self, op) for op in dir(self) if op.startswith("expect_")
        }

    def _broker(self, name: Any) -> BrokerId:
        return NO_LEADER if name == NO_LEADER else self.actions.broker(name)

    def _brokers(self, on: Any, all_brokers: list[BrokerId]) -> list[BrokerId]:
        """Return the brokers of an expectation."""
        if on == "all":
            return all_brokers
        if on in ("live", "alive", "running", "the live ones"):
            return list(self.cluster.brokers)
        return [self._broker(name) for name in (on if isinstance(on, list) else [on])]

    # --- controllers ---

    def expect_controller(self, step: Fields) -> None:
        """There is an active controller, and ZooKeeper agrees."""
        broker_id = self._broker(step.take("broker"))
        self.stage.eventually(
            f"{broker_id} rules", lambda: self.stage.cluster.controller_id() == broker_id
        )

    def expect_no_controller(self, step: Fields) -> None:
        """There is no active controller."""
        self.stage.eventually("no controller", lambda: self.stage.cluster.controller_id() is None)

    def expect_controller_epoch(self, step: Fields) -> None:
        """The number of controllers up to now."""
        value = step.take("value")

        def reached() -> bool:
            node = self.stage.nodes.get(ControllerEpochZNode.PATH)
            return node is not None and ControllerEpochZNode.decode(node.data) == value

        self.stage.eventually(f"controller epoch {value}", reached)

    def expect_active(self, step: Fields) -> None:
        """Whether a broker believes to be the active controller."""
        broker_id, value = self._broker(step.take("broker")), step.take("value")
        broker = self.cluster.brokers[broker_id]
        self.stage.eventually("its role", lambda: broker.controller.is_active is value)
        for logged in step.expected("logged"):
            if logged != "ControllerMovedException":
                raise UnknownInCaseError(f"{logged!r} in the log")
            assert self.stage.log.has_moved

    # --- leaderships ---

    def expect_state(self, step: Fields) -> None:
        """A partition has a leader, in some epoch."""
        topic_partition = partition(step.take("tp"))
        leader = self._broker(step.take("leader")) if "leader" in step else None
        epoch = step.take("leader_epoch", None)
        controller_epoch = step.take("controller_epoch", None)
        isr = sorted(map(self._broker, step.take("isr"))) if "isr" in step else None

        def reached() -> bool:
            stored = self.cluster.state(topic_partition)
            return (
                stored is not None
                and leader in (None, stored.leader_and_isr.leader)
                and epoch in (None, stored.leader_and_isr.leader_epoch)
                and controller_epoch in (None, stored.controller_epoch)
                and isr in (None, sorted(stored.leader_and_isr.isr))
            )

        self._reaches(topic_partition, reached)

    expect_leader = expect_state
    expect_epoch = expect_state

    def _reaches(self, topic_partition: TopicPartition, reached: Callable[[], bool]) -> None:
        try:
            self.stage.eventually("a leadership", reached)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {topic_partition} is {self.cluster.state(topic_partition)}"
            ) from None

    def expect_has_leader(self, step: Fields) -> None:
        """A partition has a leader."""
        topic_partition = partition(step.take("tp"))

        def is_led() -> bool:
            leads = self.stage.leads(topic_partition)
            return leads is not None and leads[0] in self.cluster.brokers

        self.stage.eventually(f"{topic_partition} has a leader", is_led)

    def expect_unclean_meter(self, step: Fields) -> None:
        """The number of unclean elections."""
        value = step.take("value")

        def count() -> bool:
            stats = [b.controller.context.stats for b in self.cluster.brokers.values()]
            return bool(sum(s.unclean_leader_elections for s in stats) == value)

        self.stage.eventually(f"{value} unclean elections", count)

    # --- assignments ---

    def _assignment(self, topic_partition: TopicPartition) -> ReplicaAssignment | None:
        stored = self.stage.topic(topic_partition.topic)
        return None if stored is None else stored.partitions.get(topic_partition.partition)

    def expect_assignment(self, step: Fields) -> None:
        """The assignment of a partition."""
        topic_partition = partition(step.take("tp"))
        wanted = {
            kind: tuple(self.stage.brokers(step.take(kind)))
            for kind in ("replicas", "adding", "removing")
            if kind in step
        }

        def reached() -> bool:
            now = self._assignment(topic_partition)
            if now is None:
                return False
            found = {
                "replicas": now.replicas,
                "adding": now.adding_replicas,
                "removing": now.removing_replicas,
            }
            is_settled = "adding" in wanted or not now.is_being_reassigned
            return is_settled and all(found[kind] == wanted[kind] for kind in wanted)

        self.stage.eventually(f"{topic_partition} is assigned {wanted}", reached)

    def expect_replicas(self, step: Fields) -> None:
        """The state of a move, as a tool sees it."""
        topic_partition, is_done = partition(step.take("tp")), step.take("done")
        current = tuple(self.stage.brokers(step.take("current")))
        target = tuple(self.stage.brokers(step.take("target")))

        def reached() -> bool:
            now = self._assignment(topic_partition)
            return (
                now is not None
                and now.replicas == current
                and now.target_replicas == target
                and now.is_being_reassigned is not is_done
            )

        self.stage.eventually(f"{topic_partition} moves from {current} to {target}", reached)

    def expect_no_reassignments(self, step: Fields) -> None:
        """No partition is being moved."""
        response = self.cluster.request(ListPartitionReassignmentsRequest.of())
        assert isinstance(response, ListPartitionReassignmentsResponse)
        assert response.topics == ()

    def expect_path(self, step: Fields) -> None:
        """A node exists and stays, or is deleted."""
        path, is_present = step.take("path"), step.take("present")
        if not _PATH.match(path):
            raise UnknownInCaseError(f"the path {path!r}")
        self.stage.eventually(path, lambda: (path in self.stage.nodes) is is_present)
        if is_present:
            self.stage.settle()
            assert path in self.stage.nodes

    # --- brokers ---

    def expect_hosted(self, step: Fields) -> None:
        """The number of partitions that a broker hosts."""
        broker, count = self._broker(step.take("broker")), step.take("partitions")
        manager = self.cluster.brokers[broker].replica_manager
        self.stage.eventually(f"{broker} hosts {count}", lambda: len(manager.partitions) == count)

    def expect_cache(self, step: Fields) -> None:
        """The contents of a broker's metadata cache."""
        cache = self.cluster.brokers[self._broker(step.take("broker"))].cache
        topics, alive = step.take("topics", None), step.take("alive", None)

        def reached() -> bool:
            known = {topic_partition.topic for topic_partition in cache.snapshot.partitions}
            return topics in (None, len(known)) and alive in (None, len(cache.snapshot.brokers))

        self.stage.eventually(f"{topics} topics, {alive} brokers", reached)

    def expect_metadata(self, step: Fields) -> None:
        """The leadership of a partition in the brokers' metadata caches."""
        topic_partition = partition(step.take("tp"))
        brokers = self._brokers(step.take("on", "all"), list(self.cluster.brokers))
        wanted: dict[str, Any] = {}
        for key in ("replicas", "isr", "offline"):
            if key in step:
                wanted[key] = sorted(map(self._broker, step.take(key)))
            if f"{key}_nonempty" in step:
                wanted[f"{key}_nonempty"] = step.take(f"{key}_nonempty")
        if "leader" in step:
            wanted["leader"] = self._broker(step.take("leader"))

        def reached() -> bool:
            rows = [
                self.cluster.brokers[b].cache.snapshot.partitions.get(topic_partition)
                for b in brokers
            ]
            return all(row is not None and _shows(row, wanted) for row in rows)

        self.stage.eventually(f"{brokers} know {topic_partition}: {wanted}", reached)

    # --- topics ---

    def expect_deleted(self, step: Fields) -> None:
        """A topic is deleted completely."""
        topic, meanings = step.take("topic"), set(step.take("means", ()))
        self._check_known(topic)
        count = step.take("partitions", 1)  # means all of them
        if not isinstance(count, int) or count < 1:
            raise UnknownInCaseError(f"the deletion of {count!r} partitions")
        if not meanings <= _DELETED_MEANS:
            raise UnknownInCaseError(f"deleted means {sorted(meanings - _DELETED_MEANS)}")

        def is_gone() -> bool:
            nodes = self.stage.nodes
            return (
                DeleteTopicsTopicZNode.path(topic) not in nodes
                and TopicZNode.path(topic) not in nodes
                and not any(
                    topic_partition.topic == topic
                    for broker in self.cluster.brokers.values()
                    for topic_partition in (
                        *broker.replica_manager.partitions,
                        *broker.disk.hosted(),
                    )
                )
            )

        self.stage.eventually(f"{topic} is deleted", is_gone)

    def _check_known(self, topic: str) -> None:
        """A topic that was never created does not exist."""
        if topic not in (*self.stage.topics, *self.actions.deletion_requested):
            raise UnknownInCaseError(f"the case creates no topic {topic!r}")

    def expect_logs_present(self, step: Fields) -> None:
        """Brokers have a partition's log."""
        self._expect_logs(step, are_there=True)

    def expect_logs_gone(self, step: Fields) -> None:
        """Brokers do not have a partition's log."""
        self._expect_logs(step, are_there=False)

    def _expect_logs(self, step: Fields, *, are_there: bool) -> None:
        topic_partition, disks = partition(step.take("tp")), self.cluster.disks
        self._check_known(topic_partition.topic)
        brokers = self._brokers(step.take("on", "all"), list(disks))
        self.stage.eventually(
            f"logs of {topic_partition} on {brokers}",
            lambda: all((topic_partition in disks[b].hosted()) is are_there for b in brokers),
        )

    def expect_records(self, step: Fields) -> None:
        """Consumers read these records of the first topic."""
        topic_partition, values = TopicPartition(self.stage.topics[0], 0), step.take("values")
        self.stage.eventually(
            f"{topic_partition} holds {values}",
            lambda: self.actions.records.values(topic_partition) == values,
        )

    # --- what a continuous consumer has seen ---

    def expect_consumed(self, step: Fields) -> None:
        """The values it read, in sequence, even if their records were lost later."""
        assert self.actions.consumer(step).values == step.take("values")

    def expect_duplicates(self, step: Fields) -> None:
        """The values it read twice."""
        assert self.actions.consumer(step).duplicates == step.take("values")

    def expect_gaps(self, step: Fields) -> None:
        """The gaps between the offsets it read."""
        gaps = [list(gap) for gap in self.actions.consumer(step).gaps]
        assert gaps == step.take("offsets")

    def expect_resets(self, step: Fields) -> None:
        """The number of resets to the beginning."""
        assert self.actions.consumer(step).resets == step.take("value")

    def expect_truncations(self, step: Fields) -> None:
        """The number of truncations: it went back because the log lost what it had read."""
        assert self.actions.consumer(step).truncations == step.take("value")

    def expect_refused(self, step: Fields) -> None:
        """The leader refuses to read from an offset."""
        topic_partition = TopicPartition(self.stage.topics[0], 0)
        offset, error = step.take("offset"), step.take("error")

        def is_refused() -> bool:
            answer = self.actions.records.fetch(topic_partition, offset)
            return answer is not None and answer.error_code.name == error

        self.stage.eventually(f"{offset} of {topic_partition} is {error}", is_refused)


def _shows(row: UpdateMetadataPartition, wanted: Mapping[str, Any]) -> bool:
    found = {
        "leader": row.leader,
        "replicas": sorted(row.replicas),
        "isr": sorted(row.isr),
        "offline": sorted(row.offline_replicas),
        "replicas_nonempty": bool(row.replicas),
        "isr_nonempty": bool(row.isr),
        "offline_nonempty": bool(row.offline_replicas),
    }
    return all(found[key] == value for key, value in wanted.items())
