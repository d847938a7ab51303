"""Which moves begin: none beyond the limits, none that could begin stays behind, few looks."""

from collections import Counter
from random import Random

import pytest

from regent.core.model import TopicPartition
from regent.jobs.execution.move_queue import MoveQueue, replicas_moved, roles
from regent.jobs.execution.plan_progress import PlannedMove


def random_moves(seed: int, count: int, brokers: int) -> list[PlannedMove]:
    """Return moves of one to three of three replicas; some only reorder."""
    dice = Random(seed)
    moves = []
    for number in range(count):
        replicas = dice.sample(range(brokers), 6)
        before, moved = tuple(replicas[:3]), dice.choice([0, 1, 1, 1, 2, 3])
        after = (*replicas[3 : 3 + moved], *reversed(before[moved:]))
        moves.append(PlannedMove(TopicPartition("t", number), before, after))
    return moves


@pytest.mark.parametrize("seed", range(20))
def test_every_move_begins_once_and_no_broker_exceeds_its_limit(seed: int):
    dice = Random(seed)
    brokers, per_broker, total = range(8 + seed), 3 + seed % 3, 8 + seed
    moves = random_moves(seed, 200, len(brokers))
    queue = MoveQueue(moves, (), per_broker, total)
    flying: list[PlannedMove] = []
    begun: list[PlannedMove] = []
    while len(begun) < len(moves):
        live = {b for b in brokers if dice.random() < 0.8}
        busy: Counter[int] = Counter()
        for move in flying:
            busy.update(roles(move.before, move.target))
        moving = sum(replicas_moved(m.before, m.target) for m in flying)
        taken = queue.take(busy, moving, live, 1000)
        for move in taken:
            assert set(move.target) - set(move.before) <= live
            busy.update(roles(move.before, move.target))
            moving += replicas_moved(move.before, move.target)
        assert moving <= total
        assert max(busy.values(), default=0) <= per_broker
        returned = [move for move in taken if dice.random() < 0.1]  # refused for now
        for move in returned:
            queue.put_back(move)
        flying += [move for move in taken if move not in returned]
        begun += [move for move in taken if move not in returned]
        assert len(queue) == len(moves) - len(begun)
        flying = [move for move in flying if dice.random() < 0.5]
    assert sorted(begun) == moves


def test_moves_begin_in_their_sequence_and_the_ones_behind_a_busy_broker_are_not_blocked():
    moves = [PlannedMove(TopicPartition("t", n), (0, n + 1), (n + 1, 90)) for n in range(4)]
    moves.append(PlannedMove(TopicPartition("t", 4), (7,), (8,)))
    queue = MoveQueue(moves, (), 2, 100)
    live = set(range(100))
    assert queue.take({}, 0, live, 100) == [moves[0], moves[1], moves[4]]
    assert queue.take({0: 2, 90: 2}, 2, live, 100) == []
    assert queue.take({0: 1, 90: 1}, 1, live, 100) == [moves[2]]


def test_a_move_that_exceeds_a_limit_alone_begins_when_its_brokers_do_nothing_else():
    large = PlannedMove(TopicPartition("t", 0), (1,), (1, 2, 3, 4))
    small = PlannedMove(TopicPartition("t", 1), (1,), (5,))
    queue = MoveQueue([large, small], (), 2, 2)
    live = {1, 2, 3, 4, 5}
    assert queue.take({1: 1}, 1, live, 10) == []
    assert queue.take({}, 0, live, 10) == [large]
    assert queue.take({}, 0, live, 10) == [small]


def test_moves_to_a_dead_broker_are_known_and_begin_when_it_lives():
    moves = [PlannedMove(TopicPartition("t", n), (0,), (9,)) for n in range(3)]
    queue = MoveQueue(moves, (), 5, 5)
    assert queue.take({}, 0, {0}, 10) == []
    assert queue.waiting_for_dead() == {9: moves}
    assert queue.take({}, 0, {0, 9}, 2) == moves[:2]


def test_dropping_a_replica_sends_nothing_and_another_sequence_costs_nothing():
    assert roles((0, 1), (0,)) == {1: 1}
    assert roles((0, 1, 2), (2, 0, 1)) == {}
    assert roles((0, 1), (2, 3)) == {0: 2, 1: 1, 2: 1, 3: 1}
