"""``groups reset-offsets``: changes what a group reads next, as ``kafka-consumer-groups.sh``."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NamedTuple

import click

from regent.admin.cluster_connection import Cluster, pass_cluster
from regent.admin.wording import counted
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
from regent.config.moments import parse_duration
from regent.core.model import TopicPartition

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
    )
)
@click.argument("name", required=False)
@click.option("--group", metavar="NAME", hidden=True)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:0,1]",
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
    target = _target(**options)
    admin = GroupAdmin(cluster, timeout_ms)
    (described,) = admin.describe([wanted])
    if described.members:
        raise GroupError(
            f"group {wanted} has {counted(len(described.members), 'member')} and is"
            f" {described.state}: stop them first"
        )
    committed = admin.committed([wanted])[wanted]
    partitions = _partitions(admin, committed, **options)
    offsets = _new_offsets(admin, partitions, committed, target)
    if is_execution:
        admin.commit(wanted, offsets)
    if output == Output.JSON:
        rows = [
            {**p._asdict(), "current_offset": committed.get(p), "new_offset": offset}
            for p, offset in offsets.items()
        ]
        print_json({"group": wanted, "executed": is_execution, "partitions": rows})
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


class _Target(NamedTuple):
    """The new place of a group: an offset, a distance, a time, or none of these."""

    to: _To
    number: int = 0


def _target(
    *,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    shift_by: int | None,
    ago_ms: int | None,
    since_ms: int | None,
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
        )
        if number is not None
    ]
    if len(given) != 1:
        names = ", ".join(to.value for to in _To)
        raise click.UsageError(f"{'only ' if given else ''}one of these is needed: {names}")
    return given[0]


def _partitions(
    admin: GroupAdmin,
    committed: Collection[TopicPartition],
    *,
    topics: Sequence[str],
    all_topics: bool,
    **_: object,
) -> list[TopicPartition]:
    """Return the partitions that the options name; all topics are those with committed offsets."""
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
            raise GroupError(f"topic {topic} does not exist")
        wanted = range(counts[topic]) if numbers is None else map(int, numbers.split(","))
        found |= {TopicPartition(topic, number) for number in wanted}
    unknown = sorted(p for p in found if p.partition >= counts[p.topic])
    if unknown:
        raise GroupError(f"partition {unknown[0]} does not exist")
    return sorted(found)


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
        if start is None or end is None:
            raise GroupError(f"partition {partition}: its leader does not tell its offsets")
        match target.to:
            case _To.EARLIEST:
                wanted = start
            case _To.LATEST:
                wanted = end
            case _To.OFFSET:
                wanted = target.number
            case _To.SHIFT:
                if partition not in committed:
                    raise GroupError(f"partition {partition} has no committed offset to shift")
                wanted = committed[partition] + target.number
            case _To.TIME:
                found = of_time[partition]
                wanted = end if found is None or found < 0 else found
        offsets[partition] = min(max(wanted, start), end)
        if offsets[partition] != wanted:
            note(f"partition {partition} has no offset {wanted}: {offsets[partition]} instead")
    return offsets
