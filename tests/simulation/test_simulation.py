"""Random histories; a failure names its seed and the command that repeats it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor

import pytest

from regent.core.controller import events
from tests.simulation.defects import DEFECTS, RARE_DEFECTS, SEARCH_FROM, Defect
from tests.simulation.history import failure_of, run_seed, silence
from tests.simulation.records import BrokenInvariantError
from tests.simulation.simulation import Simulation
from tests.simulation.situations import RARE, Situation

HISTORIES_A_CALL = 10  # in another process
SEEDS_FOR_DEFECTS = 2000
SEEDS_FOR_SITUATIONS = 400


@pytest.fixture
def seeds(request: pytest.FixtureRequest) -> range:
    first, count = request.config.getoption("--seed"), request.config.getoption("--seeds")
    return range(count) if first is None else range(first, first + 1)


@pytest.fixture(scope="module")
def all_cores() -> Iterator[ProcessPoolExecutor]:
    """Processes that run histories: one process cannot use a second core."""
    cores = ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn"))
    yield cores
    cores.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def searches(
    all_cores: ProcessPoolExecutor, request: pytest.FixtureRequest
) -> Mapping[Defect, Future[bool]]:
    """The searches of the selected tests, started in the sequence of the tests."""
    own = [item for item in request.session.items if item.path == request.path]
    selected = [item.callspec.params.get("defect") for item in own if hasattr(item, "callspec")]
    are_rare_wanted = request.config.getoption("--rare-defects")
    return {
        defect: all_cores.submit(_is_found, defect)
        for defect in DEFECTS
        if defect in selected and (are_rare_wanted or defect not in RARE_DEFECTS)
    }


def test_random_histories_keep_every_invariant_and_converge(
    seeds: range, all_cores: ProcessPoolExecutor
):
    met: set[Situation] = set()
    for _, failure, situations in all_cores.map(run_seed, seeds, chunksize=HISTORIES_A_CALL):
        met.update(situations)
        if failure is not None:
            pytest.fail(failure, pytrace=False)
    missing = {situation.value for situation in Situation if situation not in met | RARE}
    assert not missing or len(seeds) < SEEDS_FOR_SITUATIONS, f"no history meets {missing}"


@pytest.mark.parametrize("seed", [1, 7], ids=["in memory", "with files"])
def test_the_same_seed_makes_the_same_history(seed: int):
    first, second = Simulation(seed), Simulation(seed)
    assert first.has_files is (seed == 7)
    with silence():
        first.run()
        second.run()
    assert first.history == second.history
    assert first.cluster.zookeeper.transactions == second.cluster.zookeeper.transactions


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__)
def test_a_core_with_a_defect_is_caught(defect: Defect, searches: Mapping[Defect, Future[bool]]):
    if defect not in searches:
        pytest.skip("rare: the search takes minutes, --rare-defects")
    assert searches[defect].result(), f"{defect.__name__} passes {SEEDS_FOR_DEFECTS} histories"


def _is_found(defect: Defect) -> bool:
    """Whether a history fails with the defect, from the first seed of its search on."""
    first = SEARCH_FROM.get(defect, 0)
    return any(_is_caught(defect, seed) for seed in range(first, first + SEEDS_FOR_DEFECTS))


def _is_caught(defect: Defect, seed: int) -> bool:
    """Whether a history fails with the defect and holds without it."""
    with defect():
        fails = failure_of(seed) is not None
    return fails and failure_of(seed) is None


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
