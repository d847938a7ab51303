"""What is computed agrees with closed formulas, and with what is simulated.

Simulated shares and means are within four standard errors of the computed ones.
"""

from __future__ import annotations

from math import sqrt
from statistics import mean, stdev

import pytest

from regent.designs.votes.analysis import (
    Condition,
    commit_latency,
    death_wait_ms,
    loss_probability,
    risk_of_newest_record,
    stall_wait_ms,
)
from regent.designs.votes.replication_model import DEFAULT_TIMES, ReplicationScheme, schemes_for
from regent.designs.votes.trials import measure_death, measure_latency, measure_stall

TIMES = DEFAULT_TIMES
SCHEMES = [
    pytest.param(scheme, id=f"{scheme.name}, {failures}")
    for failures, names in (
        (1, ("majority vote", "ISR")),
        (2, ("majority vote", "ISR", "all replicas", "leaderless")),
    )
    for scheme in schemes_for(failures)
    if scheme.name in names
]
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


@pytest.mark.parametrize("condition", Condition)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_simulated_latencies_are_distributed_as_computed(
    scheme: ReplicationScheme, condition: Condition
):
    records = 300
    computed = commit_latency(scheme, TIMES, condition)
    simulated = measure_latency(scheme, TIMES, 1, records, condition)
    if computed is None or simulated is None:
        assert (computed, simulated) == (None, None)
        assert (scheme.name, condition) == ("all replicas", Condition.ONE_STALLED)
        return
    for share in 0.1, 0.5, 0.9, 0.99:
        limit_ms = computed.quantile(share)
        done = sum(ms <= limit_ms for ms in simulated.latencies_ms) / records
        assert done == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / records))
    if condition is Condition.HEALTHY:
        risk = risk_of_newest_record(scheme, TIMES)
        error = sqrt(risk * (1 - risk) / records)
        assert simulated.at_risk == pytest.approx(risk, abs=4 * error)


def check_mean(computed_ms: float | None, waits_ms: list[float | None]) -> None:
    if computed_ms is None:
        assert set(waits_ms) == {None}
        return
    ended = [ms for ms in waits_ms if ms is not None]
    assert len(ended) == len(waits_ms)
    # The milliseconds of messages are left out of a computed pause.
    error_ms = 4 * stdev(ended) / sqrt(len(ended)) + 0.001 * computed_ms
    assert mean(ended) == pytest.approx(computed_ms, abs=error_ms)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_simulated_waits_for_a_stalled_replica_are_as_computed(scheme: ReplicationScheme):
    waits_ms = [measure_stall(scheme, TIMES, seed) for seed in range(25)]
    check_mean(stall_wait_ms(scheme, TIMES), waits_ms)
    if scheme.shrinks:
        lag_ms = TIMES.lag_ms
        assert all(ms is not None and lag_ms < ms < 1.5 * lag_ms + 10 for ms in waits_ms)


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_simulated_waits_for_a_dead_replica_are_as_computed(
    scheme: ReplicationScheme, *, is_leader: bool
):
    waits_ms = [measure_death(scheme, TIMES, seed, is_leader=is_leader) for seed in range(25)]
    check_mean(death_wait_ms(scheme, TIMES, is_leader=is_leader), waits_ms)


def test_only_copies_beyond_the_acknowledged_ones_save_a_record_from_destruction():
    assert loss_probability(NAMED["ISR"], risk_of_newest_record(NAMED["ISR"], TIMES)) == 1
    majority = NAMED["majority vote"]
    assert loss_probability(majority, risk_of_newest_record(majority, TIMES)) < 0.02
