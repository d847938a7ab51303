"""Which replicas and brokers the throttle of moves names."""

from __future__ import annotations

from regent.client.move_throttle import LISTS, throttled_brokers, throttled_replicas
from regent.client.moves import Move, as_moves
from regent.core.model import ReplicaAssignment, TopicPartition


def move(
    before: tuple[int, ...], target: tuple[int, ...], topic: str = "t", number: int = 0
) -> Move:
    return Move(TopicPartition(topic, number), before, target)


def lists(*moves: Move) -> dict[str, list[str]]:
    """Return the replicas of each topic that are throttled as leaders, and as followers."""
    found = throttled_replicas(moves)
    return {topic: [",".join(names[name]) for name in LISTS] for topic, names in found.items()}


def test_an_ongoing_reassignment_copies_from_origin_to_added_replicas():
    ongoing = as_moves({TopicPartition("t", 0): ReplicaAssignment((1, 2, 3, 4), (3, 4), (1, 2))})
    assert ongoing == {TopicPartition("t", 0): move((1, 2), (3, 4))}
    assert lists(*ongoing.values()) == {"t": ["0:1,0:2", "0:3,0:4"]}


def test_a_replica_that_stays_is_not_a_destination():
    assert lists(move((2, 3, 4), (1, 2, 3))) == {"t": ["0:2,0:3,0:4", "0:1"]}


def test_throttles_list_partitions_and_brokers_in_sequence():
    moves = [
        move((4, 5), (7,), "foo", 1),
        move((2, 1), (5,), "foo", 0),
        move((2,), (1,), "bar"),
    ]
    assert lists(*moves) == {"bar": ["0:2", "0:1"], "foo": ["0:1,0:2,1:4,1:5", "0:5,1:7"]}
    assert throttled_brokers(moves) == {1, 2, 4, 5, 7}
