"""The plots of balance and loss, for pages of reports and simulations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from regent.jobs.reports.balance import Balance, tables
from regent.jobs.reports.loss_simulation import LossPoint
from regent.jobs.reports.page import MUTED, Axes, Page
from regent.jobs.reports.replica_arrays import Counts

_MOST_POINTS: Final = 500  # of a line: more would overlap
_MOST_BARS: Final = 40
_FEW: Final = 30  # up to this many points are marked


def add_balance(page: Page, balance: Balance) -> None:
    """Add the plots and tables of one assignment."""
    per_broker, *others = tables(balance)
    page.heading("Brokers")
    for name, load in balance.loads.items():
        page.figure(_loads(balance, name, load), _caption(name.capitalize(), load))
    page.table(per_broker.headers, per_broker.rows, per_broker.caption)
    if balance.racks.names:
        page.heading("Racks")
        if len(balance.racks.names) <= _MOST_BARS:
            page.figure(_rack_bars(balance), "Replicas of a broker, on average, in each rack.")
        racks = others.pop(0)
        page.table(racks.headers, racks.rows, racks.caption)
    page.heading("Failures")
    page.figure(
        _loads(balance, "other brokers", balance.scatter_width),
        "Scatter width: the number of other brokers with which a broker shares partitions. They can"
        " all help to replace it; the failure of each brings partitions closer to a loss.",
    )
    page.figure(loss_curves({"": balance.loss}), LOSS_CAPTION)
    [loss] = others
    page.table(loss.headers, loss.rows, loss.caption)


LOSS_CAPTION: Final = (
    "Probability that at least one partition loses all of its replicas when so many brokers,"
    " drawn at random, fail at once. The band has the true value with a probability of 95 %."
)


def _loads(balance: Balance, label: str, load: Counts) -> Callable[[Axes], None]:
    if len(load) > _MOST_BARS:
        return sorted_curves({label: load}, label)
    names = (str(broker_id) for broker_id in balance.broker_ids.tolist())
    return bars(dict(zip(names, load.tolist(), strict=True)), label, "broker")


def _caption(name: str, load: Counts) -> str:
    if len(load) > _MOST_BARS:
        return f"{name}: brokers from the least loaded to the most, and the mean."
    return f"{name} of each broker."


def sorted_curves(series: Mapping[str, NDArray[Any]], label: str) -> Callable[[Axes], None]:
    """Draw the loads of brokers in ascending order, with the mean when there is one series."""

    def draw(axes: Axes) -> None:
        width = 1.6 + 0.7 * (len(series) - 1)
        for name, load in series.items():
            chosen = np.unique(np.linspace(0, len(load) - 1, _MOST_POINTS).astype(int))
            dots = "o" if len(load) <= _FEW else ""
            shown = np.sort(load)[chosen]
            axes.plot(chosen + 1, shown, marker=dots, markersize=4, linewidth=width, label=name)
            width -= 0.7  # the first stays visible when all are equal
        if len(series) == 1:
            mean = float(next(iter(series.values())).mean())
            axes.axhline(mean, color=MUTED, linestyle="--", linewidth=1)
        else:
            axes.legend()
        highest = max(float(load.max()) for load in series.values())
        axes.set_ylim(0, 1.08 * highest or 1)
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("brokers, in order of load")
        axes.set_ylabel(label)

    return draw


def loss_curves(curves: Mapping[str, Sequence[LossPoint]]) -> Callable[[Axes], None]:
    """Draw probabilities of loss on a logarithmic scale, without impossible ones."""

    def draw(axes: Axes) -> None:
        for number, (name, curve) in enumerate(curves.items()):
            chosen = np.unique(np.linspace(0, len(curve) - 1, _MOST_POINTS).astype(int))
            points = [curve[k] for k in chosen if curve[k].probability > 0]
            failures = [point.failures for point in points]
            colour, dots = f"C{number}", "o" if len(points) <= _FEW else ""
            shares = [p.probability for p in points]
            axes.plot(failures, shares, color=colour, marker=dots, markersize=4, label=name)
            low = [max(p.low, p.probability / 20) for p in points]
            axes.fill_between(failures, low, [p.high for p in points], color=colour, alpha=0.2)
        axes.set_yscale("log")
        axes.set_ylim(min(0.1, axes.get_ylim()[0]), 1.3)
        axes.locator_params(axis="x", integer=True)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:,.10g} %")
        axes.set_xlabel("brokers that fail at once")
        axes.set_ylabel("probability of loss")
        if len(curves) > 1:
            axes.legend()

    return draw


def bars(
    values: Mapping[str, float], label: str, of: str = "", *, is_logarithmic: bool = False
) -> Callable[[Axes], None]:
    """Draw one bar for each value; ``of`` is the label of their names."""

    def draw(axes: Axes) -> None:
        axes.bar(list(values), list(values.values()), width=0.6)
        if is_logarithmic:
            axes.set_yscale("log")
            axes.set_ylim(bottom=min(1, *values.values()))
        axes.set_ylabel(label)
        axes.set_xlabel(of)
        axes.set_xlim(-0.6, len(values) - 0.4)
        if len(values) > 12:
            axes.tick_params(axis="x", rotation=90)

    return draw


def _rack_bars(balance: Balance) -> Callable[[Axes], None]:
    replicas, racks = balance.loads["replicas"], balance.racks
    means = {
        name: float(replicas[racks.of_broker == number].mean())
        for number, name in enumerate(racks.names)
    }
    return bars(means, "replicas of a broker")
