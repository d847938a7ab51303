"""The balance of an assignment over brokers and racks, and its losses when some fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regent.client.wording import how_many
from regent.jobs.reports.charts import add_numbers
from regent.jobs.reports.page import Page, Table

ENDS: Final = 10
"""How many brokers a table has, if there are many: the ones with the most, or with the least."""

Counts: TypeAlias = NDArray[np.int64]
Shares: TypeAlias = NDArray[np.float64]


class Racks(NamedTuple):
    """The racks by name, and the rack index of each broker; -1: none."""

    names: tuple[str, ...]
    of_broker: NDArray[np.int32]


class Found(NamedTuple):
    """How many partitions were found, the names of some things, and how many things there are."""

    partitions: int = 0
    names: Sequence[str] = ()
    total: int = 0


@dataclass(frozen=True, slots=True)
class Leaders:
    """Partitions of the brokers, in arrays by position, without those whose leader is unknown.

    ``preferred``: how many have their first replica there. ``not_led``: how many of these the
    broker does not lead. ``electable``: how many of these an election gives back, because the
    first replica is in the ISR. ``leading``: how many the broker leads. ``leaderless`` have no
    leader.
    """

    preferred: Counts
    not_led: Counts
    electable: Counts
    leading: Counts
    leaderless: int
    unknown: int

    @property
    def imbalance(self) -> float:
        """Kafka's ratio, of all brokers together."""
        return int(self.not_led.sum()) / max(int(self.preferred.sum()), 1)

    @property
    def imbalances(self) -> Shares:
        """Kafka's ratio of each broker: 0 without preferred partitions."""
        ratios: Shares = self.not_led / self.preferred.clip(1)
        return ratios

    def above(self, threshold: float) -> list[int]:
        """Return where an election changes more than ``threshold`` percent, the worst first."""
        ratios = self.electable / self.preferred.clip(1)
        order = np.argsort(-ratios, kind="stable")
        found: list[int] = order[ratios[order] > threshold / 100].tolist()
        return found


