"""Acknowledgements of one topic while a follower reads another one that is not in memory.

Three brokers on this machine. One is killed by ``kill -9``; ``--megabytes`` (10^6 bytes of values)
are produced to a topic that it follows, and the kernel drops them from its page cache. The broker
is started again and fetches them from the disks of the others. Meanwhile ``--rate`` records a
second go to a topic that only the other two brokers have: ``p99_ms`` and the others beside the
reading, ``quiet_p99_ms`` before it, in milliseconds, with librdkafka's ``linger.ms`` 0.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import click

from bench.clusters import own_cluster
from bench.consume import fill
from bench.filled_cluster import await_everywhere
from bench.frame import benchmark
from bench.latency import measure
from bench.result import Case

LIVE, OLD = "live", "old"
SETTINGS = {"acks": "all", "linger.ms": 0}


@benchmark("cold-read")
@click.option("--size", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=6, show_default=True)
@click.option("--megabytes", type=click.IntRange(1), default=2_000, show_default=True)
@click.option("--rate", type=click.FloatRange(1), default=500.0, show_default=True)
@click.option("--quiet-seconds", type=click.FloatRange(0.1), default=5.0, show_default=True)
def main(
    size: int, partitions: int, megabytes: int, rate: float, quiet_seconds: float
) -> Iterator[Case]:
    """Measure once."""
    with own_cluster() as cluster:
        cluster.create_topic(OLD, partitions)
        away = next(b for b in cluster.brokers if b != cluster.controller())
        others = [b for b in cluster.brokers if b != away]
        cluster.create_topic_on(LIVE, [(others[0], others[1]), (others[1], others[0])])
        cluster.kill(away)
        bootstrap = cluster.bootstrap_servers
        fill(bootstrap, OLD, partitions, size, megabytes * 1_000_000 // size)
        quiet = measure(bootstrap, LIVE, 2, size, rate, quiet_seconds.__gt__, SETTINGS)
        for segment in cluster.data_dir.glob(f"broker-*/**/{OLD}-*/*.log"):
            forget(segment)
        began = monotonic()
        cluster.restart(away)
        with ThreadPoolExecutor(1) as caught_up:
            end = caught_up.submit(
                lambda: await_everywhere(cluster, others, lambda r: len(r.isr) == len(r.replicas))
            )
            beside = measure(bootstrap, LIVE, 2, size, rate, lambda _: not end.done(), SETTINGS)
            end.result()
        seconds = monotonic() - began
    figures = {
        "p50_ms": beside["p50_ms"],
        "p99_ms": beside["p99_ms"],
        "p999_ms": beside["p999_ms"],
        "quiet_p50_ms": quiet["p50_ms"],
        "quiet_p99_ms": quiet["p99_ms"],
        "seconds": round(seconds, 3),
        "mb_per_s": round(megabytes / seconds, 1),
    }
    yield Case({"partitions": partitions, "record_bytes": size, "megabytes": megabytes}, figures)


def forget(path: Path) -> None:
    """Write a file to the disk, and let the kernel drop it from its page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
