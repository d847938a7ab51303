"""``jobs``: the Spark jobs. Each has its own command line and is imported when called."""

from __future__ import annotations

import sys
from typing import Final

import click

from regent.cli.lazy_group import load

_OWN_OPTIONS: Final = {"ignore_unknown_options": True, "help_option_names": []}


def _job(name: str, module: str, summary: str) -> click.Command:
    """Return a command that passes all its arguments to ``main`` of a module."""

    @click.command(name, context_settings=_OWN_OPTIONS, help=summary)
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def command(arguments: tuple[str, ...]) -> None:
        sys.exit(load(module, f"jobs {name}").main(arguments))

    return command


jobs = click.Group(
    "jobs",
    help="Run Spark jobs: on this machine, or on any cluster named by --master.",
    commands=[
        _job("place", "regent.jobs.place", "Place the partitions of many topics in one job."),
        _job("plan", "regent.jobs.plan", "Plan which replicas to move, and move them."),
        click.Group(
            "report",
            help="Report the balance of a cluster and the events of its controllers.",
            commands=[
                _job(
                    "balance",
                    "regent.jobs.report_balance",
                    "Replicas, leaders and bytes by broker and rack; possible losses.",
                ),
                _job(
                    "leaders",
                    "regent.jobs.report_leaders",
                    "Partitions that are not led by their preferred leader.",
                ),
                _job(
                    "events",
                    "regent.jobs.report_events",
                    "Latencies, failovers and changes from the journals of controllers.",
                ),
            ],
        ),
    ],
)
