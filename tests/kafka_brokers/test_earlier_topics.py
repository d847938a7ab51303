"""A broker returns with the log of a topic that was deleted and made again while it was away."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId
from regent.testing.waits import eventually
from tests.kafka_brokers.genuine_broker import JARS
from tests.kafka_brokers.moved_cluster import BROKERS, WAIT_S, MovedCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper, pytest.mark.nightly, pytest.mark.slow]

TOPIC: Final = "orders"
LOG: Final = f"{TOPIC}-0"
EARLIER, PRESENT = b"earlier", b"present"
OLD: Final = {b"%b-%d" % (EARLIER, n) for n in range(30)}


def produce(cluster: MovedCluster, word: bytes, count: int, *live: BrokerId) -> None:
    errors: list[object] = []
    producer = Producer({**cluster.clients_of("", *live), "acks": "all"})
    for number in range(count):
        value = b"%b-%d" % (word, number)
        producer.produce(TOPIC, value, partition=0, on_delivery=lambda e, _: errors.append(e))
        producer.flush(WAIT_S)  # a batch each
    assert errors == [None] * count


def values(cluster: MovedCluster, *live: BrokerId) -> list[bytes | None]:
    settings = {**cluster.clients_of("", *live), "group.id": "g", "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.consume(1, WAIT_S)[0]).error() is None:
        found.append(message.value())
    consumer.close()
    return found


def isr_of(admin: AdminClient) -> set[int]:
    return {*admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[0].isrs}


def create(cluster: MovedCluster, admin: AdminClient, *replicas: BrokerId) -> None:
    """Create the topic, once there is no earlier one."""
    for folder in ("brokers/topics", "admin/delete_topics"):  # a deletion removes them in turn
        path = f"{cluster.chroot}/{folder}/{TOPIC}"
        eventually(lambda path=path: cluster.znodes.exists(path) is None, f"no {path}", WAIT_S)  # type: ignore[misc]
    new = NewTopic(TOPIC, 1, replica_assignment=[list(replicas)])
    admin.create_topics([new])[TOPIC].result(WAIT_S)


def move(cluster: MovedCluster, admin: AdminClient, *replicas: BrokerId) -> None:
    """Move the partition, by the znode that controllers of both kinds watch."""
    moved = '{"version":1,"partitions":[{"topic":"%s","partition":0,"replicas":[%s]}]}'
    text = moved % (TOPIC, ",".join(map(str, replicas)))
    cluster.znodes.create(f"{cluster.chroot}/admin/reassign_partitions", text.encode())

    def is_moved() -> bool:
        row = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[0]
        return {*row.replicas} == {*row.isrs} == {*replicas}

    eventually(is_moved, f"the partition is on {replicas}", WAIT_S)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("ours", "version"),
    [
        *(pytest.param((2,), version, id=f"ours-under-{version}") for version in JARS),
        *(pytest.param((1, 3), v, id=f"{v}-under-ours") for v in JARS if v != "2.8.2"),
    ],
)
def test_no_record_of_an_earlier_topic_is_in_the_present_one(
    ours: tuple[BrokerId, ...],
    version: str,
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path: Path,
):
    """Broker 2 returns; brokers 1 and 3 are of the other kind, and the controller, too.

    Kafka 2.8 does not note the topic id of a new log, and cannot notice that it is an earlier one.
    A controller of Kafka places replicas on a broker that is away. Ours moves one there later, in
    another term: in the same one it remembers what the broker must delete.
    """
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        for broker in ours:
            cluster.follow("move", broker)
        cluster.let_rule(1, *BROKERS)
        absent, live = 2, (1, 3)
        admin = cluster.admin(*live)
        create(cluster, admin, 1, absent)
        eventually(lambda: isr_of(admin) == {1, absent}, "in sync", WAIT_S)
        produce(cluster, EARLIER, 30, *live)
        cluster.kill(absent)
        move(cluster, admin, 1)
        admin.delete_topics([TOPIC])[TOPIC].result(WAIT_S)
        create(cluster, admin, *((1, absent) if absent in ours else (1,)))
        produce(cluster, PRESENT, 10, *live)
        if absent in ours:
            cluster.follow("move", absent, has_ended=True)
        else:
            cluster.let_rule(3, *live)
            cluster.follow("back", absent, has_ended=True)
            assert EARLIER in cluster.log_of(absent, LOG)
            move(cluster, admin, 1, absent)
        eventually(lambda: isr_of(admin) == {1, absent}, "in sync again", WAIT_S)
        produce(cluster, PRESENT, 10, *live)
        logs = partial(cluster.log_of, name=LOG)
        eventually(lambda: logs(1) == logs(absent), "equal logs", WAIT_S)
        assert EARLIER not in logs(absent)
        assert not OLD & {*values(cluster, *live)}
