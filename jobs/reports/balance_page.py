"""The plots of balance and loss, for pages of reports and simulations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from regent.admin.wording import how_many
from regent.jobs.reports.balance import Balance, broker_tables, tables
from regent.jobs.reports.charts import NEAR, Draw, Line, lines, over_brokers
from regent.jobs.reports.loss_simulation import LossPoint
from regent.jobs.reports.page import Axes, Page

LOSS_CAPTION: Final = (
    "If so many brokers, drawn at random, fail at once: the probability that at least one partition"
    " loses all of its replicas. The shaded area has the true value with a probability of 95 %."
)


def add_balance(page: Page, balance: Balance, where: str | None = None) -> None:
    """Add the plots and tables of one assignment, with tables of the brokers if it is a real one.

    ``where`` it was read; None: it is simulated.
    """
    if where is not None:
        page.text(f"Read from {where}.")
    spreads, brokers, *racks, loss = tables(balance)
    page.heading("Brokers")
    for name, load in balance.loads.items():
        fair = balance.fair if name == "replicas" else np.full(len(load), load.mean())
        share = "fair share" if name == "replicas" else "average"
        page.figure(
            over_brokers(balance.broker_ids, load, name, fair),
            f"{name.capitalize()} of each broker. {NEAR} the {share}.",
        )
    if where is not None:
        page.table(brokers)
        page.all_brokers(broker_tables(balance)[1])
    page.table(spreads)
    if racks:
        page.heading("Racks")
        page.table(*racks)
    page.heading("Failures")
    page.text(
        "A copyset is a set of brokers that has all replicas of a partition: if all of them fail at"
        " once, the partition is lost. This assignment has"
        f" {how_many(balance.copysets, 'copyset', 'copysets')}."
    )
    if sum(point.probability > 0 for point in balance.loss) > 1:
        page.figure(loss_curves({"": balance.loss}), LOSS_CAPTION)
    page.table(loss)
    page.figure(
        over_brokers(balance.broker_ids, balance.scatter_width, "other brokers"),
        "The number of other brokers with which a broker shares partitions (its scatter width)."
        " So many help to copy its replicas when it fails, and the failure of any of them together"
        " with it takes two replicas of a partition.",
    )


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
