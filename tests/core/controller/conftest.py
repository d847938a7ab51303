"""A cluster with two brokers and a topic, and its active controller."""

from __future__ import annotations

import pytest

from tests.support.controller_parts import Candidate
from tests.support.world import World, topic_id


@pytest.fixture
def world() -> World:
    """Brokers 1 and 2 are registered, and t has a partition on each."""
    world = World((1, 2))
    world.put_topic("t", {0: (1, 2), 1: (2, 1)}, topic_id(77))
    return world


@pytest.fixture
def active(world: World) -> Candidate:
    """The active controller, on broker 0, after it has handled all events."""
    candidate = Candidate(world, 0)
    candidate.start()
    candidate.catch_up()
    assert candidate.controller.is_active
    return candidate
