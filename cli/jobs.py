"""``jobs``: the Spark jobs, which have command lines of their own."""

from __future__ import annotations

import sys

import click

_OWN_OPTIONS = {"ignore_unknown_options": True, "help_option_names": []}


@click.group()
def jobs() -> None:
    """Run Spark jobs."""


@jobs.command(context_settings=_OWN_OPTIONS)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def place(arguments: tuple[str, ...]) -> None:
    """Place the partitions of many topics in one job, into files."""
    from jobs.place import main

    sys.exit(main(arguments))
