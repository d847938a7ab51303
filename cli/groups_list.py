"""``groups list``: the consumer groups of all brokers, and how far behind they are."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Final, NamedTuple

import click

from regent.cli.group_admin import LATEST, GroupAdmin, ListedGroup
from regent.cli.output import (
    Output,
    examples,
    output_option,
    print_json,
    print_table,
    quoted,
)
from regent.cli.waiting import timeout_option
from regent.cli.watching import watch_option, watched
from regent.client.cluster_connection import Cluster, pass_cluster
from regent.core.model import TopicPartition
from regent.core.quantities import span_text

_SAMPLE_S: Final = 1.0
_RATE_S: Final = 10.0  # most consumers commit every five seconds
_PAIR: Final = 2
_WITHOUT_MEMBERS: Final = ("Empty", "Dead")
_COLUMNS: Final = ("group", "state", "lag", "read per s", "written per s", "time to clear")


class _Sample(NamedTuple):
    """The committed offset and the end of partitions of a group, at a monotonic moment."""

    at_s: float
    told: Mapping[TopicPartition, tuple[int, int]]


class GroupLag(NamedTuple):
    """A group, its total lag in records, and its rates in a second; None: unknown."""

    group: str
    state: str
    is_simple: bool
    lag: int | None
    read_per_s: float | None
    written_per_s: float | None

    @property
    def seconds_to_clear(self) -> float | None:
        """How long until it has read everything at these rates; None: never, or unknown."""
        if self.lag is None or self.read_per_s is None or self.written_per_s is None:
            return 0.0 if self.lag == 0 else None
        gained = self.read_per_s - self.written_per_s
        return 0.0 if not self.lag else self.lag / gained if gained > 0 else None


class GroupLags:
    """Looks at the lags of groups; rates are those of the last ten seconds, if it looks so long."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin
        self._samples: dict[str, deque[_Sample]] = {}

    def look(self, found: Sequence[ListedGroup]) -> list[GroupLag]:
        """Return the lag of each group. Raises ``GroupError``."""
        committed = self._admin.committed([row.group for row in found])
        ends = self._admin.offsets({p for rows in committed.values() for p in rows}, LATEST)
        now_s, rows = monotonic(), []
        for row in found:
            offsets = committed[row.group]
            told = {p: (o, end) for p, o in offsets.items() if (end := ends[p]) is not None}
            is_whole = told and len(told) == len(offsets)
            lag = sum(max(end - o, 0) for o, end in told.values()) if is_whole else None
            samples = self._samples.setdefault(row.group, deque())
            samples.append(_Sample(now_s, told))
            while len(samples) > _PAIR and samples[1].at_s <= now_s - _RATE_S:
                samples.popleft()
            rates = _rates(samples[0], samples[-1], row.state)
            rows.append(GroupLag(*row, lag, *rates))
        return rows


def _rates(before: _Sample, now: _Sample, state: str) -> tuple[float | None, float | None]:
    """Return rates in a second. Without a commit that of members is unknown for ten seconds."""
    seconds = now.at_s - before.at_s
    if seconds <= 0 or now.told.keys() != before.told.keys():
        return None, None
    read, written = (
        sum(pair[i] for pair in now.told.values()) - sum(pair[i] for pair in before.told.values())
        for i in (0, 1)
    )
    is_early = read == 0 and seconds < _RATE_S and state not in _WITHOUT_MEMBERS
    return None if is_early else max(read, 0) / seconds, max(written, 0) / seconds


def furthest_first(row: GroupLag) -> tuple[bool, int, str]:
    """Return what sorts a group; one of unknown lag may be the furthest behind."""
    return row.lag is not None, -(row.lag or 0), row.group


@click.command("list", epilog=examples("groups list --sort lag", "groups list --lag --watch 5"))
@click.option("--state", "with_state", is_flag=True, help="Print states, too.")
@click.option("--lag", "with_lag", is_flag=True, help="Print total lags and rates, from two looks.")
@click.option(
    "--sort",
    type=click.Choice(["name", "lag"]),
    default="name",
    show_default=True,
    help="lag: the group that is furthest behind is first, after those of unknown lag; with --lag.",
)
@watch_option
@timeout_option("Time for the answers of the brokers.")
@output_option
@pass_cluster
def list_groups(
    cluster: Cluster,
    /,
    with_state: bool,
    with_lag: bool,
    sort: str,
    watch_s: float | None,
    timeout_ms: int,
    output: str,
) -> None:
    """List the consumer groups of all brokers; JSON always has their states.

    An empty name, and one that would be misread on its line, is printed as a JSON string.

    The lag of a group is the number of records that its partitions have after its committed
    positions; it is unknown while a leader does not tell where its partition ends. The rates are
    those of two looks, one second apart; with --watch those of the last ten seconds. Most members
    commit every five seconds: before a commit their rate is unknown.
    """
    admin = GroupAdmin(cluster, timeout_ms)
    if not (with_lag or sort == "lag" or output == Output.WIDE):
        watched(lambda: _print(admin.groups(), output, with_state=with_state), watch_s)
        return
    lags = GroupLags(admin)
    lags.look(admin.groups())
    if watch_s is None:
        sleep(_SAMPLE_S)

    def show() -> None:
        rows = lags.look(admin.groups())
        if sort == "lag":
            rows.sort(key=furthest_first)
        _print_lags(rows, output)

    watched(show, watch_s)


def _print(found: Sequence[ListedGroup], output: str, *, with_state: bool) -> None:
    if output == Output.JSON:
        print_json([row._asdict() for row in found])
    elif with_state:
        print_table(("group", "state"), [(quoted(row.group), row.state) for row in found])
    else:
        for row in found:
            click.echo(quoted(row.group))


def _print_lags(rows: Sequence[GroupLag], output: str) -> None:
    if output == Output.JSON:
        print_json([{**row._asdict(), "seconds_to_clear": row.seconds_to_clear} for row in rows])
        return
    print_table(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: GroupLag) -> tuple[object, ...]:
    rates = [
        None if rate is None else f"{rate:.0f}" for rate in (row.read_per_s, row.written_per_s)
    ]
    return (quoted(row.group), row.state, row.lag, *rates, time_to_clear(row))


def time_to_clear(row: GroupLag) -> str | None:
    """Return when a group has read everything, in words; None: unknown."""
    seconds = row.seconds_to_clear
    if seconds is None:
        return None if row.lag is None or row.read_per_s is None else "never at this rate"
    return "now" if not row.lag else span_text(max(seconds, 1.0))
