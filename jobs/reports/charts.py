"""The charts of reports: functions that draw on the axes of ``Page.figure``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from datetime import UTC
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regent.jobs.reports.page import MUTED, WARNING, Axes, Page, shown
from regent.jobs.reports.verdict import NAMED, OVERLOAD, UNDERLOAD, far_from

Draw: TypeAlias = Callable[[Axes], None]

DATES: Final = "dates"
"""The scale of an x axis that shows ``dates`` in UTC."""
MOST_BARS: Final = 40

_MOST_POINTS: Final = 500  # in a figure: more would overlap
_FEW: Final = 30  # up to this many points are marked
_BAR_IN: Final = 0.3
_NARROW_IN: Final = 5


class Line(NamedTuple):
    """A line of a chart; ``band`` are the low and high ends of a shaded area around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "-"
    band: tuple[Sequence[float], Sequence[float]] | None = None


def height_of(rows: Sized) -> float:
    """Return the height of a chart with a bar for each row, in inches."""
    return 1.1 + _BAR_IN * max(len(rows), 2)


def over_brokers(
    broker_ids: NDArray[Any],
    values: NDArray[Any],
    label: str,
    fair: NDArray[Any],
    marked: Sequence[int],
) -> Draw:
    """Draw a number of each broker by its id, with the range that is near the ``fair`` one.

    A few brokers have bars and many have dots. The ``marked`` ones are orange, with labels if there
    is room.
    """

    def draw(axes: Axes) -> None:
        if len(values) <= MOST_BARS:
            _draw_bars(axes, [str(b) for b in broker_ids.tolist()], values.tolist())
            for place in marked:
                axes.patches[place].set_color(WARNING)
        else:
            places = _lowest_and_highest(values)
            _draw_dots(axes, places, values[places])
            _label(axes, broker_ids, values, marked)
            axes.locator_params(integer=True)
            axes.set_xlim(-0.02 * len(values), 1.02 * len(values))
            ticks = [int(tick) for tick in axes.get_xticks() if tick in range(len(values))]
            axes.set_xticks(ticks, broker_ids[ticks].astype(str))
        starts = np.flatnonzero(np.diff(fair, prepend=np.nan))  # of brokers with equal shares
        ends, shares = np.append(starts, len(fair)) - 0.5, fair[[*starts, -1]]
        for start, end, share in zip(ends, ends[1:], shares, strict=False):
            span = [UNDERLOAD * share] * 2, [OVERLOAD * share] * 2  # nothing without a share
            axes.fill_between((start, end), *span, color=MUTED, alpha=0.16, zorder=0)
        axes.set_ylim(0, 1.15 * max(values.max(), OVERLOAD * np.nanmax(shares)) or 1)
        axes.set_ylabel(label)
        axes.set_xlabel("broker id")

    return draw


def add_numbers(
    page: Page,
    broker_ids: NDArray[Any],
    values: NDArray[Any],
    label: str,
    caption: str,
    *,
    fair: NDArray[Any],
    share: str,
) -> None:
    """Add a plot of a number of each broker, or a sentence if all are near their share.

    ``fair`` are the numbers that brokers should have: their ``share``.
    """
    if (values == values[0]).all():
        page.text(f"{caption}: {shown(values[0].item())} for all brokers.")
        return
    marked = [place for places in far_from(values, fair) for place in places[:NAMED]]
    if not marked:
        low, high = (shown(end.item()) for end in (values.min(), values.max()))
        page.text(f"{caption}: {low} to {high}, for all near the {share}.")
        return
    caption += f". Grey: from {UNDERLOAD} to {OVERLOAD} times the {share}"
    caption += ". Orange: the farthest outside."
    page.figure(over_brokers(broker_ids, values, label, fair, marked), caption)


