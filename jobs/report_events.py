"""``regent jobs report events``: a report from the event journals of the controllers.

``--journals`` names the folder of a cluster or of a broker, or a journal; it may be repeated. The
events become one Parquet table, partitioned by controller epoch, which ``--out`` keeps. The report
is made from the table. It names the number of unreadable lines.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import SparkSession

from regent.admin.cluster_connection import data_dir_option
from regent.config.moments import parse_moment
from regent.core.errors import RegentError
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.files import JobFiles
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.new_directory import new_directory
from regent.jobs.reports.event_analysis import analyse_events
from regent.jobs.reports.event_journals import Period, find_journals, read_events, write_events
from regent.jobs.reports.event_tables import event_tables
from regent.jobs.reports.event_verdict import event_verdict
from regent.jobs.reports.output import print_report, report_options

_SMALL_BYTES: Final = 50_000_000


class NoEventsError(RegentError):
    """There are no events to report."""


def main(argv: Sequence[str] | None = None, spark: SparkSession | None = None) -> int:
    """Run the command in ``spark``, or in a new session; return the exit status."""
    return run_job(_command, "report events", argv, spark)


def _moment(_context: object, _option: object, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command("events", help="Analyse the event journals of the controllers.")
@click.option(
    "--journals",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="A cluster's or broker's folder, or a journal; may be repeated.  [default: --data-dir]",
)
@data_dir_option
@click.option(
    "--since", "since_ms", metavar="TIME", callback=_moment, help="Only events from this time on."
)
@click.option(
    "--until", "until_ms", metavar="TIME", callback=_moment, help="Only events before this time."
)
@click.option(
    "--top",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of rows of a table.",
)
@click.option("--out", metavar="DIR", help="A new directory for the Parquet table.")
@report_options
@spark_options
@click.pass_obj
def _command(spark: SparkSession | None, /, **options: Any) -> None:
    started = time.monotonic()
    journals = find_journals(options["journals"] or (options["data_dir"],))
    period = _period(options["since_ms"], options["until_ms"])
    is_small = sum(path.stat().st_size for path in journals) < _SMALL_BYTES
    with (
        job_session(spark, options, app_name="regent-events") as job,
        _table(options["out"], job.files) as directory,
    ):
        session = job.start(is_small=is_small)
        with progress(f"reading {len(journals)} journals", session):
            unreadable = write_events(session, journals, period, directory)
        if not any(directory.glob("controller_epoch=*")):
            raise NoEventsError(f"no events of that time in {_names(journals)}")
        with progress("analysing", session):
            report = analyse_events(session, read_events(session, directory), top=options["top"])
    summary = {
        "job": "report events",
        "journals": len(journals),
        "unreadable_lines": {str(path): lines for path, lines in unreadable},
        **report,
        "out": options["out"],
        "html": options["html"],
    }
    verdict = event_verdict(summary, options)
    if options["html"]:
        from regent.jobs.reports.event_page import write_page

        write_page(summary, Path(options["html"]), verdict)
    summary["seconds"] = round(time.monotonic() - started, 3)
    print_report(options["output"], summary, event_tables(summary), verdict)


def _period(since_ms: int | None, until_ms: int | None) -> Period:
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise InputError("--since must be before --until")
    return Period(since_ms, until_ms)


@contextmanager
def _table(target: str | None, files: JobFiles) -> Iterator[Path]:
    """Yield a directory for the table; if the block succeeds, it becomes ``target``."""
    if target is not None:
        with new_directory(target, files) as directory:
            yield directory
    else:
        with tempfile.TemporaryDirectory(prefix="regent-events-") as scratch:
            yield Path(scratch)


def _names(journals: Sequence[Path]) -> str:
    return f"{journals[0]}{f' and {len(journals) - 1} more' if journals[1:] else ''}"


if __name__ == "__main__":
    sys.exit(main())
