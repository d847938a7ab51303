"""Run seeds; of one that fails, return its last lines and the command that repeats it.

docs/simulation.md says how to read, shorten and debug a history.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from tests.simulation.cluster import SimulatedCrashError
from tests.simulation.odds import STEPS
from tests.simulation.records import BrokenInvariantError
from tests.simulation.simulation import Simulation
from tests.simulation.situations import Situation

SHOWN_LINES = 60
MAX_LINE = 300


def failure_of(seed: int) -> str | None:
    """Return how a seed fails and the command that repeats it; None: it holds."""
    return _failure_of(Simulation(seed), seed)


def _failure_of(simulation: Simulation, seed: int, steps: int = STEPS) -> str | None:
    try:
        with silence():
            simulation.run(steps)
    except (Exception, BrokenInvariantError, SimulatedCrashError) as error:  # noqa: BLE001 - it needs its seed
        shown = [line[:MAX_LINE] for line in simulation.history[-SHOWN_LINES:]]
        return "\n".join(
            [
                f"seed {seed} fails: {type(error).__name__}: {error}",
                *shown,
                f"seed {seed} fails: {type(error).__name__}: {str(error)[:MAX_LINE]}",
                f"repeat it: python -m tests.simulation --first {seed} --seeds 1",
                f"see all of it, as short as it fails: python -m tests.simulation --show {seed}",
            ]
        )
    return None


def shown(seed: int, stop_at: int | None = None) -> tuple[list[str], str | None]:
    """Return all lines of a history and its failure; of one that fails, the shortest that does.

    Fewer steps with faults are the beginning of the same history, then all faults end.
    ``stop_at``: the number of a line of it, before which the debugger begins.
    """
    steps, simulation = STEPS, Simulation(seed)
    failure = _failure_of(simulation, seed)
    if failure is not None:
        for steps in range(0, STEPS + 1, 10):
            simulation = Simulation(seed)
            failure = _failure_of(simulation, seed, steps)
            if failure is not None:
                break
    if stop_at is not None:
        stopped = Simulation(seed)
        stopped.stop_at = stop_at
        _failure_of(stopped, seed, steps)
    return simulation.history, failure


def run_seed(seed: int) -> tuple[int, str | None, frozenset[Situation]]:
    """Return a seed, its failure and the situations that it met; for pools of processes."""
    simulation = Simulation(seed)
    failure = _failure_of(simulation, seed)
    return seed, failure, frozenset(simulation.situations.met)


def run_seeds(seeds: range, jobs: int) -> Iterator[tuple[int, str | None, frozenset[Situation]]]:
    """Run seeds on ``jobs`` processes; yield what ``run_seed`` returns of each, in their order.

    Raises ``BrokenProcessPool`` if one of the processes is killed; they end with this one.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin_worker) as pool:
        try:
            yield from pool.map(run_seed, seeds)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    """Leave Ctrl-C, which the terminal sends to every process of the group, to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def silence() -> Iterator[None]:
    """Disable logging: thousands of crashes would fill the log; the trace has them."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
