"""A cluster as the console's pages show it: values, and pure functions of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from regent.client.health import Troubles
from regent.client.missing_brokers import MissingBroker
from regent.client.partitions import DescribedPartition
from regent.client.wording import counted, listed
from regent.cluster.supervisor_socket import start_command
from regent.config.command_line import program
from regent.console.failovers import ANSWERS, Deaths, Failover, Fields, find_failovers
from regent.core.model import NO_CONTROLLER, BrokerId, TopicPartition
from regent.core.protocol.controller import UnansweredRequest

WINDOW_MS: Final = 60_000
"""How much of the past the lanes of brokers show."""

SHOWN_FAILOVERS: Final = 10
_NAMED: Final = 5


class ClusterVerdict(NamedTuple):
    """One sentence about the cluster, and the command that mends it; empty: there is none.

    ``level``: ``ok``, ``warning`` or ``problem``.
    """

    level: str
    sentence: str
    remedy: str = ""


class Span(NamedTuple):
    """A part of a lane, in milliseconds of the wall clock; ``until_ms`` None: it lasts."""

    from_ms: float
    until_ms: float | None


class Tick(NamedTuple):
    """A control request that a broker answered ``at_ms``, ``took_ms`` after it was first sent."""

    at_ms: float
    took_ms: float
    event: str


@dataclass(frozen=True, slots=True)
class Lane:
    """The last minute of one broker. ``process``: what is known of it on this machine."""

    broker_id: BrokerId
    is_registered: bool
    is_controller: bool
    address: str
    process: str
    gaps: tuple[Span, ...] = ()
    crowns: tuple[Span, ...] = ()
    ticks: tuple[Tick, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """All partitions, sorted, as ZooKeeper had them ``at_ms``; ``unreadable``: reasons.

    ``assigned``: the brokers that have replicas.
    """

    partitions: tuple[DescribedPartition, ...] = ()
    unreadable: tuple[str, ...] = ()
    at_ms: float = 0.0
    by_topic: Mapping[str, Sequence[DescribedPartition]] = field(default_factory=dict)
    leaderless: tuple[TopicPartition, ...] = ()
    behind: tuple[TopicPartition, ...] = ()
    assigned: frozenset[BrokerId] = frozenset()

    def has_same(self, other: PartitionTable) -> bool:
        """Whether another table has the same content, read at another time."""
        mine, theirs = (self.partitions, self.leaderless), (other.partitions, other.leaderless)
        return mine == theirs and self.unreadable == other.unreadable

    @classmethod
    def of(
        cls,
        partitions: Sequence[DescribedPartition],
        unreadable: Sequence[str],
        live: Mapping[BrokerId, object],
        at_ms: float,
    ) -> PartitionTable:
        """Group the partitions by topic, and find those that are not well."""
        by_topic: dict[str, list[DescribedPartition]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic_partition.topic].append(partition)
        return cls(
            tuple(partitions),
            tuple(unreadable),
            at_ms,
            by_topic,
            tuple(p.topic_partition for p in partitions if p.is_unavailable(live)),
            tuple(p.topic_partition for p in partitions if p.is_under_replicated),
            frozenset(chain.from_iterable(p.assignment.replicas for p in partitions)),
        )


@dataclass(frozen=True, slots=True)
class BrokerRow:
    """A broker that is registered, or that should be."""

    broker_id: BrokerId
    is_registered: bool
    address: str = ""
    process: str = ""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything that the collector knows at one moment.

    ``events`` are the lines of the journals, merged by time. ``problem``: why ZooKeeper cannot be
    asked; empty if it answers. ``data_dir`` is that of a cluster on this machine.
    ``moves_paused_ms``: since when all moves are paused; None: they are not. ``silence``: that the
    controller does not answer, and why; empty if it does. ``troubles``: what ``status`` would tell;
    None: that is being asked.
    """

    at_ms: float
    zookeeper: str
    data_dir: Path | None = None
    problem: str = ""
    controller_id: BrokerId = NO_CONTROLLER
    controller_epoch: int = 0
    brokers: tuple[BrokerRow, ...] = ()
    missing: tuple[MissingBroker, ...] = ()
    unanswered: tuple[UnansweredRequest, ...] = ()
    table: PartitionTable = field(default_factory=PartitionTable)
    events: Sequence[Fields] = ()
    deaths: Deaths = field(default_factory=dict)
    failovers: Sequence[Failover] = ()
    has_journals: bool = True
    moves_paused_ms: float | None = None
    silence: str = ""
    troubles: Troubles | None = field(default_factory=Troubles)

    @property
    def controller_since_ms(self) -> float | None:
        """When the active controller was elected; None: the journals do not tell it."""
        return next(
            (
                float(fields["ts_ms"])
                for fields in reversed(self.events)
                if fields.get("elected") == self.controller_epoch
            ),
            None,
        )

    def failover(self, key: str) -> Failover | None:
        """Return a failover by its key."""
        return next((failover for failover in self.failovers if failover.key == key), None)


