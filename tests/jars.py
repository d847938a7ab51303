"""``python -m tests.jars [--all]``: fetch jars for tests, before several processes need them.

Without ``--all`` only those of ``make test``. What cannot be fetched is named, and its tests are
skipped; in continuous integration they fail.
"""

from __future__ import annotations

import sys

from regent.config.java import JavaNotFoundError
from tests.genuine_clients.java_clients import KAFKA_CLIENTS
from tests.kafka_brokers.genuine_broker import JARS as KAFKA_BROKERS
from tests.kafka_brokers.genuine_broker import TOOLS, VERSION
from tests.support.maven_jars import JarsUnavailableError, MavenJars
from tests.support.mini_hadoop import HADOOP
from tests.support.object_store import CLIENT, SERVER


def fetch(*wanted: MavenJars) -> None:
    """Fetch jars that are not here yet; print one line for those that cannot be fetched."""
    for jars in wanted:
        try:
            jars.fetched()
        except (JavaNotFoundError, JarsUnavailableError) as error:
            sys.stderr.write(f"{error}\n")


if __name__ == "__main__":
    fetch(
        KAFKA_CLIENTS,
        KAFKA_BROKERS[VERSION],
        *([*KAFKA_BROKERS.values(), TOOLS, HADOOP, SERVER, CLIENT] if "--all" in sys.argv else []),
    )
