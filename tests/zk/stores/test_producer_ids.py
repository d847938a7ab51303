"""Blocks of producer ids are unique, also after lost answers and with concurrent brokers."""

from __future__ import annotations

import json

import pytest

from regent.core.errors import BadDataError
from regent.zk.client.operations import ConflictError
from regent.zk.stores.producer_ids import ZkProducerIds
from regent.zk.znodes import ProducerIdBlockZNode
from tests.support.connected_sessions import Connect, read
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

PATH = ProducerIdBlockZNode.PATH


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


def test_blocks_follow_each_other_in_kafkas_format(server: FakeZooKeeperServer):
    first, second = (ZkProducerIds(FakeZooKeeper(server), broker_id) for broker_id in (1, 2))
    assert first.take_block() == range(1_000)
    assert second.take_block() == range(1_000, 2_000)
    assert first.take_block() == range(2_000, 3_000)
    assert json.loads(server.snapshot()[PATH].data) == {
        "version": 1,
        "broker": 1,
        "block_start": "2000",
        "block_end": "2999",
    }


def test_an_empty_node_and_kafkas_own_are_continued(server: FakeZooKeeperServer):
    server.put(PATH)
    assert ZkProducerIds(FakeZooKeeper(server), 1).take_block() == range(1_000)
    server.put(PATH, b'{"version":1,"broker":7,"block_start":"5000","block_end":"5999"}')
    assert ZkProducerIds(FakeZooKeeper(server), 1).take_block() == range(6_000, 7_000)


def test_a_block_of_another_broker_is_not_taken(server: FakeZooKeeperServer):
    zookeeper, other = FakeZooKeeper(server), ZkProducerIds(FakeZooKeeper(server), 2)
    taken: list[range] = []

    zookeeper.hook = once(Moment.BEFORE, lambda: taken.append(other.take_block()), times=2)
    assert ZkProducerIds(zookeeper, 1).take_block() == range(2_000, 3_000)
    assert taken == [range(1_000), range(1_000, 2_000)]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_after_a_lost_answer_no_block_is_given_twice(server: FakeZooKeeperServer, moment: Moment):
    zookeeper = FakeZooKeeper(server)
    zookeeper.hook = once(moment, lose_connection)
    block = ZkProducerIds(zookeeper, 1).take_block()
    assert block == (range(1_000) if moment is Moment.BEFORE else range(1_000, 2_000))


def test_an_allocation_that_always_conflicts_is_given_up(server: FakeZooKeeperServer):
    zookeeper, other = FakeZooKeeper(server), ZkProducerIds(FakeZooKeeper(server), 2)

    def intervene(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            other.take_block()

    zookeeper.hook = intervene
    with pytest.raises(ConflictError):
        ZkProducerIds(zookeeper, 1).take_block()


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b'{"version":1,"broker":7,"block_start":"9223372036854775000",'
        b'"block_end":"9223372036854775807"}',
    ],
    ids=["garbage", "the last block there is"],
)
def test_unusable_data_are_not_overwritten(server: FakeZooKeeperServer, data: bytes):
    server.put(PATH, data)
    with pytest.raises(BadDataError, match=PATH):
        ZkProducerIds(FakeZooKeeper(server), 1).take_block()
    assert server.snapshot()[PATH].data == data


def test_a_real_zookeeper_gives_each_broker_its_own_block(connect: Connect):
    first, second = connect().client, connect().client
    assert ZkProducerIds(first, 0).take_block() == range(1_000)
    assert ZkProducerIds(second, 1).take_block() == range(1_000, 2_000)
    block = ProducerIdBlockZNode.decode(read(first, PATH).data)
    assert block == (1, 1_000, 1_999)
