"""A core with a planted defect fails in a history that holds without it."""

from __future__ import annotations

import pytest
from _pytest.mark.structures import ParameterSet

from tests.simulation.defects import DEFECTS, QUICKEST_DEFECTS, RARE_DEFECTS, SEARCH_FROM, Defect
from tests.simulation.history import failure_of

SEEDS_FOR_DEFECTS = 2000


def _searches() -> list[ParameterSet]:
    marks = [pytest.mark.nightly, pytest.mark.timeout(1800)]
    return [
        pytest.param(
            defect,
            id=defect.__name__,
            marks=[] if defect in QUICKEST_DEFECTS else marks,
        )
        for defect in DEFECTS
    ]


@pytest.mark.parametrize("defect", _searches())
def test_a_core_with_a_defect_is_caught(defect: Defect, request: pytest.FixtureRequest):
    if defect in RARE_DEFECTS and not request.config.getoption("--rare-defects"):
        pytest.skip("rare: the search takes minutes, --rare-defects")
    assert _is_found(defect), f"{defect.__name__} passes {SEEDS_FOR_DEFECTS} histories"


def _is_found(defect: Defect) -> bool:
    """Whether a history fails with the defect, from the first seed of its search on."""
    first = SEARCH_FROM.get(defect, 0)
    return any(_is_caught(defect, seed) for seed in range(first, first + SEEDS_FOR_DEFECTS))


def _is_caught(defect: Defect, seed: int) -> bool:
    """Whether a history fails with the defect and holds without it."""
    with defect():
        fails = failure_of(seed) is not None
    return fails and failure_of(seed) is None
