"""The inputs of reports: the assignment and the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from regent.client.cluster_connection import cluster_options, zookeeper_address
from regent.jobs.assignment_source import ZOOKEEPER, AssignmentSource
from regent.jobs.brokers_file import PlannedBroker, read_brokers
from regent.jobs.files import JobFiles
from regent.jobs.options import with_options

assignment_options: Final = with_options(
    click.option(
        "--assignment",
        default=ZOOKEEPER,
        show_default=True,
        metavar=f"{ZOOKEEPER}|FILE|DIR",
        help="The running cluster, or files: reassignment JSON, JSON lines, Parquet.",
    ),
    click.option(
        "--brokers",
        metavar=f"{ZOOKEEPER}|FILE",
        help=f"The brokers and their racks.  [default: {ZOOKEEPER}, if --assignment is]",
    ),
    cluster_options,
)
"""Adds ``--assignment``, ``--brokers``, and the options that name a cluster."""


def read_inputs(
    options: Mapping[str, Any], files: JobFiles
) -> tuple[AssignmentSource, tuple[PlannedBroker, ...]]:
    """Read the inputs of ``assignment_options``; files of partitions are not read yet.

    There are no brokers when none were named: then those with replicas are used. Raises InputError,
    and the errors of ZooKeeper.
    """

    def address() -> str:
        return zookeeper_address(options["zookeeper"], options["data_dir"])

    source = AssignmentSource.of(options["assignment"], address, files)
    brokers = options["brokers"] or (ZOOKEEPER if options["assignment"] == ZOOKEEPER else None)
    if brokers is None:
        return source, ()
    return source, read_brokers(brokers, address, files, with_no_replicas=True)
