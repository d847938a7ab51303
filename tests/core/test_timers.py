"""Timers: counts, totals and buckets of durations."""

from __future__ import annotations

import math

from regent.core.timers import BOUNDS_MS, Timer, quantile


def test_a_new_timer_is_zero():
    timer = Timer()
    assert (timer.count, timer.total_ms, timer.minimum_ms, timer.maximum_ms) == (0, 0, 0, 0)
    assert math.isnan(quantile(timer.counts, 0.5))


def test_a_timer_has_count_total_minimum_and_maximum():
    timer = Timer()
    for duration_ms in (7.0, 2.0, 600.0):
        timer.record(duration_ms)
    assert (timer.count, timer.total_ms) == (3, 609.0)
    assert (timer.minimum_ms, timer.maximum_ms) == (2.0, 600.0)


def test_quantiles_are_right_to_a_tenth():
    timer = Timer()
    for duration_ms in range(1, 1001):
        timer.record(duration_ms)
    for share in (0.5, 0.75, 0.95, 0.99, 0.999):
        assert abs(quantile(timer.counts, share) / (1000 * share) - 1) < 0.1


def test_a_time_above_the_last_bound_counts_as_the_last_bound():
    timer = Timer()
    timer.record(1e9)
    assert quantile(timer.counts, 0.99) == BOUNDS_MS[-1]


def test_a_cleared_timer_equals_a_new_one():
    timer = Timer()
    timer.record(3.0)
    timer.clear()
    assert (timer.count, timer.minimum_ms, timer.maximum_ms) == (0, 0, 0)