def recent_failovers(events: Sequence[Fields], deaths: Deaths) -> list[Failover]:
    """Return the last failovers, the newest first."""
    return find_failovers(events, deaths)[:SHOWN_FAILOVERS]


def verdict(view: ClusterView) -> ClusterVerdict:
    """Say how the cluster is: the worst first, as ``status`` does.

    The commands that mend it need ZooKeeper: without its address none is named.
    """
    found = _verdict(view)
    return found if view.zookeeper else found._replace(remedy="")


def _verdict(view: ClusterView) -> ClusterVerdict:
    if view.problem:
        where = "" if view.data_dir is None else f" --data-dir {view.data_dir}"
        return ClusterVerdict("problem", view.problem, f"{program()} cluster{where}")
    found = _of_brokers(view) or _of_partitions(view.table) or _of_troubles(view.troubles)
    if found is not None:
        return found
    live = sum(broker.is_registered for broker in view.brokers)
    partitions_are = f"{counted(len(view.table.partitions), 'partition')}, every replica in sync"
    sentence = f"All is well: {counted(live, 'broker')}, {partitions_are}."
    return ClusterVerdict("ok", sentence)


def _of_brokers(view: ClusterView) -> ClusterVerdict | None:
    if view.missing:
        sentence = "; ".join(missing.sentence() for missing in view.missing[:_NAMED])
        more = len(view.missing) - _NAMED
        sentence += f"; and {counted(more, 'more broker')}" if more > 0 else ""
        return ClusterVerdict("problem", _capital(sentence), _start(view))
    if view.controller_id == NO_CONTROLLER or view.silence:
        sentence = f"{_capital(view.silence) or 'There is no controller'}."
        return ClusterVerdict("problem", sentence, f"{program()} status")
    for row in view.unanswered[:1]:
        why = f": {row.reason}" if row.reason else ""
        sentence = (
            f"Broker {row.broker_id} has left {row.request} unanswered for"
            f" {row.unanswered_ms / 1000:.1f} s{why}."
        )
        return ClusterVerdict("problem", sentence, f"{program()} doctor")
    return None


def _of_partitions(table: PartitionTable) -> ClusterVerdict | None:
    for partitions, what in ((table.leaderless, "no leader"), (table.behind, "too few replicas")):
        if partitions:
            has = "has" if len(partitions) == 1 else "have"
            named = listed(partitions, _NAMED)
            sentence = f"{counted(len(partitions), 'partition')} {has} {what} in sync: {named}."
            if partitions is table.leaderless:
                sentence = f"{counted(len(partitions), 'partition')} {has} {what}: {named}."
            return ClusterVerdict("problem", sentence, f"{program()} doctor")
    if not table.at_ms:
        return ClusterVerdict("warning", "The partitions are being read.")
    if table.unreadable:
        return ClusterVerdict("problem", _capital(table.unreadable[0]), f"{program()} doctor")
    return None


def _of_troubles(troubles: Troubles | None) -> ClusterVerdict | None:
    """Return the first sentence of ``status``; most of them name the command that mends it."""
    if troubles is None:
        return ClusterVerdict("warning", "The brokers are being asked what they warn of.")
    level, told = "problem", troubles.reasons
    if not told:
        level, told = "warning", troubles.warnings
    if not told:
        return None
    if more := len(told) - 1:
        sentence = f"{_capital(told[0])}. And {counted(more, f'more {level}')}"
        return ClusterVerdict(level, sentence, f"{program()} status")
    remedy = "" if f"{program()} " in told[0] else f"{program()} doctor"
    return ClusterVerdict(level, _capital(told[0]), remedy)


