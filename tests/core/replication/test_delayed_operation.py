"""Waiting operations are completed exactly once and answered without the lock."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from regent.core.model import TopicPartition
from regent.core.replication.delayed_operation import (
    Answer,
    DelayedOperation,
    DelayedOperationPurgatory,
    LockedCall,
)
from tests.core.replication.record_stage import RecordBroker, consumed
from tests.core.replication.stage import T0, T1, T2
from tests.support.record_batches import batch


class Countdown(DelayedOperation):
    """Waits for a number of changes; counts its checks and answers."""

    kind = "Fetch"

    def __init__(self, count: int, *partitions: TopicPartition) -> None:
        super().__init__(partitions)
        self.left = count
        self.looks: list[list[TopicPartition]] = []
        self.answers = 0

    def on_changes(self, topic_partitions: Collection[TopicPartition]) -> bool:
        self.looks.append(list(topic_partitions))
        self.left -= len(topic_partitions)
        return self.left <= 0

    def answer(self) -> Answer:
        return self._count

    def _count(self) -> None:
        self.answers += 1


def settle(delayed: DelayedOperationPurgatory) -> None:
    delayed.settle()
    for answer in delayed.take_answers():
        answer()


def test_an_operation_is_checked_once_for_all_changes() -> None:
    delayed, waiting, other = (
        DelayedOperationPurgatory(),
        Countdown(3, T0, T1, T2),
        Countdown(1, T1),
    )
    delayed.hold(waiting)
    delayed.hold(other)
    for topic_partition in (T0, T2, T0):
        delayed.on_change(topic_partition)
    settle(delayed)
    assert (waiting.looks, waiting.is_completed) == ([[T0, T2]], False)
    delayed.on_change(T1)
    settle(delayed)
    assert (waiting.answers, other.answers, len(delayed)) == (1, 1, 0)


def test_a_completed_operation_is_not_answered_again() -> None:
    delayed, waiting = DelayedOperationPurgatory(), Countdown(1, T0)
    delayed.hold(waiting)
    delayed.on_change(T0)
    delayed.complete(waiting)
    delayed.complete(waiting)
    settle(delayed)
    delayed.on_change(T0)
    delayed.wake(waiting, T0)
    settle(delayed)
    assert (waiting.answers, waiting.looks, len(delayed)) == (1, [], 0)


def test_a_completed_operation_leaves_no_watch() -> None:
    delayed = DelayedOperationPurgatory()
    for _ in range(3):
        waiting = Countdown(1, T0, T1)
        delayed.hold(waiting)
        delayed.complete(waiting)
        settle(delayed)
    assert (delayed._watching, delayed._woken, delayed.take_answers()) == ({}, {}, [])


def test_operations_over_the_limit_do_not_wait() -> None:
    delayed = DelayedOperationPurgatory(limit=2)
    waiting = [Countdown(1, T0) for _ in range(3)]
    held = [delayed.hold(operation) for operation in waiting]
    settle(delayed)
    assert held == [waiting[0], waiting[1], None]
    assert [operation.answers for operation in waiting] == [0, 0, 1]
    delayed.complete(waiting[0])
    assert delayed.hold(Countdown(1, T0)) is not None


class Lock:
    """A lock that knows whether it is held."""

    is_held = False

    def __enter__(self) -> None:
        assert not self.is_held
        self.is_held = True

    def __exit__(self, *failure: object) -> None:
        self.is_held = False


def test_answers_are_given_without_the_lock_and_may_take_it_again() -> None:
    lock, given = Lock(), []
    answers: list[Answer] = []

    def end() -> list[Answer]:
        taken, answers[:] = list(answers), []
        return taken

    turn = LockedCall(lock, end)

    def first() -> None:
        assert not lock.is_held
        with turn:
            answers.append(lambda: given.append("nested"))
        given.append("first")

    with turn:
        answers.append(first)
        answers.append(lambda: given.append("second"))
    assert given == ["nested", "first", "second"]


def test_an_answer_that_raises_does_not_stop_other_answers() -> None:
    given: list[str] = []

    def fail() -> None:
        raise ConnectionError("the client has gone")

    answers: list[Answer] = [fail, lambda: given.append("second")]
    lock = Lock()
    with pytest.raises(ConnectionError), LockedCall(lock, lambda: answers):
        pass
    assert (given, lock.is_held) == (["second"], False)


def test_a_failed_call_releases_the_lock_and_gives_the_answers() -> None:
    given: list[str] = []
    lock = Lock()

    def use() -> None:
        with LockedCall(lock, lambda: [lambda: given.append("given")]):
            raise AssertionError("a defect")

    with pytest.raises(AssertionError):
        use()
    assert (given, lock.is_held) == (["given"], False)


# --- with a replica manager -----------------------------------------------------------------------


def test_an_answer_may_cause_the_next_call_on_the_same_thread() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, isr=(1,))
    answers: list[str] = []
    asked = leader.consume({T0: 0})

    def produce_again(left: int) -> Callable[[object], None]:
        def respond(answer: object) -> None:
            answers.append(f"answer {left}")
            if left:
                leader.manager.produce(-1, {T0: batch(b"x")}, 0, produce_again(left - 1))

        return respond

    leader.manager.produce(-1, {T0: batch(b"x")}, 0, produce_again(2))
    assert answers == ["answer 2", "answer 1", "answer 0"]
    assert consumed(asked.answer[T0]) == [b"x"], "the first call has returned"
    assert leader.log().log_end_offset == 3


def test_one_fetch_of_a_follower_completes_all_waiting_requests() -> None:
    leader, follower = RecordBroker(1), RecordBroker(2)
    for broker in (leader, follower):
        broker.apply(1, 1, T0, T1)
    producers = [leader.produce_to({T0: batch(b"x"), T1: batch(b"y")}) for _ in range(10)]
    consumers = [leader.consume({T0: 0, T1: 0}) for _ in range(10)]
    assert leader.manager.delayed_counts == {"Produce": 10, "Fetch": 10}
    follower.follow(leader, times=2)
    assert not any(asked.is_waiting for asked in producers)
    assert not any(asked.is_waiting for asked in consumers)
    assert [len(consumed(asked.answer[T1])) for asked in consumers] == [10] * 10
    assert sum(leader.manager.delayed_counts.values()) == 0
