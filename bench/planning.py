"""Plans of every kind for a large cluster.

The assignment is placed by Kafka's rack-aware scheme with random starts, topics of a hundred
partitions, replication factor 3, brokers in racks of equal size, and written to Parquet first.
Seconds are those of the whole command in its own session; ``cpu_s`` is the processor time of its
process and of Spark.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import orjson

from bench.frame import benchmark
from bench.result import Case
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_job import placed_parts
from regent.jobs.placement_output import write_parts
from regent.jobs.session import spark_session

PARTITIONS_OF_A_TOPIC = 100
LEAVING = 10


def place(directory: Path, partitions: int, brokers: int, racks: int) -> None:
    """Write the assignment, and the brokers with and without ten new ones."""
    topics = partitions // PARTITIONS_OF_A_TOPIC
    request = PlaceTopicsRequest(
        topics=tuple(
            PlacementSpec(f"topic-{number:06d}", PARTITIONS_OF_A_TOPIC, 3, 0)
            for number in range(topics)
        ),
        brokers=tuple(PlacementBroker(b, f"rack-{b % racks:02d}", 0) for b in range(brokers)),
        strategy="rack-aware",
        start_index="random",
        index="per-topic",
        seed=1,
    )
    now = directory / "now"
    now.mkdir()
    with spark_session() as spark:
        parts = placed_parts(spark, placement_arrays(request))
        write_parts(parts, {"parquet": now}, brokers)
    for name, count in (("brokers", brokers), ("more", brokers + LEAVING)):
        rows = [{"id": b, "rack": f"rack-{b % racks:02d}"} for b in range(count)]
        (directory / f"{name}.json").write_bytes(orjson.dumps(rows))


def measure(
    directory: Path, goal: str, *arguments: str, brokers: str = "brokers"
) -> dict[str, Any]:
    """Run one command; return its summary and its times."""
    started, before = time.monotonic(), os.times()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "regent.jobs.plan", goal, *arguments),
            *("--assignment", directory / "now", "--brokers", directory / f"{brokers}.json"),
            *("--out", directory / goal),
        ],
        stdout=subprocess.PIPE,
        check=False,
    )
    after = os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    summary = orjson.loads(done.stdout) if done.returncode == 0 else {}
    summary |= {"status": done.returncode, "cpu_s": round(cpu, 1)}
    return {**summary, "wall_s": round(time.monotonic() - started, 1)}


@benchmark("planning")
@click.option("--partitions", default=1_000_000, show_default=True)
@click.option("--brokers", default=1_000, show_default=True)
@click.option("--racks", default=20, show_default=True)
@click.option("--goal", help="Plan for this goal only.")
def main(partitions: int, brokers: int, racks: int, goal: str | None) -> Iterator[Case]:
    """Place once, plan five times."""
    leaving = ",".join(str(b * brokers // LEAVING) for b in range(LEAVING))
    newcomers = ",".join(str(brokers + number) for number in range(LEAVING))
    goals: dict[str, tuple[tuple[str, ...], str]] = {
        "decommission": (("--from", leaving), "brokers"),
        "replace": (("--from", leaving, "--to", newcomers, "--no-rack-aware"), "more"),
        "add-brokers": ((), "more"),
        "rebalance": ((), "brokers"),
        "replication-factor": (("--factor", "4"), "brokers"),
    }
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        place(directory, partitions, brokers, racks)
        for each, (arguments, file) in goals.items():
            if goal in (None, each):
                found = measure(directory, each, *arguments, brokers=file)
                yield Case({"goal": each, "partitions": partitions, "brokers": brokers}, found)
