"""``jobs``: the Spark jobs, which have command lines of their own and are imported when called."""

from __future__ import annotations

import sys
from typing import Final

import click

from regent.cli.lazy_group import load

_OWN_OPTIONS: Final = {"ignore_unknown_options": True, "help_option_names": []}


def _job(name: str, module: str, summary: str) -> click.Command:
    """Return a command that hands everything behind its name to ``main`` of a module."""

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
            help="Show how a cluster is balanced, and what its controllers did.",
            commands=[
                _job(
                    "balance",
                    "regent.jobs.report_balance",
                    "Replicas, leaders, bytes; what may be lost.",
                ),
                _job(
                    "leaders",
                    "regent.jobs.report_leaders",
                    "Partitions that are not led by their preferred leader.",
                ),
                _job(
                    "events", "regent.jobs.report_events", "Latencies, failovers, churn, flapping."
                ),
            ],
        ),
        click.Group(
            "simulate",
            help="Simulate clusters of any size.",
            commands=[
                _job(
                    "placement",
                    "regent.jobs.simulate_placement",
                    "A placement scheme at any scale.",
                ),
            ],
        ),
    ],
)
