"""Transactions of librdkafka, also while leaders and coordinators die."""

from __future__ import annotations

import uuid

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.testing.waits import eventually, scaled
from tests.genuine_clients.conftest import CreateTopic
from tests.genuine_clients.librdkafka import consumer
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

TIMEOUT_S = scaled(60.0)


class TransactionalProducer:
    """Writes transactions to a topic of two partitions."""

    def __init__(self, bootstrap: str, topic: str, transactional_id: str) -> None:
        self.topic = topic
        self.client = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": 30_000,
            }
        )
        self.client.init_transactions(TIMEOUT_S)

    def write(self, *values: str) -> None:
        """Begin a transaction, and write to it."""
        self.client.begin_transaction()
        for number, value in enumerate(values):
            self.client.produce(self.topic, value, partition=number % 2)
        assert self.client.flush(TIMEOUT_S) == 0

    def end(self, *, is_commit: bool) -> None:
        """End the transaction."""
        if is_commit:
            self.client.commit_transaction(TIMEOUT_S)
        else:
            self.client.abort_transaction(TIMEOUT_S)


@pytest.fixture
def transactional_id() -> str:
    return f"transactions-{uuid.uuid4().hex[:12]}"


def read(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[str]:
    """Return the records up to the ends of both partitions, sorted.

    The last transaction may be missing: a commit is acknowledged before its markers are written.
    """
    reader: Consumer = consumer(
        bootstrap, isolation_level=isolation_level, enable_partition_eof=True
    )
    reader.assign([TopicPartition(topic, number, 0) for number in range(2)])
    values: list[str] = []
    ended: set[int | None] = set()

    def is_read() -> bool:
        for message in reader.consume(500, 0.1):
            value = message.value()
            if message.error() is not None:
                ended.add(message.partition())
            elif value is not None:
                values.append(value.decode())
        return len(ended) == 2

    eventually(is_read, f"{topic} is read", TIMEOUT_S)
    reader.close()
    return sorted(values)


def await_read(bootstrap: str, topic: str, expected: list[str]) -> None:
    """Wait until these are the committed records."""

    def is_read() -> bool:
        if (found := read(bootstrap, topic)) == expected:
            return True
        raise LookupError(found)

    eventually(is_read, f"{topic} has {expected}", TIMEOUT_S)


def test_readers_get_committed_transactions_only(
    bootstrap: str, new_topic: CreateTopic, transactional_id: str
):
    topic = new_topic(2)
    producer = TransactionalProducer(bootstrap, topic, transactional_id)
    for value, is_commit in (("a", True), ("b", False), ("c", True)):
        producer.write(*(f"{value}{number}" for number in range(4)))
        producer.end(is_commit=is_commit)
    producer.write("open")
    committed = [f"{value}{number}" for value in "ac" for number in range(4)]
    await_read(bootstrap, topic, committed)
    assert len(read(bootstrap, topic, "read_uncommitted")) == 13
    producer.end(is_commit=True)
    await_read(bootstrap, topic, [*committed, "open"])


def test_a_new_producer_fences_the_one_before_it(
    bootstrap: str, new_topic: CreateTopic, transactional_id: str
):
    topic = new_topic(2)
    zombie = TransactionalProducer(bootstrap, topic, transactional_id)
    zombie.write("zombie")
    newer = TransactionalProducer(bootstrap, topic, transactional_id)
    with pytest.raises(KafkaException):
        zombie.end(is_commit=True)
    newer.write("newer")
    newer.end(is_commit=True)
    await_read(bootstrap, topic, ["newer"])


def test_transactions_are_whole_while_brokers_die(
    cluster: BreakableCluster, new_topic: CreateTopic, transactional_id: str
):
    topic = new_topic(2, min_insync_replicas=2)
    producer = TransactionalProducer(cluster.bootstrap_servers, topic, transactional_id)
    committed: list[str] = []
    for broker_id in BROKERS:
        producer.write(f"kept-{broker_id}-a", f"kept-{broker_id}-b")
        cluster.kill(broker_id)
        producer.end(is_commit=True)
        committed += [f"kept-{broker_id}-a", f"kept-{broker_id}-b"]
        producer.write(f"dropped-{broker_id}-a", f"dropped-{broker_id}-b")
        cluster.revive(broker_id)
        producer.end(is_commit=False)
        for internal in (topic, TRANSACTION_STATE_TOPIC):
            cluster.await_isr(internal, set(BROKERS))
    assert read(cluster.bootstrap_servers, topic) == sorted(committed)
