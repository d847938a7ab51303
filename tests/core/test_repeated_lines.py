"""Log lines about a condition that lasts."""

from __future__ import annotations

from regent.core.repeated_lines import RepeatedLines


def test_a_line_is_due_at_once_and_then_once_in_ten_seconds() -> None:
    lines = RepeatedLines()
    due = [now_ms for now_ms in range(0, 30_000, 100) if lines.is_due("it fails", now_ms)]
    assert due == [0, 10_000, 20_000]


def test_each_condition_has_a_line_of_its_own() -> None:
    lines = RepeatedLines()
    assert lines.is_due(("t-0", "a"), 0)
    assert lines.is_due(("t-0", "b"), 1)
    assert not lines.is_due(("t-0", "a"), 2)


def test_a_clock_that_is_set_back_hides_no_log_line() -> None:
    lines = RepeatedLines()
    assert lines.is_due("it fails", 10**12)
    assert lines.is_due("it fails", 5)
    assert not lines.is_due("it fails", 6)


def test_very_many_conditions_take_no_more_memory_and_few_lines() -> None:
    lines = RepeatedLines()
    assert sum(lines.is_due(number, 0) for number in range(5_000)) == 1_000
    assert lines.is_due("a new one", 10_000)
