"""The memory of brokers, and what a replica adds, on any cluster of this machine.

``rss_mb`` and ``pss_mb`` are the mean of all brokers with ``--partitions`` partitions of three
replicas, MB of 10^6 bytes; PSS divides memory among the processes that share it. ``kb_per_replica``
is how much RSS grew with them, for each replica; creating them leaves garbage, which is counted
too.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

import click

from bench.clients import broker_ports
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.processes import local_processes, proportional_mb, resident_mb
from bench.result import Case
from bench.topics import Topics, existing


@benchmark("memory", any_cluster=True)
@click.option("--partitions", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--settle", type=click.FloatRange(0), default=5.0, show_default=True)
def main(bootstrap: str | None, partitions: int, settle: float) -> Iterator[Case]:
    """Measure without and with the partitions."""
    with cluster_at(bootstrap) as servers:
        pids = local_processes(broker_ports(servers))

        def figures() -> dict[str, float]:
            sleep(settle)
            rss, pss = sum(map(resident_mb, pids)), sum(map(proportional_mb, pids))
            return {"rss_mb": round(rss / len(pids), 1), "pss_mb": round(pss / len(pids), 1)}

        empty = figures()
        yield Case({"partitions": 0}, empty)
        with existing(Topics(servers, 1, partitions)):
            full = figures()
        grown_kb = (full["rss_mb"] - empty["rss_mb"]) * 1000 * len(pids)
        yield Case(
            {"partitions": partitions},
            {**full, "kb_per_replica": round(grown_kb / partitions / 3, 2)},
        )
