"""The sizes of logs, and how far brokers are that catch up."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from regent.client import log_sizes
from regent.client.log_sizes import CatchingUp, LogDirectorySize, LogSize, catching_up
from regent.client.partitions import DescribedPartition
from regent.core.model import (
    BrokerInfo,
    BrokerRegistration,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)

LIVE = {b: BrokerRegistration(BrokerInfo(b, ()), 7) for b in (1, 2, 3)}


def partition(number: int, leader: int, *isr: int) -> DescribedPartition:
    state = LeaderIsrAndControllerEpoch(LeaderAndIsr(leader, isr, 4, 1), 1)
    assignment = ReplicaAssignment((1, 2, 3))
    return DescribedPartition(TopicPartition("t", number), None, assignment, state)


def test_what_is_left_is_measured_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{1: 3_000_000, 2: 3_000_000, 3: 0}, {1: 3_000_000, 2: 3_000_000, 3: 1_000_000}])

    def read(
        asked: Collection[int], names: Collection[TopicPartition]
    ) -> dict[int, list[LogDirectorySize]]:
        assert set(asked) == {1, 3}, "the broker that catches up, and its leader"
        assert names == {TopicPartition("t", 0)}
        return {
            b: [LogDirectorySize(b, "/d", False, 9, 9, [LogSize("t", 0, size, False)])]
            for b, size in next(looks).items()
            if b in asked
        }

    monkeypatch.setattr(log_sizes, "read_log_dirs", read)
    partitions = [partition(0, 1, 1, 2), partition(1, 2, 1, 2, 3)]
    (row,) = catching_up(partitions, LIVE, sleep=lambda _: None)
    assert row == CatchingUp(3, 1, 2_000_000, 1_000_000.0)
    assert row.seconds_left == 2.0
    assert row.sentence() == "broker 3 catches up: 1 partition, 2.0 MB left, 1.0 MB/s, 2 s"


def test_nothing_is_asked_when_all_live_replicas_are_in_sync():
    dead = {b: LIVE[b] for b in (1, 2)}
    assert catching_up([partition(0, 1, 1, 2)], dead) == []


def test_a_broker_that_does_not_get_on_says_so():
    assert (
        CatchingUp(3, 1, 5, 0.0)
        .sentence()
        .endswith("it does not get on, or producers write as fast")
    )
    assert CatchingUp(3, 1, 5, 0.0).seconds_left is None
