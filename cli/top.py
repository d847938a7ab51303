"""``top``: brokers, traffic, the lag of groups and the last changes, again and again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple

import click

from regent.cli.groups_list import GroupLag, GroupLags, furthest_first
from regent.cli.output import (
    Output,
    examples,
    output_option,
    print_facts,
    print_json,
    print_table,
    quoted,
)
from regent.cli.watching import watched
from regent.client.broker_answers import ask_brokers
from regent.client.cluster_connection import Cluster, as_named, bootstrap_option, pass_cluster
from regent.client.journals import Journals
from regent.client.overview import Overview, read_overview
from regent.client.wording import moment_text
from regent.console.failovers import Failover, Fields, find_failovers, new_lines
from regent.core.errors import RegentError
from regent.core.model import BrokerId
from regent.core.protocol.broker import Traffic
from regent.core.quantities import bytes_text

_SAMPLE_S: Final = 1.0
_GROUPS: Final = 10
_GROUP_TIMEOUT_MS: Final = 2_000
_BROKERS: Final = (
    *("broker", "leads", "replicas", "records/s in", "in/s", "out/s", "log bytes", "free"),
    *("answer p99", "fetch p99", "isr shrinks", "catching up"),
)
_FAILOVERS: Final = 5
_EVENTS: Final = 50_000  # of the journals, the last
_JOURNAL_BYTES: Final = 1024 * 1024  # of the end of each
_FAILOVER_COLUMNS: Final = ("failover", "what", "clients knew after")
_GROUP_COLUMNS: Final = ("group", "state", "lag", "read per s", "time to clear")


class Rates(NamedTuple):
    """What clients write to a broker and read from it in a second; None: unknown."""

    messages_in: float | None = None
    bytes_in: float | None = None
    bytes_out: float | None = None


class TopScreen(NamedTuple):
    """What is shown at one moment. ``controller``: id and epoch, None without one.

    ``failovers`` are the last ones, the newest first, as journals tell them.
    """

    controller: tuple[BrokerId, int] | None
    overview: Overview
    rates: Mapping[BrokerId, Rates]
    groups: list[GroupLag]
    failovers: Sequence[Failover]

    def json(self) -> dict[str, object]:
        """Return what programs get."""
        described = self.overview.described
        return {
            "controller": self.controller and self.controller[0],
            "controller_epoch": self.controller and self.controller[1],
            "departed": [] if described is None else [row._asdict() for row in described.departed],
            "brokers": [
                {"id": broker_id, **row.facts(), **self.rates.get(broker_id, Rates())._asdict()}
                for broker_id, row in self.overview.brokers.items()
            ],
            "groups": [row.as_json() for row in self.groups],
            "failovers": [
                {
                    "at_ms": round(row.began_ms),
                    "what": row.what,
                    "broker_ids": row.broker_ids,
                    "controller_id": row.controller_id,
                    "clients_knew_after_ms": round(row.duration_ms) if row.is_known else None,
                }
                for row in self.failovers
            ],
        }


class LastFailovers:
    """Follows the journals: those on this machine, else those that brokers read for us."""

    def __init__(self, cluster: Cluster) -> None:
        folder = cluster.data_dir
        far = cluster if folder is None else None
        self.journals = Journals(far, folder, None, 0, lambda _: None, _JOURNAL_BYTES)
        self._cluster = cluster
        self._events: deque[Fields] = deque(maxlen=_EVENTS)
        self._found: Sequence[Failover] = ()

    def look(self) -> Sequence[Failover]:
        """Return the last ones; none if no journal can be read."""
        with suppress(RegentError):
            self.journals.look()
            if new := new_lines(self.journals):
                self._events.extend(new)
                file = self._cluster.file
                deaths = {
                    entry.id: (entry.ended_ms,)
                    for entry in (() if file is None else file.brokers.values())
                    if entry.ended
                }
                self._found = find_failovers(self._events, deaths)[:_FAILOVERS]
        return self._found


class Top:
    """Looks at a cluster; rates of brokers are those since the look before."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lags: GroupLags | None = None
        self._failovers = LastFailovers(cluster)
        self._before: tuple[float, Mapping[BrokerId, Traffic]] = (0.0, {})

    def close(self) -> None:
        """Close the connections to brokers whose journals were read."""
        self._failovers.journals.close()

    def prepare(self) -> None:
        """Look once, for the first rates."""
        with self._cluster.admin() as admin:
            live = [r for r in admin.read_brokers().values() if not isinstance(r, RegentError)]
        told = {broker: answer.traffic for broker, answer in ask_brokers(live).items()}
        self._before = time.monotonic(), told
        self._groups()

    def look(self) -> TopScreen:
        """Look again. Raises ``RegentError``."""
        with self._cluster.admin() as admin:
            controller = admin.read_controller()
            overview = read_overview(admin)
        told = {broker: answer.traffic for broker, answer in overview.answers.items()}
        (since_s, before), now_s = self._before, time.monotonic()
        self._before = now_s, told
        rates = {
            broker: Rates(
                *(
                    max(new - old, 0) / (now_s - since_s)
                    for new, old in zip(traffic, before[broker], strict=True)
                )
            )
            for broker, traffic in told.items()
            if broker in before and now_s > since_s
        }
        who = None
        if controller is not None:
            who = controller.broker_id, controller.controller_epoch
        return TopScreen(who, overview, rates, self._groups(), self._failovers.look())

    def _groups(self) -> list[GroupLag]:
        """Return the groups that are furthest behind; none if brokers do not tell."""
        with suppress(RegentError, ImportError):
            from regent.cli.group_admin import GroupAdmin

            admin = GroupAdmin(self._cluster, _GROUP_TIMEOUT_MS)
            self._lags = self._lags or GroupLags(admin)
            rows = self._lags.look(admin.groups())
            return sorted(rows, key=furthest_first)[:_GROUPS]
        return []


