"""Control requests while producers saturate the brokers.

Three brokers, replication factor 3, ``acks=all``, everything on this machine; a producer in a
process of its own sends as fast as it can, records of each size to each number of partitions.
Meanwhile these requests are sent, each on its own connection, 20 ms after the previous answer:

``describe``  to every broker: DescribeMetadata, through the inbox of its actor
``repeat``    to every broker: a LeaderAndIsr that it has handled before, which changes nothing
``propose``   to the controller: a proposal of the ISR that the partition already has
``elect``     from a request to the controller until every broker's cache has the other leader

``overslept`` is how late this process wakes up from a sleep of 20 ms. All processes share the
processors, so every other figure includes such a delay. Times are in milliseconds.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from time import monotonic, sleep
from typing import Any, TypeAlias

import click

from bench.clients import TIMEOUT_S, new_producer, send, topic_of
from bench.clusters import own_cluster
from bench.frame import benchmark
from bench.result import Case
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import DescribeMetadataRequest, DescribeMetadataResponse
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
)
from regent.core.protocol.controller import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    AlterPartitionRow,
    ElectionType,
    ElectLeadersRequest,
    ReassignablePartition,
)
from regent.testing.regent_cluster import RegentCluster
from regent.transport.control.client import RequestClient
from regent.transport.control.sockets import Context, new_context

BROKERS: tuple[BrokerId, ...] = (0, 1, 2)
ELECTED = "elected"
INTERVAL_S = 0.02
POLL_S = 0.002
RAMP_UP_S = 3.0

Figures: TypeAlias = dict[str, dict[str, float]]


def saturate(bootstrap: str, topic: str, partitions: int, size: int) -> None:
    """Send until the process is ended; in a process of its own."""
    os.setsid()  # Linux shares processor time by session: do not take it from the benchmark
    client, value = new_producer(bootstrap), os.urandom(size)
    for number in cycle(range(partitions)):
        send(client, topic, value, number)
        client.poll(0)


@contextmanager
def saturated(bootstrap: str, topic: str, partitions: int, size: int) -> Iterator[None]:
    """Run a producer that sends as fast as it can, for the block."""
    process = multiprocessing.get_context("spawn").Process(
        target=saturate, args=(bootstrap, topic, partitions, size), daemon=True
    )
    process.start()
    try:
        sleep(RAMP_UP_S)
        assert process.is_alive(), "the producer failed"
        yield
    finally:
        process.kill()
        process.join()


class BrokerConnection:
    """One connection to a broker's control port, for one thread."""

    def __init__(self, context: Context, endpoint: str) -> None:
        self._client = RequestClient(context, endpoint, client_id="bench")

    def ask(self, body: Any, header: ControlHeader | None = None) -> Any:
        """Return the answer."""
        return self._client.request(body, control_header=header, timeout_ms=int(TIMEOUT_S * 1000))

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