def _start(view: ClusterView) -> str:
    """Return the command that starts the missing brokers again."""
    if view.data_dir is None:
        return f"{program()} doctor"
    if len(view.missing) == 1:
        return start_command(view.data_dir, view.missing[0].broker_id)
    return start_command(view.data_dir, view.missing[0].broker_id).replace(
        f"start {view.missing[0].broker_id}", "start"
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


# --- lanes ----------------------------------------------------------------------------------------


def lanes(view: ClusterView) -> list[Lane]:
    """Return a lane for each broker, with the last minute of the journals."""
    since_ms = view.at_ms - WINDOW_MS
    ticks: dict[BrokerId, list[Tick]] = defaultdict(list)
    for fields in reversed(view.events):
        if fields["ts_ms"] < since_ms:
            break
        if fields.get("event") in ANSWERS and fields.get("broker") is not None:
            tick = Tick(fields["ts_ms"], float(fields.get("answered_ms", 0.0)), fields["event"])
            ticks[fields["broker"]].append(tick)
    crowns = _crowns(view)
    return [
        Lane(
            row.broker_id,
            row.is_registered,
            row.broker_id == view.controller_id,
            row.address,
            row.process,
            tuple(_gaps(view, row)),
            tuple(span for broker_id, span in crowns if broker_id == row.broker_id),
            tuple(reversed(ticks[row.broker_id])),
        )
        for row in view.brokers
    ]


def _gaps(view: ClusterView, row: BrokerRow) -> list[Span]:
    """Return when a broker was away in the last minute."""
    away_ms: float | None = None
    spans: list[Span] = []
    moments: list[tuple[float, bool]] = []  # whether it is away from then on
    for fields in view.events:
        if row.broker_id in fields.get("failed", ()):
            moments.append((fields["ts_ms"], True))
        elif row.broker_id in fields.get("started", ()):
            moments.append((fields["ts_ms"], False))
    moments += [(float(ms), True) for ms in view.deaths.get(row.broker_id, ())]
    # No line of a journal says that the broker of the former controller has failed.
    moments += [(f.began_ms, True) for f in view.failovers if row.broker_id in f.broker_ids]
    for at_ms, is_away in sorted(moments):
        if is_away and away_ms is None:
            away_ms = at_ms
        elif not is_away and away_ms is not None:
            spans.append(Span(away_ms, at_ms))
            away_ms = None
    if row.is_registered and away_ms is not None:
        # It has come back; the line that says so may be on its way.
        spans.append(Span(away_ms, view.at_ms))
    elif not row.is_registered:
        spans.append(Span(view.at_ms if away_ms is None else away_ms, None))
    since_ms = view.at_ms - WINDOW_MS
    return [span for span in spans if span.until_ms is None or span.until_ms >= since_ms]


def _crowns(view: ClusterView) -> list[tuple[BrokerId, Span]]:
    """Return who was the controller, and from when until when, in the last minute."""
    terms: list[tuple[int, BrokerId, float]] = []
    ends: dict[int, float] = {}
    for fields in view.events:
        if "elected" in fields:
            terms.append((fields["elected"], fields["broker_id"], fields["ts_ms"]))
        if "resigned" in fields:
            ends[fields["resigned"]] = fields["ts_ms"]
    for failover in view.failovers:
        if failover.controller_id not in failover.broker_ids:
            ends.setdefault(failover.controller_epoch - 1, failover.began_ms)
    known = {epoch for epoch, _, _ in terms}
    if view.controller_id != NO_CONTROLLER and view.controller_epoch not in known:
        terms.append((view.controller_epoch, view.controller_id, view.at_ms - WINDOW_MS))
    terms.sort()
    spans = []
    for number, (epoch, broker_id, from_ms) in enumerate(terms):
        is_active = epoch == view.controller_epoch and broker_id == view.controller_id
        following_ms = terms[number + 1][2] if number + 1 < len(terms) else view.at_ms
        until_ms = None if is_active else min(ends.get(epoch, following_ms), following_ms)
        if until_ms is None or until_ms >= view.at_ms - WINDOW_MS:
            spans.append((broker_id, Span(from_ms, until_ms)))
    return spans


# --- partitions -----------------------------------------------------------------------------------


_LED: Final = "0123456789"  # a cell: the last digit of the leader, every replica in sync
_BEHIND: Final = "abcdefghij"  # the same; replicas are out of sync
_LEADERLESS: Final = ("-", "~")  # in sync, out of sync


def grid(view: ClusterView) -> dict[str, str]:
    """Return a character for each partition, by topic: what console.js draws as a cell.

    ``3``: led by broker 3 (or 13, …); ``d``: the same, and replicas are out of sync; ``-``, ``~``:
    no live broker leads it. A cluster may have 20,000 of them, so nothing is longer than it must.
    """
    live = {row.broker_id for row in view.brokers if row.is_registered}
    behind = frozenset(view.table.behind)

    def cell(partition: DescribedPartition) -> str:
        leader, is_behind = partition.leader, partition.topic_partition in behind
        if leader not in live:
            return _LEADERLESS[is_behind]
        return (_BEHIND if is_behind else _LED)[leader % 10]

    return {
        topic: "".join(map(cell, partitions))
        for topic, partitions in sorted(view.table.by_topic.items())
    }


def history(view: ClusterView, topic_partition: TopicPartition) -> list[dict[str, Any]]:
    """Return the named changes of a partition in the journals, the newest first."""
    topic, number = topic_partition
    return [
        {**change, **_of_event(fields)}
        for fields in reversed(view.events)
        for change in fields.get("partitions", ())
        if change.get("topic") == topic and change.get("partition") == number
    ]


def _of_event(fields: Fields) -> dict[str, Any]:
    names = ("ts_ms", "broker_id", "controller_epoch", "event_id", "event", "cause")
    return {name: fields.get(name) for name in names}


def journal(view: ClusterView, text: str, broker: str, *, limit: int) -> list[Fields]:
    """Return the newest lines that have a text, and are of a broker; answers only if asked for."""
    found: list[Fields] = []
    wanted = text.lower()
    for fields in reversed(view.events):
        if broker and str(fields.get("broker_id")) != broker:
            continue
        if wanted:
            said = (fields.get("event"), fields.get("cause"), *fields.get("changes", ()))
            if not any(wanted in str(part).lower() for part in said):
                continue
        elif fields.get("event") in ANSWERS and not fields.get("changes"):
            continue
        found.append(fields)
        if len(found) == limit:
            break
    return found
