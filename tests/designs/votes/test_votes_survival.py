"""Replicas die one after the other: what is still there, and what goes on."""

from __future__ import annotations

import pytest

from regent.designs.votes.replication_model import schemes_for
from regent.designs.votes.survival import Remaining, survival
from regent.designs.votes.table import MAX_FAILURES, votes_table


@pytest.mark.parametrize("failures", range(1, MAX_FAILURES + 1))
def test_the_deaths_that_are_survived_lose_nothing_and_one_more_blocks_or_loses(failures: int):
    for scheme in schemes_for(failures):
        left = survival(scheme, failures)
        assert (left.after_failures.lost, left.after_one_more.lost) == (0, None)
        assert left.after_failures.writes == (scheme.name != "all replicas")
        assert not left.after_one_more.writes
        first, everyone = left.first_is_back, left.all_are_back
        match scheme.name:
            case "majority vote" | "leaderless":
                assert (first.lost, first.writes, everyone.lost) == (0, True, 0)
            case "ISR":
                assert (first.lost, first.writes, everyone.lost) == (None, False, 0)
            case "ISR, unclean":
                assert first == everyone == Remaining(failures, failures + 1, writes=True)
            case _:
                assert (first.lost, first.writes, everyone.lost) == (0, False, 0)


def test_the_table_has_a_column_for_each_scheme():
    header, *rows = votes_table(1)
    assert header[1:] == [scheme.name for scheme in schemes_for(1)]
    assert {len(row) for row in rows} == {len(header)}
    cells = {row[0]: row[1:] for row in rows}
    assert cells["acknowledgements of a commit"] == ["2", "2", "2", "2", "2"]
    assert cells["commit, all healthy: p50"][0] == "3.23 ms"
    assert cells["leader dies: a record waits"][3:] == ["until it is back", "-"]
    assert cells["… if the first dead comes back"] == [
        "none lost, goes on",
        "no reads, no writes",
        "1 of 2 lost, goes on",
        "none lost, no writes",
        "none lost, goes on",
    ]
