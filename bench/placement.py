"""How long ``regent jobs place`` takes.

Ten million partitions of three replicas into Parquet, for each strategy and number of brokers, as
one topic and as topics of a hundred. The ids of the brokers are arbitrary, and there are five racks
of them. Each run is a process of its own. ``wall_s`` is its time from start to end. ``cpu_s`` is
the time on processors of the process, its JVM and the Python workers. ``mb`` (10^6 bytes) is the
size of its output. If other load on the machine is high, use ``cpu_s``.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
SAMPLE_S = 0.1

Figures: TypeAlias = dict[str, Any]


def write_inputs(directory: Path, partitions: int, topic_size: int, brokers: int) -> list[str]:
    """Write the topics and brokers to place; return the options that name the files."""
    topics = [
        {"topic": f"topic-{number:07d}", "partitions": topic_size, "replication_factor": 3}
        for number in range(partitions // topic_size)
    ]
    ids = random.Random(brokers).sample(range(ID_LIMIT), brokers)
    racked = [{"id": b, "rack": f"rack-{number % RACKS}"} for number, b in enumerate(ids)]
    topics_file, brokers_file = directory / "topics.json", directory / "brokers.json"
    topics_file.write_text(json.dumps(topics))
    brokers_file.write_text(json.dumps(racked))
    return ["--topics", str(topics_file), "--brokers", str(brokers_file)]


def measure(directory: Path, files: list[str], strategy: str, master: str) -> Figures:
    """Run the job once."""
    out = directory / "out"
    options = ["--strategy", strategy, "--master", master, "--format", "parquet"]
    started = monotonic()
    cpu: dict[int, float] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "regent.jobs.place", *files, *options, "--out", str(out)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as job:
        while job.poll() is None:
            cpu |= cpu_seconds_of_session(job.pid)
            sleep(SAMPLE_S)
        wall = monotonic() - started
        summary = json.loads(job.communicate()[0])
    size = sum(part.stat().st_size for part in out.glob("part-*"))
    return {
        "wall_s": round(wall, 1),
        "cpu_s": round(sum(cpu.values()), 1),
        "mb": round(size / 1e6, 1),
        "replicas_per_broker": summary["replicas_per_broker"],
        "leaders_per_broker": summary["leaders_per_broker"],
    }


@benchmark("placement")
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
def main(
    partitions: int,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    strategies: tuple[str, ...],
    master: str,
) -> Iterator[Case]:
    """Measure every combination; sizes, brokers and strategies can be given several times."""
    for size in sizes or (partitions, 100):
        for brokers in counts:
            for strategy in strategies:
                with tempfile.TemporaryDirectory() as folder:
                    files = write_inputs(Path(folder), partitions, size, brokers)
                    shape = {"strategy": strategy, "brokers": brokers, "topic_size": size}
                    found = measure(Path(folder), files, strategy, master)
                yield Case({"partitions": partitions, **shape}, found)
