"""What counters have grown by in the last minute."""

from __future__ import annotations

import math

from regent.broker.metrics.metric_table import Family
from regent.broker.metrics.recent import Recent
from regent.core.timers import Timer


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_rate_is_that_since_the_start():
    clock = Clock()
    recent = Recent(clock)
    clock.now += 10
    assert recent.rate("requests", 50) == 5


def test_a_rate_is_that_of_the_last_minute_however_often_it_is_read():
    clock = Clock()
    recent = Recent(clock)
    for count in range(0, 1000, 10):  # ten in a second
        clock.now += 1
        recent.rate("requests", count)
    clock.now += 30
    assert 3 <= recent.rate("requests", 990) <= 6, "half a minute without a request"
    clock.now += 60
    assert recent.rate("requests", 990) == 0


def test_a_counter_that_begins_again_has_not_shrunk():
    clock = Clock()
    recent = Recent(clock)
    clock.now += 10
    recent.rate("requests", 50)
    clock.now += 60
    assert recent.rate("requests", 2) == 0


def test_quantiles_are_those_of_the_last_minute_and_the_count_is_that_since_the_start():
    clock = Clock()
    recent, timer = Recent(clock), Timer()

    def told() -> dict[str, float]:
        family = Family("summary", "ms", "times")
        recent.add_summary(family, timer, '{request="Fetch"}')
        return family.values()

    for _ in range(100):
        timer.record(1000)
    clock.now += 60
    assert abs(told()['ms{request="Fetch",quantile="0.99"}'] / 1000 - 1) < 0.2
    timer.record(1)
    clock.now += 60
    values = told()
    assert values['ms{request="Fetch",quantile="0.99"}'] < 2
    assert values['ms_count{request="Fetch"}'] == 101
    assert values['ms_sum{request="Fetch"}'] == 100_001
    clock.now += 60
    assert math.isnan(told()['ms{request="Fetch",quantile="0.99"}']), "nothing was recorded"
