"""Living through the history of a seed, and telling the end of it when it goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation.records import BrokenInvariantError
from tests.simulation.simulation import Simulation
from tests.simulation.situations import Situation

TOLD_LINES = 60
MAX_LINE = 300


def failure_of(seed: int) -> str | None:
    """Return how the history of a seed fails, with the command that repeats it; None: it holds."""
    return _failure_of(Simulation(seed), seed)


def _failure_of(simulation: Simulation, seed: int) -> str | None:
    try:
        with silence():
            simulation.run()
    except (Exception, BrokenInvariantError) as error:  # noqa: BLE001 - it needs its seed
        told = [line[:MAX_LINE] for line in simulation.history[-TOLD_LINES:]]
        return "\n".join(
            [
                f"seed {seed} fails: {type(error).__name__}: {error}",
                *told,
                f"seed {seed} fails: {type(error).__name__}: {str(error)[:MAX_LINE]}",
                f"repeat it: make test ARGS='tests/simulation/test_simulation.py --seed {seed}'",
            ]
        )
    return None


def live(seed: int) -> tuple[int, str | None, frozenset[Situation]]:
    """Return a seed, ``failure_of`` it and the situations it met; for pools of processes."""
    simulation = Simulation(seed)
    failure = _failure_of(simulation, seed)
    return seed, failure, frozenset(simulation.situations.met)


@contextmanager
def silence() -> Iterator[None]:
    """Keep thousands of deaths out of the log; the history tells them better."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
