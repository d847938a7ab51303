"""The plots and tables of a balance, for pages of reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regent.client.wording import how_many
from regent.jobs.reports.balance import Balance, broker_tables, rack_table, spread_table
from regent.jobs.reports.charts import (
    MOST_BARS,
    extremes,
    far_ends,
    over_brokers,
)
from regent.jobs.reports.page import Page, shown
from regent.jobs.reports.verdict import OVERLOAD, UNDERLOAD


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


def add_numbers(
    page: Page,
    broker_ids: NDArray[Any],
    values: NDArray[Any],
    label: str,
    caption: str,
    *,
    fair: NDArray[Any] | None = None,
    share: str = "average",
    marked: Sequence[int] | None = None,
) -> None:
    """Add a plot of a number of each broker, or a sentence if all are equal.

    ``fair`` are the numbers that brokers should have: their ``share``. ``marked`` None: the ones
    far from it are marked, or else, if there are many brokers, the highest and the lowest.
    """
    if (values == values[0]).all():
        page.text(f"{caption}: {shown(values[0].item())} for all brokers.")
        return
    if fair is not None:
        marked = far_ends(values, fair)
        caption += f". Grey: from {UNDERLOAD} to {OVERLOAD} times the {share}"
        caption += ". Orange: the farthest outside" if marked else ""
    elif marked is None:
        marked = extremes(values) if len(values) > MOST_BARS else ()
    page.figure(over_brokers(broker_ids, values, label, fair, marked), f"{caption}.")
