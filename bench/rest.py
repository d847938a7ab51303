"""What brokers use when no client sends them anything, on any cluster of this machine.

Figures are the mean of all brokers with ``--partitions`` partitions of three replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from time import monotonic, sleep
from typing import Any, Final

import click

from bench.clients import broker_ports, cluster_at
from bench.frame import benchmark
from bench.processes import cpu_seconds, local_processes, proportional_mb, resident_mb, wakeups
from bench.result import Case
from bench.topics import Topics, existing
from regent.config.tables.zookeeper import ZooKeeperConfig

_SESSION_TIMEOUT_MS: Final = str(ZooKeeperConfig.session_timeout_ms)


@benchmark(any_cluster=True)
@click.option("--partitions", "counts", type=int, multiple=True, default=(0, 1_000))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--settle", type=click.FloatRange(0), default=5.0, show_default=True)
@click.option("--threads", is_flag=True)
def idle(
    bootstrap: str | None, counts: tuple[int, ...], seconds: float, settle: float, threads: bool
) -> Iterator[Case]:
    """Measure the processor time of each number of partitions; 0: an empty cluster.

    ``cpu_percent`` is processor time, in percent of one processor; ``wakeups_per_broker_s`` is how
    often threads stopped to wait. Both are over ``--seconds``, after ``--settle`` seconds.
    ``--threads`` says which threads woke, by their names. An own cluster has the default session
    timeout, because each session is confirmed three times in it.
    """
    with cluster_at(bootstrap, "--session-timeout-ms", _SESSION_TIMEOUT_MS) as servers:
        pids = local_processes(broker_ports(servers))
        for partitions in counts:
            topics = existing(Topics(servers, 1, partitions)) if partitions else nullcontext()
            with topics:
                sleep(settle)
                began = monotonic()
                before = sum(map(cpu_seconds, pids)), _wakeups(pids)
                sleep(seconds)
                elapsed = (monotonic() - began) * len(pids)
                used = sum(map(cpu_seconds, pids)) - before[0]
                woken = _wakeups(pids) - before[1]
            figures: dict[str, Any] = {
                "cpu_percent": round(used / elapsed * 100, 2),
                "wakeups_per_broker_s": round(woken.total() / elapsed, 1),
            }
            if threads:
                figures["threads"] = {
                    name: round(count / elapsed, 2) for name, count in woken.most_common()
                }
            yield Case({"partitions": partitions}, figures)


def _wakeups(pids: list[int]) -> Counter[str]:
    return sum(map(wakeups, pids), Counter[str]())


@benchmark(any_cluster=True)
@click.option("--partitions", type=click.IntRange(1), default=1_000, show_default=True)
@click.option("--settle", type=click.FloatRange(0), default=5.0, show_default=True)
def memory(bootstrap: str | None, partitions: int, settle: float) -> Iterator[Case]:
    """Measure the memory without and with the partitions.

    ``rss_mb`` and ``pss_mb`` are MB of 10^6 bytes; PSS divides memory among the processes that
    share it. ``kb_per_replica`` is how much RSS grew with them, for each replica; creating them
    leaves garbage, which is counted too.
    """
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
