"""Elections when replicas may have lost committed records."""

from __future__ import annotations

from itertools import product

import pytest

from regent.core.controller.election.decisions import NOBODY_COMMITS, with_eligible_replicas
from regent.core.controller.election.election import (
    ChangeRefused,
    ControlledShutdownElection,
    ElectionStrategy,
    OfflineElection,
    PartitionChange,
    PartitionReplicas,
    PreferredElection,
    ReassignElection,
    elect,
)
from regent.core.model import (
    NO_LEADER,
    NO_LOG_END,
    LeaderAndIsr,
    LeaderRecoveryState,
    LogEnd,
    ReplicaAssignment,
)

Ids = tuple[int, ...]
REPLICAS = (0, 1, 2)
WAITS, UNCLEAN = OfflineElection(), OfflineElection(allow_unclean=True)


def candidates(
    live: Ids, suspects: dict[int, LogEnd] | None = None, restarted: Ids = ()
) -> PartitionReplicas:
    ends = suspects or {}
    return PartitionReplicas(
        ReplicaAssignment(REPLICAS),
        is_online=lambda r: r in live,
        is_reachable=lambda r: r in live,
        is_shutting_down=lambda _: False,
        suspect_end=ends.get,
        has_restarted=lambda r: r in restarted,
    )


def run(
    strategy: ElectionStrategy,
    replicas: PartitionReplicas,
    isr: Ids = REPLICAS,
    eligible: Ids = (),
) -> PartitionChange | None:
    state = LeaderAndIsr(NO_LEADER, isr, 4, 9, eligible_leader_replicas=eligible)
    outcome = elect(strategy, state, replicas)
    return outcome if isinstance(outcome, PartitionChange) else None


def led(outcome: PartitionChange | None) -> tuple[int, Ids, bool]:
    assert outcome is not None
    return outcome.leader_and_isr.leader, outcome.leader_and_isr.isr, outcome.is_unclean


def test_a_suspect_replica_leaves_the_isr_while_a_sound_replica_is_online() -> None:
    assert led(run(WAITS, candidates((0, 1, 2), {0: LogEnd(4, 9)}))) == (1, (1, 2), False)


def test_an_election_waits_for_an_offline_member_that_may_have_all_records() -> None:
    replicas = candidates((0, 1), {0: LogEnd(3, 7), 1: LogEnd(3, 8)})
    assert run(WAITS, replicas) is None
    assert elect(WAITS, LeaderAndIsr(NO_LEADER, REPLICAS), replicas) == ChangeRefused(
        "waits for broker 2, which may have every committed record: the log of 0 and 1 may have"
        " lost some"
    )


def test_when_all_members_are_suspect_the_newest_epoch_leads_then_the_longest_log() -> None:
    for ends, leader in (
        ((LogEnd(3, 7), LogEnd(3, 9), LogEnd(2, 20)), 1),
        ((LogEnd(3, 7), LogEnd(2, 9), LogEnd(3, 7)), 0),
        ((LogEnd(-1, -1), LogEnd(-1, -1), LogEnd(0, 1)), 2),
    ):
        outcome = run(WAITS, candidates(REPLICAS, dict(enumerate(ends))))
        assert led(outcome) == (leader, (leader,), True)
        assert outcome is not None
        recovery = outcome.leader_and_isr.leader_recovery_state
        assert recovery is LeaderRecoveryState.RECOVERING


def test_an_unclean_election_does_not_wait_and_prefers_the_longest_log_of_the_isr() -> None:
    replicas = candidates((0, 1), {0: LogEnd(3, 7), 1: LogEnd(3, 8)})
    assert led(run(UNCLEAN, replicas)) == (1, (1,), True)
    assert led(run(UNCLEAN, candidates((2,), {2: LogEnd(0, 0)}), isr=(0, 1))) == (2, (2,), True)


def test_an_unclean_election_prefers_a_log_outside_the_isr_to_an_empty_log() -> None:
    assert led(run(UNCLEAN, candidates((0, 1), {1: NO_LOG_END}), isr=(1, 2))) == (0, (0,), True)
    both = {1: LogEnd(-1, 0), 2: LogEnd(2, 5)}
    assert led(run(UNCLEAN, candidates((1, 2), both), isr=(0, 1))) == (2, (2,), True)
    alone = candidates((1,), {1: NO_LOG_END})
    assert led(run(UNCLEAN, alone, isr=(1, 2))) == (1, (1,), True)


def test_an_eligible_replica_outside_the_isr_leads_cleanly_when_no_isr_member_can() -> None:
    replicas = candidates((0, 1), {0: LogEnd(3, 7)})
    assert led(run(WAITS, replicas, isr=(0,), eligible=(1,))) == (1, (1,), False)
    assert run(WAITS, replicas, isr=(0,), eligible=(2,)) is None, "2 may return"


@pytest.mark.parametrize(
    "strategy", [PreferredElection(), ReassignElection(), ControlledShutdownElection()]
)
def test_no_other_election_elects_a_suspect_replica(strategy: ElectionStrategy) -> None:
    outcome = run(strategy, candidates(REPLICAS, {0: LogEnd(3, 7)}))
    assert outcome is None or outcome.leader_and_isr.leader != 0


def test_a_replica_that_did_not_restart_leads_first_and_alone() -> None:
    assert led(run(WAITS, candidates(REPLICAS, restarted=(0, 2)))) == (1, (1,), False)
    assert led(run(WAITS, candidates(REPLICAS, restarted=REPLICAS))) == (0, REPLICAS, False)


def test_an_election_does_not_lose_records_of_a_sound_member() -> None:
    """Every state of three members: offline, suspect or sound."""
    for states in product(("sound", "suspect", "down"), repeat=3):
        live = tuple(r for r in REPLICAS if states[r] != "down")
        suspects = {r: LogEnd(0, r) for r in REPLICAS if states[r] == "suspect"}
        outcome = run(WAITS, candidates(live, suspects))
        if "sound" in states:
            leader, isr, unclean = led(outcome)
            assert states[leader] == "sound"
            assert {states[r] for r in isr} == {"sound"}
            assert not unclean
        elif "down" in states:
            assert outcome is None
        else:
            assert led(outcome) == (2, (2,), True)


@pytest.mark.parametrize(
    ("leader", "isr", "min_isr", "eligible"),
    [
        (2, (2,), 2, (0, 1)),  # one replica alone commits nothing
        (2, (1, 2), 2, ()),
        (2, (2,), 1, ()),
        (NO_LEADER, (2,), NOBODY_COMMITS, (0, 1)),
    ],
)
def test_a_replica_that_leaves_when_nothing_can_be_committed_is_eligible(
    leader: int, isr: Ids, min_isr: int, eligible: Ids
) -> None:
    before = LeaderAndIsr(0, (1, 2), 4, 9, eligible_leader_replicas=(0,))
    now = before.new_leader_and_isr(leader, isr)
    assert with_eligible_replicas(before, now, min_isr).eligible_leader_replicas == eligible
