"""Majority votes, in-sync replicas, or no leader: what each costs, and what deaths leave of it.

Times are order statistics: a commit waits for the k-th fastest of n replicas, each of which appends
in an exponentially distributed time. A leader appends first. Records are far apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import comb, exp
from typing import Final, NamedTuple

MAX_FAILURES: Final = 5

TRIP_MS: Final = 0.5
"""How long a message travels."""
APPEND_MS: Final = 1.0
"""The average time in which a replica appends a record."""
SLOW: Final = 20.0
"""How many times longer a slow replica takes."""
SILENCE_MS: Final = 18_000.0
"""A replica that is silent so long counts as dead (``zookeeper.session.timeout.ms``)."""
LAG_MS: Final = 30_000.0
"""A replica that lacks a record so long leaves the ISR (``replica.lag.time.max.ms``)."""
_SIGN_OF_LIFE_MS: Final = SILENCE_MS / 3
_STEPS: Final = 100  # of the numeric integration, in the average time of an append
_TAIL: Final = 1e-6


class ElectedBy(StrEnum):
    """How a partition gets another leader."""

    VOTES = "votes"
    CONTROLLER = "controller, from the ISR"
    CONTROLLER_UNCLEAN = "controller, else from any"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Scheme:
    """One way to survive failures.

    A commit waits for ``acknowledgements``, the leader's included, while all replicas are members.
    ``quorum`` replicas are asked in an election or, without a leader, in a read: any so many of
    them have every acknowledged record among them. If it ``shrinks``, a member that is late or
    dead leaves the set that a commit waits for.
    """

    name: str
    replicas: int
    acknowledgements: int
    quorum: int
    elected_by: ElectedBy
    shrinks: bool = False

    @property
    def has_leader(self) -> bool:
        """Whether one replica decides the sequence of records."""
        return self.elected_by is not ElectedBy.NOBODY


def schemes_for(failures: int) -> tuple[Scheme, ...]:
    """Return the schemes that lose no acknowledged record when ``failures`` replicas die."""
    few, many = failures + 1, 2 * failures + 1
    return (
        Scheme("majority vote", many, few, few, ElectedBy.VOTES),
        Scheme("ISR", few, few, 1, ElectedBy.CONTROLLER, shrinks=True),
        Scheme("ISR, unclean", few, few, 1, ElectedBy.CONTROLLER_UNCLEAN, shrinks=True),
        Scheme("leaderless", many, few, few, ElectedBy.NOBODY),
        Scheme("all with all", few, few, 1, ElectedBy.NOBODY),
    )


# --- times ----------------------------------------------------------------------------------------


class CommitLatency(NamedTuple):
    """The distribution of the time from a write to its acknowledgement.

    ``needed`` of ``followers`` are waited for (without a leader: of the replicas). One of these
    takes ``factor`` times as long as the others.
    """

    has_leader: bool
    followers: int
    needed: int
    factor: float = 1.0

    def quantile(self, share: float) -> float:
        """Return the milliseconds in which ``share`` of the records are acknowledged."""
        return next(ms for ms, done in self._curve() if done >= share)

    def mean(self) -> float:
        """Return the average milliseconds."""
        before_ms, done_before, area = 0.0, 0.0, 0.0
        for ms, done in self._curve():
            area += (ms - before_ms) * (1 - (done_before + done) / 2)
            before_ms, done_before = ms, done
            if done > 1 - _TAIL:
                break
        return area

    def _curve(self) -> Iterator[tuple[float, float]]:
        """Yield times and the shares of records that are acknowledged by then."""
        trips_ms = 2 * (self.has_leader + (self.needed > 0)) * TRIP_MS
        step_ms, keep = APPEND_MS / _STEPS, exp(-1 / _STEPS)
        ms, done = 0.0, 0.0
        while True:
            yield trips_ms + ms, done
            if self.has_leader:
                # Its append delays all others: d(done)/dt = (answered - done) / append_ms.
                answered = self._answered(ms + step_ms / 2)
                done = answered + (done - answered) * keep
            else:
                done = self._answered(ms + step_ms)
            ms += step_ms

    def _answered(self, ms: float) -> float:
        """Return the probability that ``needed`` followers append in ``ms``."""
        others, done = self.followers - 1, 1 - exp(-ms / APPEND_MS)
        slow_done = 1 - exp(-ms / (APPEND_MS * self.factor))
        without = _at_least(self.needed, others, done)
        return without + slow_done * (_at_least(self.needed - 1, others, done) - without)


def commit_latency(scheme: Scheme, factor: float = 1.0) -> CommitLatency:
    """Return the latency when one follower is ``factor`` times slower."""
    leaders = int(scheme.has_leader)
    needed = scheme.acknowledgements - leaders
    return CommitLatency(scheme.has_leader, scheme.replicas - leaders, needed, factor)


def stall_wait_ms(scheme: Scheme) -> float | None:
    """Return how long a record waits on average when a follower stalls; None: until it goes on."""
    if scheme.shrinks:
        return 1.25 * LAG_MS  # and half the time between two checks
    latency = commit_latency(scheme)
    if latency.needed == latency.followers:
        return None
    return latency._replace(followers=latency.followers - 1).mean()


def death_wait_ms(scheme: Scheme, *, is_leader: bool) -> float | None:
    """Return how long a record waits on average when the leader, or a follower, dies.

    A silence is shorter than ``LAG_MS``. The milliseconds of messages are left out beside it. The
    last sign of life was half the time between two signs ago.
    """
    if scheme.shrinks:
        return SILENCE_MS - _SIGN_OF_LIFE_MS / 2
    if scheme.elected_by is ElectedBy.VOTES and is_leader:
        # The first of n - 1 silences, each of one to two times silence_ms, ends it.
        return SILENCE_MS * (1 + 1 / scheme.replicas) - _SIGN_OF_LIFE_MS / 2
    return stall_wait_ms(scheme)


def loss_of_newest_record(scheme: Scheme) -> float:
    """Return the probability that the newest record is lost with as many replicas as it waited for.

    They are destroyed at the moment of its acknowledgement; every set of them is as likely. The
    others have not appended it while that travelled to the leader and the producer.
    """
    others, trips = scheme.replicas - scheme.acknowledgements, 1 + scheme.has_leader
    has_no_other_copy = exp(-others * trips * TRIP_MS / APPEND_MS)
    return has_no_other_copy / comb(scheme.replicas, scheme.acknowledgements)


def _at_least(needed: int, replicas: int, probability: float) -> float:
    """Return the probability that ``needed`` of ``replicas`` have done what each does by itself."""
    return sum(
        comb(replicas, k) * probability**k * (1 - probability) ** (replicas - k)
        for k in range(max(0, needed), replicas + 1)
    )


# --- deaths ---------------------------------------------------------------------------------------


class Remaining(NamedTuple):
    """What living replicas have; ``lost`` batches of the acknowledged, None: nobody can read."""

    lost: int | None
    acknowledged: int
    writes: bool

    def __str__(self) -> str:
        if self.lost is None:
            return "no reads, no writes"
        lost = f"{self.lost} of {self.acknowledged} lost" if self.lost else "none lost"
        return f"{lost}, {'goes on' if self.writes else 'no writes'}"


def survival(scheme: Scheme, failures: int) -> tuple[Remaining, Remaining, Remaining, Remaining]:
    """Return what is left after ``failures`` deaths, one more, and when first and all are back.

    A batch of records is written at first and after each death, if a commit is possible then.
    Replicas that live have all acknowledged batches; those that are dead have the ones before their
    death. The last member of the ISR stays in it.
    """
    replicas = list(range(scheme.replicas))
    batches = dict.fromkeys(replicas, 1)
    in_sync = set(replicas)
    acknowledged = 1

    def readers(living: Collection[int]) -> Collection[int]:
        """Return the replicas that may lead, or that a read asks; none if they are too few."""
        if scheme.elected_by in (ElectedBy.CONTROLLER, ElectedBy.CONTROLLER_UNCLEAN):
            is_unclean = scheme.elected_by is ElectedBy.CONTROLLER_UNCLEAN
            return in_sync.intersection(living) or (living if is_unclean else [])
        return living if len(living) >= scheme.quorum else []

    def writes(living: Collection[int]) -> bool:
        """Whether enough replicas live for a commit."""
        members = len(readers(living))
        missing = scheme.replicas - members if scheme.shrinks else 0
        return members > 0 and len(living) >= max(1, scheme.acknowledgements - missing)

    def remaining(living: Collection[int]) -> Remaining:
        asked = readers(living)
        lost = acknowledged - max(batches[r] for r in asked) if asked else None
        return Remaining(lost, acknowledged, writes(living))

    for death in range(1, failures + 1):
        living = replicas[death:]
        if scheme.shrinks:
            in_sync = set(living)
        if writes(living):
            acknowledged += 1
            batches.update(dict.fromkeys(living, acknowledged))
    left = replicas[failures + 1 :]
    first_is_back, everyone = remaining([0, *left]), remaining(replicas)
    if scheme.elected_by is ElectedBy.CONTROLLER_UNCLEAN:
        everyone = first_is_back  # it leads, and the others follow it
    return remaining(replicas[failures:]), remaining(left), first_is_back, everyone


# --- the table ------------------------------------------------------------------------------------


def votes_table(failures: int) -> list[list[str]]:
    """Return the header and the rows, for schemes that survive so many deaths."""
    schemes = schemes_for(failures)
    columns = [_answers(scheme, failures) for scheme in schemes]
    return [
        [f"survives {_deaths(failures)}", *(scheme.name for scheme in schemes)],
        *([question, *(column[question] for column in columns)] for question in columns[0]),
    ]


def _answers(scheme: Scheme, failures: int) -> dict[str, str]:
    after_failures, after_one_more, first_is_back, all_are_back = survival(scheme, failures)
    healthy, slow = commit_latency(scheme), commit_latency(scheme, SLOW)
    leader_dies = _duration(death_wait_ms(scheme, is_leader=True))
    return {
        "replicas: copies, on disk and sent": str(scheme.replicas),
        "links that carry records": str(_links(scheme)),
        "acknowledgements of a commit": str(scheme.acknowledgements),
        "leader elected by": str(scheme.elected_by) if scheme.has_leader else "-",
        "replicas that a vote or a read asks": str(scheme.quorum),
        "order of concurrent writes": "the leader's" if scheme.has_leader else "none",
        "commit, all healthy: p50": _duration(healthy.quantile(0.5)),
        "commit, all healthy: p99": _duration(healthy.quantile(0.99)),
        f"commit, one {SLOW:g} times slower: p99": _duration(slow.quantile(0.99)),
        "one stalls: a record waits": _duration(stall_wait_ms(scheme)),
        "leader dies: a record waits": leader_dies if scheme.has_leader else "-",
        "another dies: a record waits": _duration(death_wait_ms(scheme, is_leader=False)),
        f"after {_deaths(failures)}": str(after_failures),
        "after one more": str(after_one_more),
        "… if the first dead comes back": str(first_is_back),
        "… if all come back": str(all_are_back),
        f"any {failures + 1} destroyed at once: newest record lost": (
            f"{100 * loss_of_newest_record(scheme):.3g} %"
        ),
    }


def _links(scheme: Scheme) -> int:
    """Return the links between replicas that carry records; clients of "leaderless" send them."""
    if scheme.has_leader:
        return scheme.replicas - 1
    return 0 if scheme.quorum > 1 else comb(scheme.replicas, 2)


def _deaths(failures: int) -> str:
    return "1 death" if failures == 1 else f"{failures} deaths"


def _duration(ms: float | None) -> str:
    if ms is None:
        return "until it is back"
    return f"{ms / 1000:.3g} s" if ms >= 1000 else f"{ms:.3g} ms"
