"""Kill -9 of the controller of a real cluster.

Three brokers, one ZooKeeper server, everything on this machine, replication factor 3. Times are in
milliseconds: ``created_ms`` until the last partition is led, ``elected_ms`` from the kill to the
next controller epoch in ZooKeeper, ``handled_ms`` the new controller's own time for the failover
(from its journal), ``agreed_ms`` from the kill until the metadata caches of both survivors need no
other broker. ``idle_percent`` is the processor time of an idle broker in percent, the mean of all
brokers.

Asking the caches costs processor time that the failover needs: with ``--quiet-s`` no cache is asked
for that many seconds after the kill, and ``agreed_ms`` is left out.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import click

from bench.clusters import own_cluster
from bench.filled_cluster import TIMEOUT_S, are_updated, create_topics, elapsed_ms
from bench.frame import benchmark
from bench.processes import cpu_seconds
from bench.result import Case
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually

IDLE_S = 5.0
SETTLE_S = 2.0  # guardians take a third of a second to start; a crash before that is seen later


def idle_percent(cluster: RegentCluster) -> float:
    """Return the processor time of an idle broker in percent, the mean of all brokers."""
    pids = [cluster.pid(broker_id) for broker_id in range(3)]
    before = sum(map(cpu_seconds, pids))
    sleep(IDLE_S)
    return round((sum(map(cpu_seconds, pids)) - before) / IDLE_S / len(pids) * 100, 1)


def failover_event(cluster: RegentCluster, epoch: int) -> dict[str, Any] | None:
    """Return the journal's line about the election of ``epoch``."""
    for journal in cluster.data_dir.glob("broker-*/events.jsonl"):
        for line in journal.read_text(encoding="utf-8").splitlines():
            event: dict[str, Any] = json.loads(line)
            if event.get("elected") == epoch:
                return event
    return None


@benchmark("failover")
@click.option("--topics", type=click.IntRange(1), default=200, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
@click.option("--quiet-s", type=click.FloatRange(0), default=0.0, show_default=True)
def main(topics: int, partitions: int, quiet_s: float) -> Iterator[Case]:
    """Measure one failover."""
    with own_cluster() as cluster:
        yield Case(
            {"partitions": topics * partitions}, measure(cluster, topics, partitions, quiet_s)
        )


def measure(cluster: RegentCluster, topics: int, partitions: int, quiet_s: float) -> dict[str, Any]:
    """Create the topics, and kill the controller."""
    started = monotonic()
    names = create_topics(cluster, topics, partitions)
    figures: dict[str, Any] = {"created_ms": elapsed_ms(started)}
    killed = cluster.controller()
    assert killed is not None
    others, epoch = [b for b in (0, 1, 2) if b != killed], cluster.controller_epoch() + 1
    cluster.await_agreement([0, 1, 2], names[-1])
    sleep(SETTLE_S)
    figures["idle_percent"] = idle_percent(cluster)
    started = monotonic()
    cluster.signal(killed, signal.SIGKILL)
    eventually(lambda: cluster.controller_epoch() == epoch, "another election")
    figures["elected_ms"] = elapsed_ms(started)
    if quiet_s:
        sleep(quiet_s)  # no cache is asked meanwhile
    else:
        count = topics * partitions
        eventually(lambda: are_updated(cluster, others, epoch, count), "updates", TIMEOUT_S)
        figures["agreed_ms"] = elapsed_ms(started)
        for name in (names[0], names[-1]):
            cluster.await_agreement(others, name, epoch)
    event = eventually(lambda: failover_event(cluster, epoch), "the journal", TIMEOUT_S)
    assert event is not None
    figures["handled_ms"] = event["handling_ms"]
    return figures