@click.command(epilog=examples("top", "top --every 5", "top --once -o json"))
@click.option("--once", is_flag=True, help="Show it once; rates are those of one second.")
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(min=0.5),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@output_option
@bootstrap_option
@pass_cluster
def top(cluster: Cluster, /, once: bool, every_s: float, output: str) -> None:
    """Watch brokers, traffic, the groups that are furthest behind and the last failovers.

    Until Ctrl-C. How long a failover took is from the end of the process, or from when a controller
    noticed it, until every live broker told clients the new leaders; "-": not yet, or not known.

    Rates are those between two looks, of groups those of the last ten seconds. Times are
    milliseconds in the last minute: how long the controller waits for answers of a broker, and its
    slowest leader for its next fetch.
    """
    with closing(Top(as_named(cluster))) as screen:
        screen.prepare()
        time.sleep(_SAMPLE_S)
        watched(lambda: _show(screen.look(), output), None if once else every_s)


def _show(screen: TopScreen, output: str) -> None:
    if output == Output.JSON:
        print_json(screen.json())
        return
    described, active = screen.overview.described, "none"
    if screen.controller is not None:
        active = f"broker {screen.controller[0]} (epoch {screen.controller[1]})"
    left = [] if described is None else sorted(described.departed, key=lambda row: -row.at_ms)
    print_facts(
        [
            ("controller", active),
            ("events queued", described and described.event_queue_size),
            ("partitions", len(screen.overview.partitions)),
            (
                "brokers that left",
                [f"broker {row.broker_id} at {_time(row.at_ms)}" for row in left],
            ),
        ]
    )
    click.echo()
    print_table(_BROKERS, [_cells(screen, broker_id) for broker_id in screen.overview.brokers])
    if screen.groups:
        click.echo()
        print_table(_GROUP_COLUMNS, [_group_cells(row) for row in screen.groups])
    if screen.failovers:
        click.echo()
        print_table(_FAILOVER_COLUMNS, [_failover_cells(row) for row in screen.failovers])


def _failover_cells(row: Failover) -> tuple[object, ...]:
    knew = f"{row.duration_ms:.0f} ms" if row.is_known else None
    return moment_text(round(row.began_ms)), row.what, knew


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%H:%M:%SZ")


def _cells(screen: TopScreen, broker_id: BrokerId) -> list[object]:
    row, rates = screen.overview.brokers[broker_id], screen.rates.get(broker_id, Rates())
    pace = row.pace.facts()
    left = None if row.catching_up is None else row.catching_up.short()
    sizes = (rates.bytes_in, rates.bytes_out, row.log_bytes, row.free_bytes)
    records = None if rates.messages_in is None else f"{rates.messages_in:.0f}"
    shown = [None if size is None else bytes_text(size) for size in sizes]
    times = (pace["answer_p99_ms"], pace["fetch_p99_ms"], pace["isr_shrinks"])
    return [broker_id, row.leads, row.replicas, records, *shown, *times, left]


def _group_cells(row: GroupLag) -> tuple[object, ...]:
    pace = row.pace
    rate = None if pace.read_per_s is None else f"{pace.read_per_s:.0f}"
    return quoted(row.group), row.state, pace.lag, rate, pace.time_to_clear
