"""How long transactions take.

Topics of three replicas of which two must be in sync. A transaction has ``--records`` records in
each of ``--partitions`` partitions; librdkafka's ``linger.ms`` is 0.

``latency``     One producer, a transaction every ``--interval`` seconds: ``transaction_ms`` from
                its begin to the answer to its commit, and of that ``commit_ms`` from the call of
                ``commit_transaction``, which sends what is left of the records. ``visible_ms`` is
                from that call until a consumer with ``isolation.level=read_committed`` has all
                records; it reads all the time. The first 20
                transactions are not counted.
``throughput``  ``--producers`` producers with ids of their own, each in a thread, one transaction
                after the other.

``cpu_s`` is the processor time of all brokers, user and system, if they are on this machine, and
``bench_cpu_s`` that of this process. Clients and brokers share this machine.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeAlias

import click
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.clients import TIMEOUT_S, broker_ports, cluster_at
from bench.frame import benchmark
from bench.processes import Usage
from bench.result import Case, percentiles
from bench.topics import topic_of

Figures: TypeAlias = dict[str, Any]

WARM_UPS = 20
POLL_S = 0.1
VALUE = b"x" * 100


class TransactionalProducer:
    """Writes the same transaction again and again."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, records: int) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"bench-{uuid.uuid4().hex[:8]}",
                "linger.ms": 0,
            }
        )
        self._topic = topic
        self._partitions = [number for number in range(partitions) for _ in range(records)]
        self._producer.init_transactions(TIMEOUT_S)

    def run(self) -> tuple[float, float, float]:
        """Commit one transaction; return when it began, when its commit did, and when that ended.

        The times are monotonic.
        """
        began = time.monotonic()
        self._producer.begin_transaction()
        for partition in self._partitions:
            self._producer.produce(self._topic, VALUE, partition=partition)
        commits = time.monotonic()
        self._producer.commit_transaction(TIMEOUT_S)
        return began, commits, time.monotonic()


class CommittedReader(threading.Thread):
    """Counts the records that a consumer of committed records gets, and notes when."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._changed = threading.Condition()
        self._count = 0
        self._is_stopping = False

    def run(self) -> None:
        """Read until it is stopped."""
        while not self._is_stopping:
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                with self._changed:
                    self._count += 1
                    self._changed.notify_all()
        self._consumer.close()

    def await_count(self, count: int) -> float:
        """Wait until there are so many records; return the monotonic time."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._count >= count, TIMEOUT_S), "records lack"
            assert self._count == count, f"{self._count} records instead of {count}"
            return time.monotonic()

    def stop(self) -> None:
        """Stop reading."""
        self._is_stopping = True
        self.join()


@contextmanager
def reader_of(bootstrap: str, topic: str, partitions: int) -> Iterator[CommittedReader]:
    """Read a topic for the block."""
    reader = CommittedReader(bootstrap, topic, partitions)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def measure_latency(
    bootstrap: str, topic: str, partitions: int, records: int, interval_s: float, number: int
) -> Figures:
    """Commit transactions with pauses, and read them."""
    producer = TransactionalProducer(bootstrap, topic, partitions, records)
    transaction, commit, visible = [], [], []
    with reader_of(bootstrap, topic, partitions) as reader:
        for done in range(1, WARM_UPS + 1):
            producer.run()
            reader.await_count(done * partitions * records)
        usage = Usage.of_ports(broker_ports(bootstrap))
        for done in range(WARM_UPS + 1, WARM_UPS + number + 1):
            time.sleep(interval_s)
            began, commits, ended = producer.run()
            transaction.append((ended - began) * 1000)
            commit.append((ended - commits) * 1000)
            seen = reader.await_count(done * partitions * records)
            visible.append((seen - commits) * 1000)
        used = usage.result()
    return {
        "transactions": number,
        "transaction_ms": percentiles(transaction, p50=0.5, p99=0.99, max=1),
        "commit_ms": percentiles(commit, p50=0.5, p99=0.99, max=1),
        "visible_ms": percentiles(visible, p50=0.5, p99=0.99, max=1),
        **used,
    }


def measure_throughput(
    bootstrap: str, topic: str, partitions: int, records: int, producers: int, seconds: float
) -> Figures:
    """Commit transactions with several producers, one after the other each."""
    with ThreadPoolExecutor(producers) as threads:
        made = [
            threads.submit(TransactionalProducer, bootstrap, topic, partitions, records)
            for _ in range(producers)
        ]
        clients = [future.result() for future in made]
        for future in [threads.submit(client.run) for client in clients]:
            future.result()
        usage, began = Usage.of_ports(broker_ports(bootstrap)), time.monotonic()

        def run(client: TransactionalProducer) -> int:
            number = 0
            while time.monotonic() - began < seconds:
                client.run()
                number += 1
            return number

        number = sum(threads.map(run, clients))
        elapsed = time.monotonic() - began
    return {
        "producers": producers,
        "transactions_per_s": round(number / elapsed, 1),
        "records_per_s": round(number * partitions * records / elapsed),
        **usage.result(),
    }


@benchmark(any_cluster=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
@click.option("--records", type=click.IntRange(1), default=1, show_default=True)
@click.option("--transactions", type=click.IntRange(1), default=200, show_default=True)
@click.option("--interval", type=click.FloatRange(0), default=0.05, show_default=True)
@click.option("--producers", type=click.IntRange(1), default=10, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
def transactions(
    bootstrap: str | None, partitions: int, records: int, **options: Any
) -> Iterator[Case]:
    """Measure transactions at low load, and as many as possible."""
    with cluster_at(bootstrap) as servers:
        with topic_of(servers, partitions) as topic:
            latency = measure_latency(
                servers, topic, partitions, records, options["interval"], options["transactions"]
            )
        yield Case({"subject": "latency"}, latency)
        with topic_of(servers, partitions) as topic:
            throughput = measure_throughput(
                servers, topic, partitions, records, options["producers"], options["seconds"]
            )
        yield Case({"subject": "throughput"}, throughput)
