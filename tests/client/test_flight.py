"""Which moves begin: none beyond the limits, and none that could begin stays behind."""

from collections import Counter
from collections.abc import Collection
from random import Random

import pytest

from regent.client.flight import ExecutionOptions, WaitingMove, choose
from regent.client.moves import Move, roles
from regent.core.model import TopicPartition


def random_moves(seed: int, count: int, brokers: int) -> list[Move]:
    """Return moves of one to three of three replicas; some only reorder."""
    dice = Random(seed)
    moves = []
    for number in range(count):
        replicas = dice.sample(range(brokers), 6)
        before, moved = tuple(replicas[:3]), dice.choice([0, 1, 1, 1, 2, 3])
        after = (*replicas[3 : 3 + moved], *reversed(before[moved:]))
        moves.append(Move(TopicPartition("t", number), before, after))
    return moves


class Queue:
    """The moves that wait, which a choice leaves."""

    def __init__(self, moves: Collection[Move], limits: ExecutionOptions) -> None:
        self.waiting = [WaitingMove(move) for move in moves]
        self._limits = limits

    def take(self, live: Collection[int], in_progress: Collection[Move] = ()) -> list[Move]:
        chosen = choose(self.waiting, in_progress, live, self._limits)
        self.waiting = [one for one in self.waiting if one.move not in chosen]
        return chosen


def holding(*brokers: int) -> list[Move]:
    """Return moves in progress, each with a role of one broker."""
    return [Move(TopicPartition("u", b), (b, 900), (900,)) for b in brokers]


@pytest.mark.parametrize("seed", range(20))
def test_every_move_begins_once_and_no_broker_exceeds_its_limit(seed: int):
    dice = Random(seed)
    brokers, per_broker, total = range(8 + seed), 3 + seed % 3, 8 + seed
    moves = random_moves(seed, 200, len(brokers))
    queue = Queue(moves, ExecutionOptions(per_broker, total))
    flying: list[Move] = []
    begun: list[Move] = []
    while len(begun) < len(moves):
        live = {b for b in brokers if dice.random() < 0.8}
        taken = queue.take(live, flying)
        busy: Counter[int] = Counter()
        for move in [*flying, *taken]:
            busy.update(roles(move.before, move.target))
        assert all(live.issuperset(move.added) for move in taken)
        assert sum(move.replicas_changed for move in [*flying, *taken]) <= total
        assert max(busy.values(), default=0) <= per_broker
        returned = [move for move in taken if dice.random() < 0.1]  # refused for now
        queue.waiting += [WaitingMove(move) for move in returned]
        flying += [move for move in taken if move not in returned]
        begun += [move for move in taken if move not in returned]
        flying = [move for move in flying if dice.random() < 0.5]
    assert sorted(begun) == moves


@pytest.mark.parametrize("seed", range(20))
def test_no_move_that_could_begin_stays_behind(seed: int):
    dice = Random(seed)
    limits = ExecutionOptions(2, 1_000)
    queue = Queue(random_moves(seed, 100, 12), limits)
    flying: list[Move] = []
    while queue.waiting:
        live = {b for b in range(12) if dice.random() < 0.8}
        flying = [move for move in flying if dice.random() < 0.5]
        flying += queue.take(live, flying)
        unseen = [WaitingMove(one.move) for one in queue.waiting]
        assert choose(unseen, flying, live, limits) == []


def test_moves_begin_in_their_sequence_and_the_ones_behind_a_busy_broker_are_not_blocked():
    moves = [Move(TopicPartition("t", n), (0, n + 1), (n + 1, 90)) for n in range(4)]
    moves.append(Move(TopicPartition("t", 4), (7,), (8,)))
    queue = Queue(moves, ExecutionOptions(2, 100))
    live = set(range(100))
    assert queue.take(live) == [moves[0], moves[1], moves[4]]
    assert queue.take(live, holding(0, 0, 90, 90)) == []
    assert queue.take(live, holding(0, 90)) == [moves[2]]


def test_a_move_that_exceeds_a_limit_alone_begins_when_its_brokers_do_nothing_else():
    large = Move(TopicPartition("t", 0), (1,), (1, 2, 3, 4))
    small = Move(TopicPartition("t", 1), (1,), (5,))
    queue = Queue([large, small], ExecutionOptions(2, 2))
    live = {1, 2, 3, 4, 5}
    assert queue.take(live, holding(1)) == []
    assert queue.take(live) == [large]
    assert queue.take(live) == [small]


def test_moves_to_a_dead_broker_are_known_and_begin_when_it_lives():
    moves = [Move(TopicPartition("t", n), (0,), (9,)) for n in range(3)]
    queue = Queue(moves, ExecutionOptions(5, 2))
    assert queue.take({0}) == []
    assert [one.dead for one in queue.waiting] == [9, 9, 9]
    assert queue.take({0, 9}) == moves[:2]
