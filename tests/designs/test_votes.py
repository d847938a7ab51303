"""What is computed agrees with closed formulas; and what deaths leave."""

from __future__ import annotations

import pytest

from regent.designs.votes import (
    APPEND_MS,
    LAG_MS,
    MAX_FAILURES,
    SILENCE_MS,
    SLOW,
    TRIP_MS,
    Remaining,
    commit_latency,
    death_wait_ms,
    loss_of_newest_record,
    schemes_for,
    stall_wait_ms,
    survival,
    votes_table,
)

NAMED = {scheme.name: scheme for scheme in schemes_for(2)}


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_to_survive_failures_votes_need_twice_as_many_more_replicas_as_an_isr(failures: int):
    counts = {s.name: (s.replicas, s.acknowledgements) for s in schemes_for(failures)}
    assert counts["majority vote"] == counts["leaderless"] == (2 * failures + 1, failures + 1)
    assert counts["ISR"] == counts["all with all"] == (failures + 1, failures + 1)


def mean_of_fastest(needed: int, replicas: int) -> float:
    """The average time of the ``needed``-th fastest of exponential times."""
    return APPEND_MS * sum(1 / (replicas - done) for done in range(needed))


@pytest.mark.parametrize(
    ("name", "trips", "leader_ms", "followers_ms"),
    [
        ("majority vote", 4, APPEND_MS, mean_of_fastest(2, 4)),
        ("ISR", 4, APPEND_MS, mean_of_fastest(2, 2)),
        ("all with all", 2, 0, mean_of_fastest(3, 3)),
        ("leaderless", 2, 0, mean_of_fastest(3, 5)),
    ],
)
def test_the_mean_latency_is_the_closed_formula(
    name: str, trips: int, leader_ms: float, followers_ms: float
):
    latency = commit_latency(NAMED[name])
    expected_ms = trips * TRIP_MS + leader_ms + followers_ms
    assert latency.mean() == pytest.approx(expected_ms, rel=0.001)


def test_one_slow_replica_delays_what_waits_for_all_and_hardly_a_majority():
    for name, slower in (
        ("majority vote", 1.1),
        ("leaderless", 1.2),
        ("ISR", 4),
        ("all with all", 4),
    ):
        healthy = commit_latency(NAMED[name])
        one_slow = commit_latency(NAMED[name], SLOW)
        growth = one_slow.quantile(0.5) / healthy.quantile(0.5)
        assert growth > slower if slower > 2 else 1 < growth < slower


def test_only_copies_beyond_the_acknowledged_ones_save_a_record_from_destruction():
    assert loss_of_newest_record(NAMED["ISR"]) == 1
    assert loss_of_newest_record(NAMED["majority vote"]) < 0.02


def test_a_stalled_or_dead_replica_stops_all_replicas_and_an_isr_for_a_while():
    assert stall_wait_ms(NAMED["ISR"]) == 1.25 * LAG_MS
    assert stall_wait_ms(NAMED["all with all"]) is None
    assert death_wait_ms(NAMED["all with all"], is_leader=True) is None
    majority, isr = (
        death_wait_ms(NAMED[name], is_leader=False) for name in ("majority vote", "ISR")
    )
    assert majority is not None
    assert isr == SILENCE_MS - SILENCE_MS / 6
    assert majority < 10


@pytest.mark.parametrize("failures", range(1, MAX_FAILURES + 1))
def test_the_deaths_that_are_survived_lose_nothing_and_one_more_blocks_or_loses(failures: int):
    for scheme in schemes_for(failures):
        survived, one_more, first, everyone = survival(scheme, failures)
        assert (survived.lost, one_more.lost) == (0, None)
        assert survived.writes == (scheme.name != "all with all")
        assert not one_more.writes
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
    assert cells["leader dies: a record waits"] == ["21 s", "15 s", "15 s", "-", "-"]
    assert cells["another dies: a record waits"][3:] == ["2.5 ms", "until it is back"]
    assert cells["… if the first dead comes back"] == [
        "none lost, goes on",
        "no reads, no writes",
        "1 of 2 lost, goes on",
        "none lost, goes on",
        "none lost, no writes",
    ]


def test_when_all_synchronise_with_all_the_links_grow_as_the_square_of_the_replicas():
    _, *rows = votes_table(4)
    links = next(row[1:] for row in rows if row[0].startswith("links"))
    assert links == ["8", "4", "4", "0", "10"]
