"""A bit flips on the disk of a real broker: clients never get it, and the log is fetched again."""

from __future__ import annotations

import random
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from regent.core.model import BrokerId, TopicPartition
from regent.testing.waits import eventually, scaled
from tests.support.breakable_cluster import (
    BROKERS,
    SMALL_SEGMENTS,
    BreakableCluster,
    flip_a_bit,
)

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

VALUES = [b"%06d" % number + b"." * 500 for number in range(1_000)]  # eight segments
TIMEOUT_S = scaled(60.0)


def produce(cluster: BreakableCluster, partition: TopicPartition, values: list[bytes]) -> None:
    """Write records, a few in each batch, and wait until all are committed."""
    refused: list[KafkaError] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "enable.idempotence": True,  # a request that is sent again adds no record
            "batch.num.messages": 10,
        }
    )
    for value in values:
        producer.produce(
            partition.topic, value, partition=partition.partition, on_delivery=on_delivery
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not refused, refused


def consumer(cluster: BreakableCluster, partition: TopicPartition, offset: int) -> Consumer:
    """Return a consumer that does not verify checksums, as librdkafka by default."""
    client = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "g",
            "enable.auto.commit": False,
        }
    )
    client.assign([Position(*partition, offset)])
    return client


def consume(cluster: BreakableCluster, partition: TopicPartition, offset: int = 0) -> list[bytes]:
    """Read all records from an offset on."""
    found: list[bytes] = []
    with closing(consumer(cluster, partition, offset)) as client:
        while len(found) < len(VALUES) - offset:
            message = client.poll(TIMEOUT_S)
            assert message is not None, f"nothing follows {found[-1:]}"
            if message.error() is None:
                value = message.value()
                assert value is not None
                found.append(value)
    return found


def damage(cluster: BreakableCluster, partition: TopicPartition, broker_id: BrokerId) -> None:
    """Flip a bit of the third segment of a replica."""
    segments = sorted(cluster.log_of(partition, broker_id).glob("*.log"))
    assert len(segments) > 4
    flip_a_bit(segments[2], random.Random(7))


def assert_whole(cluster: BreakableCluster, partition: TopicPartition) -> None:
    """All replicas are in sync and have the written records."""
    logs = cluster.agreed_logs([partition])[partition]
    for broker_id in BROKERS:
        assert [record.value for record in logs[broker_id]] == VALUES


def test_a_leader_returns_no_damaged_records_and_another_broker_leads(
    cluster: BreakableCluster,
) -> None:
    (partition,) = cluster.create_safe_topic("led", 1)
    produce(cluster, partition, VALUES)
    leader = cluster.leader_of(*partition)
    damage(cluster, partition, leader)
    assert consume(cluster, partition) == VALUES
    cluster.await_leader(*partition, other_than=leader)
    cluster.await_replacement(partition, leader)
    assert_whole(cluster, partition)


@pytest.mark.nightly
def test_a_follower_finds_damage_without_reads(cluster: BreakableCluster) -> None:
    (partition,) = cluster.create_safe_topic("followed", 1)
    produce(cluster, partition, VALUES)
    leader = cluster.leader_of(*partition)
    follower = next(broker_id for broker_id in BROKERS if broker_id != leader)
    damage(cluster, partition, follower)
    cluster.await_replacement(partition, follower)
    assert_whole(cluster, partition)
    assert cluster.leader_of(*partition) == leader


def test_damage_while_a_broker_is_down_is_found_before_a_read(
    cluster: BreakableCluster,
) -> None:
    (partition,) = cluster.create_safe_topic("restarted", 1)
    produce(cluster, partition, VALUES)
    leader = cluster.leader_of(*partition)
    cluster.shut_down(leader)
    damage(cluster, partition, leader)
    cluster.revive(leader)
    cluster.await_replacement(partition, leader)
    assert_whole(cluster, partition)
    assert consume(cluster, partition) == VALUES


@pytest.mark.nightly
def test_a_lost_segment_is_noticed_and_a_wrong_checkpoint_is_ignored(
    cluster: BreakableCluster,
) -> None:
    holed, shrunk = cluster.create_safe_topic("holed", 2)
    for partition in (holed, shrunk):
        produce(cluster, partition, VALUES)
    leader = cluster.leader_of(*holed)
    cluster.shut_down(leader)
    log = cluster.log_of(holed, leader)
    sorted(log.glob("*.log"))[2].unlink()
    checkpoint = cluster.log_of(shrunk, leader).parent / "log-start-offset-checkpoint"
    checkpoint.write_text(f"0\n1\n{shrunk.topic} {shrunk.partition} 1000000000\n")
    cluster.revive(leader)
    cluster.await_replacement(holed, leader)
    assert_whole(cluster, holed)
    assert_whole(cluster, shrunk)


@pytest.mark.nightly
def test_the_only_copy_stays_in_service_without_its_damaged_records(
    cluster: BreakableCluster,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    wanted = NewTopic("alone", 1, 1, config=SMALL_SEGMENTS)
    admin.create_topics([wanted])["alone"].result(TIMEOUT_S)
    partition = TopicPartition("alone", 0)
    produce(cluster, partition, VALUES)
    leader = cluster.leader_of(*partition)
    damage(cluster, partition, leader)
    with closing(consumer(cluster, partition, 0)) as client:
        errors = eventually(
            lambda: [m.error() for m in client.consume(100, 1.0) if m.error() is not None],
            "status reports the damage",
        )
    assert errors
    late = len(VALUES) - 10
    assert consume(cluster, partition, late) == VALUES[late:]
    produce(cluster, partition, [b"more"])


# --- a topic is lost in ZooKeeper -----------------------------------------------------------------


def warnings(cluster: BreakableCluster) -> str:
    """Return the warnings of ``status``."""
    return "\n".join(cluster.status()["warnings"])


@pytest.mark.nightly
def test_a_topic_whose_znode_is_deleted_and_restored_by_hand_keeps_its_records(
    cluster: BreakableCluster,
) -> None:
    (partition,) = cluster.create_safe_topic("lost", 1)
    produce(cluster, partition, VALUES)
    cluster.agreed_logs([partition])
    path = "/brokers/topics/lost"
    client = KazooClient(cluster.server.address)
    client.start()
    try:
        data, _ = client.get(path)
        client.delete(path, recursive=True)
        for broker_id in BROKERS:
            cluster.await_replacement(partition, broker_id)
        eventually(lambda: warnings(cluster).count("lost-0.") == 3, "status names the logs")
        client.create(path, data)
    finally:
        client.stop()
        client.close()
    eventually(lambda: cluster.partition_states("lost"), "it has leaders")
    cluster.await_isr("lost", set(BROKERS))
    assert consume(cluster, partition) == VALUES
    assert_whole(cluster, partition)
    cluster.delete_topic("lost")
    for broker_id in BROKERS:
        with pytest.raises(LookupError):
            cluster.log_of(partition, broker_id)
