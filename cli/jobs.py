"""``jobs``: the Spark jobs. Each has its own command line and is imported when called."""

from __future__ import annotations

import sys
from typing import Final

import click

from regent.cli.lazy_group import load
from regent.config.command_line import program
from regent.config.private_files import keep_files_private

_OWN_OPTIONS: Final = {"ignore_unknown_options": True, "help_option_names": []}


def _job(name: str, module: str, summary: str) -> click.Command:
    """Return a command that passes all its arguments to ``main`` of a module."""

    @click.command(name, context_settings=_OWN_OPTIONS, help=summary)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        keep_files_private()  # records, also in the files of Spark's own processes
        sys.exit(load(module, f"jobs {name}").main(arguments))

    return command


@click.command("leaders", context_settings=_OWN_OPTIONS, hidden=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _leaders(arguments: tuple[str, ...]) -> None:
    del arguments
    raise click.UsageError(f"leaders are a part of `{program()} jobs report balance`: use that")


jobs = click.Group(
    "jobs",
    help="Run Spark jobs: on this machine, or on any cluster named by --master.",
    commands=[
        _job("place", "regent.jobs.place", "Place the partitions of many topics in one job."),
        _job("plan", "regent.jobs.plan", "Plan which replicas to move, and move them."),
        _job("backup", "regent.jobs.backup", "Copy topics into a directory."),
        _job(
            "restore", "regent.jobs.restore", "Make topics of a backup again, with their offsets."
        ),
        click.Group(
            "report",
            help="Report the balance of a cluster and the events of its controllers.",
            commands=[
                _job(
                    "balance",
                    "regent.jobs.report_balance",
                    "Missing leaders and replicas; the balance of brokers; possible losses.",
                ),
                _leaders,
                _job(
                    "events",
                    "regent.jobs.report_events",
                    "Latencies, failovers and changes from the journals of controllers.",
                ),
            ],
        ),
    ],
)
