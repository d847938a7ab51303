"""Random histories; a failure names its seed and the command that repeats it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.simulation import Simulation

STEPS = 300
SEEDS_FOR_DEFECTS = 1000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Keep thousands of deaths out of the report; the history tells them better."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    first, count = request.config.getoption("--seed"), request.config.getoption("--seeds")
    return range(count) if first is None else range(first, first + 1)


def test_random_histories_keep_every_invariant_and_converge(seeds: range):
    for seed in seeds:
        simulation = Simulation(seed)
        try:
            simulation.run(STEPS)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it needs its seed
            story = "\n".join(simulation.history[-60:])
            pytest.fail(
                f"seed {seed} fails: {type(error).__name__}: {error}\n{story}\n"
                f"repeat it: pytest tests/simulation/test_simulation.py --seed {seed}"
            )


def test_the_same_seed_makes_the_same_history():
    first, second = Simulation(7), Simulation(7)
    first.run(STEPS)
    second.run(STEPS)
    assert first.history == second.history
    assert first.cluster.zookeeper.transactions == second.cluster.zookeeper.transactions


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_core_with_a_defect_is_caught(defect: Defect):
    with defect():
        for seed in range(SEEDS_FOR_DEFECTS):
            try:
                Simulation(seed).run(STEPS)
            except (AssertionError, RuntimeError, LookupError):
                return
    pytest.fail(f"{defect.__name__} passes {SEEDS_FOR_DEFECTS} histories")
