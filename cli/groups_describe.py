"""``groups describe``: offsets, members or states, in the form of ``kafka-consumer-groups.sh``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import click

from regent.cli.group_admin import (
    LATEST,
    Group,
    GroupAdmin,
    GroupMember,
    UnknownGroupError,
    refuse_empty_groups,
)
from regent.cli.output import Output, examples, note, output_option, print_json, print_table, quoted
from regent.cli.waiting import timeout_option
from regent.cli.watching import complete_groups
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.core.model import TopicPartition

_OFFSET_COLUMNS = (
    *("group", "topic", "partition", "current offset", "log end offset", "lag"),
    *("consumer id", "host", "client id"),
)
_MEMBER_COLUMNS = ("group", "consumer id", "host", "client id", "#partitions", "assignment")
_STATE_COLUMNS = (
    *("group", "coordinator", "coordinator id"),
    *("assignment strategy", "state", "#members"),
)


@click.command(
    epilog=examples(
        "groups describe billing",
        "groups describe --state",
        "groups describe billing --members",
        "groups describe billing -o json",
    )
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_groups)
@click.option(
    "--group",
    "more_names",
    shell_complete=complete_groups,
    metavar="NAME",
    multiple=True,
    hidden=True,
)
@click.option("--members", "of_members", is_flag=True, help="Show members, not offsets.")
@click.option("--state", "of_states", is_flag=True, help="Show states, not offsets.")
@timeout_option("Time for each answer of a broker.")
@output_option
@pass_cluster
def describe(
    cluster: Cluster,
    /,
    names: Sequence[str],
    more_names: Sequence[str],
    of_members: bool,
    of_states: bool,
    timeout_ms: int,
    output: str,
) -> None:
    """Show what groups have read and who reads it; without names, of all groups.

    JSON has offsets, members and states.
    """
    if of_members and of_states:
        raise click.UsageError("only one of --members and --state goes")
    wanted = list(dict.fromkeys((*names, *more_names)))
    refuse_empty_groups(*wanted)
    admin = GroupAdmin(cluster, timeout_ms)
    found = admin.describe(wanted or [row.group for row in admin.groups()])
    groups = [group for group in found if group.exists]
    unknown = [f"group {quoted(group.group)} does not exist" for group in found if not group.exists]
    if groups or not unknown:
        _print(admin, groups, output, of_members=of_members, of_states=of_states)
    if unknown and wanted:  # one that was listed may be gone by now
        raise UnknownGroupError("\n".join(unknown))


def _print(
    admin: GroupAdmin, groups: Sequence[Group], output: str, *, of_members: bool, of_states: bool
) -> None:
    if output == Output.JSON:
        print_json([_json(group, rows) for group, rows in _offsets(admin, groups)])
    elif of_states:
        print_table(_STATE_COLUMNS, map(_state_row, groups))
    elif of_members:
        print_table(_MEMBER_COLUMNS, [_member_row(g, m) for g in groups for m in g.members])
    else:
        offsets = [_offset_row(g, row) for g, rows in _offsets(admin, groups) for row in rows]
        print_table(_OFFSET_COLUMNS, offsets)
        _note_states(groups)


class _Offset(NamedTuple):
    """A partition that a group has read or that a member is to read; a member may have none."""

    topic_partition: TopicPartition | None
    current_offset: int | None
    log_end_offset: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        """How many offsets are not committed yet."""
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return max(self.log_end_offset - self.current_offset, 0)


def _offsets(
    admin: GroupAdmin, groups: Sequence[Group]
) -> Iterator[tuple[Group, Sequence[_Offset]]]:
    """Yield groups and their partitions, by name."""
    committed = admin.committed([group.group for group in groups])
    partitions = {partition for offsets in committed.values() for partition in offsets}
    partitions |= {p for group in groups for member in group.members for p in member.partitions}
    ends = admin.offsets(partitions, LATEST)
    for group in groups:
        yield group, _offsets_of(group, committed[group.group], ends)


def _offsets_of(
    group: Group,
    committed: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int | None],
) -> list[_Offset]:
    readers = {p: member for member in group.members for p in member.partitions}
    rows = [
        _Offset(p, committed.get(p), ends.get(p), readers.get(p))
        for p in sorted({*committed, *readers})
    ]
    idle = [_Offset(None, None, None, m) for m in group.members if not m.partitions]
    return rows + idle


def _note_states(groups: Sequence[Group]) -> None:
    for group in groups:
        if not group.members:
            note(f"Consumer group {_in_quotes(group)} has no active members.")
        elif group.state.endswith("Rebalance"):
            note(f"Consumer group {_in_quotes(group)} is rebalancing.")


def _in_quotes(group: Group) -> str:
    shown = quoted(group.group)
    return shown if shown.startswith('"') else f"'{shown}'"


def _offset_row(group: Group, row: _Offset) -> tuple[object, ...]:
    topic, partition = row.topic_partition or (None, None)
    member = row.member
    reader = (None,) * 3 if member is None else _reader(member)
    offsets = (row.current_offset, row.log_end_offset, row.lag)
    return (quoted(group.group), topic, partition, *offsets, *reader)


def _reader(member: GroupMember) -> tuple[str, str, str]:
    return quoted(member.member_id), quoted(member.host), quoted(member.client_id)


def _member_row(group: Group, member: GroupMember) -> tuple[object, ...]:
    assignment = [
        f"{topic}({','.join(str(p.partition) for p in partitions)})"
        for topic, partitions in groupby(member.partitions, key=lambda p: p.topic)
    ]
    return (quoted(group.group), *_reader(member), len(member.partitions), assignment)


def _state_row(group: Group) -> tuple[object, ...]:
    coordinator = (group.coordinator, group.coordinator_id)
    strategy = quoted(group.partition_assignor) if group.partition_assignor else None
    return (quoted(group.group), *coordinator, strategy, group.state, len(group.members))


def _json(group: Group, offsets: Sequence[_Offset]) -> dict[str, object]:
    return {
        **group._asdict(),
        "members": [
            {**member._asdict(), "partitions": [p._asdict() for p in member.partitions]}
            for member in group.members
        ],
        "partitions": [
            {
                **row.topic_partition._asdict(),
                "current_offset": row.current_offset,
                "log_end_offset": row.log_end_offset,
                "lag": row.lag,
                "member_id": row.member and row.member.member_id,
            }
            for row in offsets
            if row.topic_partition is not None
        ],
    }
