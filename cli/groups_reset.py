"""``groups reset-offsets``: changes what a group reads next, as ``kafka-consumer-groups.sh``."""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, BinaryIO, NamedTuple

import click

from regent.cli.group_admin import (
    EARLIEST,
    LATEST,
    GroupAdmin,
    GroupError,
    PartitionOffsets,
    at_time,
    refuse_empty_groups,
)
from regent.cli.output import Output, examples, note, output_option, print_json, print_table
from regent.cli.waiting import timeout_option
from regent.cli.watching import complete_groups, complete_topics
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.client.wording import counted
from regent.config.moments import parse_duration
from regent.core.model import TopicPartition

_NUMBER = re.compile(r"[0-9]{1,19}")
_TOPIC = re.compile(r"([^:]+)(?::(\d{1,9}(?:,\d{1,9})*))?")


def _milliseconds(_context: object, _option: object, text: str | None) -> int | None:
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _moment(_context: object, _option: object, text: str | None) -> int | None:
    """Return milliseconds since 1970 of a time in UTC, unless it names another zone, as Kafka."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not a time such as 2026-01-31T23:59:00") from None


@click.command(
    epilog=examples(
        "groups reset-offsets billing --topic payments --to-earliest",
        "groups reset-offsets billing --topic payments:0,1 --shift-by -10 --execute",
        "groups reset-offsets billing --all-topics --by-duration PT1H --execute",
        "groups reset-offsets billing --all-topics --to-current --export > offsets.csv",
        "groups reset-offsets billing --from-file offsets.csv --execute",
    )
)
@click.argument("name", required=False, shell_complete=complete_groups)
@click.option("--group", metavar="NAME", shell_complete=complete_groups, hidden=True)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:0,1]",
    shell_complete=complete_topics,
    multiple=True,
    help="A topic, or some of its partitions; the option can be repeated.",
)
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first offset of each partition.")
@click.option("--to-latest", is_flag=True, help="To the end of each partition.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset.")
@click.option("--shift-by", type=int, metavar="N", help="Forward by N offsets; -N: back.")
@click.option(
    "--by-duration",
    "ago_ms",
    metavar="PT1H",
    callback=_milliseconds,
    help="To the records of this time ago: P1D, PT1H30M, or 10m.",
)
@click.option(
    "--to-datetime",
    "since_ms",
    metavar="TIME",
    callback=_moment,
    help="To the records of this time, 2026-01-31T23:59:00, in UTC if it names no zone.",
)
@click.option(
    "--to-current", is_flag=True, help="To the committed offsets, as --export shows them."
)
@click.option(
    "--from-file",
    "plan",
    type=click.File("rb"),
    metavar="FILE",
    help="To the offsets in a CSV file with the lines TOPIC,PARTITION,OFFSET.",
)
@click.option("--export", is_flag=True, help="Print the new offsets as lines for --from-file.")
@click.option("--execute", is_flag=True, help="Do it; without this, only show what it would do.")
@click.option("--dry-run", is_flag=True, hidden=True)
@timeout_option("Time for each answer of a broker.")
@output_option
@pass_cluster
def reset_offsets(
    cluster: Cluster,
    /,
    name: str | None,
    group: str | None,
    timeout_ms: int,
    output: str,
    **options: Any,
) -> None:
    """Change the committed offsets of a group that has no members.

    A group that does not exist begins with these offsets.
    """
    wanted = _group_name(name, group)
    is_execution: bool = options["execute"]
    if is_execution and options["dry_run"]:
        raise click.UsageError("--execute and --dry-run do not go together")
    target = _target(wanted, **options)
    if options["export"] and output == Output.JSON:
        raise click.UsageError("--export prints CSV: leave -o json out")
    admin = GroupAdmin(cluster, timeout_ms)
    (described,) = admin.describe([wanted])
    if described.members:
        raise GroupError(
            f"group {wanted} has {counted(len(described.members), 'member')} and is"
            f" {described.state}: stop them first"
        )
    committed = admin.committed([wanted])[wanted]
    partitions = _partitions(admin, committed, target, **options)
    offsets = _new_offsets(admin, partitions, committed, target)
    if is_execution:
        admin.commit(wanted, offsets)
    if output == Output.JSON:
        rows = [
            {**p._asdict(), "current_offset": committed.get(p), "new_offset": offset}
            for p, offset in offsets.items()
        ]
        print_json({"group": wanted, "executed": is_execution, "partitions": rows})
    elif options["export"]:
        print_offsets(offsets)
    else:
        columns = ("group", "topic", "partition", "new offset")
        print_table(columns, [(wanted, *p, offset) for p, offset in offsets.items()])
    if not is_execution:
        note("nothing was changed: add --execute")


def _group_name(name: str | None, group: str | None) -> str:
    wanted = group if name is None else name
    if wanted is None:
        raise click.UsageError("which group? Give a name")
    if name is not None and group is not None:
        raise click.UsageError("the group is named twice")
    refuse_empty_groups(wanted)
    return wanted


class _To(Enum):
    """What new offsets are computed from."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    TIME = "--by-duration or --to-datetime"
    CURRENT = "--to-current"
    FILE = "--from-file"


class _Target(NamedTuple):
    """The new place of a group: an offset, a distance, a time, a file's offsets, or none."""

    to: _To
    number: int = 0
    planned: Mapping[TopicPartition, int] = {}


