"""Random histories; a failure names its seed and the command that repeats it."""

from __future__ import annotations

import os

import pytest

from regent.core.controller import events
from tests.simulation.history import failure_of, run_seed, silence
from tests.simulation.records import BrokenInvariantError
from tests.simulation.simulation import Simulation
from tests.simulation.situations import RARE, Situation
from tests.support.runs import FIRST_SEED

HISTORIES_A_TEST = 10
SEEDS_FOR_SITUATIONS = 400


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of every ten histories: their number is an option."""
    if "nth_ten" in metafunc.fixturenames:
        count: int = metafunc.config.getoption("--seeds")
        metafunc.parametrize("nth_ten", range((count + HISTORIES_A_TEST - 1) // HISTORIES_A_TEST))


def test_random_histories_keep_every_invariant_and_converge(nth_ten: int):
    first = int(os.environ[FIRST_SEED]) + nth_ten * HISTORIES_A_TEST
    for seed in range(first, first + HISTORIES_A_TEST):
        failure = failure_of(seed)
        if failure is not None:
            pytest.fail(failure, pytrace=False)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_first_400_histories_hold_and_meet_every_situation():
    met: set[Situation] = set()
    for seed in range(SEEDS_FOR_SITUATIONS):
        _, failure, situations = run_seed(seed)
        met.update(situations)
        if failure is not None:
            pytest.fail(failure, pytrace=False)
    assert {situation.value for situation in Situation if situation not in met | RARE} == set()


@pytest.mark.parametrize("seed", [1, 7], ids=["in memory", "with files"])
def test_the_same_seed_makes_the_same_history(seed: int):
    first, second = Simulation(seed), Simulation(seed)
    assert first.has_files is (seed == 7)
    with silence():
        first.run()
        second.run()
    assert first.history == second.history
    assert first.cluster.zookeeper.transactions == second.cluster.zookeeper.transactions


def test_an_invariant_that_breaks_inside_a_guarded_call_fails_the_history(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: object) -> None:
        raise AssertionError("broken")

    simulation = Simulation(0)
    monkeypatch.setattr(Simulation, "_advance", refuse)
    monkeypatch.setattr(simulation.random, "random", lambda: 0.0)
    monkeypatch.setattr(simulation.random, "randrange", lambda *_: 3)  # it stalls
    monkeypatch.setattr(simulation.random, "choice", lambda _: 3)
    broker = simulation.cluster.brokers[0]
    with silence(), pytest.raises(BrokenInvariantError, match="broken"):
        broker.handle(events.RegisterBrokerAndReelect())
