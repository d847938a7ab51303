"""Positions of groups in ZooKeeper: written in bulk while others write, and read again."""

from __future__ import annotations

from collections import Counter

import pytest

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.zk.stores.consumer_offsets import ZkConsumerOffsets
from tests.support.connected_sessions import Connect, read
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def stored(server: FakeZooKeeperServer) -> dict[str, bytes]:
    offsets = "/consumers/g/offsets/"
    return {
        path.removeprefix(offsets): node.data
        for path, node in server.snapshot().items()
        if path.startswith(offsets) and path.count("/") == 5
    }


def test_positions_are_decimal_texts_below_the_group(server: FakeZooKeeperServer):
    offsets = ZkConsumerOffsets(FakeZooKeeper(server))
    assert set(offsets.write("g", {T0: 7, T1: -1, U0: 2**63 - 1}).values()) == {Errors.NONE}
    assert stored(server) == {"t/0": b"7", "t/1": b"-1", "u/0": b"9223372036854775807"}
    assert offsets.write("g", {T0: 8}) == {T0: Errors.NONE}
    assert offsets.read("g", [T0, T1, TopicPartition("t", 2)]) == {
        T0: 8,
        T1: -1,
        TopicPartition("t", 2): Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_the_number_of_calls_does_not_grow_with_the_positions(server: FakeZooKeeperServer):
    zookeeper, calls = FakeZooKeeper(server), Counter[str]()

    def count(call: Call) -> None:
        calls[call.method] += call.moment is Moment.BEFORE

    zookeeper.hook = count
    offsets = ZkConsumerOffsets(zookeeper)
    many = {TopicPartition("t", number): number for number in range(100)}
    offsets.write("g", many)
    assert offsets.read("g", list(many)) == many
    assert calls == {"multi_many": 2, "get_many": 1}


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.BETWEEN, Moment.AFTER])
def test_a_lost_answer_loses_no_position(server: FakeZooKeeperServer, moment: Moment):
    zookeeper = FakeZooKeeper(server)
    zookeeper.hook = once(moment, lose_connection, times=2)
    assert ZkConsumerOffsets(zookeeper).write("g", {T0: 1, T1: 2}) == {
        T0: Errors.NONE,
        T1: Errors.NONE,
    }
    assert stored(server) == {"t/0": b"1", "t/1": b"2"}


def test_the_last_of_two_that_create_a_position_wins(server: FakeZooKeeperServer):
    zookeeper, other = FakeZooKeeper(server), ZkConsumerOffsets(FakeZooKeeper(server))
    zookeeper.hook = once(Moment.AFTER, lambda: other.write("g", {T0: 1}))
    assert ZkConsumerOffsets(zookeeper).write("g", {T0: 2}) == {T0: Errors.NONE}
    assert stored(server) == {"t/0": b"2"}


@pytest.mark.parametrize("data", [b"", b"x", b"1.0", b"9" * 19, b"9" * 5_000])
def test_a_position_that_is_not_a_number_does_not_affect_other_positions(
    server: FakeZooKeeperServer, data: bytes
):
    offsets = ZkConsumerOffsets(FakeZooKeeper(server))
    offsets.write("g", {T0: 1, T1: 2})
    server.put("/consumers/g/offsets/t/0", data)
    assert offsets.read("g", [T0, T1]) == {T0: Errors.UNKNOWN_SERVER_ERROR, T1: 2}


def test_a_real_zookeeper_stores_positions(connect: Connect):
    client = connect().client
    offsets = ZkConsumerOffsets(client)
    assert offsets.write("g", {T0: 1, U0: 2}) == {T0: Errors.NONE, U0: Errors.NONE}
    assert offsets.write("g", {T0: 3}) == {T0: Errors.NONE}
    assert read(client, "/consumers/g/offsets/t/0").data == b"3"
    assert offsets.read("g", [T0, U0]) == {T0: 3, U0: 2}
    assert offsets.write("\ufffc", {T0: 1}) == {T0: Errors.UNKNOWN_SERVER_ERROR}
