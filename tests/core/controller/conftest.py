"""A cluster with two brokers and a topic, and its active controller."""

from __future__ import annotations

import pytest

from tests.support.controller_parts import Candidate, Tree, topic_id


@pytest.fixture
def tree() -> Tree:
    """Brokers 1 and 2 are registered, and t has a partition on each."""
    tree = Tree((1, 2))
    tree.put_topic("t", {0: (1, 2), 1: (2, 1)}, topic_id(77))
    return tree


@pytest.fixture
def active(tree: Tree) -> Candidate:
    """The active controller, on broker 0, after it has handled all events."""
    candidate = Candidate(tree, 0)
    candidate.start()
    candidate.catch_up()
    assert candidate.controller.is_active
    return candidate
