from __future__ import annotations

from regent.core.admin.reassignment_plan import (
    PartitionMove,
    follower_throttles,
    leader_throttles,
    partition_move,
    reassigning_brokers,
)
from regent.core.model import ReplicaAssignment, TopicPartition

MOVING = ReplicaAssignment((1, 2, 3, 4), adding_replicas=(3, 4), removing_replicas=(1, 2))


def move(sources: set[int], destinations: set[int]) -> PartitionMove:
    return PartitionMove(frozenset(sources), frozenset(destinations))


def test_an_ongoing_reassignment_copies_from_origin_to_added_replicas():
    assert partition_move(MOVING, None) == move({1, 2}, {3, 4})


def test_a_replaced_reassignment_copies_from_the_same_sources():
    assert partition_move(MOVING, (5, 6)) == move({1, 2}, {5, 6})
    assert partition_move(MOVING, (3,)) == move({1, 2}, {3})


def test_a_replica_that_stays_is_not_a_destination():
    assert partition_move(ReplicaAssignment((2, 3, 4)), (1, 2, 3)) == move({2, 3, 4}, {1})


def test_throttles_list_partitions_and_brokers_in_sequence():
    moves = {
        TopicPartition("foo", 1): move({4, 5}, {7}),
        TopicPartition("foo", 0): move({2, 1}, {5}),
        TopicPartition("bar", 0): move({2}, {1}),
    }
    assert leader_throttles(moves) == {"bar": "0:2", "foo": "0:1,0:2,1:4,1:5"}
    assert follower_throttles(moves) == {"bar": "0:1", "foo": "0:5,1:7"}
    assert reassigning_brokers(moves.values()) == {1, 2, 4, 5, 7}
