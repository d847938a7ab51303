"""The inputs of reports: the assignment, the brokers, and the sizes of logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from regent.client.cluster_connection import cluster_options, zookeeper_address
from regent.jobs.assignment_source import ZOOKEEPER, AssignmentSource
from regent.jobs.brokers_file import PlannedBroker, read_brokers
from regent.jobs.command import InputError
from regent.jobs.files import JobFiles
from regent.jobs.options import with_options
from regent.storage.log_directory import LogDirectory
from regent.storage.log_names import LOG_SUFFIX, log_of_directory

_META: Final = "meta.properties"


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
    return source, () if brokers is None else read_brokers(brokers, address, files)


def log_directories(options: Mapping[str, Any]) -> tuple[Path, ...]:
    """Return the directories that ``--log-dirs`` names, or those of a cluster on this machine.

    Return none when the assignment is not from the cluster in ``--data-dir``. Raises ``InputError``
    for a named directory that is not a log directory.
    """
    named = options["log_dirs"]
    if named is None:
        is_here = options["assignment"] == ZOOKEEPER and not options["zookeeper"]
        found = options["data_dir"].glob(f"broker-*/*/{_META}") if is_here else ()
        return tuple(sorted(path.parent for path in found))
    directories = tuple(Path(name.strip()) for name in named.split(",") if name.strip())
    for directory in directories:
        if not (directory / _META).is_file():
            raise InputError(f"{directory} is no log directory: it has no {_META}")
    return directories


def bytes_per_broker(directories: Iterable[Path]) -> dict[int, int]:
    """Sum up the segment sizes of all logs in use; a broker may have several directories.

    Raises ``InputError`` for a directory whose ``meta.properties`` names no broker, and OSError.
    """
    sizes = Counter[int]()
    for directory in directories:
        sizes[_owner(directory)] += sum(
            _size_of(segment)
            for log in directory.iterdir()
            if log_of_directory(log.name) is not None
            for segment in log.glob(f"*{LOG_SUFFIX}")
        )
    return sizes


def _owner(directory: Path) -> int:
    broker_id = LogDirectory(directory).read_meta_properties()
    if broker_id is None or not broker_id.isdecimal():
        raise InputError(f"{directory / _META} names no broker")
    return int(broker_id)


def _size_of(segment: Path) -> int:
    with suppress(FileNotFoundError):  # a running cluster deletes segments
        return segment.stat().st_size
    return 0
