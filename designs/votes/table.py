"""The comparison as a table of texts: a column for each scheme, a row for each question."""

from __future__ import annotations

from typing import Final

from regent.designs.votes.comparison import SchemeRow, TwoWays, VotesComparison

_MS_IN_A_SECOND: Final = 1000


def votes_table(comparison: VotesComparison) -> list[list[str]]:
    """Return the header and the rows. Two numbers in a cell are computed / simulated."""
    columns = [_answers(row, comparison) for row in comparison.schemes]
    header = [f"survives {_deaths(comparison)}", *(row.scheme.name for row in comparison.schemes)]
    return [
        header,
        *([question, *(column[question] for column in columns)] for question in columns[0]),
    ]


def _answers(row: SchemeRow, comparison: VotesComparison) -> dict[str, str]:
    scheme, deaths = row.scheme, row.deaths
    slow = f"one {comparison.times.slow_factor:g} times slower"
    stalled_again = "-" if row.stall_wait_ms.computed is None else None
    return {
        "replicas: copies, on disk and sent": str(scheme.replicas),
        "acknowledgements of a commit": str(scheme.acknowledgements),
        "leader elected by": "-" if not scheme.has_leader else str(scheme.elected_by),
        "replicas that a vote or a read asks": str(scheme.quorum),
        "order of concurrent writes": "the leader's" if scheme.has_leader else "none",
        "commit, all healthy: p50": _both(row.healthy.p50_ms),
        "commit, all healthy: p99": _both(row.healthy.p99_ms),
        f"commit, {slow}: p50": _both(row.one_slow.p50_ms),
        f"commit, {slow}: p99": _both(row.one_slow.p99_ms),
        "one stalls: a record waits": _both(row.stall_wait_ms),
        "then a commit: p50": stalled_again or _both(row.one_stalled.p50_ms),
        "then a commit: p99": stalled_again or _both(row.one_stalled.p99_ms),
        "leader dies: a record waits": (
            _both(row.leader_death_wait_ms) if scheme.has_leader else "-"
        ),
        "another dies: a record waits": _both(row.follower_death_wait_ms),
        f"after {_deaths(comparison)}": _state(deaths.lost, writes=deaths.writes),
        "after one more": _state(deaths.lost_after_one_more, writes=deaths.writes_after_one_more),
        "… if none comes back": _lost(deaths.lost_if_none_comes_back, deaths.acknowledged),
        "… if the first dead comes back": _state(
            deaths.lost_when_first_is_back,
            deaths.acknowledged,
            writes=deaths.writes_when_first_is_back,
        ),
        "… if all come back": _lost(deaths.lost_when_all_are_back, deaths.acknowledged),
        f"any {comparison.failures + 1} destroyed at once: newest record lost": _both(
            row.newest_record_loss, is_share=True
        ),
    }


def _deaths(comparison: VotesComparison) -> str:
    return "1 death" if comparison.failures == 1 else f"{comparison.failures} deaths"


def _both(numbers: TwoWays, *, is_share: bool = False) -> str:
    """Return both numbers with their unit."""
    pair = (numbers.computed, numbers.simulated)
    if pair == (None, None):
        return "until it is back"
    factor, unit = 1.0, "ms"
    if is_share:
        factor, unit = 100.0, "%"
    elif max(number or 0 for number in pair) >= _MS_IN_A_SECOND:
        factor, unit = 1 / _MS_IN_A_SECOND, "s"
    texts = ("never" if number is None else f"{number * factor:.3g}" for number in pair)
    return f"{' / '.join(texts)} {unit}"


def _state(lost: int | None, acknowledged: int | None = None, *, writes: bool) -> str:
    if lost is None:
        return "no reads, no writes"
    return f"{_lost(lost, acknowledged)}, {'goes on' if writes else 'no writes'}"


def _lost(lost: int | None, acknowledged: int | None) -> str:
    if lost is None:
        return "no reads"
    if lost == 0:
        return "none lost"
    return f"{lost} lost" if acknowledged is None else f"{lost} of {acknowledged} lost"
