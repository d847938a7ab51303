"""``groups list``: the consumer groups of all brokers, and how far behind they are."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
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
from regent.client.lag_rates import LagPace, LagPaces

_SAMPLE_S: Final = 1.0
_COLUMNS: Final = ("group", "state", "lag", "read per s", "written per s", "time to clear")


class GroupLag(NamedTuple):
    """A group, its total lag and its rates."""

    group: str
    state: str
    is_simple: bool
    pace: LagPace

    def as_json(self) -> dict[str, object]:
        """Return its JSON object for ``-o json``."""
        return {
            **ListedGroup(self.group, self.state, self.is_simple)._asdict(),
            **self.pace._asdict(),
            "seconds_to_clear": self.pace.seconds_to_clear,
        }


class GroupLags:
    """Looks at the lags of groups."""

    def __init__(self, admin: GroupAdmin) -> None:
        self._admin = admin
        self._paces = LagPaces()

    def look(self, found: Sequence[ListedGroup]) -> list[GroupLag]:
        """Return the lag of each group. Raises ``GroupError``."""
        committed = self._admin.committed([row.group for row in found])
        ends = self._admin.offsets({p for rows in committed.values() for p in rows}, LATEST)
        rows = []
        for row in found:
            offsets = committed[row.group]
            told = {p: (o, end) for p, o in offsets.items() if (end := ends[p]) is not None}
            is_whole = bool(told) and len(told) == len(offsets)
            pace = self._paces.look(row.group, told, is_whole=is_whole, state=row.state)
            rows.append(GroupLag(*row, pace))
        return rows


def furthest_first(row: GroupLag) -> tuple[bool, int, str]:
    """Return what sorts a group; one of unknown lag may be the furthest behind."""
    return row.pace.lag is not None, -(row.pace.lag or 0), row.group


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
        print_json([row.as_json() for row in rows])
        return
    print_table(_COLUMNS, [_cells(row) for row in rows])


def _cells(row: GroupLag) -> tuple[object, ...]:
    pace = row.pace
    rates = [
        None if rate is None else f"{rate:.0f}" for rate in (pace.read_per_s, pace.written_per_s)
    ]
    return (quoted(row.group), row.state, pace.lag, *rates, pace.time_to_clear)
