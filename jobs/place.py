"""``regent jobs place``: place the partitions of many topics in one Spark job.

``--topics FILE`` is ``[{"topic", "partitions", "replication_factor", "start_partition"?,
"config"?}]``, with a ``start_partition`` above 0 for a topic that grows. ``--brokers FILE`` is a
list of broker ids or of ``{"id", "rack"?, "replica_count"?, "capacity"?}``, as ``regent brokers
list -o json`` prints it; ``--brokers zookeeper`` takes those that are registered. The output is
Kafka's reassignment document (``json``), or one row ``topic, partition, replicas`` for each
partition (``jsonl``, ``parquet``). With ``--apply`` the topics are created: after an interruption,
run the same command again, with another ``--out`` or none. The summary is one line of JSON on
stdout.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from regent.admin.cluster_connection import cluster_options
from regent.core.errors import RegentError
from regent.core.placement.replica_placer import RANDOM, IndexScope, Strategy, scatter_width
from regent.jobs.command import (
    cluster_admin,
    print_summary,
    progress,
    run_job,
)
from regent.jobs.job_session import JobSession, job_session, spark_options
from regent.jobs.new_directory import new_directory
from regent.jobs.placement_input import PlacementOrder, read_order
from regent.jobs.placement_job import placement_frame
from regent.jobs.placement_output import (
    FORMATS,
    Loads,
    count_placed,
    count_written,
    read_placement,
    write_placement,
)
from regent.jobs.progress_line import ProgressLine
from regent.jobs.topic_writer import Written, placed_topics, write_topics

_SMALL: Final = 1_000_000


class NoRoomError(RegentError):
    """A broker would have more replicas than its capacity."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, "place", argv, spark)


@click.command("place", help="Place the partitions of many topics in one Spark job.")
@click.option(
    "--topics",
    required=True,
    metavar="FILE",
    help="The topics to place (JSON).",
)
@click.option(
    "--brokers",
    required=True,
    metavar="FILE|zookeeper",
    help='The brokers: a JSON file, or "zookeeper" for all registered ones.',
)
@click.option("--out", metavar="DIR", help="A new directory to write to.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    default="json",
    show_default=True,
    help="The format of the output.",
)
@click.option(
    "--strategy",
    type=click.Choice([s.value for s in Strategy]),
    default=Strategy.RING.value,
    show_default=True,
    help="How replicas are spread over the brokers.",
)
@click.option(
    "--start-index",
    default="0",
    show_default=True,
    metavar="N|random|least-loaded",
    help="The index of the first replica of the first partition.",
)
@click.option(
    "--index",
    type=click.Choice([s.value for s in IndexScope]),
    default=IndexScope.BATCH.value,
    show_default=True,
    help="Whether partitions are counted over all topics, or from 0 in each.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Seed for --start-index random and for copysets.",
)
@click.option(
    "--scatter-width",
    type=click.IntRange(1),
    help="How many brokers help to restore one, with --strategy copyset.  [default: 10]",
)
@spark_options
@cluster_options
@click.option("--apply", is_flag=True, help="Create the topics in ZooKeeper.")
@click.option("--dry-run", is_flag=True, help="Place and print the summary; write nothing.")
@click.pass_obj
def _command(spark: SparkSession | None, /, out: str | None, **options: Any) -> None:
    started = time.monotonic()
    if out is None and not (options["apply"] or options["dry_run"]):
        raise click.UsageError("name an output: --out DIR, --apply or --dry-run")
    with (
        job_session(spark, options, app_name="regent-place") as job,
        tempfile.TemporaryDirectory(prefix="regent-place-") as scratch,
    ):
        order = read_order(options, job.files)
        outputs = {} if out is None or options["dry_run"] else {out: options["file_format"]}
        is_applied = options["apply"] and not options["dry_run"]
        if is_applied and "parquet" not in outputs.values():
            outputs[str(Path(scratch, "placement"))] = "parquet"  # the topics are read from it
        if is_applied and options["seed"] is None and order.request.start_index == RANDOM:
            note = f"to continue after an interruption, add --seed {order.request.seed}"
            click.echo(note, err=True)
        loads = _place(job, order, outputs)
        applied = _apply(order, outputs) if is_applied else None
    summary = _summary(order, loads)
    summary["out"] = None if options["dry_run"] else out
    if applied:
        summary["created"], summary["unchanged"] = applied.created, applied.unchanged
        summary["existing"] = len(applied.existing)
    summary["seconds"] = round(time.monotonic() - started, 3)
    print_summary(summary)
    if applied:
        applied.raise_if_any_existed()


def _place(job: JobSession, order: PlacementOrder, outputs: Mapping[str, str]) -> Loads:
    """Write the placement into new directories, each in its format; return the loads of brokers."""
    broker_ids = [broker.broker_id for broker in order.request.brokers]
    is_small = order.partitions <= _SMALL
    with ExitStack() as stack:
        directories = {
            file_format: stack.enter_context(new_directory(path, job.files))
            for path, file_format in outputs.items()
        }
        session = job.start(is_small=is_small)
        stack.enter_context(progress(f"placing {order.partitions} partitions", session))
        frame = placement_frame(session, order.request)
        for file_format, directory in directories.items():
            write_placement(frame, directory, file_format)
        if "parquet" in directories:
            loads = count_written(directories["parquet"], broker_ids)
        else:
            loads = count_placed(frame, broker_ids)
        _check_room(order, loads)
    return loads


def _apply(order: PlacementOrder, outputs: Mapping[str, str]) -> Written:
    assert order.zookeeper is not None
    table = next(path for path, file_format in outputs.items() if file_format == "parquet")
    rows = read_placement(Path(table), ["topic", "partition", "replicas"])
    total = len(order.request.topics)
    with ProgressLine() as line, cluster_admin(order.zookeeper) as admin:
        return write_topics(
            admin,
            placed_topics(rows),
            order.configs,
            lambda done: line.show(f"creating topics: {done} of {total}"),
        )


def _check_room(order: PlacementOrder, loads: Loads) -> None:
    for broker_id, replicas in zip(
        sorted(broker.broker_id for broker in order.request.brokers), loads.replicas, strict=True
    ):
        room = order.room.get(broker_id)
        if room is not None and replicas > room:
            raise NoRoomError(
                f"broker {broker_id} would get {replicas} replicas and has room for {max(room, 0)}:"
                " raise its capacity, leave it out, or place less"
            )


def _summary(order: PlacementOrder, loads: Loads) -> dict[str, Any]:
    """Return the summary: what was placed, and how evenly."""
    request = order.request
    summary: dict[str, Any] = {
        "job": "place",
        "topics": len(request.topics),
        "partitions": int(loads.leaders.sum()),
        "replicas": int(loads.replicas.sum()),
        "brokers": len(request.brokers),
        "strategy": request.strategy,
        "start_index": request.start_index,
        "index": request.index,
        "seed": request.seed,
    }
    if request.strategy == Strategy.COPYSET:
        summary["scatter_width"] = scatter_width(request)
        summary["copyset_seed"] = request.copyset_seed
    for name, counts in (("replicas", loads.replicas), ("leaders", loads.leaders)):
        summary[f"{name}_per_broker"] = {"min": int(counts.min()), "max": int(counts.max())}
    return summary


if __name__ == "__main__":
    sys.exit(main())
