"""Random histories of a transactional id keep what was promised to its producers."""

from __future__ import annotations

import pytest

from tests.core.coordinator.transaction_history import History


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_transactions_are_atomic_and_fenced_while_coordinators_fail_over(first: int):
    for seed in range(first, first + 50):
        try:
            History(seed).run(steps=1_000)
        except Exception as error:
            raise AssertionError(f"the history of seed {seed}: {error}") from error
