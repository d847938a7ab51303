"""``regent jobs restore``: make the topics of a backup again, with their offsets and timestamps.

A topic that is restored has the setting ``regent.keeps.offsets``: its leaders take batches with the
offsets that these have. Batches are sent again after an error, and a leader recognises one that it
has. So a restore that was interrupted is repeated from its beginning, and writes nothing twice. At
the end the topic gets the settings that it had, and the setting is ``false`` until all topics have
got theirs: a repetition leaves such topics as they are.

What is missing between two records (compaction took it, or it was aborted) stays missing. After the
last record a batch without records brings the log to its former end, so that the committed offsets
of groups stay right.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

import click
import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
from confluent_kafka import TopicPartition as KafkaPosition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyspark.sql import SparkSession

from regent.client.cluster_connection import (
    Cluster,
    bootstrap_option,
    client_settings,
    open_client,
    pass_cluster,
)
from regent.client.command_config import SECURITY_OF_COMMAND
from regent.config.command_line import program
from regent.core.setting import LONG_MAX
from regent.jobs.backup import LATEST, offsets_of, own_configs, said, topic_configs
from regent.jobs.command import print_summary, progress, run_job
from regent.jobs.files import check_shared, inside, path_to_read
from regent.jobs.job_session import job_session, spark_options
from regent.jobs.leader_connections import BrokerAccess, LeaderConnections, RestoreError
from regent.jobs.source.exactly_once import BATCHES
from regent.jobs.tables import Batches, mapped
from regent.jobs.topic_backup import (
    COLUMNS,
    RECORDS,
    BackedUpTopic,
    Backup,
    chosen,
    read_backup,
)
from regent.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from regent.records.record_batch import (
    RestoredRecord,
    empty_batch,
    read_header,
    restored_batches,
)

KEEPS_OFFSETS: Final = "regent.keeps.offsets"
_WRITING: Final = "true"
_WRITTEN: Final = "false"  # the topic has its settings again; restores of others still go on
_RETENTION: Final[Mapping[str, Sequence[tuple[str, int]]]] = {
    "retention.ms": (
        ("log.retention.ms", 1),
        ("log.retention.minutes", 60_000),
        ("log.retention.hours", 3_600_000),
    ),
    "retention.bytes": (("log.retention.bytes", 1),),
}
"""What limits a topic, and the settings of a broker for topics without it: the first that is set
counts."""

_UNLIMITED: Final = "-1"
_ANY_TIME: Final = str(LONG_MAX)
_LARGEST: Final = 104_857_600  # bytes of a batch
_SEGMENT_BYTES: Final = "segment.bytes"
_MIN_ISR: Final = "min.insync.replicas"
_MEANWHILE: Final[Mapping[str, str]] = {
    KEEPS_OFFSETS: _WRITING,
    "cleanup.policy": "delete",
    **dict.fromkeys(_RETENTION, _UNLIMITED),
    "max.message.bytes": str(_LARGEST),
    _SEGMENT_BYTES: str(1 << 30),  # smaller ones of a topic's own count if a batch fits into them
    _MIN_ISR: "1",  # there may be fewer replicas than before
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": _ANY_TIME,
    "message.timestamp.after.max.ms": _ANY_TIME,
    "message.timestamp.difference.max.ms": _ANY_TIME,
}
"""The settings of a topic while it is restored: nothing is deleted, and nothing is refused."""

_CODECS: Final = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
_BATCH_BYTES: Final = 512 * 1024
_TIMEOUT_S: Final = 60.0
_TOPIC: Final = ResourceType.TOPIC
_SMALL: Final = 1_000_000  # records up to which a quick start is worth more than a fast JVM
_MOST_TASKS: Final = 1_000
_DONE: Final = "topic string, partition int, records long, oldest_ms long, bytes long"
_DONE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("records", pa.int64()),
        ("oldest_ms", pa.int64()),
        ("bytes", pa.int64()),
    ]
)

_PLACE: Final = ("topic", "partition", "offset")
_ROW: Final = (*_PLACE, "timestamp", "timestampMs", "key", "value", "headers")

_HELP: Final = """Make the topics of a backup again, with their offsets, timestamps and headers.

The topics must not exist. A restore that was interrupted is repeated with the same command. The
committed offsets of groups are restored too, for groups that have no members. Brokers place the
partitions as those of any new topic.

\b
Example:
  regent jobs restore --from /backup/orders --topics 'orders-eu'
