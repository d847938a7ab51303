"""Some cases of the table with real brokers and a real ZooKeeper."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from regent.core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.protocol.controller import ControlledShutdownRequest
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.transport.control.key_files import BROKER_SECRET, read_secret
from regent.zk.client.operations import ANY_VERSION, Committed, Create, Operation, SetData, Znode
from regent.zk.znodes import (
    DeleteTopicsTopicZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.conformance.fields import Fields, partition
from tests.conformance.tables import OWN_TABLES, read_table

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

CHOSEN = (
    "end_to_end/expansion",
    "end_to_end/reassignment",
    "end_to_end/reassignment_resumes_when_target_returns",
    "end_to_end/controlled_shutdown_stale_broker_epoch",
    "deletion_scenario/add_partition_after_delete_started",
    "deletion_scenario/recreate_same_name",
)


def _steps(name: str) -> list[Mapping[str, Any]]:
    cases = {f"{g}/{c['name']}": c for path in OWN_TABLES for g, c in read_table(path)}
    steps: list[Mapping[str, Any]] = cases[name]["steps"]
    return steps


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    config: Path = tmp_path_factory.mktemp("config") / "cluster.toml"
    config.write_text("[controller]\nauto_leader_rebalance_enable = false\n")
    with RegentCluster(
        tmp_path_factory.mktemp("cluster"), "--no-placement-service", "--config", str(config)
    ) as cluster:
        yield cluster


class RealActions:
    """The steps of the chosen cases; every case has its own topics."""

    def __init__(self, cluster: RegentCluster, case: str) -> None:
        self.cluster = cluster
        self.zookeeper = cluster.zookeeper
        self._prefix = case.replace("/", ".").replace("_", "-")
        self._rules = cluster.await_controller()
        self._other = next(b for b in (0, 1, 2) if b != self._rules)
        self.by_op: Mapping[str, Callable[[Fields], None]] = {
            op.removeprefix("do_"): getattr(self, op) for op in dir(self) if op.startswith("do_")
        }

    def _broker(self, name: Any) -> BrokerId:
        named: BrokerId = {"C": self._rules, "O": self._other}.get(name, name)
        return named

    def _brokers(self, names: list[Any]) -> tuple[BrokerId, ...]:
        return tuple(map(self._broker, names))

    def _topic(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _partition(self, step: Fields) -> TopicPartition:
        topic, number = partition(step.take("tp"))
        return TopicPartition(self._topic(topic), number)

    def _apply(self, operation: Operation) -> None:
        assert isinstance(self.zookeeper.multi([operation]), Committed), operation

    def _assignments(self, topic: str) -> dict[int, ReplicaAssignment]:
        node = self.zookeeper.get(TopicZNode.path(topic))
        return {} if node is None else dict(TopicZNode.decode(node.data).partitions)

    # --- actions ---

    def do_create_topic(self, step: Fields) -> None:
        """Create a topic of one partition."""
        topic_partition = self._partition(step)
        self.cluster.create_topic_on(topic_partition.topic, [self._brokers(step.take("replicas"))])

    def do_write_assignment(self, step: Fields) -> None:
        """Overwrite a topic's assignment."""
        rows = step.take("assignment").items()
        topic = self._topic(step.take("topic"))
        node = self.zookeeper.get(TopicZNode.path(topic))
        assert node is not None
        self._put(topic, node, {int(n): self._brokers(r) for n, r in rows})

    def do_add_partitions_zk(self, step: Fields) -> None:
        """Add partitions to the topic of the case, if it still exists."""
        topic, added = self._topic("test"), step.take("manual")
        node = self.zookeeper.get(TopicZNode.path(topic))
        if node is None:
            return
        known = {n: a.replicas for n, a in TopicZNode.decode(node.data).partitions.items()}
        self._put(topic, node, known | {int(n): self._brokers(r) for n, r in added.items()})

    def _put(self, topic: str, node: Znode, partitions: Mapping[int, tuple[BrokerId, ...]]) -> None:
        """Overwrite an assignment; a concurrently deleted topic stays deleted."""
        assignments = {n: ReplicaAssignment(replicas) for n, replicas in partitions.items()}
        data = TopicZNode.encode(TopicZNode.decode(node.data).topic_id, assignments)
        self.zookeeper.multi([SetData(TopicZNode.path(topic), data, ANY_VERSION)])

    def do_reassign_zk(self, step: Fields) -> None:
        """Write a reassignment request."""
        topic_partition, target = self._partition(step), self._brokers(step.take("target"))
        data = ReassignPartitionsZNode.encode({topic_partition: target})
        self._apply(Create(ReassignPartitionsZNode.PATH, data))

    def do_preferred_zk(self, step: Fields) -> None:
        """Write a request for preferred elections."""
        requested = map(partition, step.take("tps"))
        topic_partitions = [
            TopicPartition(self._topic(topic), number) for topic, number in requested
        ]
        data = PreferredReplicaElectionZNode.encode(topic_partitions)
        self._apply(Create(PreferredReplicaElectionZNode.PATH, data))

    def do_delete_topic_zk(self, step: Fields) -> None:
        """Write the request to delete a topic."""
        self._apply(Create(DeleteTopicsTopicZNode.path(self._topic(step.take("topic")))))

    def do_shutdown(self, step: Fields) -> None:
        """Stop a broker in a controlled way."""
        broker_id = self._broker(step.take("broker"))
        assert step.take("mode", "controlled") == "controlled"
        pid = self.cluster.pid(broker_id)
        self.cluster.signal(broker_id, signal.SIGTERM)
        self.cluster.await_end(broker_id, pid)

    def do_startup(self, step: Fields) -> None:
        """Start it again."""
        self.cluster.start_broker(self._broker(step.take("broker")))

    def do_controlled_shutdown_api(self, step: Fields) -> None:
        """Send the controller a request of a broker."""
        broker_id = self._broker(step.take("broker"))
        registered = self.cluster.broker_epoch(broker_id)
        assert registered is not None
        epoch = registered + int(step.take("broker_epoch").removeprefix("registered") or 0)
        keys = read_secret(self.cluster.data_dir / f"broker-{broker_id}" / BROKER_SECRET)
        request = ControlledShutdownRequest(broker_id, epoch)
        answer = self.cluster.ask_with(keys, self._rules, request)
        assert answer.error_code.name == step.take("expect_error")

    # --- expectations ---

    def do_wait_isr_size(self, step: Fields) -> None:
        """The number of in-sync replicas."""
        topic, count = self._topic(step.take("topic", "t")), step.take("n")
        eventually(
            lambda: (
                {len(s.leader_and_isr.isr) for s in self.cluster.partition_states(topic).values()}
                == {count}
            ),
            f"{count} are in sync",
        )

    def do_expect_state(self, step: Fields) -> None:
        """A partition has a leader in some epoch."""
        topic_partition = self._partition(step)
        leader = step.take("leader")
        wanted = (
            step.take("controller_epoch"),
            NO_LEADER if leader == NO_LEADER else self._broker(leader),
            step.take("leader_epoch"),
        )

        def found() -> tuple[int, BrokerId, int]:
            state = self.cluster.partition_states(topic_partition.topic)[topic_partition.partition]
            now = state.leader_and_isr
            return state.controller_epoch, now.leader, now.leader_epoch

        eventually(lambda: found() == wanted, f"{topic_partition} is {wanted}")

    def do_expect_assignment(self, step: Fields) -> None:
        """The assignment of a partition."""
        topic_partition = self._partition(step)
        wanted = ReplicaAssignment(
            self._brokers(step.take("replicas")),
            self._brokers(step.take("adding")),
            self._brokers(step.take("removing")),
        )
        eventually(
            lambda: self._assignments(topic_partition.topic)[topic_partition.partition] == wanted,
            f"{topic_partition}: {wanted}",
        )

    def do_expect_path(self, step: Fields) -> None:
        """Whether a node exists."""
        path, is_present = step.take("path"), step.take("present")
        eventually(lambda: (self.zookeeper.get(path) is not None) is is_present, path)

    def do_expect_deleted(self, step: Fields) -> None:
        """A topic is deleted completely: no znodes, and no broker knows it."""
        topic = self._topic(step.take("topic"))
        step.take("means", None)
        paths = [TopicZNode.path(topic), DeleteTopicsTopicZNode.path(topic)]
        eventually(lambda: self.zookeeper.get_many(paths) == [None, None], f"{topic} is deleted")
        for broker_id in (0, 1, 2):
            known = {p.topic for p in self.cluster.metadata(broker_id).partitions}
            assert topic not in known

    def do_expect_logs_present(self, step: Fields) -> None:
        """Every replica is in sync with a leader that knows it."""
        topic_partition = self._partition(step)
        step.take("on")
        self.cluster.await_isr(topic_partition.topic, {0, 1, 2})

    def do_expect_logs_gone(self, step: Fields) -> None:
        """No broker knows the partition."""
        topic_partition = self._partition(step)
        step.take("on")
        for broker_id in (0, 1, 2):
            known = {p.topic for p in self.cluster.metadata(broker_id).partitions}
            assert topic_partition.topic not in known


@pytest.mark.parametrize(
    "name",
    [
        "end_to_end/preferred_election",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in CHOSEN),
    ],
)
def test_case_on_real_processes(cluster: RegentCluster, name: str):
    actions = RealActions(cluster, name)
    for step in _steps(name):
        with Fields(step, "step") as fields:
            actions.by_op[fields.take("op")](fields)