def _target(
    group: str,
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    ago_ms: int | None,
    since_ms: int | None,
    to_current: bool,
    plan: BinaryIO | None,
    **_: object,
) -> _Target:
    ago = None if ago_ms is None else time.time_ns() // 1_000_000 - ago_ms
    given = [
        _Target(to, number)
        for to, number in (
            (_To.EARLIEST, 0 if to_earliest else None),
            (_To.LATEST, 0 if to_latest else None),
            (_To.OFFSET, to_offset),
            (_To.SHIFT, shift_by),
            (_To.TIME, ago),
            (_To.TIME, since_ms),
            (_To.CURRENT, 0 if to_current else None),
            (_To.FILE, None if plan is None else 0),
        )
        if number is not None
    ]
    if len(given) != 1:
        names = ", ".join(to.value for to in _To)
        raise click.UsageError(f"{'only ' if given else ''}one of these is needed: {names}")
    if plan is not None:
        return _Target(_To.FILE, planned=read_offsets_file(plan, group))
    return given[0]


def _partitions(
    admin: GroupAdmin,
    committed: Collection[TopicPartition],
    target: _Target,
    *,
    topics: Sequence[str],
    all_topics: bool,
    **_: object,
) -> list[TopicPartition]:
    """Return the partitions that the options name; all topics are those with committed offsets."""
    if target.to is _To.FILE:
        if topics or all_topics:
            raise click.UsageError("--from-file names the partitions: leave --topic out")
        _check_exist(target.planned, admin.partition_counts())
        return sorted(target.planned)
    if all_topics is bool(topics):
        raise click.UsageError("either --topic or --all-topics is needed")
    if all_topics:
        if not committed:
            raise GroupError("the group has no committed offsets: name topics with --topic")
        return sorted(committed)
    counts = admin.partition_counts()
    found: set[TopicPartition] = set()
    for text in topics:
        parts = _TOPIC.fullmatch(text)
        if parts is None:
            raise click.UsageError(f"--topic {text!r} is not NAME or NAME:0,1")
        topic, numbers = parts.groups()
        if topic not in counts:
            raise GroupError(f"there is no topic {topic}, or you may not see it")
        wanted = range(counts[topic]) if numbers is None else map(int, numbers.split(","))
        found |= {TopicPartition(topic, number) for number in wanted}
    _check_exist(found, counts)
    return sorted(found)


def _check_exist(partitions: Collection[TopicPartition], counts: Mapping[str, int]) -> None:
    for partition in sorted(partitions):
        if partition.topic not in counts:
            raise GroupError(f"there is no topic {partition.topic}, or you may not see it")
        if partition.partition >= counts[partition.topic]:
            raise GroupError(f"partition {partition} does not exist")


def print_offsets(offsets: Mapping[TopicPartition, int]) -> None:
    """Print a file for ``read_offsets_file``."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    lines.writerows((*partition, offset) for partition, offset in offsets.items())


def read_offsets_file(file: BinaryIO, group: str) -> dict[TopicPartition, int]:
    """Return the new offsets in a file of ``--export``, from here or from Kafka's tool.

    A line has TOPIC,PARTITION,OFFSET, or begins with a group, as where Kafka's tool is asked about
    several groups; lines of other groups are left out. Raises ``GroupError``.
    """
    source = getattr(file, "name", "the file")
    offsets: dict[TopicPartition, int] = {}
    others = 0
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        rows = list(csv.reader(text, strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise GroupError(f"{source} is not CSV: {error}") from None
    finally:
        text.detach()
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        named, numbers = row[-3:-2], [column.strip() for column in row[-2:]]
        if len(row) not in (3, 4) or not all(map(_NUMBER.fullmatch, numbers)):
            raise GroupError(
                f"{source}: line {number} must be TOPIC,PARTITION,OFFSET or"
                f" GROUP,TOPIC,PARTITION,OFFSET, not {','.join(row)[:100]!r}"
            )
        if len(row) == 4 and row[0] != group:
            others += 1
            continue
        partition = TopicPartition(named[0], int(numbers[0]))
        if partition in offsets:
            raise GroupError(f"{source}: line {number} names partition {partition} again")
        offsets[partition] = int(numbers[1])
    if not offsets:
        raise GroupError(f"{source} has no offsets of group {group}")
    if others:
        note(f"{source}: {counted(others, 'line')} of other groups left out")
    return offsets


def _new_offsets(
    admin: PartitionOffsets,
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
    target: _Target,
) -> dict[TopicPartition, int]:
    """Return the new offset of each partition; those outside of a log become its nearest one."""
    starts, ends = admin.offsets(partitions, EARLIEST), admin.offsets(partitions, LATEST)
    of_time = admin.offsets(partitions, at_time(target.number)) if target.to is _To.TIME else {}
    offsets: dict[TopicPartition, int] = {}
    for partition in partitions:
        start, end = starts[partition], ends[partition]
        if start is None or end is None or of_time.get(partition, 0) is None:
            raise GroupError(f"partition {partition}: its leader does not tell its offsets")
        wanted = _wanted(target, partition, range(start, end), committed.get(partition), of_time)
        offsets[partition] = min(max(wanted, start), end)
        if offsets[partition] != wanted:
            note(f"partition {partition} has no offset {wanted}: {offsets[partition]} instead")
    return offsets


def _wanted(
    target: _Target,
    topic_partition: TopicPartition,
    log: range,
    committed: int | None,
    of_time: Mapping[TopicPartition, int | None],
) -> int:
    """Return the offset that the target means; a partition without an offset gets the end."""
    match target.to:
        case _To.EARLIEST:
            return log.start
        case _To.LATEST:
            return log.stop
        case _To.OFFSET:
            return target.number
        case _To.FILE:
            return target.planned[topic_partition]
        case _To.SHIFT:
            if committed is None:
                raise GroupError(f"partition {topic_partition} has no committed offset to shift")
            return committed + target.number
        case _To.CURRENT:
            return log.stop if committed is None else committed
        case _To.TIME:
            found = of_time[topic_partition]
            return log.stop if found is None or found < 0 else found
