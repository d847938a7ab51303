"""The charts and facts of the report of events say what is known, and the same thing."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regent.jobs.reports.charts import dates
from regent.jobs.reports.event_analysis import PERCENTILES
from regent.jobs.reports.event_page import _draw_terms, _rate, event_facts
from regent.jobs.reports.event_tables import event_tables, moment

START_MS = 1_795_000_000_000


def term(epoch: int, **found: Any) -> dict[str, Any]:
    names = ("elected_ms", "trigger", "vacant_ms", "vacant_at_most_ms", "takeover_ms", "missed_ms")
    unknown = dict.fromkeys((*names, "failover_ms", "brokers_updated", "changes", "resigned_ms"))
    row = {"controller_epoch": epoch, "broker_id": epoch, "events": 1, "has_failed": False}
    return {**row, **unknown, "first_ms": START_MS, "last_ms": START_MS + 1000, **found}


def report(*terms: dict[str, Any]) -> dict[str, Any]:
    names = ("latencies", "leader_churn", "isr_flapping", "slowest_brokers", "busiest_minutes")
    rows: dict[str, Any] = dict.fromkeys((*names, "slowest_events"), ())
    waits = dict.fromkeys(PERCENTILES, 1.0)
    kind = {"event": "Startup", "count": 1, "handling_ms": waits, "queue_ms": waits}
    rows |= {"latencies": [kind]}
    counts = {"journals": 1, "events": 1, "named_changes": 0, "unnamed_changes": 0}
    times = {"first_ms": START_MS, "last_ms": START_MS + 1000}
    return {**rows, **counts, **times, "brokers": [1], "unreadable_lines": {}, "terms": terms}


def test_the_bar_of_a_failed_controller_reaches_to_when_the_next_one_noticed():
    axes = Figure().add_subplot()
    failed = term(1, has_failed=True, missed_ms=START_MS + 7000)
    _draw_terms([failed, term(2, first_ms=START_MS + 7000, last_ms=START_MS + 9000)], axes)
    known, unknown, after = bars = [p for p in axes.patches if isinstance(p, Rectangle)]
    ends = dates([START_MS, START_MS + 1000, START_MS + 7000, START_MS + 9000])
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in bars]
    assert spans == [pytest.approx(pair, rel=0, abs=1e-8) for pair in pairwise(ends)]
    assert (unknown.get_alpha() or 1) < 1 == (known.get_alpha() or 1) == (after.get_alpha() or 1)


def test_the_time_without_a_controller_is_an_upper_limit_if_the_former_one_failed():
    found = report(term(1), term(2, vacant_at_most_ms=6100.0), term(3, vacant_ms=20.0))
    assert event_facts(found)["longest without a controller"] == "≤ 6.1 s"
    [terms] = [table for table in event_tables(found) if table.caption.startswith("Terms")]
    column = terms.headers.index("without a controller")
    assert [row[column] for row in terms.rows] == [None, "≤ 6,100", 20.0]
    found = report(term(2, vacant_at_most_ms=10.0), term(3, vacant_ms=20.0))
    assert event_facts(found)["longest without a controller"] == "20 ms"


def test_the_rate_of_events_does_not_fall_where_the_journals_begin_and_end():
    counts = (3, 10, 10, 0, 10, 1)
    rows = [{"start_ms": START_MS + 1000 * n, "events": c} for n, c in enumerate(counts) if c]
    axes = Figure().add_subplot()
    _rate({"bucket_ms": 1000, "over_time": rows})(axes)
    [line] = axes.lines
    assert np.asarray(line.get_ydata()).tolist() == [10, 10, 0, 10]


@pytest.fixture
def kolkata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is that of a zone."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("kolkata")
def test_moments_are_in_utc_whatever_the_zone_of_the_machine():
    assert moment(START_MS) == "2026-11-18 11:06:40.000"
