"""Assignments under reassignment (KIP-455) and successive leaderships."""

from __future__ import annotations

from itertools import permutations

import pytest

from regent.core.model import (
    BrokerInfo,
    EndPoint,
    LeaderAndIsr,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)

Ids = tuple[int, ...]


@pytest.mark.parametrize(
    ("replicas", "adding", "removing", "target", "origin"),
    [
        ((1, 2, 3, 4, 5, 6), (2, 3, 4), (1, 5, 6), (2, 3, 4), (1, 5, 6)),
        ((1, 2, 3, 4), (), (1, 4), (2, 3), (1, 2, 3, 4)),
        ((1, 2, 3, 4), (4,), (2,), (1, 3, 4), (1, 2, 3)),
        ((1, 2, 3, 4), (4,), (), (1, 2, 3, 4), (1, 2, 3)),
    ],
)
def test_target_and_origin_of_a_reassignment(
    replicas: Ids, adding: Ids, removing: Ids, target: Ids, origin: Ids
) -> None:
    assignment = ReplicaAssignment(replicas, adding, removing)
    assert assignment.is_being_reassigned
    assert assignment.target_replicas == target
    assert assignment.origin_replicas == origin


def test_without_a_reassignment_target_and_origin_are_the_replicas() -> None:
    assignment = ReplicaAssignment((3, 1, 2))
    assert not assignment.is_being_reassigned
    assert assignment.target_replicas == assignment.origin_replicas == (3, 1, 2)


@pytest.mark.parametrize(
    ("origin", "target", "expected"),
    [
        ((1, 2, 3, 4), (4, 2, 5, 3), ReplicaAssignment((4, 2, 5, 3, 1), (5,), (1,))),
        ((1, 2, 3), (4, 5, 6), ReplicaAssignment((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))),
        ((1, 2, 3), (3, 1, 2), ReplicaAssignment((3, 1, 2))),
        ((1, 2, 3), (1, 2, 3), ReplicaAssignment((1, 2, 3))),
        ((1, 2, 3), (1,), ReplicaAssignment((1, 2, 3), (), (2, 3))),
    ],
)
def test_a_reassignment_has_added_and_removed_replicas(
    origin: Ids, target: Ids, expected: ReplicaAssignment
) -> None:
    assert ReplicaAssignment(origin).reassign_to(target) == expected


def test_a_second_reassignment_starts_from_the_origin() -> None:
    running = ReplicaAssignment((1, 2, 3)).reassign_to((4, 5, 6))
    assert running.reassign_to((7, 8, 9)) == ReplicaAssignment((1, 2, 3)).reassign_to((7, 8, 9))


def test_a_cancelled_reassignment_does_not_restore_the_sequence() -> None:
    running = ReplicaAssignment((1, 2, 3)).reassign_to((3, 4, 2))
    assert running == ReplicaAssignment((3, 4, 2, 1), (4,), (1,))
    assert running.reassign_to(running.origin_replicas) == ReplicaAssignment((3, 2, 1))


def test_every_reassignment_of_three_replicas_ends_at_its_target() -> None:
    for target in permutations(range(5), 3):
        moving = ReplicaAssignment((0, 1, 2)).reassign_to(target)
        assert moving.target_replicas == target
        assert set(moving.origin_replicas) == {0, 1, 2}
        assert len(set(moving.replicas)) == len(moving.replicas)
        assert moving.reassign_to(target) == moving, "a repeated request changes nothing"


def test_a_removed_replica_leaves_all_three_lists() -> None:
    moving = ReplicaAssignment((4, 2, 3, 1), (4,), (1,))
    assert moving.without_replica(4) == ReplicaAssignment((2, 3, 1), (), (1,))
    assert moving.without_replica(1) == ReplicaAssignment((4, 2, 3), (4,), ())
    assert moving.without_replica(9) == moving


def test_the_next_leadership_has_the_next_leader_epoch_and_the_same_partition_epoch() -> None:
    first = LeaderAndIsr(1, (1, 2), leader_epoch=4, partition_epoch=7)
    assert first.new_leader_and_isr(2, (2,)) == LeaderAndIsr(2, (2,), 5, 7)
    assert first.new_epoch() == LeaderAndIsr(1, (1, 2), 5, 7)
    assert first.with_partition_epoch(8) == LeaderAndIsr(1, (1, 2), 4, 8)


def test_names_are_readable() -> None:
    assert str(TopicPartition("foo", 3)) == "foo-3"
    assert str(PartitionAndReplica(TopicPartition("foo", 3), 5)) == "[foo-3, replica 5]"


def test_the_first_plaintext_endpoint_is_used() -> None:
    ssl, first, second = EndPoint("A", "h", 1, "SSL"), EndPoint("B", "h", 2), EndPoint("C", "h", 3)
    assert BrokerInfo(1, (ssl, first, second)).plaintext_endpoint == first
    assert BrokerInfo(1, (ssl,)).plaintext_endpoint is None
