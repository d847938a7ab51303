from __future__ import annotations

from typing import Any

import pytest

from bench.compare import changes


def result(**figures: tuple[float, float, float]) -> dict[str, dict[str, Any]]:
    spreads = {
        name: dict(zip(("median", "min", "max"), spread, strict=True))
        for name, spread in figures.items()
    }
    case = {"shape": {"partitions": 10}, "runs": 3, "figures": spreads}
    return {"failover-load": {"cases": [case]}}


@pytest.mark.parametrize(
    ("figure", "before", "now", "is_worse"),
    [
        ("seconds", (1.0, 0.9, 1.1), (1.3, 1.2, 1.4), True),
        ("cpu_s", (1.0, 0.9, 1.1), (0.7, 0.6, 0.8), False),
        ("records_per_s", (100, 95, 105), (80, 75, 85), True),
        ("mb_per_s", (100, 95, 105), (120, 115, 125), False),
    ],
)
def test_a_change_larger_than_the_spread_is_reported(
    figure: str,
    before: tuple[float, float, float],
    now: tuple[float, float, float],
    is_worse: bool,
) -> None:
    (change,) = changes(result(**{figure: before}), result(**{figure: now}))

    assert (change.figure, change.is_worse) == (figure, is_worse)
    assert str(change).startswith("worse" if is_worse else "better")


@pytest.mark.parametrize(
    ("figure", "before", "now"),
    [
        ("seconds", (1.0, 0.9, 1.1), (1.15, 1.1, 1.2)),  # within the spread of the first
        ("seconds", (1.0, 0.99, 1.01), (1.3, 1.0, 1.5)),  # within the spread of the second
        ("seconds", (1.0, 1.0, 1.0), (1.04, 1.04, 1.04)),  # single runs, nearly equal
        ("sync_seconds", (1.0, 1.0, 1.0), (2.0, 2.0, 2.0)),  # the speed of a peer
        ("leaders_elected", (1.0, 1.0, 1.0), (2.0, 2.0, 2.0)),  # neither good nor bad
    ],
)
def test_other_differences_are_not_reported(
    figure: str, before: tuple[float, float, float], now: tuple[float, float, float]
) -> None:
    assert not list(changes(result(**{figure: before}), result(**{figure: now})))


def test_cases_without_a_counterpart_are_not_compared() -> None:
    before, now = result(seconds=(1, 1, 1)), result(seconds=(9, 9, 9))
    before["failover-load"]["cases"][0]["shape"] = {"partitions": 20}

    assert not list(changes(before, now))
    assert not list(changes({}, now))