def _lowest_and_highest(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places to draw: all, or the lowest and highest of each of many groups."""
    if len(values) <= 2 * _MOST_POINTS:
        return np.arange(len(values))
    groups = np.array_split(np.arange(len(values)), _MOST_POINTS)
    found = [group[f(values[group])] for group in groups for f in (np.argmin, np.argmax)]
    return np.unique(found)


def _draw_dots(axes: Axes, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Draw lines of no length with round ends: markers would be an element each."""
    dots = [np.column_stack([ends, ends, np.full(len(ends), np.nan)]).ravel() for ends in (x, y)]
    axes.plot(*dots, linewidth=3, solid_capstyle="round")


def _label(
    axes: Axes, broker_ids: NDArray[Any], values: NDArray[Any], marked: Sequence[int]
) -> None:
    span = float(values.max() - values.min())
    labelled: list[tuple[int, float]] = []
    for place in marked:
        value = float(values[place])
        axes.plot(place, value, "o", markersize=4, color=WARNING)
        if any(
            abs(place - x) < len(values) / 6 and abs(value - y) < span / 10 for x, y in labelled
        ):
            continue
        labelled.append((place, value))
        is_left = place < 0.75 * len(values)
        axes.annotate(
            f"broker {broker_ids[place]}: {shown(value)}",
            (place, value),
            (6 if is_left else -6, 0),
            textcoords="offset points",
            ha="left" if is_left else "right",
            va="center",
        )


def dates(moments_ms: Sequence[float]) -> list[float]:
    """Return the moments as matplotlib counts them: in days."""
    return [ms / 86_400_000 for ms in moments_ms]


def show_dates(axes: Axes) -> None:
    """Let the x axis, which is of ``dates``, show UTC."""
    axes.xaxis_date(UTC)


def _draw_bars(axes: Axes, names: Sequence[str], values: Sequence[float]) -> None:
    """Draw an upright bar for each name."""
    are_short = len(names) <= 12
    drawn = axes.bar(range(len(names)), values, 0.7)
    if are_short:
        axes.bar_label(drawn, [shown(value) for value in values], padding=2)
    axes.set_xticks(range(len(names)), names, rotation=0 if are_short else 90)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.locator_params(axis="y", integer=True)


def stacks(names: Sequence[str], series: Mapping[str, Sequence[float]], label: str) -> Draw:
    """Draw a level bar for each name, with a part for each series."""

    def draw(axes: Axes) -> None:
        ends = np.zeros(len(names))
        for name, values in series.items():
            axes.barh(names, values, left=ends, height=0.6, label=name)
            ends = ends + values
        _name_levels(axes, label)
        _add_legend(axes, len(series))

    return draw


def lines(
    series: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x_scale: str = "linear",
    y_scale: str = "linear",
) -> Draw:
    """Draw lines; those without a name are not in the legend."""

    def draw(axes: Axes) -> None:
        for number, line in enumerate(series):
            colour = f"C{number}"
            dots = "o" if len(line.x) <= _FEW and line.style[0] == "-" else ""
            axes.plot(
                line.x, line.y, f"{dots}{line.style}", color=colour, markersize=4,
                label=line.name or "_",
            )  # fmt: skip
            if line.band:
                axes.fill_between(line.x, *line.band, color=colour, alpha=0.2, linewidth=0)
        if x_scale == DATES:
            show_dates(axes)
        else:
            axes.set_xscale(x_scale)
        axes.set_yscale(y_scale)
        if y_scale != "log":
            axes.set_ylim(bottom=0)
        if x_scale == "linear":
            axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        _add_legend(axes, sum(bool(line.name) for line in series))

    return draw


def _name_levels(axes: Axes, label: str) -> None:
    """Put the first name of level bars on top."""
    axes.margins(y=0.15 if len(axes.get_yticks()) < 6 else 0.05)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")
    axes.set_xlabel(label)


def _add_legend(axes: Axes, names: int) -> None:
    """Add a legend above the plot, where it hides nothing."""
    if names > 1:
        figure = axes.get_figure(root=True)
        columns = 1 if figure is not None and figure.get_figwidth() < _NARROW_IN else 5
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=columns, borderaxespad=0.2)
