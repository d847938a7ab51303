"""The sizes of logs, and how far brokers are that catch up."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from regent.client import log_dir_moves, log_sizes
from regent.client.log_dir_moves import LogDirs
from regent.client.log_sizes import CatchingUp, LogDirectorySize, LogSize, catching_up
from regent.client.moves import ReassignmentError
from regent.client.partition_files import TopicPartitionReplica
from regent.client.partitions import DescribedPartition
from regent.core.errors import Errors
from regent.core.model import (
    BrokerInfo,
    BrokerRegistration,
    EndPoint,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.messages.log_dirs import DescribeLogDirsResponse

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


def test_without_an_answer_of_a_leader_it_is_unknown_what_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {3: [LogDirectorySize(3, "/d", False, 9, 9, [LogSize("t", 0, 5, False)])]}
    monkeypatch.setattr(log_sizes, "read_log_dirs", lambda *_: told)
    assert catching_up([partition(0, 1, 1, 2)], LIVE, sleep=lambda _: None) == []


def test_a_broker_that_denies_its_log_directories_has_not_told_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    denied = DescribeLogDirsResponse(error_code=Errors.CLUSTER_AUTHORIZATION_FAILED, results=())
    brokers = {1: BrokerRegistration(BrokerInfo(1, (EndPoint("A", "a", 1, "PLAINTEXT"),)), 7)}
    for module in (log_sizes, log_dir_moves):
        monkeypatch.setattr(module, "ask_broker", lambda *_: denied)
    assert log_sizes.read_log_dirs(brokers) == {}
    replica = TopicPartitionReplica(1, TopicPartition("t", 0))
    with pytest.raises(ReassignmentError, match="permission Describe of the cluster"):
        LogDirs(brokers).moves({replica: "/d"})


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
