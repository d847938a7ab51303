"""``regent jobs place``: place the partitions of many topics in one Spark job.

``--help`` describes the files and the options. The summary is one line of JSON on stdout.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import click
import pyarrow
from click.core import ParameterSource
from pyspark.sql import DataFrame, SparkSession

from regent.client.cluster_connection import cluster_options
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.placement.replica_placer import RANDOM, Strategy, scatter_width
from regent.jobs.command import InputError, cluster_admin, print_summary, progress, run_job
from regent.jobs.files import JobFiles, check_shared
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.new_directory import new_directory, new_table
from regent.jobs.options import strategy_options
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_input import PlacementOrder, read_order
from regent.jobs.placement_job import placed_partitions, placement_frame, placement_loads
from regent.jobs.placement_output import MAX_PARTITIONS, write_document
from regent.jobs.tables import new_catalog_table, write_files
from regent.jobs.topic_writer import Written, placed_topics, write_topics

_DOCUMENT: Final = "json"
_FORMATS: Final = {"jsonl": "json", "parquet": "parquet"}  # and their names in Spark
_SMALL: Final = 1_000_000  # partitions up to which a quick start is worth more than a fast JVM

_HELP: Final = """Place the partitions of many topics in one Spark job.

\b
--strategy: which brokers hold a partition. Partitions have an index (see --index).
  ring        The brokers are a ring in the sequence of their ids. The first replica of the next
              partition is on the next broker; the other replicas are on the brokers after it.
  kafka       What Kafka does without racks. First replicas are as with ring. The distance to the
              other replicas grows by one each time that all brokers have had a first replica.
              So many brokers take over the partitions of a broker that dies.
  rack-aware  What Kafka does with racks. As kafka, but no rack gets a second replica while
              another rack has none. Every broker needs a rack.
  copyset     There are few sets of brokers, and all replicas of a partition are on one set. The
              fewer sets there are, the less likely is a loss of data when several brokers die
              at once. --scatter-width is the number of brokers that share partitions with one.
              If the brokers have racks, those of a set are in different racks where possible.

\b
--index: how partitions are counted, in the order of topic and partition.
  batch      Over all topics. So small topics spread over all brokers.
  per-topic  For each topic anew. All topics begin at the same broker unless the start is random.

\b
--start-index: the broker that holds the first replica of the first partition.
  N             Number N in the sequence of the brokers; the first one is 0.
  random        Drawn from --seed; with --index per-topic, drawn for each topic.
  least-loaded  The broker that holds the fewest replicas.

\b
--topics FILE is a JSON list with an object for each topic:
  {"topic": "a", "partitions": 12, "replication_factor": 3}
  "start_partition" is the first partition to place, for a topic that grows.
  "config" has the settings for --apply, as {"retention.ms": 60000}.

\b
--brokers FILE is a JSON list of ids, or of objects as "regent brokers list -o json" prints them:
  {"id": 1, "rack": "a", "replica_count": 70, "capacity": 4000}
  Only "id" is required. "replica_count" is what the broker holds now, "capacity" its maximum.
  "node_host" names the machine that brokers share: no two replicas of a partition are on one.

\b
--format: what --out DIR will have.
  json     placement.json, one document for kafka-reassign-partitions; the driver writes it, of
           at most 10,000,000 partitions.
  jsonl    part-*.json, one object {"topic": "a", "partition": 0, "replicas": [1, 2]} in a line.
  parquet  part-*.parquet, with the columns topic, partition and replicas.
The executors write jsonl and parquet, of any number of partitions. --table NAME is a new table of
a catalog of Spark instead, such as lake.plans.placed, with the columns of parquet.

With --apply the topics are created; the output appears after that. After an interruption, run the
same command again: topics that exist already with these replicas are not changed.

\b
Example:
  regent jobs place --topics topics.json --brokers zookeeper --strategy rack-aware \\
    --out placed --format parquet
"""


Write: TypeAlias = Callable[[DataFrame], None]
Loads: TypeAlias = Mapping[BrokerId, tuple[int, int]]
"""The replicas and the leaders of each broker that gets some."""


class NoRoomError(RegentError):
    """A broker would have more replicas than its capacity."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, "place", argv, spark)


