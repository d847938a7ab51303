"""A cluster with faults for the tests of a module, and random numbers for their rounds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from regent.testing.regent_cluster import RegentCluster
from tests.support.breakable_cluster import BreakableCluster


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown with a failure
    count: int = request.config.getoption("--rounds")
    chance = random.Random(seed)
    return (random.Random(chance.random()) for _ in range(count))


@pytest.fixture(scope="module")
def cluster(breakable_cluster: BreakableCluster) -> BreakableCluster:
    return breakable_cluster


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegentCluster]:
    """A cluster for tests with topics of their own, which neither end nor pause a process."""
    with RegentCluster(tmp_path_factory.mktemp("whole"), "--no-placement-service") as cluster:
        yield cluster
