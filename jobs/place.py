"""``regent jobs place``: place the partitions of many topics in one Spark job, into files.

``--topics FILE`` is ``[{"topic", "partitions", "replication_factor", "start_partition"?}]``, a
``start_partition`` above 0 for a topic that grows. ``--brokers FILE`` is a list of broker ids or of
``{"id", "rack"?, "replica_count"?}``, as ``regent brokers list -o json`` prints it. The output is
Kafka's reassignment document (``json``), or one row ``topic, partition, replicas`` for each
partition (``jsonl``, ``parquet``). One line of JSON on stdout sums it up.
"""

from __future__ import annotations

import secrets
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from core.placement import RANDOM, IndexScope, Strategy, check
from core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from jobs.command import job_session, master_option, print_summary, run_job
from jobs.placement_job import placement_frame

JSON_DOCUMENT: Final = "placement.json"
MAX_PARTITIONS: Final = 100_000_000
_FORMATS: Final = ("json", "jsonl", "parquet")
_SMALL: Final = 1_000_000
_REQUIRED: Final = object()


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or a session of its own; return the exit status."""
    return run_job(_command, "place", argv, spark)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("place", help="Place the partitions of many topics in one Spark job.")
@click.option("--topics", "topics_file", type=_FILE, required=True, help="What to place (JSON).")
@click.option("--brokers", "brokers_file", type=_FILE, required=True, help="Where (JSON).")
@click.option("--out", type=click.Path(path_type=Path), help="A new directory to write to.")
@click.option("--format", "file_format", type=click.Choice(_FORMATS), default="json")
@click.option(
    "--strategy", type=click.Choice([s.value for s in Strategy]), default=Strategy.RING.value
)
@click.option("--start-index", default="0", metavar="N|random|least-loaded")
@click.option(
    "--index", type=click.Choice([s.value for s in IndexScope]), default=IndexScope.BATCH.value
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Of --start-index random.")
@master_option
@click.option("--dry-run", is_flag=True, help="Place and sum up, but write nothing.")
@click.pass_obj
def _command(spark: SparkSession | None, /, master: str, out: Path | None, **options: Any) -> None:
    started = time.monotonic()
    request = _request(options)
    target = None if options["dry_run"] else _target(out)
    check(request)
    is_small = _partitions(request) <= _SMALL
    with job_session(spark, master, app_name="regent-place", is_small=is_small) as session:
        frame = placement_frame(session, request)
        summary = _summary(request, frame)
        if target:
            _write(frame, target, options["file_format"])
    summary["out"] = str(target) if target else None
    summary["seconds"] = round(time.monotonic() - started, 3)
    print_summary(summary)


# --- input ----------------------------------------------------------------------------------------


def _request(options: Mapping[str, Any]) -> PlaceTopicsRequest:
    seed = options["seed"]
    if seed is None:
        seed = secrets.randbits(32) if options["start_index"] == RANDOM else 0
    request = PlaceTopicsRequest(
        topics=tuple(
            PlacementSpec(
                _field(row, "topic", str, where),
                _field(row, "partitions", int, where),
                _field(row, "replication_factor", int, where),
                _field(row, "start_partition", int, where, 0),
            )
            for where, row in _rows(options["topics_file"])
        ),
        brokers=tuple(
            PlacementBroker(
                _field(row, "id", int, where),
                _field(row, "rack", str, where, None),
                _field(row, "replica_count", int, where, 0),
            )
            for where, row in _rows(options["brokers_file"])
        ),
        strategy=options["strategy"],
        start_index=options["start_index"],
        index=options["index"],
        seed=seed,
    )
    if _partitions(request) > MAX_PARTITIONS:
        raise click.UsageError(f"more than {MAX_PARTITIONS} partitions in one run")
    return request


def _partitions(request: PlaceTopicsRequest) -> int:
    return sum(topic.partitions for topic in request.topics)


def _rows(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects of a JSON list, each with what to call it; a plain id is one as well."""
    try:
        rows = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise click.UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise click.UsageError(f"{path} must be a JSON list with at least one entry")
    return [
        (f"{path}: entry {number}", {"id": row} if isinstance(row, int) else row)
        for number, row in enumerate(rows)
    ]


def _field(row: object, name: str, kind: type, where: str, default: object = _REQUIRED) -> Any:
    if not isinstance(row, dict):
        raise click.UsageError(f"{where} must be an object, not {row!r}")
    value = row.get(name)
    if value is None and default is not _REQUIRED:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise click.UsageError(f"{where}: {name} must be of type {kind.__name__}, not {value!r}")
    return value


def _target(out: Path | None) -> Path:
    if out is None:
        raise click.UsageError("say where to write with --out DIR, or --dry-run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise click.UsageError(f"{out} exists already: choose a new directory for --out")
    return out.absolute()


# --- output ---------------------------------------------------------------------------------------


def _summary(request: PlaceTopicsRequest, frame: DataFrame) -> dict[str, Any]:
    """Return what was placed, and how evenly."""
    loads = (
        frame.selectExpr("posexplode(replicas) AS (position, broker)")
        .groupBy("broker")
        .agg(F.count("*").alias("replicas"), F.count_if(F.col("position") == 0).alias("leaders"))
        .toArrow()
    )
    without_any = [0] * (len(request.brokers) - loads.num_rows)
    replicas = loads["replicas"].to_pylist() + without_any
    leaders = loads["leaders"].to_pylist() + without_any
    return {
        "job": "place",
        "topics": len(request.topics),
        "partitions": sum(leaders),
        "replicas": sum(replicas),
        "brokers": len(request.brokers),
        "strategy": request.strategy,
        "start_index": request.start_index,
        "index": request.index,
        "seed": request.seed,
        "replicas_per_broker": {"min": min(replicas), "max": max(replicas)},
        "leaders_per_broker": {"min": min(leaders), "max": max(leaders)},
    }


def _write(frame: DataFrame, target: Path, file_format: str) -> None:
    if target.exists():
        target.rmdir()  # empty, but Spark wants to make it
    match file_format:
        case "parquet":
            frame.write.parquet(target.as_uri())
        case "jsonl":
            frame.write.json(target.as_uri())
        case _:
            _write_document(frame, target)


def _write_document(frame: DataFrame, target: Path) -> None:
    """Write what ``kafka-reassign-partitions`` reads, joined from the parts that Spark writes."""
    parts = target / "parts"
    frame.write.json(parts.as_uri())
    unfinished = target / f"{JSON_DOCUMENT}.part"
    with unfinished.open("wb") as document:
        document.write(b'{"version":1,"partitions":[')
        separator = b"\n"
        for part in sorted(parts.glob("part-*")):
            with part.open("rb") as rows:
                for row in rows:
                    document.write(separator + row.rstrip())
                    separator = b",\n"
        document.write(b"\n]}\n")
    unfinished.rename(target / JSON_DOCUMENT)
    shutil.rmtree(parts)


if __name__ == "__main__":
    sys.exit(main())