"""


@click.command("restore", help=_HELP)
@click.option("--from", "source", required=True, metavar="DIR", help="The directory of a backup.")
@click.option("--topics", "pattern", metavar="REGEX", help="Topics by name.  [default: all]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    metavar="N",
    help="Number of replicas of each partition.  [default: as before]",
)
@click.option(
    "--compression",
    type=click.Choice(list(_CODECS)),
    default="lz4",
    show_default=True,
    help="How the records are compressed in the topics.",
)
@bootstrap_option
@spark_options
@pass_cluster
def _command(
    cluster: Cluster,
    /,
    source: str,
    pattern: str | None,
    compression: str,
    replication_factor: int | None,
    **options: Any,
) -> None:
    started = time.monotonic()
    with job_session(click.get_current_context().obj, options, app_name="regent-restore") as job:
        backup = read_backup(source, job.files)
        names = set(chosen((topic.name for topic in backup.topics), pattern, source))
        topics = [topic for topic in backup.topics if topic.name in names]
        settings = client_settings(cluster, "regent-restore")
        admin = open_client(AdminClient, settings)
        try:
            new, to_write = left_to_do(admin, topics)
            of_brokers = _retention_of_brokers(admin)
            session = job.start(is_small=sum(topic.record_bound for topic in to_write) <= _SMALL)
            check_shared(session, [source])
            create(admin, new, replication_factor)
            with progress(f"restoring {len(to_write)} topics", session):
                access = BrokerAccess(settings, SECURITY_OF_COMMAND.config)
                written = _write(session, access, source, to_write, _CODECS[compression])
            _set_bounds(admin, access, to_write)
            groups = _commit(admin, backup, {topic.name for topic in to_write})
            kept = _kept(to_write, of_brokers, written)
            _tell_kept(to_write, kept)
            configure(admin, to_write, kept)
            _release(admin, topics)
        except KafkaException as error:
            raise RestoreError(said(error)) from None
    print_summary(
        {
            "job": "restore",
            "from": source,
            "topics": len(topics),
            "partitions": sum(topic.partitions for topic in topics),
            "records": sum(part.records for part in written.values()),
            "groups": len(groups),
            "without_retention": list(kept),
            "seconds": round(time.monotonic() - started, 3),
        }
    )


# --- topics, bounds and groups: on the driver ----------------------------------------------------


def left_to_do(
    admin: AdminClient, topics: Sequence[BackedUpTopic]
) -> tuple[list[BackedUpTopic], list[BackedUpTopic]]:
    """Return the topics to create, and all those to write; an interrupted restore has done others.

    Raises ``RestoreError`` for a topic that was not made by a restore.
    """
    there = admin.list_topics(timeout=_TIMEOUT_S).topics
    configs = topic_configs(admin, [topic.name for topic in topics if topic.name in there])
    marks = {name: own_configs(entries).get(KEEPS_OFFSETS) for name, entries in configs.items()}
    to_write = [topic for topic in topics if marks.get(topic.name, _WRITING) == _WRITING]
    # Marks go when all topics are written. If some are left then, the others have lost theirs.
    if to_write or _WRITTEN not in marks.values():
        for name, mark in marks.items():
            if mark is None:
                raise RestoreError(f"topic {name} exists: delete it, or leave it out with --topics")
    for topic in to_write:
        if topic.name in there and len(there[topic.name].partitions) != topic.partitions:
            raise RestoreError(
                f"topic {topic.name} of an interrupted restore has another number of partitions"
                " than the backup: delete it"
            )
    return [topic for topic in to_write if topic.name not in there], to_write


def _retention_of_brokers(admin: AdminClient) -> dict[str, int]:
    """Return the shortest retention that a broker gives topics without one, by setting."""
    limits = dict.fromkeys(_RETENTION, -1)
    for broker_id in admin.list_topics(timeout=_TIMEOUT_S).brokers:  # one in each request
        asked = [ConfigResource(ResourceType.BROKER, str(broker_id))]
        for future in admin.describe_configs(asked, request_timeout=_TIMEOUT_S).values():
            entries = future.result()
            for name, of_brokers in _RETENTION.items():
                given = (
                    int(entries[of_broker].value) * unit
                    for of_broker, unit in of_brokers
                    if of_broker in entries and entries[of_broker].value is not None
                )
                limit = next(given, -1)
                if limit >= 0:
                    limits[name] = limit if limits[name] < 0 else min(limit, limits[name])
    return limits


def create(
    admin: AdminClient, topics: Sequence[BackedUpTopic], replication_factor: int | None
) -> None:
    """Create topics with the settings of a restore. Raises ``KafkaException``."""
    new = [
        NewTopic(
            topic.name,
            topic.partitions,
            replication_factor or topic.replication_factor,
            config={**topic.configs, **_MEANWHILE, **_segment_bytes(topic)},
        )
        for topic in topics
    ]
    if new:
        created = admin.create_topics(new, operation_timeout=_TIMEOUT_S, request_timeout=_TIMEOUT_S)
        for future in created.values():
            future.result()


def _segment_bytes(topic: BackedUpTopic) -> dict[str, str]:
    size = topic.configs.get(_SEGMENT_BYTES)
    return {} if size is None else {_SEGMENT_BYTES: str(max(int(size), _LARGEST))}


def _tell_kept(topics: Sequence[BackedUpTopic], kept: Mapping[str, Mapping[str, int]]) -> None:
    for topic in topics:
        limits = kept.get(topic.name, {})
        if limits:
            settings = " and ".join(f"{name}={limit}" for name, limit in limits.items())
            back = [
                f"--set {name}={limit}" if name in topic.configs else f"--unset {name}"
                for name, limit in limits.items()
            ]
            verb = "deletes" if len(limits) == 1 else "delete"
            click.echo(
                f"topic {topic.name} has records that {settings} {verb}: it keeps them until"
                f" `{program()} topics config {topic.name} {' '.join(back)}`",
                err=True,
            )


def _set_bounds(
    admin: AdminClient,
    access: BrokerAccess,
    topics: Sequence[BackedUpTopic],
) -> None:
    """Give partitions the ends that they had, unless an earlier try did, then their beginnings."""
    begins = []
    partitions = {topic.name: range(topic.partitions) for topic in topics}
    ends = offsets_of(admin, partitions, LATEST)
    with_leaders = LeaderConnections(access)
    try:
        for topic in topics:
            for number, (start, end) in enumerate(topic.offsets):
                if end > ends[topic.name, number]:
                    with_leaders.produce(topic.name, number, empty_batch(end - 1), end - 1)
                if start:
                    begins.append(KafkaPosition(topic.name, number, start))
    finally:
        with_leaders.close()
    if begins:
        for future in admin.delete_records(begins, request_timeout=_TIMEOUT_S).values():
            future.result()


def _commit(admin: AdminClient, backup: Backup, topics: set[str]) -> list[str]:
    """Commit the offsets that groups had in topics; return the groups that took them.

    An offset is at most the end of its partition, but not if ``write_once`` has its number of a
    batch there.
    """
    ends = {
        (topic.name, number): end
        for topic in backup.topics
        if topic.name in topics
        for number, (_, end) in enumerate(topic.offsets)
    }
    done = []
    for group, of_group in backup.groups.items():
        wanted = [
            KafkaPosition(
                *partition,
                at.offset if group.endswith(BATCHES) else min(at.offset, ends[partition]),
                at.metadata,
            )
            for partition, at in of_group.items()
            if partition in ends
        ]
        if not wanted:
            continue
        asked = [ConsumerGroupTopicPartitions(group, wanted)]
        answer = admin.alter_consumer_group_offsets(asked, request_timeout=_TIMEOUT_S)[group]
        try:
            refused = [row.error for row in answer.result().topic_partitions if row.error]
        except KafkaException as error:
            refused = [error.args[0]]
        if refused:
            told = f"the offsets of group {group} are not restored: {refused[0].str()}"
            click.echo(f"{told} (has it members?)", err=True)
        else:
            done.append(group)
    return done


def _kept(
    topics: Sequence[BackedUpTopic],
    of_brokers: Mapping[str, int],
    written: Mapping[tuple[str, int], WrittenPartition],
) -> dict[str, dict[str, int]]:
    """Return the topics with records that retention would delete at once, each with its limits."""
    now_ms, kept = round(time.time() * 1000), dict[str, dict[str, int]]()
    for topic in topics:
        parts = [part for (name, _), part in written.items() if name == topic.name]
        reached = (
            max((now_ms - part.oldest_ms for part in parts), default=0),
            max((part.bytes for part in parts), default=0),
        )
        limits = {
            name: limit
            for name, most in zip(_RETENTION, reached, strict=True)
            if 0 <= (limit := int(topic.configs.get(name, of_brokers[name]))) < most
        }
        if limits and "delete" in topic.configs.get("cleanup.policy", "delete"):
            kept[topic.name] = limits
    return kept


def configure(
    admin: AdminClient, topics: Sequence[BackedUpTopic], kept: Mapping[str, Collection[str]]
) -> None:
    """Give topics the settings that they had, but not those in ``kept``, and mark them as written.

    Each topic gets its own at once.
    """
    changes = {
        topic.name: {
            name: topic.configs.get(name)
            for name in _MEANWHILE
            if name not in kept.get(topic.name, ())
        }
        | {KEEPS_OFFSETS: _WRITTEN}
        for topic in topics
    }
    _alter(admin, changes)


def _release(admin: AdminClient, topics: Sequence[BackedUpTopic]) -> None:
    """Take the marks away: all topics are written."""
    _alter(admin, {topic.name: {KEEPS_OFFSETS: None} for topic in topics})


def _alter(admin: AdminClient, topics: Mapping[str, Mapping[str, str | None]]) -> None:
    """Change settings of topics; None deletes one. Raises ``KafkaException``."""
    resources = []
    for topic, changes in topics.items():
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resources.append(ConfigResource(_TOPIC, topic, incremental_configs=entries))
    if resources:
        altered = admin.incremental_alter_configs(resources, request_timeout=_TIMEOUT_S)
        for future in altered.values():
            future.result()


# --- the records: on executors --------------------------------------------------------------------


class WrittenPartition(NamedTuple):
    """What was written of a partition.

    ``oldest_ms`` is the earliest of the newest times of its batches: retention deletes what is
    older than a time only with all around it. ``bytes`` is the size of its batches.
    """

    records: int
    oldest_ms: int
    bytes: int


def _write(
    session: SparkSession,
    access: BrokerAccess,
    source: str,
    topics: Sequence[BackedUpTopic],
    codec: int,
) -> dict[tuple[str, int], WrittenPartition]:
    """Write the records of topics; return what was written, by topic and partition."""
    if not any(topic.record_bound for topic in topics):
        return {}
    table = session.read.schema(f"{COLUMNS}, topic string").parquet(
        path_to_read(inside(source, RECORDS))
    )
    named = session.createDataFrame([(topic.name,) for topic in topics], "topic string")
    tasks = min(sum(topic.partitions for topic in topics), _MOST_TASKS)
    rows = (
        table.join(named, "topic", "left_semi")
        .repartition(tasks, "topic", "partition")
        .sortWithinPartitions(*_PLACE)
        .select(*_ROW)
    )
    done = mapped(rows, partial(write_rows, access, codec), _DONE)
    return {
        (r.topic, r.partition): WrittenPartition(r.records, r.oldest_ms, r.bytes)
        for r in done.collect()
    }


def write_rows(access: BrokerAccess, codec: int, batches: Batches) -> Batches:
    """Write rows, sorted by topic, partition and offset; yield a row for each partition."""
    leaders = LeaderConnections(access)
    try:
        done = []
        for (topic, number), rows in groupby(_rows(batches), key=itemgetter(0)):
            count, oldest_ms, size = 0, LONG_MAX, 0
            for batch in restored_batches(map(itemgetter(1), rows), codec, _BATCH_BYTES):
                header = read_header(batch)
                leaders.produce(topic, number, batch, header.base_offset)
                count += header.record_count
                oldest_ms, size = min(oldest_ms, header.max_timestamp), size + len(batch)
            done.append((topic, number, count, oldest_ms, size))
        columns = [list(column) for column in zip(*done, strict=True)] or [[]] * len(_DONE_SCHEMA)
        yield pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, _DONE_SCHEMA, strict=True)],
            schema=_DONE_SCHEMA,
        )
    finally:
        leaders.close()


def _rows(batches: Batches) -> Iterator[tuple[tuple[str, int], RestoredRecord]]:
    for batch in batches:
        times = batch.column("timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        columns = [batch.column(n) if n != "timestamp" else times for n in _ROW]
        for topic, number, offset, time_us, exact_ms, key, value, headers in zip(
            *(column.to_pylist() for column in columns), strict=True
        ):
            pairs = [(h["key"].encode(), h["value"]) for h in headers or ()]
            time_ms = time_us // 1000 if exact_ms is None else exact_ms
            yield (topic, number), RestoredRecord(offset, time_ms, key, value, pairs)


main: Final = partial(run_job, _command, "restore")
"""Runs the command: see ``run_job``."""

if __name__ == "__main__":
    sys.exit(main())