@click.command("place", help=_HELP)
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
@click.option("--table", metavar="NAME", help="A new table of Spark's catalog to write to.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice([_DOCUMENT, *_FORMATS]),
    default="json",
    show_default=True,
    help="The format of the output.",
)
@strategy_options
@click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    help="Seed for --start-index random and for copysets.",
)
@click.option(
    "--scatter-width",
    type=click.IntRange(1),
    help="For copysets: how many brokers help to restore one.  [default: 10]",
)
@spark_options
@cluster_options
@click.option("--apply", is_flag=True, help="Create the topics in ZooKeeper.")
@click.option("--dry-run", is_flag=True, help="Place and print the summary; write nothing.")
@click.pass_obj
def _command(spark: SparkSession | None, /, **options: Any) -> None:
    started = time.monotonic()
    _check_outputs(options)
    with ExitStack() as stack:
        job = stack.enter_context(job_session(spark, options, app_name="regent-place"))
        order = read_order(options, job.files)
        is_applied = options["apply"] and not options["dry_run"]
        folder, write = _outputs(options, order, job.files, stack)
        if is_applied and options["seed"] is None and order.request.start_index == RANDOM:
            note = f"to continue after an interruption, add --seed {order.request.seed}"
            click.echo(note, err=True)
        table = None if options["dry_run"] else options["table"]
        is_document = write is None and table is None
        session = job.start(is_small=is_document or order.partitions <= _SMALL)
        if table is not None:
            write = stack.enter_context(new_catalog_table(session, table, job.files))
        elif write is not None:
            check_shared(session, [options["out"]])
        loads, applied = _placed(session, order, folder, write, is_applied=is_applied)
    summary = _summary(order, loads)
    for output in ("out", "table"):
        if output == "out" or options[output] is not None:
            summary[output] = None if options["dry_run"] else options[output]
    if applied:
        summary["created"], summary["unchanged"] = applied.created, applied.unchanged
        summary["existing"] = len(applied.existing)
    summary["seconds"] = round(time.monotonic() - started, 3)
    print_summary(summary)
    if applied:
        applied.raise_if_any_existed()


def _check_outputs(options: dict[str, Any]) -> None:
    out, table = options["out"], options["table"]
    if out is None and table is None and not (options["apply"] or options["dry_run"]):
        raise click.UsageError("name an output: --out DIR, --table NAME, --apply or --dry-run")
    if table is None:
        return
    given = click.get_current_context().get_parameter_source("file_format")
    if out is not None or given is ParameterSource.COMMANDLINE:
        raise click.UsageError("--table NAME stands alone, without --out and --format")


def _outputs(
    options: dict[str, Any], order: PlacementOrder, files: JobFiles, stack: ExitStack
) -> tuple[Path | None, Write | None]:
    """Return the folder of a document, or what writes a table into a directory; or neither."""
    out, file_format = options["out"], options["file_format"]
    if options["dry_run"] or out is None:
        return None, None
    if file_format == _DOCUMENT:
        _check_document(order)
        return stack.enter_context(new_directory(out, files)), None
    location = stack.enter_context(new_table(out, files))
    return None, partial(write_files, location=location, file_format=_FORMATS[file_format])


def _placed(
    session: SparkSession,
    order: PlacementOrder,
    folder: Path | None,
    write: Write | None,
    *,
    is_applied: bool,
) -> tuple[Loads, Written | None]:
    """Place, create the topics, and write a document into a folder, or a table."""
    arrays = placement_arrays(order.request)
    frame = placement_frame(session, arrays)
    with progress(f"placing {order.partitions} partitions", session):
        loads = placement_loads(session, arrays)
        _check_room(order, loads)
        is_here = is_applied or folder is not None
        batches = frame.toArrow().to_batches() if is_here else []
    applied = _apply(order, batches) if is_applied else None
    with progress(f"writing {order.partitions} partitions", session):
        if folder is not None:
            write_document(batches, folder)
        elif write is not None:
            write(frame)
    return loads, applied


def _check_document(order: PlacementOrder) -> None:
    if order.partitions > MAX_PARTITIONS:
        raise InputError(
            f"{order.partitions} partitions are too many for one document, which has at most"
            f" {MAX_PARTITIONS}: choose --format jsonl or --format parquet"
        )


def _apply(order: PlacementOrder, batches: Sequence[pyarrow.RecordBatch]) -> Written:
    assert order.zookeeper is not None
    topics = placed_topics(placed_partitions(batches), order.configs)
    with cluster_admin(order.zookeeper) as admin:
        return write_topics(admin, topics, len(order.request.topics))


def _check_room(order: PlacementOrder, loads: Loads) -> None:
    for broker_id, (replicas, _) in sorted(loads.items()):
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
        "partitions": order.partitions,
        "replicas": sum(replicas for replicas, _ in loads.values()),
        "brokers": len(request.brokers),
        "strategy": request.strategy,
        "start_index": request.start_index,
        "index": request.index,
        "seed": request.seed,
    }
    if request.strategy == Strategy.COPYSET:
        summary["scatter_width"] = scatter_width(request)
        summary["copyset_seed"] = request.copyset_seed
    counts = [loads.get(broker.broker_id, (0, 0)) for broker in request.brokers]
    for name, held in zip(("replicas", "leaders"), zip(*counts, strict=True), strict=True):
        summary[f"{name}_per_broker"] = {"min": min(held), "max": max(held)}
    return summary


if __name__ == "__main__":
    sys.exit(main())
