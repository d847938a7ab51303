"""DataFrames of what Regent places and knows, for programs: ``regent.spark``.

Each function takes a session that its caller made, checks what it is given, and returns a frame
that executors compute when it is used. What is wrong is an error of one line, ``InputError`` and
others of ``RegentError``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import orjson
from pyspark.sql import DataFrame, SparkSession

from regent.jobs.assignment_source import (
    ZOOKEEPER,
    AssignmentSource,
    assignment_frame,
)
from regent.jobs.brokers_file import read_brokers
from regent.jobs.command import InputError
from regent.jobs.files import JobFiles, check_shared, is_remote, local_path
from regent.jobs.json_list import Given
from regent.jobs.placement_arrays import placement_arrays
from regent.jobs.placement_input import placement_request, read_topics
from regent.jobs.placement_job import placement_frame
from regent.jobs.reports.event_journals import events_in, find_journals, journal_lines, parsed
from regent.jobs.source import RegentDataSource, register
from regent.jobs.source.options import read_options
from regent.zk.client.login import SECRET_VARIABLE, log_in, read_login

_TOPIC_FIELDS: Final = ("topic", "partitions", "replication_factor")


def place(
    spark: SparkSession,
    topics: Given,
    brokers: Given = ZOOKEEPER,
    *,
    zookeeper: str | None = None,
    strategy: str = "ring",
    start_index: int | str = 0,
    index: str = "batch",
    seed: int | None = None,
    scatter_width: int | None = None,
) -> DataFrame:
    """Place the partitions of new topics: columns topic, partition and replicas, in no order.

    ``topics`` and ``brokers`` are the files of ``regent jobs place``, or lists with the same
    entries; a topic may be a tuple ``(topic, partitions, replication_factor)``. Without ``brokers``
    they are those that are registered in ZooKeeper at the address ``zookeeper``. The other
    arguments are the options of the command. A random seed is drawn once, so the frame is the same
    each time that it is used.

    Raises ``InputError``, ``PlacementError``, and the errors of ZooKeeper.
    """
    with closing(JobFiles(lambda: spark)) as files:
        given = topics if isinstance(topics, str) else [_as_entry(topic) for topic in topics]
        specs, configs = read_topics(given, files)
        if configs:
            raise InputError(f"topic {next(iter(configs))}: config is only for jobs place --apply")
        found = read_brokers(brokers, partial(_address, zookeeper), files)
    options = {
        "strategy": strategy,
        "start_index": str(start_index),
        "index": index,
        "seed": seed,
        "scatter_width": scatter_width,
    }
    arrays = placement_arrays(placement_request(options, specs, found))
    return placement_frame(spark, arrays)


def assignment(
    spark: SparkSession, *, zookeeper: str | None = None, path: str | None = None
) -> DataFrame:
    """Return the replicas of each partition of a cluster, or of files.

    Columns: topic string, partition int, replicas array<int>, leader int and isr array<int>, the
    last two null where they are not known; a leader of -1 is none. ``zookeeper`` is an address, and
    is read at once. ``path`` is a reassignment document, JSON lines or Parquet; rows of files that
    are no rows of an assignment have nulls.

    Raises ``InputError``, and the errors of ZooKeeper.
    """
    if (zookeeper is None) == (path is None):
        raise InputError("name one of zookeeper=HOST:PORT and path=LOCATION")
    with closing(JobFiles(lambda: spark)) as files:
        address = partial(_address, zookeeper)
        source = AssignmentSource.of(path or ZOOKEEPER, address, files)
        return assignment_frame(spark, source)


def events(
    spark: SparkSession, *places: str, follows: bool = False, fail_on_data_loss: bool = True
) -> DataFrame:
    """Return the events of the controllers, a row for each readable line of their journals.

    A place is the folder of a cluster or of a broker, or a journal. The columns are the fields of a
    line (``actors/event_journal.py``), with ``named_changes``: how many changes have a sentence.
    ``follows``: a stream, which also has the lines to come; its places are folders of this machine.
    If a stream rests until lines that it has not read are gone, it fails, or goes on without
    ``fail_on_data_loss``. Raises ``InputError``.
    """
    if not places:
        raise InputError("name the folder of a cluster, or journals")
    check_shared(spark, places)
    if follows:
        register(spark)
        reader = spark.readStream.format(RegentDataSource.name())
        reader = reader.options(journals=_joined(places), failOnDataLoss=fail_on_data_loss)
        return events_in(parsed(reader.load()))
    with closing(JobFiles(lambda: spark)) as files:
        found = [journal.location for journal in find_journals(places, files)]
    return events_in(parsed(journal_lines(spark, found)))


def topics(spark: SparkSession, log_dirs: Sequence[str], **options: str) -> DataFrame:
    """Return the records in log directories of brokers, which need not run.

    Columns and options (``subscribe="orders"`` and others) are those of the format ``regent``.
    Raises ``InputError``, ``OptionError``.
    """
    check_shared(spark, log_dirs)
    read = {"logDirs": _joined(log_dirs), **options}
    read_options(read)  # an error inside of Spark's would have many lines
    register(spark)
    settings = dict(spark.sparkContext.getConf().getAll())
    prefix = "spark.hadoop."
    hadoop = {k.removeprefix(prefix): v for k, v in settings.items() if k.startswith(prefix)}
    read = {"hadoop": orjson.dumps(hadoop).decode(), **read}
    if jars := settings.get("spark.jars"):
        read = {"jars": jars, **read}
    return spark.read.format(RegentDataSource.name()).options(**read).load()


# --- what they share ------------------------------------------------------------------------------


def _joined(places: Sequence[str]) -> str:
    for place in places:
        if "," in place:
            raise InputError(f"{place}: a comma is the end of a name here: rename it")
    # Absolute: workers of a session may have another current directory.
    return ",".join(p if is_remote(p) else str(local_path(p).absolute()) for p in places)


def _address(zookeeper: str | None) -> str:
    """Log in as commands do, if the environment names a secret."""
    if not zookeeper:
        raise InputError("name the brokers, or zookeeper=HOST:PORT")
    if secret := os.environ.get(SECRET_VARIABLE):
        log_in(zookeeper, read_login(Path(secret)))
    return zookeeper


def _as_entry(topic: object) -> object:
    if isinstance(topic, tuple) and len(topic) == len(_TOPIC_FIELDS):
        return dict(zip(_TOPIC_FIELDS, topic, strict=True))
    return topic
