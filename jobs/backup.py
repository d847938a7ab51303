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
    pass_cluster,
)
from regent.core.errors import RegentError
from regent.core.model import TopicPartition
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.jobs.command import print_summary, progress, run_job
from regent.jobs.files import check_shared, inside
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.new_directory import check_is_new, new_table
from regent.jobs.tables import Batches, mapped, write_files
from regent.jobs.topic_backup import (
    COLUMNS,
    RECORDS,
    BackedUpTopic,
    Backup,
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
        backup = found_topics(AdminClient(dict(settings)), pattern)
        bound = sum(topic.record_bound for topic in backup.topics)
        session = job.start(is_small=bound <= _SMALL)
        check_shared(session, [out])
        with new_table(out, job.files) as location:
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
        groups = _groups(client, set(names))
        partitions = {name: sorted(listed[name].partitions) for name in names}
        starts = _offsets(client, partitions, EARLIEST)
        ends = _offsets(client, partitions, LATEST)
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


def _offsets(
    client: AdminClient, partitions: Mapping[str, Sequence[int]], spec: OffsetSpec
) -> dict[tuple[str, int], int]:
    asked = {KafkaPosition(name, n): spec for name, numbers in partitions.items() for n in numbers}
    found = client.list_offsets(
        asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
    )
    return {(p.topic, p.partition): future.result().offset for p, future in found.items()}


def _groups(client: AdminClient, topics: set[str]) -> dict[str, dict[TopicPartition, int]]:
    listed = client.list_consumer_groups(request_timeout=_TIMEOUT_S).result()
    if listed.errors:
        raise listed.errors[0]
    found = {}
    for group in sorted(row.group_id for row in listed.valid):
        asked = client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)], request_timeout=_TIMEOUT_S
        )[group].result()
        offsets = {
            TopicPartition(row.topic, row.partition): row.offset
            for row in asked.topic_partitions
            if row.topic in topics and row.offset >= 0
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
            some = []
            for message in consumer.consume(_MANY, _POLL_S):
                error, offset = message.error(), message.offset() or 0
                if error is None:
                    at = offset + 1
                    if offset < wanted.end:
                        some.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at = offset  # after what was aborted, too
                else:
                    raise UnreadableTopicError(f"{where}: {error.str()}")
                heard_at = time.monotonic()
            yield from _in_parts(some)
            if time.monotonic() - heard_at > _TIMEOUT_S:
                raise UnreadableTopicError(f"{where}: no records came for {_TIMEOUT_S:.0f} s")
    finally:
        consumer.close()


def _in_parts(messages: Sequence[Message]) -> Iterator[pa.RecordBatch]:
    """Yield rows, in parts of about ``_MUCH`` bytes."""
    rows: list[dict[str, Any]] = []
    size = 0
    for message in messages:
        rows.append(_row(message))
        size += len(message)
        if size >= _MUCH:
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)
            rows, size = [], 0
    if rows:
        yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def _row(message: Message) -> dict[str, Any]:
    kind, timestamp_ms = message.timestamp()
    headers = message.headers()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp_ms * 1000,
        "timestampType": kind - 1,  # librdkafka: 0 none, 1 CreateTime, 2 LogAppendTime
        "key": message.key(),
        "value": message.value(),
        "headers": [{"key": k, "value": v} for k, v in list(headers)] if headers else None,
    }


main: Final = partial(run_job, _command, "backup")
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
