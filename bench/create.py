"""A client creates topics in one request, on any cluster.

Replication factor 3. ``answered_s`` is until the answer to CreateTopics, ``seconds`` until a
broker's metadata has a leader and all replicas in sync for every partition. ``cpu_s`` is the
processor time of all brokers, if they are on this machine. ZooKeeper is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import click

from bench.clients import broker_ports
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.processes import Usage
from bench.result import Case
from bench.topics import Topics


@benchmark("create", any_cluster=True)
@click.option("--topics", type=click.IntRange(1), default=100, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
def main(bootstrap: str | None, topics: int, partitions: int) -> Iterator[Case]:
    """Create topics, and delete them afterwards."""
    with cluster_at(bootstrap) as servers:
        wanted = Topics(servers, topics, partitions)
        usage, began = Usage.of_ports(broker_ports(servers)), monotonic()
        wanted.create()
        answered_s = monotonic() - began
        wanted.await_led()
        seconds = monotonic() - began
        figures = {
            "answered_s": round(answered_s, 3),
            "seconds": round(seconds, 3),
            "partitions_per_s": round(topics * partitions / seconds),
            **usage.result(),
        }
        wanted.delete()
        wanted.await_gone()
    yield Case({"topics": topics, "partitions": topics * partitions}, figures)
