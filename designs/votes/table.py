"""The schemes as a table of texts: a column for each scheme, a row for each question."""

from __future__ import annotations

from typing import Final

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
from regent.designs.votes.survival import Remaining, survival

MAX_FAILURES: Final = 5
_MS_IN_A_SECOND: Final = 1000


def votes_table(failures: int) -> list[list[str]]:
    """Return the header and the rows, for schemes that survive so many deaths."""
    schemes = schemes_for(failures)
    deaths = "1 death" if failures == 1 else f"{failures} deaths"
    columns = [_answers(scheme, failures, deaths, DEFAULT_TIMES) for scheme in schemes]
    return [
        [f"survives {deaths}", *(scheme.name for scheme in schemes)],
        *([question, *(column[question] for column in columns)] for question in columns[0]),
    ]


def _answers(
    scheme: ReplicationScheme, failures: int, deaths: str, times: ModelTimes
) -> dict[str, str]:
    left = survival(scheme, failures)
    loss = loss_probability(scheme, risk_of_newest_record(scheme, times))
    leader_wait_ms = death_wait_ms(scheme, times, is_leader=True)
    return {
        "replicas: copies, on disk and sent": str(scheme.replicas),
        "acknowledgements of a commit": str(scheme.acknowledgements),
        "leader elected by": str(scheme.elected_by) if scheme.has_leader else "-",
        "replicas that a vote or a read asks": str(scheme.quorum),
        "order of concurrent writes": "the leader's" if scheme.has_leader else "none",
        **_latencies(scheme, times),
        "one stalls: a record waits": _duration(stall_wait_ms(scheme, times)),
        "leader dies: a record waits": _duration(leader_wait_ms) if scheme.has_leader else "-",
        "another dies: a record waits": _duration(death_wait_ms(scheme, times, is_leader=False)),
        f"after {deaths}": _state(left.after_failures),
        "after one more": _state(left.after_one_more),
        "… if the first dead comes back": _state(left.first_is_back),
        "… if all come back": _state(left.all_are_back),
        f"any {failures + 1} destroyed at once: newest record lost": f"{100 * loss:.3g} %",
    }


def _latencies(scheme: ReplicationScheme, times: ModelTimes) -> dict[str, str]:
    words = {
        Condition.HEALTHY: "commit, all healthy",
        Condition.ONE_SLOW: f"commit, one {times.slow_factor:g} times slower",
        Condition.ONE_STALLED: "commit, one stalled (and out of the ISR)",
    }
    found = {}
    for condition, text in words.items():
        latency = commit_latency(scheme, times, condition)
        for share in (0.5, 0.99):
            ms = None if latency is None else latency.quantile(share)
            found[f"{text}: p{100 * share:.0f}"] = _duration(ms)
    return found


def _duration(ms: float | None) -> str:
    if ms is None:
        return "until it is back"
    is_long = ms >= _MS_IN_A_SECOND
    return f"{ms / _MS_IN_A_SECOND:.3g} s" if is_long else f"{ms:.3g} ms"


def _state(remaining: Remaining) -> str:
    if remaining.lost is None:
        return "no reads, no writes"
    lost = f"{remaining.lost} of {remaining.acknowledged} lost" if remaining.lost else "none lost"
    return f"{lost}, {'goes on' if remaining.writes else 'no writes'}"