@dataclass(frozen=True, slots=True)
class Balance:
    """The results; arrays are by position of the broker.

    ``loads`` has the loads of brokers, by the name to show. ``fair`` is the number of replicas to
    which ``regent jobs plan rebalance`` brings a broker; NaN if it is not listed, or takes no
    replicas. ``factors`` are the numbers of partitions by replication factor. ``lost_with_rack``
    counts the partitions that are lost when a rack fails. ``states`` has the partitions in a bad
    state, by its name. ``out_of_sync`` counts the replicas that are in no ISR. ``single``
    partitions have one replica; others have all replicas ``together`` in one rack. ``no_replicas``
    has the brokers that take no new ones. No partition has fewer replicas in sync than
    ``fewest_in_sync``.
    """

    broker_ids: Counts
    loads: Mapping[str, Counts]
    fair: Shares
    racks: Racks
    factors: Mapping[int, int]
    lost_with_rack: Counts
    leaders: Leaders | None
    states: Mapping[str, Found]
    out_of_sync: Counts
    single: Found
    together: Found
    no_replicas: frozenset[int]
    fewest_in_sync: int

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return sum(self.factors.values())

    @property
    def survivable(self) -> int:
        """How many brokers can fail at once without the loss of a partition, in any case."""
        return max(self.fewest_in_sync - 1, 0)

    @property
    def unlisted(self) -> list[int]:
        """The ids of brokers that hold replicas and are not listed."""
        found: list[int] = self.broker_ids[np.isnan(self.fair)].tolist()
        return [broker_id for broker_id in found if broker_id not in self.no_replicas]

    @property
    def of_fair_share(self) -> Shares:
        """The replicas of brokers by their fair share; NaN if there is no share."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares: Shares = self.loads["replicas"] / self.fair
        return shares


def spread(values: Counts) -> dict[str, float]:
    """Return the spread of values; ``cv``, the coefficient of variation, is deviation by mean."""
    mean = float(values.mean())
    cv = float(values.std()) / mean if mean else 0.0
    return {"min": int(values.min()), "mean": mean, "max": int(values.max()), "cv": cv}


# --- as JSON, as tables and on a page -------------------------------------------------------------


def summary(balance: Balance) -> dict[str, Any]:
    """Return the results as JSON values."""
    states = balance.states if balance.leaders else {}
    leaders = balance.leaders
    return {
        **{name: found.partitions for name, found in states.items()},
        **{f"{name}_partitions": found.names for name, found in states.items()},
        **({"imbalance": leaders.imbalance, "unknown_leaders": leaders.unknown} if leaders else {}),
        "each_broker": _all_brokers(balance).fields(),
        "per_broker": {
            name.replace(" ", "_"): spread(load) for name, load in balance.loads.items()
        },
        "per_rack": rack_table(balance).fields(),
        "survivable_failures": balance.survivable,
    }


def tables(balance: Balance) -> list[Table]:
    """Return the results as tables."""
    found = [*state_tables(balance), spread_table(balance), *broker_tables(balance)[0]]
    if balance.racks.names:
        found.append(rack_table(balance))
    return found


def state_tables(balance: Balance) -> list[Table]:
    """Return a table of the partitions in each bad state that some are in."""
    names = {
        "leaderless": "Without a leader",
        "under_min_isr": "With fewer replicas in sync than min.insync.replicas",
        "under_replicated": "With replicas that are out of sync",
    }
    found = []
    for state, title in names.items():
        partitions, some, _ = balance.states.get(state, Found())
        if partitions:
            more = partitions - len(some)
            caption = f"{title}{f' (and {more:,} more)' if more else ''}"
            found.append(Table(caption, ("partition",), [(name,) for name in some]))
    return found


def spread_table(balance: Balance) -> Table:
    """Return a table of what brokers hold, at the least, on average and at the most."""
    return Table(
        "What brokers hold (cv: standard deviation divided by the mean; 0 is even)",
        ("", "min", "mean", "max", "cv"),
        [(name, *spread(load).values()) for name, load in balance.loads.items()],
    )


def broker_tables(balance: Balance) -> tuple[list[Table], Table]:
    """Return the fullest and the emptiest brokers, and a table of all brokers by their ids."""
    shares, all_brokers = balance.of_fair_share, _all_brokers(balance)
    falling, rising = (
        np.lexsort([balance.broker_ids, keys]).tolist() for keys in (-shares, shares)
    )
    ends = {
        f"The {ENDS} brokers that are fullest, by their fair share": falling,
        f"The {ENDS} brokers that are emptiest, by their fair share": rising,
    }
    return ordered(all_brokers, "Brokers, the fullest first", ends), all_brokers


def _all_brokers(balance: Balance) -> Table:
    """Return a table of all brokers; columns without an id, a rack or a number are left out."""
    shares, racks, leaders = balance.of_fair_share, balance.racks, balance.leaders
    columns: dict[str, Sequence[object]] = {"broker": [*map(str, balance.broker_ids.tolist())]}
    if racks.names:
        columns["rack"] = [racks.names[r] if r >= 0 else None for r in racks.of_broker]
    columns["of fair share"] = [None if np.isnan(s) else percent(s) for s in shares.tolist()]
    columns |= {name: load.tolist() for name, load in balance.loads.items()}
    if leaders:
        columns["imbalance"] = [*map(percent, leaders.imbalances.tolist())]
    if balance.out_of_sync.any():
        columns["out of sync"] = balance.out_of_sync.tolist()
    return Table.of(f"All {len(shares):,} brokers", columns)


def ordered(table: Table, caption: str, ends: Mapping[str, Sequence[int]]) -> list[Table]:
    """Return a table of brokers in the first order of ``ends``, or the first ones in each if many.

    ``ends`` are places of rows, by the captions for many brokers.
    """
    headers, rows = table.headers, table.rows
    if len(rows) > 2 * ENDS:
        return [Table(end, headers, [rows[b] for b in ends[end][:ENDS]]) for end in ends]
    order = next(iter(ends.values()))
    return [Table(caption, headers, [rows[b] for b in order])]


def percent(share: float) -> str:
    """Return a share as a percentage with three significant digits."""
    return f"{100 * share:.3g} %"


def rack_table(balance: Balance) -> Table:
    """Return a table of what the racks hold, and of what is lost with each."""
    racks = balance.racks
    members = [racks.of_broker == number for number in range(len(racks.names))]
    columns = {name: [int(load[m].sum()) for m in members] for name, load in balance.loads.items()}
    return Table.of(
        "Racks (lost partitions: those with all of their replicas in the rack)",
        {"rack": racks.names, "brokers": [int(m.sum()) for m in members]}
        | columns
        | {"lost partitions": balance.lost_with_rack.tolist()},
    )


def add_balance(page: Page, balance: Balance, where: str) -> None:
    """Add the plots and tables of one assignment, and ``where`` it was read."""
    page.text(f"Read from {where}.")
    if balance.leaders:
        for table in state_tables(balance):
            page.table(table)
    page.heading("Brokers")
    for name, load in balance.loads.items():
        fair, share = np.full(len(load), load.mean()), "average"
        if name == "replicas":
            fair, share = balance.fair, "fair share"
        caption = f"{name.capitalize()} of each broker"
        add_numbers(page, balance.broker_ids, load, name, caption, fair=fair, share=share)
    ends, all_brokers = broker_tables(balance)
    for table in ends:
        page.table(table)
    page.all_brokers(all_brokers)
    page.table(spread_table(balance))
    if balance.racks.names:
        page.heading("Racks")
        page.table(rack_table(balance))
    page.heading("Failures")
    page.text(
        f"Any {how_many(balance.survivable, 'broker', 'brokers')} can fail at once without a loss."
    )
