"""Output of reports: tables, one line of JSON, and a page on request."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from regent.jobs.command import InputError, print_summary
from regent.jobs.files import is_remote, local_path
from regent.jobs.reports.page import Table, is_number, shown
from regent.jobs.reports.verdict import Verdict

F = TypeVar("F", bound=Callable[..., Any])

JSON: Final = "json"
_TABLE: Final = "table"


def report_options(command: F) -> F:
    """Add ``-o table|json`` and ``--html FILE``."""
    output = click.option(
        "-o",
        "--output",
        type=click.Choice([_TABLE, JSON]),
        default=_TABLE,
        show_default=True,
        help="How to print the result.",
    )
    page = click.option(
        "--html",
        metavar="FILE",
        callback=lambda _context, _option, location: _writable(location),
        help="Also write the report as one HTML page.",
    )
    return output(page(command))


def _writable(location: str | None) -> str | None:
    if location is None or is_remote(location):
        return location
    path = local_path(location)
    if path.is_dir():
        raise InputError(f"{path} is a directory: name a file to write the page to")
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is no directory: make it, or choose another for --html")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path.parent} cannot be written to: choose another for --html")
    return location


def print_report(
    output: str,
    summary: Mapping[str, Any],
    tables: Iterable[Table],
    verdict: Verdict | None = None,
) -> None:
    """Print ``summary`` and the verdict as one line of JSON, or else the verdict and the tables."""
    if output == JSON:
        print_summary({**summary, **(verdict.fields() if verdict else {})})
        return
    if verdict:
        click.echo("\n".join(verdict.problems) or verdict.fine)
        for purpose, command in verdict.remedies:
            click.echo(f"{purpose}:\n  {command}")
        click.echo()
    for number, table in enumerate(tables):
        if number:
            click.echo()
        _print_table(table)


def _print_table(table: Table) -> None:
    lines = [[header.upper() for header in table.headers]]
    lines += [[shown(value) for value in row] for row in table.rows]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    are_numbers = [
        is_number([row[column] for row in table.rows]) for column in range(len(table.headers))
    ]
    click.echo(table.caption)
    for line in lines:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, are_numbers, strict=True)
        )
        click.echo(f"  {'  '.join(cells)}".rstrip())
