"""What all jobs share: the command line, the output and the errors.

A job is a click command, and its module has ``main(argv, spark=None)``. Arguments and files are
checked before Spark starts. The job uses a given session, that of ``spark-submit``, or a new one. A
line on a terminal shows its progress. At the end it prints one line of JSON on stdout.

Exit status: 0 done, 1 failed, 2 the arguments or files are wrong, 130 interrupted.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import click
import orjson
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from regent.client import cluster_connection
from regent.client.cluster_connection import ClusterNotFoundError, open_session
from regent.client.plan_directory import PlanFileError
from regent.client.progress_line import ProgressLine
from regent.core.errors import RegentError
from regent.core.placement.replica_placer import PlacementError

cluster_admin: Final = partial(
    cluster_connection.cluster_admin,
    open_zookeeper=partial(open_session, session_timeout_ms=30_000),
)
"""Opens a ZooKeeper session that survives long computations: ``cluster_admin`` for jobs."""

_PROGRESS_S: Final = 0.5


class InputError(RegentError):
    """An argument or file of a job is unusable; the message names it and the remedy."""


def run_job(
    command: click.Command,
    name: str,
    argv: Sequence[str] | None = None,
    spark: SparkSession | None = None,
) -> int:
    """Run the command line of a job in ``spark``, or in a new session; return the exit status.

    ``name`` follows ``regent jobs`` on the command line. ``argv`` None: the arguments of the
    process. The object of click's context is ``spark``.
    """
    # Py4J logs a stack trace at Ctrl-C, and `logging` would print it if nothing were set up.
    logging.basicConfig(handlers=[logging.NullHandler()])
    typed = [f"regent jobs {name}"]
    try:
        with _interrupted_by_sigterm():
            _invoke(command, typed, sys.argv[1:] if argv is None else list(argv), spark)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        return 130
    except click.ClickException as error:
        return _fail(typed, 2, error.format_message())
    except (InputError, PlanFileError, PlacementError, ClusterNotFoundError) as error:
        return _fail(typed, 2, str(error))
    except OSError as error:
        message = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
        return 130 if _is_interrupted(error) else _fail(typed, 1, message)
    except (RegentError, PySparkException, Py4JError) as error:
        return 130 if _is_interrupted(error) else _fail(typed, 1, str(error))
    return 0


def _invoke(
    command: click.Command, typed: list[str], arguments: list[str], spark: SparkSession | None
) -> None:
    """Run a command; add the name of its subcommand to ``typed``, also when that fails."""
    with command.make_context(typed[0], arguments, max_content_width=100, obj=spark) as context:
        try:
            command.invoke(context)
        finally:
            if context.invoked_subcommand is not None:
                typed.append(context.invoked_subcommand)


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that no files of it are left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_interrupted(error: BaseException | None) -> bool:
    """Return whether Ctrl-C has led to the error: Py4J then fails to close its connection."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _fail(typed: Sequence[str], status: int, message: str) -> int:
    line = next((line for line in message.splitlines() if line.strip()), "failed")
    click.echo(f"{' '.join(typed)}: {line.strip()}", err=True)
    return status


@contextmanager
def progress(what: str, spark: SparkSession | None = None) -> Iterator[None]:
    """Show the activity, its duration and Spark's tasks on a terminal, during the block."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    started = time.monotonic()

    def show() -> None:
        with ProgressLine() as line:
            while not done.wait(_PROGRESS_S):
                seconds = time.monotonic() - started
                line.show(f"{what} … {seconds:.0f} s{_tasks(spark)}")

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tasks(spark: SparkSession | None) -> str:
    if spark is None:
        return ""
    with suppress(Py4JError, PySparkException, OSError):
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        found = [stage for stage in stages if stage is not None]
        if found:
            done, total = sum(s.numCompletedTasks for s in found), sum(s.numTasks for s in found)
            return f", {done} of {total} tasks"
    return ""


def print_summary(summary: Mapping[str, Any]) -> None:
    """Print the summary of a job as one line of JSON."""
    click.echo(orjson.dumps(dict(summary)))
