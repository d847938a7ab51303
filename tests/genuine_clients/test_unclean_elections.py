"""Consumers go back to where an unclean election has truncated the log (KIP-320).

A follower is down while records are committed and read. Its log ends before them. Then it leads,
and gets other records with the same offsets.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from py4j.protocol import Py4JJavaError

from regent.testing.regent_cluster import unique_topic
from regent.testing.waits import eventually, scaled
from tests.genuine_clients import librdkafka
from tests.genuine_clients.java_clients import JavaClients
from tests.genuine_clients.librdkafka import produce, producer
from tests.support.breakable_cluster import BROKERS, BreakableCluster

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

POLL_S = 0.1
FOLLOWER, LEADER = 0, 1
UNCLEAN = {"unclean.leader.election.enable": "true"}
TRUNCATED = "it was truncated here"


class Partition(NamedTuple):
    """A partition: the leader epoch of its lost records, and the number of those in their place."""

    lost_in_epoch: int
    others: int


PARTITIONS = [Partition(0, 90), Partition(0, 2), Partition(1, 90), Partition(1, 2)]
BOTH = [f"both-{number}" for number in range(100)]  # on both replicas
LOST = [f"lost-{number}" for number in range(50)]  # on the first leader only
OTHERS = [f"other-{number}" for number in range(90)]
DIVERGENCE = len(BOTH)
READ_BEFORE = len(PARTITIONS) * (len(BOTH) + len(LOST))


class Found(NamedTuple):
    """A record, or a truncation that was reported."""

    partition: int
    offset: int
    value: str


class Reader(Protocol):
    """A consumer of all partitions from the beginning; without ``resets`` it tells truncations."""

    def poll(self) -> Sequence[Found]: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class JavaReader:
    def __init__(self, java: JavaClients, bootstrap: str, topic: str, *, resets: bool) -> None:
        self._java = java
        self._consumer = java.consumer(
            bootstrap, auto_offset_reset="earliest" if resets else "none"
        )
        self._partitions = [java.partition(topic, number) for number in range(len(PARTITIONS))]
        self._consumer.assign(self._partitions)
        for partition in self._partitions:
            self._consumer.seek(partition, 0)

    def poll(self) -> Sequence[Found]:
        try:
            records = self._java.poll(self._consumer, int(POLL_S * 1000))
        except Py4JJavaError as error:
            return self._truncations(error.java_exception)
        return [Found(r.partition(), r.offset(), r.value()) for r in records]

    def pause(self) -> None:
        self._consumer.pause(self._partitions)

    def resume(self) -> None:
        self._consumer.resume(self._partitions)

    def close(self) -> None:
        self._java.close(self._consumer)

    def _truncations(self, exception: Any) -> Sequence[Found]:
        """Go back to where the log diverges."""
        assert exception.getClass().getSimpleName() == "LogTruncationException", str(exception)
        found = []
        for partition, position in exception.divergentOffsets().items():
            self._consumer.seek(partition, position)
            found.append(Found(partition.partition(), position.offset(), TRUNCATED))
        return found


class LibrdkafkaReader:
    def __init__(self, bootstrap: str, topic: str, *, resets: bool) -> None:
        self._topic = topic
        self._consumer = librdkafka.consumer(
            bootstrap,
            auto_offset_reset="earliest" if resets else "error",
            enable_partition_eof=False,
        )
        self._partitions = [TopicPartition(topic, number, 0) for number in range(len(PARTITIONS))]
        self._consumer.assign(self._partitions)

    def poll(self) -> Sequence[Found]:
        found = []
        for message in self._consumer.consume(500, POLL_S):
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            if (error := message.error()) is not None:
                found.append(self._truncation(partition, error))
            else:
                assert offset is not None
                assert value is not None
                found.append(Found(partition, offset, value.decode()))
        return found

    def pause(self) -> None:
        self._consumer.pause(self._partitions)

    def resume(self) -> None:
        self._consumer.resume(self._partitions)

    def close(self) -> None:
        self._consumer.close()

    def _truncation(self, partition: int, error: KafkaError) -> Found:
        """Go back to where the log diverges, which only the text of the error has."""
        told = re.search(r"truncation detected .* broker end offset is (\d+)", error.str())
        if told is None:
            raise KafkaException(error)
        offset = int(told[1])
        there = TopicPartition(self._topic, partition, offset)
        self._consumer.incremental_unassign([there])
        self._consumer.incremental_assign([there])
        return Found(partition, offset, TRUNCATED)


class Polling:
    """Polls a reader on a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.found: list[Found] = []
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread()
        self.start()

    def start(self) -> None:
        self._stopping.clear()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(scaled(20))

    def close(self) -> None:
        self.stop()
        self.reader.close()

    def await_records(self, count: int) -> None:
        """Wait for so many in all; raises the error that ended the polling."""

        def are_found() -> bool:
            if self._error is not None:
                raise self._error
            return len(self.found) >= count

        eventually(are_found, f"{count} are found")

    def _poll(self) -> None:
        try:
            while not self._stopping.is_set():
                self.found += self.reader.poll()
        except Exception as error:  # noqa: BLE001 - the test raises it
            self._error = error


