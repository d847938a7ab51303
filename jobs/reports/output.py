"""Output of reports: tables, one line of JSON, and a page on request."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, NamedTuple

import click
from pyspark.sql import SparkSession

from regent.jobs.command import InputError, print_summary
from regent.jobs.files import is_remote, local_path
from regent.jobs.job_session import JobSession, job_session, spark_options
from regent.jobs.options import with_options
from regent.jobs.reports.page import Page, Table, is_number, shown
from regent.jobs.reports.verdict import Findings, Verdict

_JSON: Final = "json"
_TABLE: Final = "table"


class Report(NamedTuple):
    """A report for programs, for a terminal, and for a browser; ``draw`` fills the page.

    ``facts`` are the main results, for the beginning of the page.
    """

    title: str
    verdict: Verdict
    facts: Mapping[str, object]
    fields: Mapping[str, Any]
    tables: Sequence[Table]
    draw: Callable[[Page], None]


report_options: Final = with_options(
    click.option(
        "-o",
        "--output",
        type=click.Choice([_TABLE, _JSON]),
        default=_TABLE,
        show_default=True,
        help="How to print the result.",
    ),
    click.option(
        "--html",
        metavar="FILE",
        callback=lambda _context, _option, location: _writable(location),
        help="Also write the report as one HTML page.",
    ),
    spark_options,
)
"""Adds ``-o table|json``, ``--html FILE`` and the options of Spark to a command."""


def report_command(
    name: str, summary: str, make: Callable[[JobSession, Mapping[str, Any]], Report]
) -> click.Command:
    """Return a command that prints the report which ``make`` returns, and writes its page.

    ``name`` follows ``regent jobs``. ``make`` has the decorators of the command's options.
    """

    @wraps(make)
    def command(spark: SparkSession | None, /, **options: Any) -> None:
        started = time.monotonic()
        html = options["html"]
        with job_session(spark, options, app_name=f"regent-{name.replace(' ', '-')}") as job:
            report = make(job, options)
            if html is not None:
                with job.files.writing(html) as path:
                    _page_of(report).write(path)
        if options["output"] == _JSON:
            seconds = round(time.monotonic() - started, 3)
            result = {"job": name, **report.fields, "html": html, "seconds": seconds}
            print_summary(result | report.verdict.fields())
        else:
            _print_report(report)

    return click.command(name, help=summary)(click.pass_obj(command))


def _page_of(report: Report) -> Page:
    page = Page(report.title, report.verdict)
    page.facts((name.capitalize(), value) for name, value in report.facts.items())
    report.draw(page)
    return page


def _print_report(report: Report) -> None:
    _print_findings(report.verdict.first)
    for table in report.tables:
        click.echo()
        _print_table(table)
    if report.verdict.others.sentences:
        click.echo()
        _print_findings(report.verdict.others)


def _print_findings(findings: Findings) -> None:
    click.echo("\n".join(findings.sentences))
    for remedy in findings.remedies:
        click.echo(f"{remedy.purpose}:\n  {remedy.command}")


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
