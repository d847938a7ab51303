"""What brokers do when nobody asks them anything, on any cluster of this machine.

``cpu_percent`` is processor time, in percent of one processor; ``wakeups_per_broker_s`` is how
often their threads stopped to wait. Both are the mean of all brokers over ``--seconds``, after
``--settle`` seconds. There are ``--partitions`` partitions of three replicas; 0: an empty cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from time import monotonic, sleep

import click

from bench.clients import broker_ports
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.processes import cpu_seconds, local_processes, wakeups
from bench.result import Case
from bench.topics import Topics, existing


@benchmark("idle", any_cluster=True)
@click.option("--partitions", "counts", type=int, multiple=True, default=(0, 1_000))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--settle", type=click.FloatRange(0), default=5.0, show_default=True)
def main(
    bootstrap: str | None, counts: tuple[int, ...], seconds: float, settle: float
) -> Iterator[Case]:
    """Measure each number of partitions."""
    with cluster_at(bootstrap) as servers:
        pids = local_processes(broker_ports(servers))
        for partitions in counts:
            topics = existing(Topics(servers, 1, partitions)) if partitions else nullcontext()
            with topics:
                sleep(settle)
                began = monotonic()
                before = sum(map(cpu_seconds, pids)), sum(map(wakeups, pids))
                sleep(seconds)
                elapsed = (monotonic() - began) * len(pids)
                used = sum(map(cpu_seconds, pids)) - before[0]
                woken = sum(map(wakeups, pids)) - before[1]
            figures = {
                "cpu_percent": round(used / elapsed * 100, 2),
                "wakeups_per_broker_s": round(woken / elapsed),
            }
            yield Case({"partitions": partitions}, figures)
