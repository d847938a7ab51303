"""A comparison as one HTML page of tables and plots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from regent.designs.measuring.comparison import DesignComparison
from regent.designs.measuring.failure import FailureResult
from regent.designs.measuring.registry import DESIGNS
from regent.designs.measuring.tables import (
    GROWING,
    claims_table,
    comparison_tables,
    growth_table,
)
from regent.jobs.reports.charts import Draw, Line, lines
from regent.jobs.reports.page import Page, Table

_ABOUT_COUNTS: Final = (
    "The counts are ZooKeeper's own: its four-letter words mntr, cons and wchs before and after,"
    " and its transaction log. Pings are not in them. A request may read or write many znodes. Each"
    " failure is one of a new cluster, so the times vary; the counts hardly do."
)
_ABOUT_TIMES: Final = (
    "Times begin with kill -9. A partition is led when its new leader is written to ZooKeeper. It"
    " is known to all when every surviving broker has been asked and knows it."
)


def comparison_page(comparison: DesignComparison) -> Page:
    """Return the page; more can be added to it."""
    setting = comparison.setting
    page = Page(f"Designs compared: {setting.brokers} brokers, {setting.partitions:,} partitions")
    for name in comparison.designs:
        page.text(f"{name}: {DESIGNS[name].meaning}" if name in DESIGNS else name)
    page.heading("Claims")
    page.table(Table(*claims_table(comparison)))
    page.heading("Measures")
    page.text(_ABOUT_COUNTS)
    page.text(_ABOUT_TIMES)
    for table in comparison_tables(comparison):
        page.table(Table(*table))
    if setting.growth:
        page.heading("Growth with the partitions")
        for name, number in GROWING.items():
            page.figure(_growth(comparison, name, number), _caption(name))
        page.table(Table(*growth_table(comparison)))
    return page


def _caption(name: str) -> str:
    return f"{name[0].upper()}{name[1:]}, by the number of partitions."


def _growth(
    comparison: DesignComparison, name: str, number: Callable[[FailureResult], float]
) -> Draw:
    series = []
    for design, result in comparison.designs.items():
        points = sorted((found.case.partitions, number(found)) for found in result.growth)
        sizes, numbers = zip(*points, strict=True)
        series.append(Line(design, sizes, numbers))
    return lines(series, "partitions", name, x_scale="log", y_scale="symlog")  # may be 0
