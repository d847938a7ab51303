"""``regent jobs backup``: copy topics of a running cluster into a directory.

Each task reads one partition as a consumer of committed records does, up to the end that it had
when the job began. ``regent jobs restore`` makes the topics again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import click
import pyarrow as pa
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
)
from confluent_kafka import TopicPartition as KafkaPosition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from pyspark.sql import DataFrame, SparkSession

from regent.client.cluster_connection import (
    Cluster,
    bootstrap_option,
    client_settings,
    open_client,
    pass_cluster,
)
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.jobs.command import print_summary, progress, run_job
from regent.jobs.files import check_shared, inside
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.new_directory import check_is_new, new_table
from regent.jobs.source.columns import LARGEST_MS
from regent.jobs.tables import Batches, mapped, write_files
from regent.jobs.topic_backup import (
    COLUMNS,
    RECORDS,
    BackedUpTopic,
    Backup,
    GroupPosition,
    chosen,
    write_backup,
)

Settings: TypeAlias = Mapping[str, str | int | float | bool]

EARLIEST: Final[OffsetSpec] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[OffsetSpec] = OffsetSpec.latest()  # type: ignore[no-untyped-call]

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 1.0
_MANY: Final = 10_000  # records at once
_MUCH: Final = 8 << 20  # bytes of records in one Arrow batch, about
_SMALL: Final = 1_000_000  # records up to which a quick start is worth more than a fast JVM
_NO_SORT: Final = ("spark.sql.maxConcurrentOutputFileWriters", "1")
"""A task has records of one topic. Spark would sort them by topic first, on the local disk."""

_OF_THE_TOPIC: Final = 1  # a source of settings in DescribeConfigs
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("timestampMs", pa.int64()),
    ]
)

_HELP: Final = """Copy topics into a directory, with offsets, timestamps and headers.

The records are a table of Parquet files; backup.json has the partitions, settings and the
committed offsets of groups. DIR is a directory of this machine, or of any file system of Hadoop.
Records of transactions that were aborted, or have not ended, are left out.

\\b
Example:
  regent jobs backup --topics 'orders.*' --out /backup/orders
"""


class UnreadableTopicError(RegentError):
    """The cluster does not tell what a backup needs, or a partition cannot be read."""


class Range(NamedTuple):
    """The records of a partition from ``start`` to before ``end``."""

    topic: str
    partition: int
    start: int
    end: int


@click.command("backup", help=_HELP)
@click.option("--topics", "pattern", metavar="REGEX", help="Topics by name.  [default: all]")
@click.option("--out", required=True, metavar="DIR", help="A new directory to write to.")
@bootstrap_option
@spark_options
@pass_cluster
def _command(cluster: Cluster, /, pattern: str | None, out: str, **options: Any) -> None:
    started = time.monotonic()
    with job_session(click.get_current_context().obj, options, app_name="regent-backup") as job:
        check_is_new(out, job.files)
        settings = client_settings(cluster, "regent-backup")
        backup = found_topics(open_client(AdminClient, settings), pattern)
        bound = sum(topic.record_bound for topic in backup.topics)
        session = job.start(is_small=bound <= _SMALL)
        check_shared(session, [out])
        with new_table(out, job.files) as location:
            session.conf.set(*_NO_SORT)
            with progress(f"copying {len(backup.topics)} topics", session):
                frame = records_frame(session, settings, backup.topics)
                write_files(frame, inside(location, RECORDS), "parquet", partition_by=("topic",))
            write_backup(backup, location, job.files)
    print_summary(
        {
            "job": "backup",
            "out": out,
            "topics": len(backup.topics),
            "partitions": sum(topic.partitions for topic in backup.topics),
            "groups": len(backup.groups),
            "seconds": round(time.monotonic() - started, 3),
        }
    )


# --- what there is --------------------------------------------------------------------------------


def found_topics(client: AdminClient, pattern: str | None) -> Backup:
    """Return the topics that ``pattern`` matches, as they are now.

    Groups are asked first: so what they have committed is before the ends of partitions. Raises
    ``InputError``, ``UnreadableTopicError``.
    """
    try:
        listed = client.list_topics(timeout=_TIMEOUT_S).topics
        names = chosen(listed.keys() - INTERNAL_TOPICS, pattern, "the cluster")
        partitions = {name: sorted(listed[name].partitions) for name in names}
        groups = _groups(client, partitions)
        starts = offsets_of(client, partitions, EARLIEST)
        ends = offsets_of(client, partitions, LATEST)
        configs = topic_configs(client, names)
    except KafkaException as error:
        raise UnreadableTopicError(said(error)) from None
    topics = tuple(
        BackedUpTopic(
            name,
            len(listed[name].partitions[0].replicas),
            own_configs(configs[name]),
            int(configs[name]["retention.ms"].value)
            if "delete" in configs[name]["cleanup.policy"].value
            else -1,
            tuple((starts[name, number], ends[name, number]) for number in partitions[name]),
        )
        for name in names
    )
    return Backup(topics, groups)


def topic_configs(client: AdminClient, topics: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return all settings of topics, by name. Raises ``KafkaException``."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    if not resources:
        return {}
    described = client.describe_configs(resources, request_timeout=_TIMEOUT_S)
    return {resource.name: future.result() for resource, future in described.items()}


def own_configs(entries: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that a topic has of its own."""
    own = [entry for entry in entries.values() if entry.source == _OF_THE_TOPIC]
    return {entry.name: entry.value for entry in own if entry.value is not None}


