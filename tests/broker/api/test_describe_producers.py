"""DescribeProducers, with real replicas."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kafka.protocol.admin import DescribeProducersRequest

from regent.broker.api.describe_producers import describe_producers_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from tests.support.led_partitions import lead
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import TIMESTAMP_MS, batch
from tests.support.world import live_broker
from tests.transport.kafka.wire import ask

BROKER = 1
T0 = TopicPartition("t", 0)
ALIVE = live_broker(BROKER)


class Host:
    """A broker that leads t-0."""

    def __init__(self) -> None:
        self.cache = MetadataCache()
        self.logs = MemoryLogs()
        self.replicas = ReplicaManager(BROKER, self.logs, self.cache)
        lead(self.replicas, ALIVE, {"t": 1}, (BROKER,))

    def describe(self, topic: str, *partitions: int) -> list[Any]:
        """Return the rows of the answer."""
        row = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=list(partitions))
        with ThreadPoolExecutor(1) as executor:
            apis = describe_producers_apis(self.replicas, self.cache, executor)
            (topics,) = ask(apis, DescribeProducersRequest(topics=[row]), 0).topics
        assert topics.name == topic
        return list(topics.partitions)

    def error(self, topic: str, partition: int = 0) -> tuple[int, str | None]:
        """Return the error of a partition."""
        (row,) = self.describe(topic, partition)
        assert row.partition_index == partition
        assert row.active_producers == []
        return row.error_code, row.error_message


def test_the_last_batch_of_each_producer_is_described():
    host = Host()
    for values, producer_id, first in ((2, 7, 0), (1, 7, 2), (1, 8, 5)):
        records = batch(
            *[b"x"] * values, producer_id=producer_id, producer_epoch=3, base_sequence=first
        )
        host.logs.log(T0).append_as_leader(bytearray(records), 0)
    (row,) = host.describe("t", 0)
    assert row.error_code == Errors.NONE
    assert [
        (p.producer_id, p.producer_epoch, p.last_sequence, p.coordinator_epoch)
        for p in row.active_producers
    ] == [(7, 3, 2, -1), (8, 3, 5, -1)]
    for producer in row.active_producers:
        assert producer.last_timestamp == TIMESTAMP_MS
        assert producer.current_txn_start_offset == -1


def test_a_follower_describes_its_producers_too():
    host = Host()
    host.logs.log(T0).append_as_leader(
        bytearray(batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0)), 0
    )
    lead(host.replicas, ALIVE, {"t": 1}, (BROKER, 2), leader=2, leader_epoch=1)
    (row,) = host.describe("t", 0)
    assert [producer.producer_id for producer in row.active_producers] == [7]


def test_an_unknown_topic_or_partition_is_refused():
    host = Host()
    assert host.error("u") == (Errors.UNKNOWN_TOPIC_OR_PARTITION, "there is no topic u")
    assert host.error("t", 7) == (Errors.UNKNOWN_TOPIC_OR_PARTITION, None)


def test_an_impossible_name_is_refused():
    error_code, message = Host().error("a/b")
    assert error_code == Errors.INVALID_TOPIC_EXCEPTION
    assert message is not None
    assert message.startswith("the name has other characters")


def test_a_partition_without_a_replica_here_is_refused():
    host = Host()
    lead(host.replicas, ALIVE, {"t": 2}, (2,), leader=2)
    assert host.error("t", 1) == (Errors.NOT_LEADER_OR_FOLLOWER, None)


def test_a_replica_with_a_failed_disk_is_refused():
    host = Host()
    host.logs.fail([T0])
    host.replicas.on_log_directory_failed()
    assert host.error("t") == (Errors.KAFKA_STORAGE_ERROR, None)
