"""How long jobs take that place or move the partitions of a large cluster.

Each run is a process of its own, on two cores of Spark by default. ``wall_s`` is its time from
start to end, ``cpu_s`` the time on processors of the process, its JVM and the Python workers. If
other load on the machine is high, use ``cpu_s``.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias

import click

from bench.frame import benchmark
from bench.processes import cpu_seconds_of_session
from bench.result import Case
from regent.core.placement.replica_placer import Strategy

RACKS = 5
ID_LIMIT = 1_000_000
PARTITIONS_OF_A_TOPIC = 100
LEAVING = 10
SAMPLE_S = 0.1

Figures: TypeAlias = dict[str, Any]


@benchmark()
@click.option("--partitions", type=click.IntRange(1), default=10_000_000, show_default=True)
@click.option("--topic-size", "sizes", type=int, multiple=True, help="Partitions of a topic.")
@click.option("--brokers", "counts", type=int, multiple=True, default=(1_000, 10_000))
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice([s.value for s in Strategy]),
    multiple=True,
    default=[s.value for s in Strategy],
)
@click.option("--master", default="local[2]", show_default=True)
def placement(
    partitions: int,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    strategies: tuple[str, ...],
    master: str,
) -> Iterator[Case]:
    """Place partitions of three replicas into Parquet: ``regent jobs place``.

    For each strategy and number of brokers, as one topic and as topics of a hundred. The ids of the
    brokers are arbitrary, and there are five racks of them. ``mb`` (10^6 bytes) is the size of the
    output. Sizes, brokers and strategies can be given several times.
    """
    for size in sizes or (partitions, PARTITIONS_OF_A_TOPIC):
        for brokers in counts:
            ids = random.Random(brokers).sample(range(ID_LIMIT), brokers)
            for strategy in strategies:
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    options = ("--strategy", strategy, "--master", master)
                    summary = place(folder, partitions, size, racked(ids, RACKS), *options)
                    written = sum(part.stat().st_size for part in folder.glob("now/part-*"))
                counted = ("wall_s", "cpu_s", "replicas_per_broker", "leaders_per_broker")
                yield Case(
                    {
                        "partitions": partitions,
                        "strategy": strategy,
                        "brokers": brokers,
                        "topic_size": size,
                    },
                    {**{key: summary[key] for key in counted}, "mb": round(written / 1e6, 1)},
                )


@benchmark()
@click.option("--partitions", default=1_000_000, show_default=True)
@click.option("--brokers", default=1_000, show_default=True)
@click.option("--racks", default=20, show_default=True)
@click.option("--goal", help="Plan for this goal only.")
def planning(partitions: int, brokers: int, racks: int, goal: str | None) -> Iterator[Case]:
    """Plan moves of every kind: ``regent jobs plan``.

    The assignment is placed by Kafka's rack-aware scheme with random starts, topics of a hundred
    partitions, replication factor 3, brokers in racks of equal size, and written to Parquet first.
    """
    leaving = ",".join(str(b * brokers // LEAVING) for b in range(LEAVING))
    newcomers = ",".join(str(brokers + number) for number in range(LEAVING))
    goals: dict[str, tuple[int, tuple[str, ...]]] = {
        "decommission": (0, ("--from", leaving)),
        "replace": (LEAVING, ("--from", leaving, "--to", newcomers, "--no-rack-aware")),
        "add-brokers": (LEAVING, ()),
        "rebalance": (0, ()),
        "replication-factor": (0, ("--factor", "4")),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = (
            "--strategy",
            "rack-aware",
            "--start-index",
            "random",
            "--index",
            "per-topic",
            "--seed",
            "1",
        )
        place(folder, partitions, PARTITIONS_OF_A_TOPIC, racked(range(brokers), racks), *start)
        for each, (new, arguments) in goals.items():
            if goal in (None, each):
                file = folder / f"brokers-{each}.json"
                file.write_text(json.dumps(racked(range(brokers + new), racks)))
                files = ("--assignment", folder / "now", "--brokers", file, "--out", folder / each)
                found = run("plan", each, *arguments, *files)
                yield Case({"goal": each, "partitions": partitions, "brokers": brokers}, found)


def racked(ids: Sequence[int], racks: int) -> list[dict[str, Any]]:
    """Return brokers, in racks in turn."""
    return [{"id": b, "rack": f"rack-{number % racks:02d}"} for number, b in enumerate(ids)]


def place(
    folder: Path, partitions: int, topic_size: int, brokers: list[dict[str, Any]], *options: str
) -> Figures:
    """Place topics into the folder ``now``, as Parquet."""
    topics = [
        {"topic": f"topic-{number:07d}", "partitions": topic_size, "replication_factor": 3}
        for number in range(partitions // topic_size)
    ]
    for name, rows in (("topics", topics), ("brokers", brokers)):
        (folder / f"{name}.json").write_text(json.dumps(rows))
    files = ("--topics", folder / "topics.json", "--brokers", folder / "brokers.json")
    return run("place", *files, *options, "--format", "parquet", "--out", folder / "now")


def run(job: str, *arguments: str | Path) -> Figures:
    """Run a job once; return its summary, its status and its times."""
    started = monotonic()
    cpu: dict[int, float] = {}
    with subprocess.Popen(
        [sys.executable, "-m", f"regent.jobs.{job}", *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        while process.poll() is None:
            cpu |= cpu_seconds_of_session(process.pid)
            sleep(SAMPLE_S)
        wall_s = round(monotonic() - started, 1)
        printed, status = process.communicate()[0], process.returncode
    summary: Figures = json.loads(printed) if status == 0 else {}
    return {**summary, "status": status, "wall_s": wall_s, "cpu_s": round(sum(cpu.values()), 1)}
