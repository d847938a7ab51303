"""The Spark session of a job, and the options that choose it."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf
from pyspark.core.context import SparkContext
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from regent.core.errors import RegentError
from regent.jobs.command import InputError
from regent.jobs.files import JobFiles
from regent.jobs.java_errors import explanation
from regent.jobs.options import with_options
from regent.jobs.session import (
    START_TIMEOUT_S,
    SparkStartTimeoutError,
    is_local,
    spark_session,
)
from regent.jobs.spark_settings import QUICK_START, add_defaults

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it for the program it runs
_NOT_SHIPPED: Final = frozenset({"tests", "bench"})


def _settings(_context: object, _option: object, given: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.startswith("spark."):
            raise InputError(f"--conf {text}: write it as spark.NAME=VALUE")
        settings[name] = value
    return settings


spark_options: Final = with_options(
    click.option(
        "--master",
        metavar="URL",
        help="Where Spark runs: local[N], spark://HOST:PORT, yarn, k8s://…"
        "  [default: that of spark-defaults.conf, or local[*]]",
    ),
    click.option(
        "--conf",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_settings,
        help="A setting of Spark; may be repeated.",
    ),
    click.option(
        "--start-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=START_TIMEOUT_S,
        show_default=True,
        metavar="SECONDS",
        help="How long Spark may take to start.",
    ),
)
"""Adds ``--master``, ``--conf`` and ``--start-timeout`` to a command."""


class SparkJobError(RegentError):
    """Spark could not do its part of a job."""


class JobSession:
    """Starts Spark when it is first needed, so that arguments and local files are checked before.

    The session is the given one, that of ``spark-submit``, or a new one with the options of
    ``spark_options``, which ends with the job.
    """

    def __init__(
        self, given: SparkSession | None, options: Mapping[str, Any], app_name: str, end: ExitStack
    ) -> None:
        self._given = given
        self._options = options
        self._app_name = app_name
        self._end = end  # of the job
        self.files = JobFiles(self.start)
        end.callback(self.files.close)

    def start(self, *, is_small: bool = False) -> SparkSession:
        """Return the session; ``is_small``: it starts faster and computes more slowly.

        Raises JavaNotFoundError and SparkFailedError.
        """
        if self._given is None:
            self._given = self._started(is_small=is_small)
        return self._given

    def _started(self, *, is_small: bool) -> SparkSession:
        if _SUBMITTED in os.environ:
            SparkContext._ensure_initialized()
            conf = SparkConf()  # has what spark-submit has found
            add_defaults(conf)
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        else:
            opened = spark_session(
                self._options["master"],
                app_name=self._app_name,
                conf=self._options["conf"],
                jvm_options=QUICK_START if is_small else (),
                start_timeout_s=self._options["start_timeout"],
            )
            try:
                session = self._end.enter_context(opened)
            except SparkStartTimeoutError as error:
                raise SparkStartTimeoutError(f"{error} (--start-timeout gives it longer)") from None
        if not is_local(session):
            self._ship_package(session)
        return session

    def _ship_package(self, session: SparkSession) -> None:
        """Give executors this program: they need only numpy and pyarrow of their own."""
        root = Path(__file__).parents[1]
        if not root.is_dir():
            return  # it came in an archive of --py-files, which the executors have too
        folder = self._end.enter_context(tempfile.TemporaryDirectory(prefix="regent-package-"))
        archive = Path(folder, "regent.zip")
        packages = [path.parent for path in root.glob("*/__init__.py")]
        modules = [root / "__init__.py"]
        for package in packages:
            if package.name not in _NOT_SHIPPED:
                modules += package.rglob("*.py")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for module in modules:
                packed.write(module, Path("regent", module.relative_to(root)))
        session.sparkContext.addPyFile(str(archive))


@contextmanager
def job_session(
    spark: SparkSession | None, options: Mapping[str, Any], *, app_name: str
) -> Iterator[JobSession]:
    """Yield the session of a job for the block.

    Raises ``SparkJobError`` for an error of the JVM, which only its own JVM can explain, or of a
    Python worker.
    """
    with ExitStack() as end:
        try:
            yield JobSession(spark, options, app_name, end)
        except (Py4JJavaError, PythonException) as error:
            raise SparkJobError(explanation(error)) from error