class Probe(threading.Thread):
    """Repeats an action until it is stopped, and records the durations."""

    def __init__(self, name: str, once: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self.times_ms: list[float] = []
        self._once = once
        self._stopping = threading.Event()

    def run(self) -> None:
        """Measure."""
        while not self._stopping.is_set():
            started = monotonic()
            self._once()
            self.times_ms.append((monotonic() - started) * 1000)
            sleep(INTERVAL_S)

    def stop(self) -> None:
        """Stop measuring."""
        self._stopping.set()
        self.join()


class Elections:
    """Moves the leadership of one partition from broker to broker."""

    def __init__(self, controller: BrokerConnection, brokers: list[BrokerConnection]) -> None:
        self._controller = controller
        self._brokers = brokers
        self._turns = cycle([(1, 2, 0), (2, 0, 1), (0, 1, 2)])
        self._replicas = BROKERS

    def prefer_another(self) -> None:
        """Make another broker the preferred leader, without an election."""
        self._replicas = next(self._turns)
        row = ReassignablePartition(ELECTED, 0, self._replicas)
        self._controller.ask(AlterPartitionReassignmentsRequest((row,)))
        self._await(lambda row: row.replicas == self._replicas)

    def elect(self) -> None:
        """Elect it, and wait until every broker knows."""
        request = ElectLeadersRequest(ElectionType.PREFERRED, (TopicPartition(ELECTED, 0),))
        self._controller.ask(request)
        self._await(lambda row: row.leader == self._replicas[0])

    def _await(self, is_so: Callable[[Any], bool]) -> None:
        for broker in self._brokers:
            deadline = monotonic() + TIMEOUT_S
            while not is_so(broker.ask(DescribeMetadataRequest((ELECTED,))).partitions[0]):
                assert monotonic() < deadline, "no election"
                sleep(POLL_S)


def repeated_leader_and_isr(
    told: DescribeMetadataResponse,
) -> tuple[LeaderAndIsrRequest, ControlHeader]:
    """Return the LeaderAndIsr request of the first partition in a broker's metadata, again."""
    row = told.partitions[0]
    state = LeaderAndIsrPartition(
        row.partition,
        row.controller_epoch,
        row.leader,
        row.leader_epoch,
        row.isr,
        row.partition_epoch,
        row.replicas,
        (),
        (),
        is_new=False,
        leader_recovery_state=0,
    )
    topic = LeaderAndIsrTopic(row.topic, row.topic_id, (state,))
    request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
    return request, ControlHeader(told.controller_id, told.controller_epoch, -1)


def repeated_proposal(told: DescribeMetadataResponse, epoch: int) -> AlterPartitionRequest:
    """Return an AlterPartition request that proposes the current ISR."""
    row = told.partitions[0]
    proposal = AlterPartitionRow(
        row.topic,
        row.partition,
        row.topic_id,
        row.leader_epoch,
        row.isr,
        tuple(-1 for _ in row.isr),
        0,
        row.partition_epoch,
    )
    return AlterPartitionRequest(row.leader, epoch, (proposal,))


def summary(times_ms: list[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(times_ms)
    picked = (ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
    rounded = [round(time_ms, 1) for time_ms in picked]
    return dict(zip(("p50", "p99", "max"), rounded, strict=True))


def measure(cluster: RegentCluster, topic: str, seconds: float) -> Figures:
    """Measure for ``seconds``."""
    context = new_context()
    with ExitStack() as undo:
        undo.callback(context.destroy, linger=0)

        def connection(broker_id: BrokerId) -> BrokerConnection:
            opened = BrokerConnection(context, cluster.control_endpoint(broker_id))
            undo.callback(opened.close)
            return opened

        controller = cluster.controller()
        assert controller is not None
        told = connection(0).ask(DescribeMetadataRequest((topic,)))
        leader_epoch = cluster.broker_epoch(told.partitions[0].leader)
        assert leader_epoch is not None
        repeated, header = repeated_leader_and_isr(told)
        proposal = repeated_proposal(told, leader_epoch)
        probes = [Probe("overslept", lambda: sleep(INTERVAL_S))]

        def add(name: str, opened: BrokerConnection, *asked: Any) -> None:
            probes.append(Probe(name, lambda: opened.ask(*asked)))

        for broker_id in BROKERS:
            add("describe", connection(broker_id), DescribeMetadataRequest(("none",)))
            add("repeat", connection(broker_id), repeated, header)
        add("propose", connection(controller), proposal)
        elections = Elections(connection(controller), [connection(b) for b in BROKERS])
        times: dict[str, list[float]] = {"elect": []}
        for probe in probes:
            probe.start()
        started = monotonic()
        while monotonic() - started < seconds:
            elections.prefer_another()
            began = monotonic()
            elections.elect()
            times["elect"].append((monotonic() - began) * 1000)
        for probe in probes:
            probe.stop()
            times.setdefault(probe.name, []).extend(probe.times_ms)
    times["overslept"] = [time_ms - INTERVAL_S * 1000 for time_ms in times["overslept"]]
    return {name: summary(each) for name, each in sorted(times.items())}


@benchmark("control-latency")
@click.option("--size", "sizes", type=int, multiple=True, default=(1_000, 100_000))
@click.option("--partitions", "counts", type=int, multiple=True, default=(10, 300))
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True)
def main(sizes: tuple[int, ...], counts: tuple[int, ...], seconds: float) -> Iterator[Case]:
    """Measure every combination; sizes and numbers of partitions can be given several times."""
    with own_cluster() as cluster:
        cluster.create_topic(ELECTED, 1)
        for partitions in counts:
            with topic_of(cluster.bootstrap_servers, partitions) as topic:
                cluster.await_agreement(list(BROKERS), topic)
                cases: list[tuple[int, Any]] = [(0, ExitStack())]  # at rest
                cases += [
                    (size, saturated(cluster.bootstrap_servers, topic, partitions, size))
                    for size in sizes
                ]
                for size, load in cases:
                    with load:
                        figures = measure(cluster, topic, seconds)
                    yield Case({"partitions": partitions, "record_bytes": size}, figures)
