"""What brokers do when no client sends them anything, on any cluster of this machine.

``cpu_percent`` is processor time, in percent of one processor; ``wakeups_per_broker_s`` is how
often their threads stopped to wait. Both are the mean of all brokers over ``--seconds``, after
``--settle`` seconds. There are ``--partitions`` partitions of three replicas; 0: an empty cluster.
``--threads`` says which threads woke, by their names. An own cluster has the default session
timeout, because each session is confirmed three times in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from time import monotonic, sleep
from typing import Any, Final

import click

from bench.clients import broker_ports
from bench.clusters import cluster_at
from bench.frame import benchmark
from bench.processes import cpu_seconds, local_processes, wakeups
from bench.result import Case
from bench.topics import Topics, existing
from regent.config.tables.zookeeper import ZooKeeperConfig

_SESSION_TIMEOUT_MS: Final = str(ZooKeeperConfig.session_timeout_ms)


@benchmark("idle", any_cluster=True)
@click.option("--partitions", "counts", type=int, multiple=True, default=(0, 1_000))
@click.option("--seconds", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--settle", type=click.FloatRange(0), default=5.0, show_default=True)
@click.option("--threads", is_flag=True)
def main(
    bootstrap: str | None, counts: tuple[int, ...], seconds: float, settle: float, threads: bool
) -> Iterator[Case]:
    """Measure each number of partitions."""
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
