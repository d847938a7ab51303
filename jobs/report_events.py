"""``regent jobs report events``: a report from the event journals of the controllers.

``--journals`` names the folder of a cluster or of a broker, or a journal; it may be repeated. The
journals are read once: Spark keeps their events meanwhile. ``--out`` also writes them as Parquet,
``--table`` as a table of a catalog of Spark, both partitioned by controller epoch. The report names
the number of unreadable lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import click
from pyspark.sql import DataFrame, SparkSession

from regent.client.cluster_connection import data_dir_option
from regent.client.wording import listed
from regent.config.moments import parse_moment
from regent.core.errors import RegentError
from regent.jobs.command import InputError, progress, run_job
from regent.jobs.files import Entry, JobFiles, check_shared, location_of
from regent.jobs.job_session import JobSession
from regent.jobs.new_directory import check_is_new, new_table
from regent.jobs.options import number_option
from regent.jobs.reports.event_analysis import analyse_events
from regent.jobs.reports.event_journals import events_in, find_journals, journal_lines, parsed
from regent.jobs.reports.event_page import add_events, event_facts
from regent.jobs.reports.event_tables import event_tables
from regent.jobs.reports.event_verdict import event_verdict
from regent.jobs.reports.output import Report, report_command, report_options
from regent.jobs.tables import new_catalog_table, write_files

Write: TypeAlias = Callable[[DataFrame], None]

_NAME: Final = "report events"
_PARTITION_BY: Final = ("controller_epoch",)
_SMALL: Final = 64 << 20  # bytes up to which a quick start is worth more than a fast JVM


class NoEventsError(RegentError):
    """There are no events to report."""


def _moment(_context: object, _option: object, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.option(
    "--journals",
    metavar="DIR|FILE",
    multiple=True,
    help="A cluster's or broker's folder, or a journal; may be repeated.  [default: --data-dir]",
)
@data_dir_option
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=_moment,
    help="Only events from this time on, in UTC.",
)
@click.option(
    "--until",
    "until_ms",
    metavar="TIME",
    callback=_moment,
    help="Only events before this time, in UTC.",
)
@number_option("--top", default=10, kind=click.IntRange(1, 1000), text="Number of rows of a table.")
@click.option("--out", metavar="DIR", help="A new directory for the Parquet table.")
@click.option("--table", metavar="NAME", help="A new table of Spark's catalog for the events.")
@report_options
def _report(job: JobSession, options: Mapping[str, Any]) -> Report:
    since_ms, until_ms = options["since_ms"], options["until_ms"]
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise InputError("--since must be before --until")
    if options["out"] is not None and options["table"] is not None:
        raise InputError("choose one of --out DIR and --table NAME")
    places = options["journals"] or (str(options["data_dir"]),)
    journals = find_journals(places, job.files)
    found = _analysed(job, journals, options)
    return Report(
        "The controllers' events",
        event_verdict(found, options),
        event_facts(found),
        found | {name: options[name] for name in ("out", "table")},
        event_tables(found),
        partial(add_events, report=found),
    )


def _analysed(
    job: JobSession, journals: Sequence[Entry], options: Mapping[str, Any]
) -> dict[str, Any]:
    out, table = options["out"], options["table"]
    if out is not None:
        check_is_new(out, job.files)
    locations = [journal.location for journal in journals]
    session = job.start(is_small=sum(journal.size for journal in journals) <= _SMALL)
    check_shared(session, [*locations, *([] if out is None else [out])])
    with (
        _kept(session, out, table, job.files) as write,
        progress(f"reading {len(journals)} journals", session),
    ):
        lines = parsed(journal_lines(session, locations))
        if write is None:
            lines = lines.drop("changes")
        lines = lines.persist()
        try:
            unreadable = lines.where("NOT is_event").groupBy("path").count().orderBy("path")
            events = events_in(lines)
            for bound, name in (("ts_ms >=", "since_ms"), ("ts_ms <", "until_ms")):
                if options[name] is not None:
                    events = events.where(f"{bound} {options[name]}")
            if events.isEmpty():
                has_period = options["since_ms"] is not None or options["until_ms"] is not None
                what = "events of that time" if has_period else "line of an event"
                raise NoEventsError(f"no {what} in {listed(locations, 1)}")
            if write is not None:
                write(events)
            found = analyse_events(events, top=options["top"])
            bad_lines = {location_of(path): lines for path, lines in unreadable.collect()}
        finally:
            lines.unpersist()
    return {"journals": len(journals), "unreadable_lines": bad_lines, **found}


@contextmanager
def _kept(
    session: SparkSession, out: str | None, table: str | None, files: JobFiles
) -> Iterator[Write | None]:
    """Yield what writes the events, None if they are not kept."""
    if table is not None:
        with new_catalog_table(session, table, files, partition_by=_PARTITION_BY) as write:
            yield write
    elif out is None:
        yield None
    else:
        with new_table(out, files) as location:
            yield partial(
                write_files, location=location, file_format="parquet", partition_by=_PARTITION_BY
            )


_command: Final = report_command(_NAME, "Analyse the event journals of the controllers.", _report)
main: Final = partial(run_job, _command, _NAME)
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
