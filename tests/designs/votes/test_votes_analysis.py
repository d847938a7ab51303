"""What is computed agrees with closed formulas."""

from __future__ import annotations

import pytest

from regent.designs.votes.analysis import (
    Condition,
    commit_latency,
    death_wait_ms,
    loss_probability,
    risk_of_newest_record,
    stall_wait_ms,
)
from regent.designs.votes.replication_model import DEFAULT_TIMES, schemes_for

TIMES = DEFAULT_TIMES
NAMED = {scheme.name: scheme for scheme in schemes_for(2)}


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_to_survive_failures_votes_need_twice_as_many_more_replicas_as_an_isr(failures: int):
    counts = {s.name: (s.replicas, s.acknowledgements) for s in schemes_for(failures)}
    assert counts["majority vote"] == counts["leaderless"] == (2 * failures + 1, failures + 1)
    assert counts["ISR"] == counts["all replicas"] == (failures + 1, failures + 1)


def mean_of_fastest(needed: int, replicas: int) -> float:
    """The average time of the ``needed``-th fastest of exponential times."""
    return TIMES.append_ms * sum(1 / (replicas - done) for done in range(needed))


@pytest.mark.parametrize(
    ("name", "trips", "leader_ms", "followers_ms"),
    [
        ("majority vote", 4, TIMES.append_ms, mean_of_fastest(2, 4)),
        ("ISR", 4, TIMES.append_ms, mean_of_fastest(2, 2)),
        ("all replicas", 4, TIMES.append_ms, mean_of_fastest(2, 2)),
        ("leaderless", 2, 0, mean_of_fastest(3, 5)),
    ],
)
def test_the_mean_latency_is_the_closed_formula(
    name: str, trips: int, leader_ms: float, followers_ms: float
):
    latency = commit_latency(NAMED[name], TIMES, Condition.HEALTHY)
    assert latency is not None
    expected_ms = trips * TIMES.trip_ms + leader_ms + followers_ms
    assert latency.mean() == pytest.approx(expected_ms, rel=0.001)


def test_one_slow_replica_delays_what_waits_for_all_and_hardly_a_majority():
    for name, slower in (
        ("majority vote", 1.1),
        ("leaderless", 1.2),
        ("ISR", 4),
        ("all replicas", 4),
    ):
        healthy = commit_latency(NAMED[name], TIMES, Condition.HEALTHY)
        one_slow = commit_latency(NAMED[name], TIMES, Condition.ONE_SLOW)
        assert healthy is not None
        assert one_slow is not None
        growth = one_slow.quantile(0.5) / healthy.quantile(0.5)
        assert growth > slower if slower > 2 else 1 < growth < slower


def test_only_copies_beyond_the_acknowledged_ones_save_a_record_from_destruction():
    assert loss_probability(NAMED["ISR"], risk_of_newest_record(NAMED["ISR"], TIMES)) == 1
    majority = NAMED["majority vote"]
    assert loss_probability(majority, risk_of_newest_record(majority, TIMES)) < 0.02


def test_a_stalled_or_dead_replica_stops_all_replicas_and_an_isr_for_a_while():
    assert stall_wait_ms(NAMED["ISR"], TIMES) == 1.25 * TIMES.lag_ms
    assert stall_wait_ms(NAMED["all replicas"], TIMES) is None
    assert death_wait_ms(NAMED["all replicas"], TIMES, is_leader=True) is None
    majority, isr = (
        death_wait_ms(NAMED[name], TIMES, is_leader=False) for name in ("majority vote", "ISR")
    )
    assert majority is not None
    assert isr == TIMES.silence_ms - TIMES.sign_of_life_ms / 2
    assert majority < 10
