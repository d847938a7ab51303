"""A controller that is killed during a long operation: the next one finishes it.

Each round kills the controller at another random moment. ``--rounds 20`` runs twenty rounds of
every operation; a failure prints the seed.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Timer

import pytest

from regent.core.errors import BadDataError
from regent.core.model import BrokerId, ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment
from regent.core.protocol.broker import ShutdownBrokerRequest
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from regent.transport.control.client import RequestError
from regent.zk.client.operations import Create
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.stores.admin_store import ZkAdminStore
from regent.zk.znodes import (
    DeleteTopicsTopicZNode,
    DeleteTopicsZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

BROKERS = 4
TOPICS, PARTITIONS = 50, 10
TIMEOUT_S = 90.0
LATEST_KILL_S = 1.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RegentCluster]:
    options = ("--brokers", str(BROKERS), "--no-placement-service", "--no-internal-topics")
    with RegentCluster(tmp_path, *options) as cluster:
        yield cluster


def create(cluster: RegentCluster, prefix: str) -> dict[TopicPartition, tuple[int, ...]]:
    """Create topics with two replicas, and wait for their leaders."""
    placed: dict[TopicPartition, tuple[int, ...]] = {
        TopicPartition(f"{prefix}-{t:02d}", p): ((t + p) % BROKERS, (t + p + 1) % BROKERS)
        for t in range(TOPICS)
        for p in range(PARTITIONS)
    }
    write_topics(cluster, placed)
    await_placement(cluster, placed)
    return placed


def write_topics(cluster: RegentCluster, placed: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    topics: dict[str, dict[int, ReplicaAssignment]] = {}
    for (topic, partition), replicas in placed.items():
        topics.setdefault(topic, {})[partition] = ReplicaAssignment(replicas)
    cluster.zookeeper.multi(
        [
            Create(TopicZNode.path(t), TopicZNode.encode(encode_topic_id(os.urandom(16)), a))
            for t, a in topics.items()
        ]
    )


class Interruption:
    """Kills a broker after some time, by default the controller of that moment; restarts it."""

    def __init__(
        self, cluster: RegentCluster, chance: random.Random, victim: BrokerId | None = None
    ) -> None:
        self._cluster = cluster
        self._victim = victim
        self._killed: list[BrokerId] = []
        self._timer = Timer(chance.uniform(0.0, LATEST_KILL_S), self._kill)
        self._timer.start()

    def end(self) -> None:
        """Wait for the kill, and start the broker again."""
        self._timer.join(LATEST_KILL_S + scaled(TIMEOUT_S))
        for broker_id in self._killed:
            self._cluster.await_end(broker_id, self._cluster.pid(broker_id))
            self._cluster.start_broker(broker_id)

    def _kill(self) -> None:
        victim = self._cluster.controller() if self._victim is None else self._victim
        if victim is not None:
            self._cluster.signal(victim, signal.SIGKILL)
            self._killed.append(victim)


def await_placement(
    cluster: RegentCluster, placed: Mapping[TopicPartition, tuple[int, ...]]
) -> None:
    """Wait until every partition is assigned as ``placed``, with a leader and all in sync."""
    admin = ZkAdminStore(cluster.zookeeper)
    topics = sorted({partition.topic for partition in placed})

    def settled() -> bool:
        found = admin.topics.read_topics(topics)
        assigned = {
            TopicPartition(topic, number): assignment
            for topic, read in found.items()
            if isinstance(read, TopicAssignment)
            for number, assignment in read.partitions.items()
        }
        wanted = {partition: ReplicaAssignment(replicas) for partition, replicas in placed.items()}
        if assigned != wanted or len(admin.read_brokers()) != BROKERS:
            return False
        states = admin.read_partition_states(list(placed))
        return len(states) == len(placed) and all(
            not isinstance(state, BadDataError)
            and state.leader_and_isr.leader in placed[partition]
            and set(state.leader_and_isr.isr) == set(placed[partition])
            for partition, state in states.items()
        )

    eventually(settled, "every partition is as assigned, and in sync", TIMEOUT_S)


def caches_hold(cluster: RegentCluster, partitions: Mapping[TopicPartition, object]) -> None:
    """Wait until every broker's metadata cache has exactly these partitions."""

    def agreed() -> bool:
        return all(
            {TopicPartition(p.topic, p.partition) for p in cluster.metadata(b).partitions}
            == set(partitions)
            for b in range(BROKERS)
        )

    eventually(agreed, "all metadata caches agree", TIMEOUT_S)


def test_a_reassignment_survives_the_death_of_the_controller(
    cluster: RegentCluster, rounds: Iterator[random.Random]
):
    placed = create(cluster, "moving")
    for chance in rounds:
        placed = {
            partition: tuple((replica + 1) % BROKERS for replica in replicas)
            for partition, replicas in placed.items()
        }
        request = Create(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(placed))
        interruption = Interruption(cluster, chance)
        cluster.zookeeper.multi([request])
        interruption.end()
        await_placement(cluster, placed)
        eventually(
            lambda: cluster.zookeeper.get(ReassignPartitionsZNode.PATH) is None,
            "the reassignment is done",
            TIMEOUT_S,
        )
        caches_hold(cluster, placed)


def test_a_deletion_survives_the_death_of_the_controller(
    cluster: RegentCluster, rounds: Iterator[random.Random]
):
    for number, chance in enumerate(rounds):
        placed = create(cluster, f"doomed-{number}")
        requests = [
            Create(DeleteTopicsTopicZNode.path(topic))
            for topic in sorted({partition.topic for partition in placed})
        ]
        interruption = Interruption(cluster, chance)
        cluster.zookeeper.multi(requests)
        interruption.end()
        for path in ("/brokers/topics", "/config/topics", DeleteTopicsZNode.PATH):
            eventually(
                lambda path=path: cluster.zookeeper.children(path) == [],  # type: ignore[misc]
                f"{path} is empty",
                TIMEOUT_S,
            )
        caches_hold(cluster, {})


def test_a_controlled_shutdown_survives_the_death_of_the_controller(
    cluster: RegentCluster, rounds: Iterator[random.Random]
):
    placed = create(cluster, "steady")
    for chance in rounds:
        (controller,) = eventually(
            lambda: [b for b in range(BROKERS) if b == cluster.controller()], "a controller"
        )
        leaving = chance.choice([b for b in range(BROKERS) if b != controller])
        pid = cluster.pid(leaving)
        # Not the controller of the moment: that may be the broker that leaves, by then.
        interruption = Interruption(cluster, chance, controller)
        with suppress(RequestError):  # the broker may end before its answer is sent
            cluster.ask(leaving, ShutdownBrokerRequest(), timeout_s=30)
        interruption.end()
        cluster.await_end(leaving, pid, TIMEOUT_S)
        cluster.start_broker(leaving)
        await_placement(cluster, placed)
        caches_hold(cluster, placed)
