"""The whole cluster loses power: acknowledged records stay, in any sequence of restarts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Position

from regent.config.command_line import COMMAND
from regent.core.model import BrokerId, TopicPartition
from regent.storage.checkpoints import HIGH_WATERMARKS
from regent.storage.log_directory import LOG_ENDS
from regent.testing.waits import eventually, scaled
from regent.zk.client.operations import ANY_VERSION, Delete
from regent.zk.znodes import TopicPartitionStateZNode
from tests.support.breakable_cluster import BROKERS, BreakableCluster
from tests.support.guardians import guardian_of
from tests.support.zookeeper_sessions import deny_writing

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = scaled(60.0)
VALUES = [b"%04d" % number for number in range(20)]


def produce_one_by_one(cluster: BreakableCluster, partition: TopicPartition) -> None:
    """Write records, each in a batch of its own size and all acknowledged."""
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0}
    )
    for value in VALUES:
        producer.produce(
            partition.topic, value, partition=partition.partition, on_delivery=on_delivery
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert not refused, refused


def regent(cluster: BreakableCluster, *arguments: str) -> str:
    """Run a command; return its output, also of a failure."""
    command = [*COMMAND, *arguments, "--data-dir", str(cluster.data_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    return ended.stdout + ended.stderr


def values_on(
    cluster: BreakableCluster, partition: TopicPartition, broker_id: BrokerId
) -> list[bytes | None]:
    """Return the records on the disk of a broker."""
    return [record.value for record in cluster.logs([partition])[partition][broker_id]]


def consume(cluster: BreakableCluster, partition: TopicPartition) -> list[bytes | None]:
    """Return all readable records; wait for as many as were written."""
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
        }
    )
    client.assign([Position(*partition, 0)])
    try:
        return [message.value() for message in client.consume(len(VALUES), TIMEOUT_S)]
    finally:
        client.close()


def halve(cluster: BreakableCluster, broker_id: BrokerId, partition: TopicPartition) -> None:
    """Cut the log of a stopped broker in the middle, between two batches."""
    (segment,) = cluster.log_of(partition, broker_id).glob("*.log")
    size = segment.stat().st_size
    assert size % len(VALUES) == 0
    with segment.open("r+b") as file:
        file.truncate(size // 2)


def test_a_replica_that_lost_records_does_not_lead_before_a_complete_one_is_back(
    cluster: BreakableCluster,
) -> None:
    (partition,) = cluster.create_safe_topic("payments", 1)
    produce_one_by_one(cluster, partition)
    cluster.kill(*BROKERS)
    halve(cluster, 0, partition)
    cluster.revive(0)
    why = (
        f"{partition} waits for broker 1 or 2, which may have every committed record: the log of"
        " 0 may have lost some"
    )
    eventually(lambda: why in regent(cluster, "status"), "status names the awaited brokers")
    assert why in regent(cluster, "topics", "describe", "payments")
    assert cluster.leader_of(*partition) == -1
    cluster.revive(1)
    assert cluster.await_leader(*partition, other_than=-1) == 1
    cluster.revive(2)
    cluster.await_isr(partition.topic, set(BROKERS))
    assert consume(cluster, partition) == VALUES
    assert all(values_on(cluster, partition, b) == VALUES for b in BROKERS)


@pytest.mark.nightly
def test_an_unclean_election_ends_the_wait(cluster: BreakableCluster) -> None:
    (partition,) = cluster.create_safe_topic("orders", 1)
    produce_one_by_one(cluster, partition)
    cluster.kill(*BROKERS)
    halve(cluster, 0, partition)
    cluster.revive(0)
    eventually(lambda: cluster.leader_of(*partition) == -1, "the partition has no leader")
    elect = ("elect-leaders", "--election-type", "unclean", "--topic", "orders", "--partition", "0")
    assert "Successfully" in regent(cluster, *elect)
    assert cluster.leader_of(*partition) == 0
    cluster.revive(1)
    cluster.revive(2)
    cluster.await_isr(partition.topic, set(BROKERS))
    half = VALUES[: len(VALUES) // 2]
    assert all(values_on(cluster, partition, b) == half for b in BROKERS)


@pytest.mark.nightly
def test_when_all_replicas_lost_records_the_longest_log_leads(cluster: BreakableCluster) -> None:
    (partition,) = cluster.create_safe_topic("audit", 1)
    produce_one_by_one(cluster, partition)
    cluster.kill(*BROKERS)
    for broker_id in (0, 2):
        halve(cluster, broker_id, partition)
    (segment,) = cluster.log_of(partition, 1).glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    for broker_id in BROKERS:
        cluster.revive(broker_id)
    assert cluster.await_leader(*partition, other_than=-1) == 1
    cluster.await_isr(partition.topic, set(BROKERS))
    assert all(values_on(cluster, partition, b) == VALUES[:-1] for b in BROKERS)


@pytest.mark.nightly
def test_a_leader_without_a_log_does_not_lead_while_its_state_cannot_be_written(
    cluster: BreakableCluster,
) -> None:
    (partition,) = cluster.create_safe_topic("sealed", 1)
    produce_one_by_one(cluster, partition)
    before = cluster.partition_states("sealed")[0].leader_and_isr
    others = set(BROKERS) - {before.leader}
    address, path = cluster.description["zookeeper"], TopicPartitionStateZNode.path(partition)
    deny_writing(address, path)
    cluster.kill(before.leader)
    shutil.rmtree(cluster.log_of(partition, before.leader))  # with its leader epochs
    cluster.revive(before.leader)
    why = f"{partition}: ZooKeeper refuses to let the controller change {path}"
    eventually(
        lambda: why in regent(cluster, "status"), "status names the znode that cannot be written"
    )
    assert cluster.partition_states("sealed")[0].leader_and_isr == before
    assert all(values_on(cluster, partition, b) == VALUES for b in others)
    deny_writing(address, path, allow=True)
    assert cluster.await_leader(*partition, other_than=before.leader) in others
    cluster.await_isr("sealed", set(BROKERS))
    assert consume(cluster, partition) == VALUES
    assert all(values_on(cluster, partition, b) == VALUES for b in BROKERS)


@pytest.mark.nightly
def test_a_leader_that_restarts_before_the_next_election_does_not_lead_with_lost_records(
    tmp_path: Path,
) -> None:
    """Its session's znodes are gone, it is registered again, and no controller saw it offline."""
    with BreakableCluster(tmp_path, "--session-timeout-ms", "30000") as cluster:
        partitions = cluster.create_safe_topic("ledger", 3)
        controller = cluster.controller()
        partition = next(p for p in partitions if cluster.leader_of(*p) == controller)
        assert controller is not None
        produce_one_by_one(cluster, partition)
        before = cluster.partition_states("ledger")[partition.partition].leader_and_isr
        assert set(before.isr) == set(BROKERS)
        survivors = set(BROKERS) - {controller}
        for broker_id in survivors:
            cluster.signal(broker_id, signal.SIGSTOP)
        pid = cluster.pid(controller)
        os.kill(guardian_of(pid), signal.SIGKILL)
        cluster.signal(controller, signal.SIGKILL)
        cluster.await_end(controller, pid)
        halve(cluster, controller, partition)
        for directory in cluster.log_directories(controller):
            (directory / LOG_ENDS).unlink()  # no file says that there were more records
            (directory / HIGH_WATERMARKS).unlink(missing_ok=True)
        for path in ("/controller", f"/brokers/ids/{controller}"):  # as when its session ends
            cluster.zookeeper.multi([Delete(path, ANY_VERSION)])
        cluster.revive(controller)
        eventually(lambda: cluster.controller() == controller, "it is the controller again")
        for broker_id in survivors:
            cluster.resume(broker_id)
        cluster.await_isr("ledger", set(BROKERS))
        after = cluster.partition_states("ledger")[partition.partition].leader_and_isr
        assert after.leader in survivors
        assert after.leader_epoch > before.leader_epoch
        assert consume(cluster, partition) == VALUES
        cluster.agreed_logs([partition])
        assert all(values_on(cluster, partition, b) == VALUES for b in BROKERS)
