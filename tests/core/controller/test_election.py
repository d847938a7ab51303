"""Elections: every case of four brokers, and the examples of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, permutations

import pytest

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
from regent.core.model import NO_LEADER, LeaderAndIsr, LeaderRecoveryState, ReplicaAssignment

BROKERS = (1, 2, 3, 4)
CLEAN, UNCLEAN = OfflineElection(), OfflineElection(allow_unclean=True)

Ids = tuple[int, ...]


def subsets(ids: Ids) -> Iterator[Ids]:
    """Yield every subset, the empty one first."""
    return chain.from_iterable(combinations(ids, size) for size in range(len(ids) + 1))


ASSIGNMENTS = [p for size in (1, 2, 3, 4) for p in permutations(BROKERS, size)]
CASES = [
    (assignment, isr, live)
    for assignment in ASSIGNMENTS
    for isr in subsets(tuple(sorted(assignment)))
    for live in subsets(BROKERS)
]
ASCENDING = [case for case in CASES if case[0] == tuple(sorted(case[0]))]  # others rename brokers


def run(
    strategy: ElectionStrategy,
    assignment: Ids | ReplicaAssignment,
    isr: Ids,
    live: Ids,
    shutting_down: Ids = (),
    *,
    leader_epoch: int = 5,
) -> PartitionChange | None:
    """Run an election; the brokers in ``live`` are registered."""
    if not isinstance(assignment, ReplicaAssignment):
        assignment = ReplicaAssignment(assignment)
    outcome = elect(
        strategy,
        LeaderAndIsr(NO_LEADER, isr, leader_epoch, partition_epoch=9),
        PartitionReplicas(
            assignment,
            is_online=lambda r: r in live and r not in shutting_down,
            is_reachable=lambda r: r in live,
            is_shutting_down=lambda r: r in shutting_down,
        ),
    )
    return outcome if isinstance(outcome, PartitionChange) else None


def result(elected: PartitionChange | None) -> tuple[int, Ids, Ids] | None:
    """Return leader, ISR and recipients."""
    if elected is None:
        return None
    return elected.leader_and_isr.leader, elected.leader_and_isr.isr, elected.recipients


# --- all cases ------------------------------------------------------------------------------------


def test_a_clean_election_takes_the_first_assigned_replica_that_is_live_and_in_sync() -> None:
    for assignment, isr, live in CASES:
        candidates = [r for r in assignment if r in isr and r in live]
        outcome = run(CLEAN, assignment, isr, live)
        if not candidates:
            assert outcome is None
            continue
        assert outcome is not None
        assert not outcome.is_unclean
        assert result(outcome) == (
            candidates[0],
            tuple(r for r in isr if r in live),
            tuple(r for r in assignment if r in live),
        )


def test_an_unclean_election_differs_only_where_a_clean_election_finds_no_leader() -> None:
    for assignment, isr, live in CASES:
        clean, outcome = run(CLEAN, assignment, isr, live), run(UNCLEAN, assignment, isr, live)
        candidates = [r for r in assignment if r in live]
        if clean is not None:
            assert outcome == clean
        elif not candidates:
            assert outcome is None
        else:
            assert outcome is not None
            assert outcome.is_unclean
            assert result(outcome) == (candidates[0], (candidates[0],), tuple(candidates))
            assert outcome.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_a_preferred_election_elects_the_preferred_replica_or_fails() -> None:
    for assignment, isr, live in CASES:
        head = assignment[0]
        expected = (head, isr, assignment) if head in isr and head in live else None
        assert result(run(PreferredElection(), assignment, isr, live)) == expected


def test_a_reassignment_elects_among_the_target_replicas_and_keeps_the_isr() -> None:
    for assignment, isr, live in ASCENDING:
        for removing in subsets(assignment):
            target = tuple(r for r in assignment if r not in removing)
            candidates = [r for r in target if r in isr and r in live]
            outcome = run(
                ReassignElection(),
                ReplicaAssignment(assignment, removing_replicas=removing),
                isr,
                live,
            )
            expected = (candidates[0], isr, target) if candidates else None
            assert result(outcome) == expected


def test_a_controlled_shutdown_elects_a_remaining_replica_and_notifies_all_live_replicas() -> None:
    for assignment, isr, live in ASCENDING:
        for shutting_down in subsets(live):
            remaining = tuple(r for r in isr if r not in shutting_down)
            candidates = [r for r in assignment if r in remaining and r in live]
            outcome = run(ControlledShutdownElection(), assignment, isr, live, shutting_down)
            if candidates:
                recipients = tuple(r for r in assignment if r in live)
                assert result(outcome) == (candidates[0], remaining, recipients)
            else:
                assert outcome is None


@pytest.mark.parametrize(
    "strategy",
    [CLEAN, UNCLEAN, PreferredElection(), ReassignElection(), ControlledShutdownElection()],
)
def test_every_election_adds_one_leader_epoch_and_elects_a_member_of_the_isr(
    strategy: ElectionStrategy,
) -> None:
    for assignment, isr, live in CASES:
        outcome = run(strategy, assignment, isr, live)
        if outcome is not None:
            now = outcome.leader_and_isr
            assert now.leader in live
            assert now.leader in now.isr
            assert now.leader_epoch == 6
            assert now.partition_epoch == 9, "the version its write is conditional on"
            assert len(set(now.isr)) == len(now.isr) > 0


# --- examples -------------------------------------------------------------------------------------


def test_without_a_live_isr_member_only_an_unclean_election_finds_a_leader() -> None:
    assert run(CLEAN, (1, 2, 3, 4, 5), isr=(1, 2, 3), live=(4, 6, 7)) is None
    outcome = run(UNCLEAN, (1, 2, 3, 4, 5), isr=(1, 2, 3), live=(4, 6, 7))
    assert outcome == PartitionChange(
        LeaderAndIsr(4, (4,), 6, 9, LeaderRecoveryState.RECOVERING), (4,), is_unclean=True
    )


def test_the_assignment_and_not_the_isr_decides_the_sequence_of_candidates() -> None:
    assert result(run(CLEAN, (2, 4, 1), isr=(1, 4), live=(1, 4))) == (4, (1, 4), (4, 1))
    shutdown = run(
        ControlledShutdownElection(), (3, 1, 2), (2, 1, 3), (1, 2, 3), shutting_down=(3,)
    )
    assert result(shutdown) == (1, (2, 1), (3, 1, 2))


def test_a_preferred_election_without_replicas_fails() -> None:
    assert run(PreferredElection(), (), isr=(), live=()) is None


def test_a_broker_that_is_shutting_down_does_not_win_other_elections() -> None:
    for strategy in (CLEAN, PreferredElection(), ReassignElection()):
        outcome = run(strategy, (2, 4), isr=(2, 4), live=(2, 4), shutting_down=(2,))
        assert outcome is None or outcome.leader_and_isr.leader == 4


def test_a_clean_election_keeps_the_recovering_state() -> None:
    recovering = LeaderAndIsr(2, (2,), 5, 9, LeaderRecoveryState.RECOVERING)
    candidates = PartitionReplicas(
        ReplicaAssignment((2, 4)),
        is_online=lambda r: True,
        is_reachable=lambda r: True,
        is_shutting_down=lambda r: False,
    )
    outcome = elect(CLEAN, recovering, candidates)
    assert isinstance(outcome, PartitionChange)
    assert outcome.leader_and_isr == LeaderAndIsr(2, (2,), 6, 9, LeaderRecoveryState.RECOVERING)


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (CLEAN, "no replica in isr [2] is online"),
        (UNCLEAN, "none of its replicas [3, 2] is online"),
        (PreferredElection(), "the first of its replicas [3, 2] is not online, or not in isr [2]"),
        (ReassignElection(), "no replica in isr [2] is online and among [3]"),
        (ControlledShutdownElection(), "no replica in isr [2] is online and not shutting down"),
    ],
)
def test_a_failed_election_has_a_reason(strategy: ElectionStrategy, reason: str) -> None:
    offline = PartitionReplicas(
        ReplicaAssignment((3, 2), (3,), (2,)),
        is_online=lambda r: False,
        is_reachable=lambda r: False,
        is_shutting_down=lambda r: False,
    )
    assert elect(strategy, LeaderAndIsr(NO_LEADER, (2,)), offline) == ChangeRefused(reason)
