"""Random numbers for the rounds of a test."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown with a failure
    count: int = request.config.getoption("--rounds")
    chance = random.Random(seed)
    return (random.Random(chance.random()) for _ in range(count))