def offsets_of(
    client: AdminClient, partitions: Mapping[str, Iterable[int]], spec: OffsetSpec
) -> dict[tuple[str, int], int]:
    """Return an offset of each partition. Raises ``KafkaException``."""
    asked = {KafkaPosition(name, n): spec for name, numbers in partitions.items() for n in numbers}
    found = client.list_offsets(
        asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
    )
    return {(p.topic, p.partition): future.result().offset for p, future in found.items()}


def _groups(
    client: AdminClient, partitions: Mapping[str, Sequence[int]]
) -> dict[str, dict[TopicPartition, GroupPosition]]:
    listed = client.list_consumer_groups(request_timeout=_TIMEOUT_S).result()
    if listed.errors:
        raise listed.errors[0]
    found = {}
    for group in sorted(row.group_id for row in listed.valid):
        asked = client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=_TIMEOUT_S
        )[group].result()
        offsets = {
            TopicPartition(row.topic, row.partition): GroupPosition(row.offset, row.metadata or "")
            for row in asked.topic_partitions
            if row.partition in partitions.get(row.topic, ()) and row.offset >= 0
        }
        if offsets:
            found[group] = offsets
    return found


def said(error: KafkaException) -> str:
    """Return the message of an error of librdkafka."""
    told = error.args[0]
    return str(told.str() if isinstance(told, KafkaError) else told)


# --- the records ----------------------------------------------------------------------------------


def records_frame(
    session: SparkSession, settings: Settings, topics: Sequence[BackedUpTopic]
) -> DataFrame:
    """Return the records of topics; each task reads one partition that has some."""
    ranges = [
        Range(topic.name, number, start, end)
        for topic in topics
        for number, (start, end) in enumerate(topic.offsets)
        if end > start
    ]
    shared = session.sparkContext.broadcast(ranges)

    def read(batches: Batches) -> Batches:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from read_range(settings, shared.value[number])

    numbers = session.range(0, len(ranges), 1, max(1, len(ranges)))
    return mapped(numbers, read, f"topic string, {COLUMNS}")


def read_range(settings: Settings, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the committed records of a range, in order. Raises ``UnreadableTopicError``."""
    consumer = Consumer(
        {
            **settings,
            "group.id": "regent-backup",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",  # retention went on meanwhile
        }
    )
    where = f"{wanted.topic}-{wanted.partition}"
    try:
        consumer.assign([KafkaPosition(wanted.topic, wanted.partition, wanted.start)])
        at, heard_at = wanted.start, time.monotonic()
        while at < wanted.end:
            if messages := consumer.consume(_MANY, _POLL_S):
                some, at = in_order(messages, wanted, at)
                yield from _in_parts(some)
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _TIMEOUT_S:
                raise UnreadableTopicError(f"{where}: no records came for {_TIMEOUT_S:.0f} s")
    finally:
        consumer.close()


def in_order(messages: Sequence[Message], wanted: Range, at: int) -> tuple[list[Message], int]:
    """Return the records of a range among those that came from ``at`` on, and where to go on.

    Raises ``UnreadableTopicError``, also if the log became shorter meanwhile: its records would be
    there twice.
    """
    some, where = [], f"{wanted.topic}-{wanted.partition}"
    for message in messages:
        error, offset = message.error(), message.offset() or 0
        is_end = error is not None and error.code() == KafkaError._PARTITION_EOF
        if error is not None and not is_end:
            raise UnreadableTopicError(f"{where}: {error.str()}")
        if offset < at:
            raise UnreadableTopicError(
                f"{where}: offset {offset} came after {at - 1}: its log was truncated meanwhile (by"
                " an unclean election?); begin again"
            )
        if not is_end and offset < wanted.end:
            some.append(message)
        at = offset if is_end else offset + 1  # the end is after what was aborted, too
    return some, at


def _in_parts(messages: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    """Yield rows, in parts of about ``_MUCH`` bytes."""
    rows: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        row = _row(message)
        rows.append(row)
        headers = row["headers"] or ()
        texts = (row["key"], row["value"], *(text for h in headers for text in h.values()))
        size += sum(len(text or b"") for text in texts)
        if size >= _MUCH:
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def _row(message: Message) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    shown_ms = max(-LARGEST_MS, min(timestamp_ms, LARGEST_MS))
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": shown_ms * 1000,
        "timestampType": kind - 1,  # librdkafka: 0 none, 1 CreateTime, 2 LogAppendTime
        "key": message.key(),
        "value": message.value(),
        "headers": [{"key": k, "value": v} for k, v in list(headers)] if headers else None,
        "timestampMs": None if shown_ms == timestamp_ms else timestamp_ms,
    }


main: Final = partial(run_job, _command, "backup")
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
