"""The balance of an assignment over brokers and racks, and its losses when some fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regent.client.wording import how_many
from regent.jobs.brokers_file import PlannedBroker
from regent.jobs.planning.fair_share import fair_share, rack_limits, spreads
from regent.jobs.reports.charts import add_numbers
from regent.jobs.reports.page import Page, Table
from regent.jobs.reports.replica_arrays import (
    Copysets,
    Counts,
    Positions,
    ReplicaArrays,
    copysets,
    scatter_widths,
)

ENDS: Final = 10
"""How many brokers a table has, if there are many: the ones with the most, or with the least."""


class Racks(NamedTuple):
    """The racks by name, and the rack index of each broker; -1: none."""

    names: tuple[str, ...]
    of_broker: Positions


Shares: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Balance:
    """The results; arrays are by position of the broker.

    ``loads`` has the loads of brokers, by the name to show. ``fair`` is the number of replicas to
    which ``regent jobs plan rebalance`` brings a broker; NaN if it is not listed. Any
    ``survivable`` brokers can fail at once without the loss of a partition.
    ``lost_with_rack`` counts the partitions that are lost when a rack fails.
    """

    broker_ids: Counts
    loads: Mapping[str, Counts]
    fair: Shares
    racks: Racks
    copysets: int
    scatter_width: Counts
    survivable: int
    lost_with_rack: Counts

    @property
    def unlisted(self) -> list[int]:
        """The ids of brokers that hold replicas and are not listed."""
        found: list[int] = self.broker_ids[np.isnan(self.fair)].tolist()
        return found

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


def racks_of(arrays: ReplicaArrays, rack_by_id: Mapping[int, str | None]) -> Racks:
    """Number the racks, sorted by name."""
    names = tuple(sorted({rack for rack in rack_by_id.values() if rack is not None}))
    number = {rack: position for position, rack in enumerate(names)}
    found = (rack_by_id.get(broker_id) for broker_id in arrays.broker_ids.tolist())
    return Racks(names, np.array([-1 if r is None else number[r] for r in found], np.int32))


def fair_shares(arrays: ReplicaArrays, racks: Racks, listed: Mapping[int, PlannedBroker]) -> Shares:
    """Return the fair share of replicas of each broker, as ``regent jobs plan rebalance`` has it.

    Brokers that are not ``listed`` have none (NaN), unless no broker is listed. Racks count if all
    listed brokers have one.
    """
    ids = arrays.broker_ids.tolist()
    usable = [b for b, broker_id in enumerate(ids) if not listed or broker_id in listed]
    held = int(arrays.replicas_per_broker()[usable].sum())
    found = (listed.get(ids[b]) for b in usable)
    most = [held if b is None or b.capacity is None else b.capacity for b in found]
    of_rack = np.zeros(len(usable), np.int32)
    limits = {}
    if (racks.of_broker[usable] >= 0).all() and len(racks.names) > 1:
        of_rack = racks.of_broker[usable]
        counts = sum((spreads(racks.of_broker[r]) for r in arrays.by_factor.values()), Counter())
        limits = rack_limits(counts, of_rack.tolist(), {})
    shares = np.full(len(ids), np.nan)
    low_and_high = fair_share([0] * len(usable), most, of_rack.tolist(), limits, held)
    shares[usable] = np.mean(low_and_high, axis=0)
    return shares


def measure(
    arrays: ReplicaArrays,
    racks: Racks,
    more_loads: Mapping[str, Counts],
    listed: Sequence[PlannedBroker] = (),
) -> Balance:
    """Measure an assignment; ten million partitions take some seconds."""
    sets: list[Copysets] = [copysets(r, arrays.brokers) for r in arrays.by_factor.values()]
    loads = {
        "replicas": arrays.replicas_per_broker(),
        "preferred leaders": arrays.preferred_per_broker(),
    }
    return Balance(
        arrays.broker_ids,
        loads | dict(more_loads),
        fair_shares(arrays, racks, {b.broker_id: b for b in listed}),
        racks,
        sum(len(s.members) for s in sets),
        scatter_widths(sets, arrays.brokers),
        min(arrays.by_factor) - 1,
        rack_losses(sets, racks.of_broker, len(racks.names)),
    )


def rack_losses(sets: Sequence[Copysets], rack_of: Positions, racks: int) -> Counts:
    """Count for each rack the partitions that are lost when it fails: all replicas are in it.

    ``rack_of`` is the number of each broker's rack; -1 is none, which never fails as a whole.
    """
    lost = np.zeros(racks, np.int64)
    for members, partitions in sets:
        rack = rack_of[members[:, 0]]
        is_inside = (rack >= 0) & (rack_of[members] == rack[:, np.newaxis]).all(axis=1)
        np.add.at(lost, rack[is_inside], partitions[is_inside])
    return lost


# --- as JSON, as tables and on a page -------------------------------------------------------------


def summary(balance: Balance) -> dict[str, Any]:
    """Return the results as JSON values."""
    return {
        "per_broker": {
            name.replace(" ", "_"): spread(load) for name, load in balance.loads.items()
        },
        "per_rack": rack_table(balance).fields(),
        "copysets": balance.copysets,
        "scatter_width": spread(balance.scatter_width),
        "survivable_failures": balance.survivable,
    }


def tables(balance: Balance) -> list[Table]:
    """Return the results as tables."""
    found = [spread_table(balance), *broker_tables(balance)[0]]
    if balance.racks.names:
        found.append(rack_table(balance))
    return found


def spread_table(balance: Balance) -> Table:
    """Return a table of what brokers hold, at the least, on average and at the most."""
    loads = {**balance.loads, "others it shares partitions with": balance.scatter_width}
    return Table(
        "What brokers hold (cv: standard deviation divided by the mean; 0 is even)",
        ("", "min", "mean", "max", "cv"),
        [(name, *spread(load).values()) for name, load in loads.items()],
    )


def broker_tables(balance: Balance) -> tuple[list[Table], Table]:
    """Return the fullest and the emptiest brokers, and a table of all brokers by their ids."""
    shares, racks = balance.of_fair_share, balance.racks
    columns: dict[str, Sequence[object]] = {"broker": [*map(str, balance.broker_ids.tolist())]}
    if racks.names:
        columns["rack"] = [racks.names[r] if r >= 0 else None for r in racks.of_broker]
    columns["of fair share"] = [None if np.isnan(s) else percent(s) for s in shares.tolist()]
    columns |= {name: load.tolist() for name, load in balance.loads.items()}
    all_brokers = Table.of(f"All {len(shares):,} brokers", columns)
    falling, rising = (
        np.lexsort([balance.broker_ids, keys]).tolist() for keys in (-shares, shares)
    )
    ends = {
        f"The {ENDS} brokers that are fullest, by their fair share": falling,
        f"The {ENDS} brokers that are emptiest, by their fair share": rising,
    }
    return ordered(all_brokers, "Brokers, the fullest first", ends), all_brokers


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
        "A copyset is a set of brokers that has all replicas of a partition: if all of them fail at"
        " once, the partition is lost. This assignment has"
        f" {how_many(balance.copysets, 'copyset', 'copysets')}."
    )
    page.text(
        f"Any {how_many(balance.survivable, 'broker', 'brokers')} can fail at once without a loss."
    )
    page.text(
        "The scatter width of a broker is the number of other brokers with which it shares"
        " partitions. When it fails, its replicas are copied from those of them that lead the"
        " partitions, and the failure of any of them together with it takes two replicas of a"
        " partition."
    )
    caption = "Scatter width of each broker"
    add_numbers(page, balance.broker_ids, balance.scatter_width, "other brokers", caption)
