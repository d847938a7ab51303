"""A follower that was away fetches what it missed, in a real cluster.

Three brokers on this machine, replication factor 3. One is killed by ``kill -9``; ``--megabytes``
(10^6 bytes of values) are produced, and it is started again. ``seconds`` is from the start of
its process until it is in all ISRs, ``mb_per_s`` what it fetched in that time, and ``cpu_s`` the
processor time of the three brokers.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import click

from bench.clusters import own_cluster
from bench.consume import fill
from bench.filled_cluster import await_everywhere
from bench.frame import benchmark
from bench.processes import Usage, cpu_seconds
from bench.result import Case

TOPIC = "missed"


@benchmark("catch-up")
@click.option("--size", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=6, show_default=True)
@click.option("--megabytes", type=click.IntRange(1), default=200, show_default=True)
def main(size: int, partitions: int, megabytes: int) -> Iterator[Case]:
    """Measure once."""
    with own_cluster() as cluster:
        cluster.create_topic(TOPIC, partitions)
        cluster.await_agreement(cluster.brokers, TOPIC)
        away = next(b for b in cluster.brokers if b != cluster.controller())
        others = [b for b in cluster.brokers if b != away]
        cluster.kill(away)
        records = megabytes * 1_000_000 // size
        fill(cluster.bootstrap_servers, TOPIC, partitions, size, records)
        usage, began = Usage([cluster.pid(b) for b in others]), monotonic()
        cluster.restart(away)
        await_everywhere(cluster, others, lambda row: len(row.isr) == len(row.replicas))
        seconds = monotonic() - began
        used = usage.result()["cpu_s"] + cpu_seconds(cluster.pid(away))
    figures = {
        "seconds": round(seconds, 3),
        "mb_per_s": round(megabytes / seconds, 1),
        "cpu_s": round(used, 2),
    }
    yield Case({"partitions": partitions, "record_bytes": size, "megabytes": megabytes}, figures)