@pytest.fixture(scope="module")
def readers(cluster: BreakableCluster, java: JavaClients) -> Iterator[Mapping[str, Polling]]:
    """Readers that have found the lost records, after an unclean election and other records."""
    topic = unique_topic("unclean")
    cluster.create_topic_on(topic, [(LEADER, FOLLOWER)] * len(PARTITIONS), UNCLEAN)
    bootstrap = cluster.bootstrap_servers
    leader_only = bootstrap.split(",")[LEADER]
    for number in range(len(PARTITIONS)):
        _produce(bootstrap, "all", topic, number, BOTH)
    with ExitStack() as stack:
        readers: dict[str, Polling] = {}
        for how in ("polling", "paused", "silent", "without a reset"):
            resets = how != "without a reset"
            clients: dict[str, Reader] = {
                "java": JavaReader(java, bootstrap, topic, resets=resets),
                "librdkafka": LibrdkafkaReader(bootstrap, topic, resets=resets),
            }
            for client, reader in clients.items():
                readers[f"{client}, {how}"] = polling = Polling(reader)
                stack.callback(polling.close)
        _lose(cluster, topic, leader_only, readers)
        cluster.revive(LEADER)
        cluster.await_isr(topic, {LEADER, FOLLOWER})
        yield readers


def _lose(
    cluster: BreakableCluster, topic: str, leader_only: str, readers: Mapping[str, Polling]
) -> None:
    """Commit records that the follower lacks, and have it lead and take other records."""

    def produce_lost(leader_epoch: int) -> None:
        for number, partition in enumerate(PARTITIONS):
            if partition.lost_in_epoch == leader_epoch:
                _produce(leader_only, "1", topic, number, LOST)

    cluster.signal(FOLLOWER, signal.SIGSTOP)  # it stays in the ISR, so the epoch stays 0
    produce_lost(0)
    cluster.kill(FOLLOWER)
    rows = cluster.await_agreement([broker for broker in BROKERS if broker != FOLLOWER], topic)
    assert {row.leader_epoch for row in rows.values()} == {1}
    produce_lost(1)
    for polling in readers.values():
        polling.await_records(READ_BEFORE)
    with _some_do_not_read(readers):
        cluster.kill(LEADER)
        cluster.revive(FOLLOWER)
        for number, partition in enumerate(PARTITIONS):
            cluster.await_leader(topic, number, other_than=LEADER)
            _produce(cluster.bootstrap_servers, "1", topic, number, OTHERS[: partition.others])


@contextmanager
def _some_do_not_read(readers: Mapping[str, Polling]) -> Iterator[None]:
    """Pause some readers, which are polled all the same, and do not poll others."""
    silent = [polling for name, polling in readers.items() if "silent" in name]
    paused = [polling for name, polling in readers.items() if "paused" in name]
    for polling in (*silent, *paused):
        polling.stop()
    for polling in paused:
        polling.reader.pause()
        polling.start()
    yield
    for polling in paused:
        polling.stop()
        polling.reader.resume()
    for polling in (*silent, *paused):
        polling.start()


def _produce(bootstrap: str, acks: str, topic: str, partition: int, values: list[str]) -> None:
    client = producer(bootstrap, acks=acks)
    produce(client, topic, [value.encode() for value in values], partition)


@pytest.mark.parametrize("how", ["polling", "paused", "silent"])
@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_a_consumer_reads_all_records_from_the_divergence_on(
    readers: Mapping[str, Polling], client: str, how: str
):
    polling = readers[f"{client}, {how}"]
    polling.await_records(READ_BEFORE + sum(partition.others for partition in PARTITIONS))
    for number, partition in enumerate(PARTITIONS):
        assert _read_after(polling, number) == _others(number, partition)


@pytest.mark.parametrize("client", ["java", "librdkafka"])
def test_a_consumer_without_a_reset_policy_tells_where_the_log_diverges(
    readers: Mapping[str, Polling], client: str
):
    polling = readers[f"{client}, without a reset"]
    polling.await_records(READ_BEFORE + sum(1 + partition.others for partition in PARTITIONS))
    for number, partition in enumerate(PARTITIONS):
        told = Found(number, DIVERGENCE, TRUNCATED)
        assert _read_after(polling, number) == [told, *_others(number, partition)]


def _read_after(polling: Polling, number: int) -> list[Found]:
    """Return what was found in a partition after the lost records."""
    rows = [row for row in polling.found if row.partition == number]
    return rows[len(BOTH) + len(LOST) :]


def _others(number: int, partition: Partition) -> list[Found]:
    values = enumerate(OTHERS[: partition.others], DIVERGENCE)
    return [Found(number, offset, value) for offset, value in values]
