"""``regent jobs plan execute``, ``rollback``, ``pause``, ``resume``, ``status``, ``unthrottle``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Final

import click

from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.flight import DEFAULTS, ExecutionOptions
from regent.client.moves import MoveState
from regent.client.plan_directory import (
    PAUSED,
    ROLLING_BACK,
    THROTTLE,
    check_is_plan,
    read_plan,
)
from regent.client.plan_execution import (
    PlanIncompleteError,
    clear_throttle,
    execute_plan,
    plan_status,
)
from regent.client.progress_line import in_words
from regent.config.command_line import program
from regent.jobs.command import InputError, cluster_admin, print_summary
from regent.jobs.files import is_remote, local_path
from regent.jobs.options import with_options

_RECENT_S: Final = 120.0


def _directory(_context: object, _argument: object, location: str) -> Path:
    if is_remote(location):
        raise InputError(
            f"{location}: copy the plan to this machine, which keeps its progress there"
        )
    return local_path(location)


_plan_argument = click.argument("plan", metavar="DIR", callback=_directory)

_execution_options: Final = with_options(
    _plan_argument,
    pass_cluster,
    click.option(
        "--max-moves-per-broker",
        type=click.IntRange(min=1),
        default=DEFAULTS.max_moves_per_broker,
        show_default=True,
        help="The most moves in flight in which one broker receives, sends or gives up a replica.",
    ),
    click.option(
        "--max-moves",
        type=click.IntRange(min=1),
        default=DEFAULTS.max_moves,
        show_default=True,
        help="The most moves in flight.",
    ),
    click.option(
        "--throttle",
        type=click.IntRange(min=1),
        metavar="BYTES",
        help="How many bytes a second a broker may send, and receive, for the moves.",
    ),
    click.option(
        "--stall-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=DEFAULTS.stall_timeout,
        show_default=True,
        metavar="SECONDS",
        help="Give up when no move has begun, ended or copied anything for so long.",
    ),
    click.option(
        "--additional", is_flag=True, help="Begin even while other reassignments are in progress."
    ),
)


@click.command("execute", help="Execute a plan, or resume its execution.")
@_execution_options
@click.option("--dry-run", is_flag=True, help="Show what is left, and begin nothing.")
def execute_command(cluster: Cluster, /, plan: Path, *, dry_run: bool, **options: Any) -> None:
    """Execute a plan, or show its progress."""
    address = _address(cluster, plan)
    if dry_run:
        status = plan_status(plan, address, is_rollback=False, open_cluster=cluster_admin)
        print_summary({"job": "plan execute", **status, "dry_run": True})
    else:
        _run(plan, address, options, is_rollback=False)


@click.command("rollback", help="Cancel the moves in flight, and move everything back.")
@_execution_options
def rollback_command(cluster: Cluster, /, plan: Path, **options: Any) -> None:
    """Roll a plan back."""
    _run(plan, _address(cluster, plan), options, is_rollback=True)


@click.command("pause", help="Let a running execution begin no more moves; those in flight end.")
@_plan_argument
def pause_command(plan: Path) -> None:
    """Pause the execution of a plan."""
    found = read_plan(plan)
    found.leave(PAUSED)
    click.echo(f"paused; `{_command('resume', plan)}` continues", err=True)


@click.command("resume", help="Let a paused execution go on.")
@_plan_argument
def resume_command(plan: Path) -> None:
    """Let a paused execution go on."""
    found = read_plan(plan)
    was_paused = found.has(PAUSED)
    found.remove(PAUSED)
    which = "rollback" if found.has(ROLLING_BACK) else "execute"
    said = "it goes on" if was_paused else "it was not paused"
    click.echo(f"{said}; if no `{which}` is running: `{_command(which, plan)}`", err=True)


def _command(name: str, plan: Path) -> str:
    return f"{program()} jobs plan {name} {shlex.quote(str(plan))}"


@click.command("unthrottle", help="Remove a throttle that a killed execution has left.")
@_plan_argument
@pass_cluster
def unthrottle_command(cluster: Cluster, plan: Path) -> None:
    """Remove the throttle of a plan."""
    address = _address(cluster, plan)
    found = read_plan(plan)
    if not found.has(THROTTLE):
        click.echo("there is no throttle of this plan", err=True)
        return
    with cluster_admin(address) as admin:
        clear_throttle(admin, found)
    click.echo("the throttle is removed", err=True)


@click.command("status", help="Show how far a plan has come.")
@_plan_argument
@pass_cluster
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def status_command(cluster: Cluster, plan: Path, output: str) -> None:
    """Show how far a plan has come."""
    status = plan_status(plan, _address(cluster, plan), open_cluster=cluster_admin)
    if output == "json":
        print_summary(status)
        return
    for name in ("partitions", *(state.value for state in MoveState)):
        value = status["states"].get(name, 0) if name != "partitions" else status[name]
        click.echo(f"{name:<18}{value:>12,}")
    work = next(name for name in ("bytes_left", "moves_left") if name in status)
    click.echo(f"{work.replace('_', ' '):<18}{status[work]:>12,}")
    notes = [
        ("rolling back" if status["left"] else "rolled back", status["is_rollback"]),
        ("paused", status["is_paused"]),
        ("throttled", status["is_throttled"]),
    ]
    notes.append((in_words(status["seconds_left"]), status["seconds_left"] is not None))
    click.echo("".join(f"{note}\n" for note, holds in notes if holds), nl=False)


def _address(cluster: Cluster, plan: Path) -> str:
    """Return the address of ZooKeeper; a directory without a plan is named before the cluster."""
    check_is_plan(plan)
    return cluster.zookeeper_address


def _run(plan: Path, address: str, options: dict[str, Any], *, is_rollback: bool) -> None:
    how = ExecutionOptions(**options)
    try:
        print_summary(
            execute_plan(plan, address, how, open_cluster=cluster_admin, is_rollback=is_rollback)
        )
    except PlanIncompleteError as error:
        print_summary(error.summary)
        raise


PLAN_COMMANDS: Final = (
    *(execute_command, pause_command, resume_command),
    *(rollback_command, status_command, unthrottle_command),
)
"""What can be done with a plan."""
