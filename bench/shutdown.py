"""A controlled shutdown of a broker that leads a third of all partitions, in a real cluster.

Three brokers, one ZooKeeper server, everything on this machine, replication factor 3. The broker is
not the controller. ``handed_over_s`` is from SIGTERM until clients of both others are told of
another leader for every partition of up to 50 topics, evenly spread. ``seconds`` is until its
process has ended. ``cpu_s`` is the processor time of the other brokers until then.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from time import monotonic

import click

from bench.clusters import own_cluster
from bench.filled_cluster import await_everywhere, create_topics
from bench.frame import benchmark
from bench.kafka_connection import Address
from bench.metadata import await_told, sample
from bench.processes import Usage
from bench.result import Case


@benchmark("shutdown")
@click.option("--topics", type=click.IntRange(1), default=100, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
def main(topics: int, partitions: int) -> Iterator[Case]:
    """Measure one shutdown."""
    with own_cluster() as cluster:
        names = create_topics(cluster, topics, partitions)
        brokers = cluster.brokers
        cluster.await_agreement(brokers, names[-1])
        stopped = next(b for b in brokers if b != cluster.controller())
        others, pid = [b for b in brokers if b != stopped], cluster.pid(stopped)
        usage, began = Usage([cluster.pid(b) for b in others]), monotonic()
        cluster.signal(stopped, signal.SIGTERM)
        addresses = [Address.of(cluster.bootstrap_server(b)) for b in others]
        await_told(addresses, sample(names), lambda row: row.leader_id not in (stopped, -1))
        handed_over_s = monotonic() - began
        cluster.await_end(stopped, pid)
        figures = {
            "handed_over_s": round(handed_over_s, 3),
            "seconds": round(monotonic() - began, 3),
            **usage.result(),
        }
        await_everywhere(cluster, others, lambda row: row.leader not in (stopped, -1))
    yield Case({"partitions": topics * partitions}, figures)
