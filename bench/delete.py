"""A client deletes topics in one request, on any cluster.

Replication factor 3. ``answered_s`` is until the answer to DeleteTopics, ``seconds`` until no topic
is left in a broker's metadata. ``cpu_s`` is the processor time of all brokers until then, if they
are on this machine. Files may be deleted later: Regent and Kafka do it after
``file.delete.delay.ms``.
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


@benchmark("delete", any_cluster=True)
@click.option("--topics", type=click.IntRange(1), default=100, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=10, show_default=True)
def main(bootstrap: str | None, topics: int, partitions: int) -> Iterator[Case]:
    """Create topics, and delete them."""
    with cluster_at(bootstrap) as servers:
        unwanted = Topics(servers, topics, partitions)
        unwanted.create()
        unwanted.await_led()
        usage, began = Usage.of_ports(broker_ports(servers)), monotonic()
        unwanted.delete()
        answered_s = monotonic() - began
        unwanted.await_gone()
        seconds = monotonic() - began
        figures = {
            "answered_s": round(answered_s, 3),
            "seconds": round(seconds, 3),
            "partitions_per_s": round(topics * partitions / seconds),
            **usage.result(),
        }
    yield Case({"topics": topics, "partitions": topics * partitions}, figures)
