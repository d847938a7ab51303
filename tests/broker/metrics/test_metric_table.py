"""The tables of metrics, the text that Prometheus reads, and the page that describes it."""

from __future__ import annotations

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from regent.broker.metrics import (
    broker_metrics,
    controller_metrics,
    coordinator_metrics,
    listener_metrics,
    reference,
    replication_metrics,
)
from regent.broker.metrics.metric_table import Kind, MetricTable, counter, gauge, text
from regent.broker.metrics.recent import Recent
from regent.broker.metrics.reference import SECTIONS, metrics_page
from tests.support.dashboards import ABSENT, queries, query_parts

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
MODULES = (
    broker_metrics,
    controller_metrics,
    coordinator_metrics,
    listener_metrics,
    replication_metrics,
)
OF_PYTHON = ("process_", "python_")  # prometheus_client has them
WAITING = MetricTable[float](
    "",
    gauge("waiting", "requests that wait"),
    labels=("kind",),
)
NOTHING = MetricTable[float](
    "",
    counter("nothing", "no sample"),
    labels=("kind",),
)


def name_of(label: str) -> str:
    return label.partition("=")[0]


def test_families_of_one_name_become_one():
    recent = Recent()
    families = [
        *WAITING.of(1, recent, "Fetch"),
        *NOTHING.families([], recent),
        *WAITING.of(2, recent, "topic"),
    ]
    assert "".join(text(families)) == (
        "# HELP waiting requests that wait\n"
        "# TYPE waiting gauge\n"
        'waiting{kind="Fetch"} 1\n'
        'waiting{kind="topic"} 2\n'
        "# HELP nothing no sample\n"
        "# TYPE nothing counter\n"
    )


def test_a_label_may_have_any_characters():
    odd = 'a "quoted"\nback\\slash'
    (family,) = text_string_to_metric_families("".join(text(WAITING.of(math.nan, Recent(), odd))))
    assert family.samples[0].labels == {"kind": odd}


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert page == metrics_page(page), (
        "docs/metrics.md is not that of the tables: python -m regent.broker.metrics.reference"
    )


def test_the_page_has_every_table():
    shown = {id(table) for tables in SECTIONS.values() for table in tables}
    missing = [
        f"{module.__name__}.{name} is in no section of {reference.__name__}"
        for module in MODULES
        for name, value in vars(module).items()
        for table in (value if isinstance(value, tuple) else [value])
        if isinstance(table, MetricTable) and id(table) not in shown
    ]
    assert missing == []


def test_the_page_has_every_section():
    headings = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert [heading for heading in headings if heading in SECTIONS] == list(SECTIONS)


def test_a_name_belongs_to_one_row():
    names = [t.exposed_name(row) for tables in SECTIONS.values() for t in tables for row in t.rows]
    assert len(names) == len(set(names))


def test_dashboards_find_the_metrics_that_they_query():
    offered: dict[str, set[str]] = {}
    for table in (table for tables in SECTIONS.values() for table in tables):
        for row in table.rows:
            name = table.exposed_name(row)
            of_summary = row.kind is Kind.SUMMARY
            for suffix in ("", "_count", "_sum") if of_summary else ("",):
                labels = {*table.labels, *(["quantile"] if of_summary and not suffix else [])}
                offered[name + suffix] = labels
    missing = {
        name
        for name, labels in map(query_parts, queries())
        if not name.startswith(OF_PYTHON)
        and (name not in offered or not {name_of(label) for label in labels} <= offered[name])
    }
    assert missing == set(ABSENT), "a row is missing, or has other labels, in broker/metrics/"
