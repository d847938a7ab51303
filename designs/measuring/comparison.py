"""Measures what a failure costs in each design, each in a cluster of its own."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from regent.core.model import BrokerId
from regent.designs.measuring.earlier_cluster import EarlierCluster
from regent.designs.measuring.measured_cluster import MeasuredCluster, MeasuringError
from regent.designs.measuring.v3_cluster import V3Cluster
from regent.designs.measuring.zookeeper_counts import read_counts
from regent.testing.janitor import Janitor

_STILL_S: Final = 1.0
_STILL_TIMEOUT_S: Final = 600.0
_REST_S: Final = 10.0  # brokers of v3 do something every ten seconds (broker.zookeeper_checks)
_POLL_S: Final = 0.1
_MEMORY: Final = Path("/dev/shm")

Figures: TypeAlias = Mapping[str, float]
"""What was measured, by name; times are milliseconds since ``kill -9``."""

CLUSTERS: Final[Mapping[str, Callable[[Path, int], MeasuredCluster]]] = {
    "v1-name": partial(EarlierCluster, "v1-name"),
    "v1-sequential": partial(EarlierCluster, "v1-sequential"),
    "v2": partial(EarlierCluster, "v2"),
    "v3": V3Cluster,
    "v3-controller": V3Cluster,
}
"""The designs, by the names that the command takes; of the last one the controller dies."""


class Failure(NamedTuple):
    """Which brokers of a cluster with so many partitions die at the same moment.

    The leader of partition 0 and those after it in the ring; without the controller, or with it.
    """

    brokers: int
    partitions: int
    failures: int = 1
    includes_controller: bool = False


def measure(design: str, failure: Failure, progress: Callable[[str], None]) -> Figures:
    """Start a cluster, and measure a failure. Raises ``RegentError``; no process is left then.

    Its data are in memory if possible: designs are compared, not disks.
    """
    progress(f"{design}: {failure.partitions:,} partitions on {failure.brokers} brokers")
    with _folder() as folder, closing(CLUSTERS[design](folder, failure.brokers)) as cluster:
        return measure_cluster(cluster, failure)


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder; nothing is left in it, even if this process is killed."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="regent-designs-", dir=memory))
    janitor = Janitor(folder)
    try:
        yield folder
    except AssertionError as error:  # of RegentCluster
        raise MeasuringError(str(error)) from error
    finally:
        janitor.clean_up()


def measure_cluster(cluster: MeasuredCluster, failure: Failure, rest_s: float = _REST_S) -> Figures:
    """Create the partitions, wait for rest, kill, and wait for rest again."""
    port = cluster.zookeeper.port
    cluster.create_partitions(failure.partitions)
    _await_stillness(port)
    first = read_counts(port)
    time.sleep(rest_s)
    at_rest = read_counts(port).requests_since(first)
    leaders, victims = cluster.leaders(), _victims(cluster, failure)
    survivors = [broker_id for broker_id in cluster.brokers if broker_id not in victims]
    led = [number for number, leader in leaders.items() if leader in victims]
    electable = sum(not set(cluster.replicas[number]) <= set(victims) for number in led)
    counted, before = cluster.counts(survivors), read_counts(port)
    killed = time.monotonic()
    for broker_id in victims:
        os.kill(cluster.pid(broker_id), signal.SIGKILL)
    times = cluster.await_leaders(victims, electable, before, killed)
    _await_stillness(port)
    after = read_counts(port)
    if len(before.requests.keys() ^ after.requests.keys()) != len(victims):
        raise MeasuringError("a broker lost its session when others died: the machine is too busy")
    writes = after.updates - before.updates - len(victims)  # without the ends of the sessions
    return {
        "partitions that the dead led": len(led),
        "ms until led": round(times.led_ms),
        "ms until known to all": round(times.known_ms),
        "watches fired": after.fired - before.fired,
        "requests to read ZooKeeper": after.requests_since(before) - writes,
        "znodes read": after.znodes_read - before.znodes_read,
        "requests to write ZooKeeper": writes,
        "znodes written": after.znodes_written - before.znodes_written,
        **{name: now - counted[name] for name, now in cluster.counts(survivors).items()},
        "watches at rest": before.watches,
        "requests to ZooKeeper per second, at rest": round(at_rest / rest_s, 1),
    }


def _victims(cluster: MeasuredCluster, failure: Failure) -> list[BrokerId]:
    controller, brokers = cluster.controller(), list(cluster.brokers)
    begin = brokers.index(cluster.leaders()[0])
    others = [b for b in (*brokers[begin:], *brokers[:begin]) if b != controller]
    if failure.includes_controller:
        assert controller is not None
        others.insert(0, controller)
    return others[: failure.failures]


def _await_stillness(port: int) -> None:
    """Wait until ZooKeeper has had nothing but pings to do for a second."""
    deadline = time.monotonic() + _STILL_TIMEOUT_S
    last, changed_at = read_counts(port), time.monotonic()
    while time.monotonic() < changed_at + _STILL_S:
        time.sleep(_POLL_S)
        present = read_counts(port)
        if present != last:
            last, changed_at = present, time.monotonic()
        if time.monotonic() > deadline:
            raise MeasuringError(f"ZooKeeper did not come to rest in {_STILL_TIMEOUT_S:g} s")
