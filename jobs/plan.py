"""``regent jobs plan``: makes reassignment plans with as few moves as possible.

``add-brokers``, ``decommission``, ``replace``, ``replication-factor`` and ``rebalance`` read the
assignment (of the running cluster, or of files) and the brokers that may be used, and write a
directory with the plan and its rollback. ``execute`` executes a plan; ``pause``, ``resume``,
``rollback`` and ``status`` go with it. Replicas on brokers that are not listed count as lost. They
stay where they are, unless a command names these brokers; so do those on brokers with
``no_replicas``, which are alive.

Spark counts and filters; the driver plans the partitions that may move. One line of JSON on stdout
has the number of moves, and a lower bound for it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from regent.client.cluster_connection import cluster_options, zookeeper_address
from regent.client.plan_directory import write_plan
from regent.client.plan_execution import PlanIncompleteError, execute_plan
from regent.core.model import BrokerId
from regent.jobs.assignment_source import ZOOKEEPER, AssignmentSource
from regent.jobs.brokers_file import PlannedBroker, read_brokers, takers_of
from regent.jobs.command import InputError, cluster_admin, print_summary, progress, run_job
from regent.jobs.files import JobFiles, is_remote, local_path
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.new_directory import check_is_new, new_directory
from regent.jobs.options import seed_option, with_options
from regent.jobs.plan_commands import PLAN_COMMANDS
from regent.jobs.planning.goals import Decommission, Goal, Rebalance, Replace, ReplicationFactor
from regent.jobs.planning.partition_sizes import Sizes, sizes_from_file, sizes_in_cluster
from regent.jobs.planning.planner import Request, make_plan

_CLUSTER: Final = "cluster"
_MAX_BROKER_ID: Final = 2**31 - 1

_command: Final = click.Group(
    "plan", commands=PLAN_COMMANDS, help="Plans that move as few replicas as possible."
)


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, "plan", argv, spark)


def _broker_ids(_context: object, _option: object, given: str | None) -> list[BrokerId]:
    """Return broker ids that are separated by commas."""
    texts = [text.strip() for text in given.split(",")] if given is not None else []
    for text in texts:
        if not (text.isascii() and text.isdecimal()):
            raise click.BadParameter(f"{text!r} is not a broker id")
    broker_ids = [int(text) for text in texts]
    for broker_id in broker_ids:
        if broker_id > _MAX_BROKER_ID or broker_ids.count(broker_id) > 1:
            why = "too large" if broker_id > _MAX_BROKER_ID else "named more than once"
            raise click.BadParameter(f"broker {broker_id} is {why}")
    return broker_ids


_plan_options: Final = with_options(
    click.option(
        "--assignment",
        default=ZOOKEEPER,
        show_default=True,
        metavar=f"{ZOOKEEPER}|FILE|DIR",
        help="Where the replicas are now: the running cluster, a Kafka reassignment document, JSON"
        " lines or Parquet.",
    ),
    click.option(
        "--brokers",
        metavar=f"{ZOOKEEPER}|FILE",
        help='The brokers that may be used: [{"id", "rack"?, "node_host"?, "capacity"?}].'
        f"  [default: {ZOOKEEPER}, if --assignment is]",
    ),
    click.option("--out", metavar="DIR", help="A new directory to write to."),
    click.option(
        "--topics", multiple=True, metavar="PATTERN", help="Move only topics that match (* and ?)."
    ),
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Do not move topics that match.",
    ),
    click.option(
        "--rack-aware/--no-rack-aware",
        default=None,
        help="Whether partitions keep their racks.  [default: if every broker has a rack]",
    ),
    click.option(
        "--leaders/--no-leaders",
        default=True,
        help="Reorder replicas so that preferred leaders are even too.  [default: --leaders]",
    ),
    click.option(
        "--sizes",
        metavar="cluster|FILE",
        help='Balance bytes too: [{"topic", "partition", "bytes"}], JSON lines, Parquet, or as the'
        " running brokers describe their log directories.",
    ),
    click.option(
        "--bytes-tolerance",
        type=click.FloatRange(0, 1),
        default=0.1,
        show_default=True,
        help="With --sizes: the share by which the bytes of a broker may deviate from the mean.",
    ),
    click.option(
        "--max-extra-moves",
        type=click.IntRange(min=0),
        help="With --sizes: moves beyond the fewest.  [default: a tenth of them, at least 100]",
    ),
    seed_option,
    cluster_options,
    spark_options,
    click.option("--dry-run", is_flag=True, help="Plan and print the summary; write nothing."),
    click.option("--execute", is_flag=True, help="Execute the plan when it is written."),
    click.pass_obj,
)


def _add_command(name: str, goal: type[Goal], text: str, *options: Callable[[Any], Any]) -> None:
    """Add a command that plans for a goal; ``options`` give the fields of the goal."""

    @_command.command(name, help=text)
    @with_options(*options, _plan_options)
    def _plan(spark: SparkSession | None, /, **given: Any) -> None:
        own = {field.name: given[field.name] for field in fields(goal) if field.name in given}
        _run(spark, goal(**own), name, given)


_ids_option = partial(click.option, metavar="IDS", callback=_broker_ids)
_FROM: Final = _ids_option("--from", "leaving", required=True, help="The brokers to empty: 3,4.")
_TO: Final = _ids_option("--to", required=True, help="The brokers that replace them: 5,6.")
_NEW: Final = _ids_option("--new", help="The new brokers.  [default: those without replicas]")
_FACTOR: Final = click.option(
    "--factor", type=click.IntRange(1, 2**15 - 1), required=True, help="The new factor."
)
for _each in (
    ("decommission", Decommission, "Empty brokers: spread their replicas over the others.", _FROM),
    ("replace", Replace, "Replace brokers by others, one for one.", _FROM, _TO),
    ("add-brokers", Rebalance, "Move a fair share of the replicas to new brokers.", _NEW),
    ("rebalance", Rebalance, "Spread replicas evenly over all brokers."),
    ("replication-factor", ReplicationFactor, "Change the replication factor.", _FACTOR),
):
    _add_command(*_each)


# --- parts of all commands ---------------------------------------------------------------------


def _run(spark: SparkSession | None, goal: Goal, name: str, options: dict[str, Any]) -> None:
    started = time.monotonic()
    address = partial(zookeeper_address, options["zookeeper"], options["data_dir"])
    execute_at = _execute_at(options, address)
    allowed = options["brokers"] or options["assignment"]
    if options["brokers"] is None and options["assignment"] != ZOOKEEPER:
        raise click.UsageError(f"which brokers may be used? Name a file, or --brokers {ZOOKEEPER}")
    with job_session(spark, options, app_name=f"regent-plan-{name}") as job:
        target = _target(options["out"], job.files, dry_run=options["dry_run"])
        source = AssignmentSource.of(options["assignment"], address, job.files)
        brokers = read_brokers(allowed, address, job.files, with_no_replicas=True)
        takers = takers_of(brokers)
        goal.check([broker.broker_id for broker in takers])
        read = {
            "goal": goal,
            "source": source,
            "brokers": brokers,
            "rack_aware": _is_rack_aware(takers, options["rack_aware"]),
            "sizes": _sizes(options["sizes"], address, job.files),
        }
        request = Request(**{field: (options | read)[field] for field in Request._fields})
        session = job.start(is_small=source.is_small)
        with progress(f"planning to {name}", session):
            changes, found = make_plan(session, request)
        if not changes:
            target = None
            click.echo(f"nothing to do: {found['nothing_to_do']}", err=True)
        if target is not None:
            with progress("writing the plan"), new_directory(target, job.files) as directory:
                write_plan(directory, changes, found)
    summary = {
        "job": f"plan {name}",
        **found,
        "seed": options["seed"],
        "out": target,
        "seconds": round(time.monotonic() - started, 3),
    }
    try:
        if execute_at is not None and target is not None:
            summary["execution"] = execute_plan(
                Path(target), execute_at, open_cluster=cluster_admin
            )
    except PlanIncompleteError as error:
        summary["execution"] = error.summary
        raise
    finally:
        print_summary(summary)


def _sizes(text: str | None, address: Callable[[], str], files: JobFiles) -> Sizes | None:
    if text is None:
        return None
    if text != _CLUSTER:
        return sizes_from_file(files.copy(text), text)
    with cluster_admin(address()) as admin:
        return sizes_in_cluster(admin)


def _is_rack_aware(brokers: Sequence[PlannedBroker], wanted: bool | None) -> bool:
    without = [broker.broker_id for broker in brokers if broker.rack is None]
    if wanted and without:
        raise InputError(f"--rack-aware: broker {without[0]} has no rack")
    return not without if wanted is None else wanted


def _target(out: str | None, files: JobFiles, *, dry_run: bool) -> str | None:
    if dry_run:
        return None
    if out is None:
        raise InputError("name an output: --out DIR or --dry-run")
    check_is_new(out, files)
    return out if is_remote(out) else str(local_path(out).absolute())


def _execute_at(options: dict[str, Any], address: Callable[[], str]) -> str | None:
    if not options["execute"]:
        return None
    if options["dry_run"]:
        raise InputError("--dry-run and --execute: choose one")
    if options["out"] is not None and is_remote(options["out"]):
        raise InputError("--execute needs an --out on this machine: it keeps its progress there")
    where = address()
    with cluster_admin(where):
        return where  # the cluster is there, so that planning is not in vain


if __name__ == "__main__":
    sys.exit(main())
