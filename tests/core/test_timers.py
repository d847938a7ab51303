"""Timers: counts, totals and buckets of durations."""

from __future__ import annotations

from regent.core.timers import Timer


def test_a_new_timer_is_zero():
    timer = Timer()
    assert (timer.count, timer.total_ms, timer.minimum_ms, timer.maximum_ms) == (0, 0, 0, 0)
    assert {count for _, count in timer.cumulative()} == {0}


def test_a_timer_has_count_total_minimum_and_maximum():
    timer = Timer()
    for duration_ms in (7.0, 2.0, 600.0):
        timer.record(duration_ms)
    assert (timer.count, timer.total_ms) == (3, 609.0)
    assert (timer.minimum_ms, timer.maximum_ms) == (2.0, 600.0)


def test_buckets_are_cumulative_and_include_their_bound():
    timer = Timer()
    for duration_ms in (1.0, 1.5, 1_000_000.0):
        timer.record(duration_ms)
    assert dict(timer.cumulative()) == {
        "1": 1,
        "5": 2,
        "10": 2,
        "50": 2,
        "100": 2,
        "500": 2,
        "1000": 2,
        "5000": 2,
        "30000": 2,
        "+Inf": 3,
    }


def test_a_cleared_timer_equals_a_new_one():
    timer = Timer()
    timer.record(3.0)
    timer.clear()
    assert (timer.count, timer.minimum_ms, timer.maximum_ms) == (0, 0, 0)
