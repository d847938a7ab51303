"""A broker returns with the log of a topic that was deleted and made again while it was away."""

from __future__ import annotations

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


def isr_of(admin: AdminClient) -> tuple[int, set[int]]:
    row = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[0]
    return row.leader, {*row.isrs}


def create(admin: AdminClient, *replicas: BrokerId) -> None:
    """Create the topic; as long as the earlier one is being deleted this is tried again."""

    def is_created() -> bool:
        new = NewTopic(TOPIC, 1, replica_assignment=[list(replicas)])
        try:
            admin.create_topics([new])[TOPIC].result(WAIT_S)
        except Exception as error:  # noqa: BLE001 - the last one is shown
            failures.append(error)
            return False
        return True

    failures: list[Exception] = []
    eventually(is_created, f"{TOPIC} is created: {failures[-1:]}", WAIT_S)


def move_away(cluster: MovedCluster, *live: BrokerId) -> None:
    """Move the partition to live brokers, by the znode that controllers of both kinds watch."""
    moved = '{"version":1,"partitions":[{"topic":"%s","partition":0,"replicas":[%s]}]}'
    text = moved % (TOPIC, ",".join(map(str, live)))
    cluster.znodes.create(f"{cluster.chroot}/admin/reassign_partitions", text.encode())
    admin = cluster.admin(*live)

    def is_moved() -> bool:
        row = admin.list_topics(TOPIC, timeout=WAIT_S).topics[TOPIC].partitions[0]
        return {*row.replicas} == {*live}

    eventually(is_moved, "the partition is moved", WAIT_S)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", JARS)
@pytest.mark.parametrize("ours", [(1,), (2,)], ids=["our-controller", "our-broker"])
def test_no_record_of_an_earlier_topic_is_in_the_present_one(
    ours: tuple[BrokerId, ...],
    version: str,
    jars: None,
    zookeeper_server: EmbeddedZooKeeper,
    tmp_path: Path,
):
    """Broker 2 returns, of the one kind or the other; the controller is of the other kind."""
    del jars
    zookeeper = f"{zookeeper_server.address}/{tmp_path.name}"
    with MovedCluster(tmp_path, zookeeper, version=version) as cluster:
        absent = 2
        for broker in ours:
            cluster.follow("move", broker)
        cluster.let_rule(1)
        live = [broker for broker in BROKERS if broker != absent]
        admin = cluster.admin(*live)
        create(admin, 1, absent)
        eventually(lambda: isr_of(admin) == (1, {1, absent}), "in sync", WAIT_S)
        produce(cluster, EARLIER, 30, *live)
        cluster.kill(absent)
        move_away(cluster, 1)
        admin.delete_topics([TOPIC])[TOPIC].result(WAIT_S)
        create(admin, 1, absent)
        produce(cluster, PRESENT, 10, *live)
        assert cluster.controller == 1
        cluster.follow("move" if absent in ours else "back", absent, has_ended=True)
        eventually(lambda: isr_of(admin)[1] == {1, absent}, "in sync again", WAIT_S)
        produce(cluster, PRESENT, 10, *live)
        log = f"{TOPIC}-0"
        eventually(
            lambda: cluster.log_of(1, log) == cluster.log_of(absent, log), "equal logs", WAIT_S
        )
        assert EARLIER not in cluster.log_of(absent, log)
        assert not OLD & {*values(cluster, *live)}
