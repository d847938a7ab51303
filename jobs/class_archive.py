"""``python -m jobs.class_archive``: halve the time Spark takes to start, once for an environment.

A JVM that starts Spark loads and verifies some 19,000 classes from jars. It can dump them as it
ends (AppCDS, JEP 350) into a file of 160 MB that later JVMs map instead. The archive belongs to one
JVM and one set of jars; another JVM ignores it and starts as slowly as before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from config.java import find_java
from core.errors import RegentError
from core.placement import Strategy
from core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from jobs.placement_job import place_with_spark
from jobs.session import QUICK_START, SparkJvm, class_archive

_DUMP_TIMEOUT_S: Final = 300.0


def make_class_archive() -> Path:
    """Start Spark, use it for the placements the service is for, and archive what it loaded.

    Takes half a minute. An archive made before is replaced.

    Raises:
        JavaNotFoundError, SparkFailedError, OSError
    """
    archive = class_archive(find_java())
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)  # or this JVM would use it instead of making one
    unfinished = archive.with_suffix(".part")
    jvm = SparkJvm(jvm_options=(*QUICK_START, f"-XX:ArchiveClassesAtExit={unfinished}"))
    try:
        session = jvm.session()
        for strategy in Strategy:
            place_with_spark(session, _small_request(strategy))
        if not jvm.finish(_DUMP_TIMEOUT_S) or not unfinished.exists():
            raise jvm.failure("this Java runtime wrote no class archive")
        unfinished.rename(archive)
    finally:
        jvm.stop()
        unfinished.unlink(missing_ok=True)
    return archive


def _small_request(strategy: Strategy) -> PlaceTopicsRequest:
    brokers = tuple(PlacementBroker(b, f"rack-{b % 3}", 0) for b in range(6))
    topics = (PlacementSpec("a", 12, 3, 0), PlacementSpec("b", 1, 5, 0))
    return PlaceTopicsRequest(topics, brokers, strategy, "0", "batch", 0)


def main() -> int:
    """Make the archive and say where it is; return the exit status."""
    try:
        archive = make_class_archive()
    except (RegentError, OSError) as error:
        sys.stderr.write(f"class archive: {error}\n")
        return 1
    sys.stdout.write(f"{archive} ({archive.stat().st_size // 2**20} MiB)\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
