"""What the page of moves says of the rate of each move, and of the time that is left."""

from __future__ import annotations

import pytest

from regent.client.partitions import DescribedPartition
from regent.console import move_progress
from regent.console.move_progress import MoveProgress
from regent.console.pages import render
from regent.core.model import (
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)

MB = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(move_progress, "monotonic", lambda: now[0])
    return now


def moving(number: int, *, isr: tuple[BrokerId, ...] = (0,)) -> DescribedPartition:
    """A partition that broker 0 leads, and that moves from broker 1 to broker 2."""
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(0, isr, 1, 1), 1)
    assignment = ReplicaAssignment((2, 0, 1), (2,), (1,))
    return DescribedPartition(TopicPartition("t", number), None, assignment, state)


def test_each_move_has_what_is_left_its_rate_and_its_time(clock: list[float]) -> None:
    progress, moves = MoveProgress(), [moving(0), moving(1), moving(2, isr=(0, 2)), moving(3)]
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    found = progress.look(moves, {first: {0: 50 * MB, 2: 10 * MB}, second: {0: 9 * MB, 2: 0}})
    assert [list(row.left) for row in found.rows] == [
        ["broker 2: 40 MB left"],
        ["broker 2: 9.0 MB left"],
        ["broker 2: in sync"],
        ["broker 2: not known"],
    ]
    clock[0] += 10
    found = progress.look(moves, {first: {0: 50 * MB, 2: 30 * MB}, second: {0: 9 * MB, 2: 0}})
    assert found.rows[0].left == ["broker 2: 20 MB left, 2.0 MB/s, 10 s"]
    (of_broker,) = found.brokers
    assert of_broker.sentence() == ("broker 2 catches up: 2 partitions, 29 MB left, 2.0 MB/s, 14 s")
    page = render("moves.html", moves=found, problems=[], more=0, may_write=True, paused_ms=None)
    assert "20 MB left, 2.0 MB/s, 10 s" in page
    assert "/ask/cancel-moves" in page


def test_the_rate_is_that_of_the_last_half_minute(clock: list[float]) -> None:
    progress, at = MoveProgress(), TopicPartition("t", 0)
    for copied in (0, 100):
        progress.look([moving(0)], {at: {0: 500 * MB, 2: copied * MB}})
        clock[0] += 10
    for _ in range(4):  # somebody throttles it
        found = progress.look([moving(0)], {at: {0: 500 * MB, 2: 100 * MB}})
        clock[0] += 10
    assert found.rows[0].left == ["broker 2: 400 MB left"]
    assert found.brokers[0].sentence().endswith("it does not get on, or producers write as fast")


def test_a_page_that_is_opened_again_forgets_the_rate_of_before(clock: list[float]) -> None:
    progress, at = MoveProgress(), TopicPartition("t", 0)
    progress.look([moving(0)], {at: {0: 50 * MB, 2: 0}})
    clock[0] += 3600
    found = progress.look([moving(0)], {at: {0: 50 * MB, 2: 40 * MB}})
    assert found.brokers[0].bytes_per_s is None
