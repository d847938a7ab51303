"""``groups list``: the consumer groups of all brokers, and how far behind they are."""

from __future__ import annotations

from collections.abc import Sequence
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
from regent.core.quantities import span_text

_SAMPLE_S: Final = 1.0
_COLUMNS: Final = ("group", "state", "lag", "read per s", "written per s", "time to clear")


class _Sample(NamedTuple):
    """Positions of a group at a monotonic moment: sums over its partitions."""

    at_s: float
    read: int
    written: int
    lag: int | None


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
            return None
        gained = self.read_per_s - self.written_per_s
        return 0.0 if not self.lag else self.lag / gained if gained > 0 else None


class GroupLags:
    """Looks at the lags of groups; rates are those since the look before."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin
        self._before: dict[str, _Sample] = {}

    def look(self, found: Sequence[ListedGroup]) -> list[GroupLag]:
        """Return the lag of each group. Raises ``GroupError``."""
        committed = self._admin.committed([row.group for row in found])
        ends = self._admin.offsets({p for rows in committed.values() for p in rows}, LATEST)
        now_s, rows = monotonic(), []
        for row in found:
            known = {p: (o, ends[p]) for p, o in committed[row.group].items() if p in ends}
            told = [(offset, end) for offset, end in known.values() if end is not None]
            lag = sum(max(end - offset, 0) for offset, end in told) if told else None
            read, written = (sum(column) for column in zip(*told, strict=True)) if told else (0, 0)
            sample, before = _Sample(now_s, read, written, lag), self._before.get(row.group)
            rates = _rates(before, sample)
            self._before[row.group] = sample
            rows.append(GroupLag(*row, lag, *rates))
        return rows


def _rates(before: _Sample | None, now: _Sample) -> tuple[float | None, float | None]:
    if before is None or now.at_s <= before.at_s:
        return None, None
    seconds = now.at_s - before.at_s
    read, written = now.read - before.read, now.written - before.written
    return max(read, 0) / seconds, max(written, 0) / seconds


@click.command("list", epilog=examples("groups list --sort lag", "groups list --lag --watch 5"))
@click.option("--state", "with_state", is_flag=True, help="Print states, too.")
@click.option("--lag", "with_lag", is_flag=True, help="Print total lags and rates, from two looks.")
@click.option(
    "--sort",
    type=click.Choice(["name", "lag"]),
    default="name",
    show_default=True,
    help="lag: the group that is furthest behind is first; with --lag.",
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
    positions. The rates are those between two looks, one second apart, or as far as --watch says:
    a group that commits every five seconds needs --watch 10.
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
            rows.sort(key=lambda row: (-(row.lag or 0), row.group))
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
    if row.lag is None or row.read_per_s is None:
        return None
    seconds = row.seconds_to_clear
    if seconds is None:
        return "never at this rate"
    return "now" if not row.lag else span_text(max(seconds, 1.0))
