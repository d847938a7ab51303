"""``python -m bench.placement``: how long ``regent jobs place`` takes; prints JSON.

Ten million partitions of three replicas into Parquet, for each strategy and number of brokers, as
one topic and as topics of a hundred. The ids of the brokers are arbitrary, and there are five racks
of them. Each run is a process of its own. ``wall_s`` is its time from start to end. ``cpu_s`` is
the time on processors of the process, its JVM and the Python workers. ``mb`` (10^6 bytes) is the
size of its output. ``load_average`` shows other load on the machine: if it is high, use ``cpu_s``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias

import click

from regent.core.placement.replica_placer import Strategy

RACKS = 5
ID_LIMIT = 1_000_000
SAMPLE_S = 0.1

Result: TypeAlias = dict[str, Any]


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


def processor_seconds(session: int) -> dict[int, float]:
    """Return the processor time of each process of a session, in seconds.

    Spark's daemon for Python workers loses the times of those that have ended.
    """
    seconds = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks = int(fields[11]) + int(fields[12])
                seconds[int(stat.parent.name)] = ticks / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(directory: Path, files: list[str], strategy: str, master: str) -> Result:
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
            cpu |= processor_seconds(job.pid)
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


@click.command()
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
) -> None:
    """Measure every combination; sizes, brokers and strategies can be given several times."""
    results: list[Result] = []
    for size in sizes or (partitions, 100):
        for brokers in counts:
            for strategy in strategies:
                with tempfile.TemporaryDirectory() as folder:
                    files = write_inputs(Path(folder), partitions, size, brokers)
                    case = {"strategy": strategy, "brokers": brokers, "topic_size": size}
                    case |= measure(Path(folder), files, strategy, master)
                results.append(case)
                sys.stderr.write(f"{case}\n")
    environment = {"load_average": os.getloadavg()[0], "partitions": partitions}
    sys.stdout.write(json.dumps({**environment, "master": master, "cases": results}) + "\n")


if __name__ == "__main__":
    main()
