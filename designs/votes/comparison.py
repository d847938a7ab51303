"""All schemes side by side: what is computed, and what is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from regent.core.errors import RegentError
from regent.designs.votes.analysis import (
    Condition,
    commit_latency,
    death_wait_ms,
    loss_probability,
    risk_of_newest_record,
    stall_wait_ms,
)
from regent.designs.votes.replication_model import (
    DEFAULT_TIMES,
    ModelTimes,
    ReplicationScheme,
    schemes_for,
)
from regent.designs.votes.trials import (
    DeathTrial,
    LatencyTrial,
    let_replicas_die,
    measure_death,
    measure_latency,
    measure_stall,
)

MAX_FAILURES: Final = 5


@dataclass(frozen=True)
class TwoWays:
    """A number that is computed, and simulated; None: without end."""

    computed: float | None
    simulated: float | None


@dataclass(frozen=True)
class LatencyTwoWays:
    """The time from a write to its acknowledgement: the median, and the slowest in a hundred."""

    p50_ms: TwoWays
    p99_ms: TwoWays


@dataclass(frozen=True)
class SchemeRow:
    """One scheme. Waits are averages."""

    scheme: ReplicationScheme
    healthy: LatencyTwoWays
    one_slow: LatencyTwoWays
    one_stalled: LatencyTwoWays
    """When the stalled follower has left the ISR."""
    stall_wait_ms: TwoWays
    leader_death_wait_ms: TwoWays
    follower_death_wait_ms: TwoWays
    newest_record_loss: TwoWays
    """The probability, when as many replicas are destroyed at once as a commit waits for."""
    deaths: DeathTrial


@dataclass(frozen=True)
class P99Point:
    """Computed latencies: 99 of 100 records are acknowledged in this time."""

    scheme: str
    failures: int
    healthy_ms: float
    one_slow_ms: float


@dataclass(frozen=True)
class VotesComparison:
    """The schemes that survive a number of failures, and how latencies grow with this number."""

    failures: int
    seed: int
    times: ModelTimes
    schemes: tuple[SchemeRow, ...]
    p99: tuple[P99Point, ...]


@dataclass(frozen=True)
class _Trials:
    """What is the same in all measurements."""

    times: ModelTimes
    failures: int
    seed: int
    records: int
    waits: int


def compare_votes(
    failures: int, seed: int, *, records: int = 2000, waits: int = 100
) -> VotesComparison:
    """Compute and simulate all schemes, which takes some seconds. Raises RegentError.

    A latency is simulated with so many ``records``, a wait with so many ``waits``.
    """
    if not 1 <= failures <= MAX_FAILURES:
        raise RegentError(f"the model compares 1 to {MAX_FAILURES} failures, not {failures}")
    trials = _Trials(DEFAULT_TIMES, failures, seed, records, waits)
    return VotesComparison(
        failures=failures,
        seed=seed,
        times=trials.times,
        schemes=tuple(_row(scheme, trials) for scheme in schemes_for(failures)),
        p99=tuple(
            _p99(scheme, count, trials.times)
            for count in range(1, MAX_FAILURES + 1)
            for scheme in schemes_for(count)
        ),
    )


def _row(scheme: ReplicationScheme, trials: _Trials) -> SchemeRow:
    times = trials.times
    latencies = {
        condition: measure_latency(scheme, times, trials.seed, trials.records, condition)
        for condition in Condition
    }
    healthy = latencies[Condition.HEALTHY]
    assert healthy is not None, "healthy replicas acknowledge"
    two_ways = {
        condition: LatencyTwoWays(
            _quantile(scheme, times, condition, latency, 0.5),
            _quantile(scheme, times, condition, latency, 0.99),
        )
        for condition, latency in latencies.items()
    }
    at_risk = risk_of_newest_record(scheme, times)
    return SchemeRow(
        scheme=scheme,
        healthy=two_ways[Condition.HEALTHY],
        one_slow=two_ways[Condition.ONE_SLOW],
        one_stalled=two_ways[Condition.ONE_STALLED],
        stall_wait_ms=TwoWays(
            stall_wait_ms(scheme, times),
            _mean(trials, lambda seed: measure_stall(scheme, times, seed)),
        ),
        leader_death_wait_ms=_death_wait(scheme, trials, is_leader=True),
        follower_death_wait_ms=_death_wait(scheme, trials, is_leader=False),
        newest_record_loss=TwoWays(
            loss_probability(scheme, at_risk), loss_probability(scheme, healthy.at_risk)
        ),
        deaths=let_replicas_die(scheme, times, trials.seed, trials.failures),
    )


def _quantile(
    scheme: ReplicationScheme,
    times: ModelTimes,
    condition: Condition,
    simulated: LatencyTrial | None,
    share: float,
) -> TwoWays:
    computed = commit_latency(scheme, times, condition)
    return TwoWays(
        None if computed is None else computed.quantile(share),
        None if simulated is None else simulated.quantile(share),
    )


def _death_wait(scheme: ReplicationScheme, trials: _Trials, *, is_leader: bool) -> TwoWays:
    times = trials.times
    return TwoWays(
        death_wait_ms(scheme, times, is_leader=is_leader),
        _mean(trials, lambda seed: measure_death(scheme, times, seed, is_leader=is_leader)),
    )


def _mean(trials: _Trials, measure: Callable[[int], float | None]) -> float | None:
    first = trials.seed * trials.waits
    waits = [measure(seed) for seed in range(first, first + trials.waits)]
    ended = [wait for wait in waits if wait is not None]
    return sum(ended) / len(ended) if len(ended) == len(waits) else None


def _p99(scheme: ReplicationScheme, failures: int, times: ModelTimes) -> P99Point:
    healthy = commit_latency(scheme, times, Condition.HEALTHY)
    one_slow = commit_latency(scheme, times, Condition.ONE_SLOW)
    assert healthy is not None, "healthy replicas acknowledge"
    assert one_slow is not None, "slow replicas acknowledge"
    return P99Point(scheme.name, failures, healthy.quantile(0.99), one_slow.quantile(0.99))
