"""What users write for a time."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from regent.config.moments import parse_duration, parse_moment, parse_timestamp


def test_a_time_of_a_record_is_in_utc_unless_it_names_a_zone() -> None:
    moment = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert parse_timestamp("2026-02-01T01:59:00+02:00") == moment.timestamp() * 1000
    assert parse_timestamp("2026-01-31T23:59:00") == moment.timestamp() * 1000


def test_a_time_of_an_event_is_in_utc_too() -> None:
    moment = datetime(2026, 1, 31, 23, 59, tzinfo=UTC)
    assert parse_moment("2026-01-31T23:59:00") == moment.timestamp() * 1000
    assert parse_moment("2026-01-31 23:59") == moment.timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86_400)]
)
def test_a_number_with_a_unit_is_so_long_ago(text: str, seconds: int) -> None:
    before = time.time() - seconds
    assert before * 1000 - 1 <= parse_moment(text) <= (time.time() - seconds) * 1000


def test_a_number_is_a_date_or_milliseconds() -> None:
    assert parse_timestamp("20260131") == parse_moment("2026-01-31")
    assert (parse_timestamp("5"), parse_timestamp("1769817600000")) == (5, 1_769_817_600_000)
    assert abs(parse_timestamp("10m ago") - parse_timestamp("10m")) < 1_000


@pytest.mark.parametrize("text", ["", "10", "m", "-1m", "10 m", "9" * 10 + "d", "yesterday"])
def test_an_unreadable_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time such as .* 10m"):
        parse_moment(text)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1H", 3_600_000),
        ("P1DT2H3M4.5S", 93_784_500),
        ("pt0.001s", 1),
        ("P2D", 172_800_000),
        ("10m", 600_000),
    ],
)
def test_a_duration_is_short_or_in_iso_form(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "-PT1H", "P1M", "10"])
def test_an_unreadable_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as PT1H, P1DT30M, or 10m"):
        parse_duration(text)
