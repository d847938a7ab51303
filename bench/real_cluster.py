"""A broker of a real cluster ends.

Three brokers, one ZooKeeper server, everything on this machine, replication factor 3.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from time import monotonic, sleep
from typing import Any

import click

from bench.clients import own_cluster
from bench.frame import benchmark, sizes
from bench.kafka_connection import Address
from bench.metadata import await_told, sample
from bench.processes import Usage, cpu_seconds
from bench.result import Case
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.protocol.broker import MetadataPartition
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.client.operations import Create
from regent.zk.codecs.topic_znodes import encode_topic_id
from regent.zk.znodes import TopicZNode

TIMEOUT_S = 300.0
TOPICS_AT_ONCE = 20
IDLE_S = 5.0
SETTLE_S = 2.0  # guardians take a third of a second to start; a crash before that is seen later


@benchmark()
@sizes(100, 10)
@click.option("--controller", is_flag=True, help="Kill the broker that is the controller.")
def crash(topics: int, partitions: int, controller: bool) -> Iterator[Case]:
    """Kill -9 of a broker that leads a third of all partitions.

    The broker is not the controller, unless ``--controller`` is given. ``unregistered_s`` is until
    its registration is gone, which its guardian ends; ``seconds`` until clients of both survivors
    are told of another leader for every partition of up to 50 topics, evenly spread. ``isr_s`` is
    until no ISR of these has the broker; ``cpu_s`` is the processor time of the survivors until
    then. ``back_s`` is from the start of a new process until all ISRs have all replicas.
    """
    with filled_cluster(topics, partitions) as (cluster, names, _):
        brokers = cluster.brokers
        killed = next(b for b in brokers if (b == cluster.controller()) == controller)
        survivors = [b for b in brokers if b != killed]
        usage, began = Usage([cluster.pid(b) for b in survivors]), monotonic()
        cluster.kill(killed)
        figures: dict[str, Any] = {"unregistered_s": _since(began)}
        addresses = [Address.of(cluster.bootstrap_server(b)) for b in survivors]
        asked = sample(names)
        await_told(addresses, asked, lambda row: row.leader_id not in (killed, -1))
        figures["seconds"] = _since(began)
        await_told(addresses, asked, lambda row: killed not in row.isr_nodes)
        figures |= {"isr_s": _since(began), **usage.result()}
        await_everywhere(cluster, survivors, lambda row: killed not in row.isr)
        began = monotonic()
        cluster.restart(killed)
        await_everywhere(cluster, survivors, lambda row: len(row.isr) == len(row.replicas))
        figures["back_s"] = _since(began)
    yield Case({"partitions": topics * partitions}, figures)


@benchmark()
@sizes(100, 10)
def shutdown(topics: int, partitions: int) -> Iterator[Case]:
    """Shut a broker down that leads a third of all partitions.

    The broker is not the controller. ``handed_over_s`` is from SIGTERM until clients of both others
    are told of another leader for every partition of up to 50 topics, evenly spread. ``seconds`` is
    until its process has ended. ``cpu_s`` is the processor time of the other brokers until then.
    """
    with filled_cluster(topics, partitions) as (cluster, names, _):
        brokers = cluster.brokers
        stopped = next(b for b in brokers if b != cluster.controller())
        others, pid = [b for b in brokers if b != stopped], cluster.pid(stopped)
        usage, began = Usage([cluster.pid(b) for b in others]), monotonic()
        cluster.signal(stopped, signal.SIGTERM)
        addresses = [Address.of(cluster.bootstrap_server(b)) for b in others]
        await_told(addresses, sample(names), lambda row: row.leader_id not in (stopped, -1))
        handed_over_s = _since(began)
        cluster.await_end(stopped, pid)
        figures = {"handed_over_s": handed_over_s, "seconds": _since(began), **usage.result()}
        await_everywhere(cluster, others, lambda row: row.leader not in (stopped, -1))
    yield Case({"partitions": topics * partitions}, figures)


@benchmark()
@sizes(200, 10)
@click.option("--quiet-s", type=click.FloatRange(0), default=0.0, show_default=True)
def failover(topics: int, partitions: int, quiet_s: float) -> Iterator[Case]:
    """Kill -9 of the controller.

    Times are in milliseconds: ``created_ms`` until the last partition is led, ``elected_ms`` from
    the kill to the next controller epoch in ZooKeeper, ``handled_ms`` the new controller's own time
    for the failover (from its journal), ``agreed_ms`` from the kill until the metadata caches of
    both survivors need no other broker. ``idle_percent`` is the processor time of an idle broker in
    percent, the mean of all brokers.

    Asking the caches costs processor time that the failover needs: with ``--quiet-s`` no cache is
    asked for that many seconds after the kill, and ``agreed_ms`` is left out.
    """
    with filled_cluster(topics, partitions) as (cluster, names, created_ms):
        figures: dict[str, Any] = {"created_ms": created_ms}
        killed, epoch = cluster.await_controller(), cluster.controller_epoch() + 1
        others = [b for b in cluster.brokers if b != killed]
        sleep(SETTLE_S)
        figures["idle_percent"] = idle_percent(cluster)
        began = monotonic()
        cluster.signal(killed, signal.SIGKILL)
        eventually(lambda: cluster.controller_epoch() == epoch, "another election")
        figures["elected_ms"] = _since(began, 1000)
        if quiet_s:
            sleep(quiet_s)  # no cache is asked meanwhile
        else:
            count = topics * partitions
            eventually(lambda: are_updated(cluster, others, epoch, count), "updates", TIMEOUT_S)
            figures["agreed_ms"] = _since(began, 1000)
            for name in (names[0], names[-1]):
                cluster.await_agreement(others, name, epoch)
        event = eventually(lambda: election_event(cluster, epoch), "the journal", TIMEOUT_S)
        figures["handled_ms"] = event["handling_ms"]
    yield Case({"partitions": topics * partitions}, figures)


@contextmanager
def filled_cluster(
    topics: int, partitions: int
) -> Iterator[tuple[RegentCluster, list[str], float]]:
    """Yield a cluster, its topics, and the milliseconds until the last partition was led.

    The topics are placed in a ring. Each begins with the next broker: all brokers lead the same
    number of partitions.
    """
    with own_cluster() as cluster:
        yield cluster, *fill(cluster, topics, partitions)


def fill(cluster: RegentCluster, topics: int, partitions: int) -> tuple[list[str], float]:
    """Create topics, as ``filled_cluster`` says, and wait until all brokers know them."""
    names = [f"topic-{number:05d}" for number in range(topics)]
    writes = []
    for first, name in enumerate(names):
        assignments = {
            partition: ReplicaAssignment(tuple((first + partition + j) % 3 for j in range(3)))
            for partition in range(partitions)
        }
        topic_id = encode_topic_id(os.urandom(16))
        writes.append(Create(TopicZNode.path(name), TopicZNode.encode(topic_id, assignments)))
    began = monotonic()
    cluster.zookeeper.multi_many(
        [writes[i : i + TOPICS_AT_ONCE] for i in range(0, topics, TOPICS_AT_ONCE)]
    )
    last = names[-1]
    eventually(lambda: len(cluster.partition_states(last)) == partitions, "all is led", TIMEOUT_S)
    created_ms = _since(began, 1000)
    cluster.await_agreement(cluster.brokers, last)
    return names, created_ms


def await_everywhere(
    cluster: RegentCluster,
    brokers: Collection[BrokerId],
    is_so: Callable[[MetadataPartition], bool],
) -> None:
    """Wait until the caches of all these brokers have only such partitions."""

    def are_so() -> bool:
        return all(is_so(row) for broker in brokers for row in cluster.metadata(broker).partitions)

    eventually(are_so, "all caches are so", TIMEOUT_S)


def are_updated(cluster: RegentCluster, survivors: list[int], epoch: int, count: int) -> bool:
    """Return whether the survivors' caches have the new controller, and need no other broker."""
    return all(
        (told.controller_epoch, len(told.partitions)) == (epoch, count)
        and all(p.leader in survivors and set(p.isr) <= set(survivors) for p in told.partitions)
        for told in map(cluster.metadata, survivors)
    )


def idle_percent(cluster: RegentCluster) -> float:
    """Return the processor time of an idle broker in percent, the mean of all brokers."""
    pids = [cluster.pid(broker_id) for broker_id in cluster.brokers]
    before = sum(map(cpu_seconds, pids))
    sleep(IDLE_S)
    return round((sum(map(cpu_seconds, pids)) - before) / IDLE_S / len(pids) * 100, 1)


def election_event(cluster: RegentCluster, epoch: int) -> dict[str, Any]:
    """Return the journal's line about the election of ``epoch``; empty before there is one."""
    for journal in cluster.data_dir.glob("broker-*/events.jsonl"):
        for line in journal.read_text(encoding="utf-8").splitlines():
            event: dict[str, Any] = json.loads(line)
            if event.get("elected") == epoch:
                return event
    return {}


def _since(began: float, unit: int = 1) -> float:
    """Return the seconds since a monotonic instant; with ``unit`` 1000 the milliseconds."""
    return round((monotonic() - began) * unit, 3 if unit == 1 else 1)
