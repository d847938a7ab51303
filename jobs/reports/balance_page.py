"""The plots of balance and loss, for pages of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regent.client.wording import how_many
from regent.jobs.reports.balance import Balance, broker_tables, loss_table, rack_table, spread_table
from regent.jobs.reports.charts import (
    MOST_BARS,
    Draw,
    Line,
    extremes,
    far_ends,
    lines,
    over_brokers,
)
from regent.jobs.reports.loss_simulation import LossPoint
from regent.jobs.reports.page import Axes, Page, shown
from regent.jobs.reports.verdict import OVERLOAD, UNDERLOAD


def add_balance(page: Page, balance: Balance, where: str | None = None) -> None:
    """Add the plots and tables of one assignment, with tables of the brokers if it is a real one.

    ``where`` it was read; None: it is simulated.
    """
    if where is not None:
        page.text(f"Read from {where}.")
    page.heading("Brokers")
    for name, load in balance.loads.items():
        fair, share = np.full(len(load), load.mean()), "average"
        if name == "replicas":
            fair, share = balance.fair, "fair share"
        caption = f"{name.capitalize()} of each broker"
        add_numbers(page, balance.broker_ids, load, name, caption, fair=fair, share=share)
    if where is not None:
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
    if sum(point.probability > 0 for point in balance.loss) > 1:
        add_loss_curves(page, {"": balance.loss})
    page.table(loss_table(balance.loss))
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


def add_loss_curves(
    page: Page, curves: Mapping[str, Sequence[LossPoint]], height_in: float = 3.0
) -> None:
    """Add a plot of the probabilities of loss."""
    caption = (
        "If so many brokers, drawn at random, fail at once: the probability that at least one"
        " partition loses all of its replicas."
    )
    points = (point for curve in curves.values() for point in curve)
    if any(point.high > 1.3 * point.low for point in points if point.probability > 0):
        caption += " The shaded area has the true value with a probability of 95 %."
    page.figure(loss_curves(curves), caption, height_in=height_in)


def loss_curves(curves: Mapping[str, Sequence[LossPoint]]) -> Draw:
    """Draw probabilities of loss on a logarithmic scale, without impossible ones."""
    series = []
    for name, curve in curves.items():
        points = [point for point in curve if point.probability > 0]
        band = [point.low or point.probability for point in points], [p.high for p in points]
        failures = [point.failures for point in points]
        shares = [point.probability for point in points]
        series.append(Line(name, failures, shares, band=band))
    draw_lines = lines(series, "brokers that fail at once", "probability of a loss", y_scale="log")

    def draw(axes: Axes) -> None:
        draw_lines(axes)
        axes.set_ylim(min(0.1, axes.get_ylim()[0]), 1.3)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:,.10g} %")

    return draw
