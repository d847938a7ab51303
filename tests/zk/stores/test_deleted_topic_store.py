"""The znodes of deleted topics: what is remembered of them, and the transaction that ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import BadDataError, ControllerMovedError
from regent.core.model import (
    NO_LEADER,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.ports import DeletedPartition, DeletedTopic, WriteError
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.deleted_topic_store import read_deleted_topics
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import ConfigEntityZNode, DeletedTopicsZNode, DeletedTopicZNode, TopicZNode
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)
from tests.support.world import T0, T1, topic_id

ID, OTHER_ID = topic_id(1), topic_id(2)
EPOCH = 0  # the znode version of the controller epoch
CONFIG = "/config/topics/t"
SETTINGS = {"retention.ms": "-1"}
DELETED = DeletedTopic(
    "t",
    ID,
    1_000,
    61_000,
    {0: DeletedPartition((1, 2), (2,), 3), 1: DeletedPartition((2, 1), (2, 1), 0)},
    {},
)
STATES = {
    T0: LeaderIsrAndControllerEpoch(LeaderAndIsr(NO_LEADER, (2,), 3), 7),
    T1: LeaderIsrAndControllerEpoch(LeaderAndIsr(NO_LEADER, (2, 1), 0), 7),
}


@pytest.fixture
def store(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper) -> ZkControllerStore:
    server.put("/controller_epoch", b"7")
    return ZkControllerStore(zookeeper)


def known(store: ZkControllerStore) -> DeletedTopic:
    (deleted,) = store.read_deleted_topics().values()
    assert isinstance(deleted, DeletedTopic)
    return replace(deleted, zxid=-1)


def paths(server: FakeZooKeeperServer) -> set[str]:
    roots = ("/brokers/topics/", "/config/topics/", "/config/changes/", "/regent/deleted_topics/")
    return {path for path in server.snapshot() if path.startswith(roots)}


def test_no_topic_is_remembered_at_first(store: ZkControllerStore) -> None:
    assert store.read_deleted_topics() == {}
    assert store.read_deleted_topics([ID]) == {}


def test_a_topic_is_remembered_with_its_present_settings(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    server.put(CONFIG, ConfigEntityZNode.encode(SETTINGS))
    assert store.remember_deleted_topics([DELETED], EPOCH) == {ID}
    assert known(store) == replace(DELETED, config=SETTINGS)


def test_what_is_remembered_later_keeps_the_settings_of_the_beginning(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    server.put(CONFIG, ConfigEntityZNode.encode(SETTINGS))
    store.remember_deleted_topics([DELETED], EPOCH)
    (first,) = store.read_deleted_topics().values()
    server.remove(CONFIG)
    complete = replace(known(store), is_complete=True)
    assert store.remember_deleted_topics([complete], EPOCH) == {ID}
    (second,) = store.read_deleted_topics().values()
    assert known(store) == complete
    assert isinstance(first, DeletedTopic)
    assert isinstance(second, DeletedTopic)
    assert second.zxid > first.zxid, "an answer to what was read before does not count"


def test_a_topic_whose_settings_cannot_be_read_is_not_remembered(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    server.put(CONFIG, b"no settings")
    assert store.remember_deleted_topics([DELETED], EPOCH) == set()
    server.deny(CONFIG)
    assert store.remember_deleted_topics([DELETED], EPOCH) == set()
    assert store.read_deleted_topics() == {}


def test_a_topic_that_one_transaction_cannot_bring_back_is_not_remembered(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    large = replace(
        DELETED,
        topic_id=OTHER_ID,
        topic="large",
        partitions=dict.fromkeys(range(3000), DELETED.partitions[1]),
    )
    assert store.remember_deleted_topics([large, DELETED], EPOCH) == {ID}
    assert known(store).topic == "t"


def test_the_largest_topic_that_is_remembered_can_come_back(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    count = 3_000
    while True:
        rows = dict.fromkeys(range(count), DELETED.partitions[1])
        large = replace(DELETED, partitions=rows)
        if store.remember_deleted_topics([large], EPOCH):
            break
        count -= 50
    states = {TopicPartition("t", number): STATES[T1] for number in rows}
    assert count > 500
    assert store.restore_topic(large, states, EPOCH) is None


def test_topics_are_forgotten(server: FakeZooKeeperServer, store: ZkControllerStore) -> None:
    store.remember_deleted_topics([DELETED, replace(DELETED, topic_id=OTHER_ID)], EPOCH)
    store.forget_deleted_topics([ID, topic_id(3)], EPOCH)
    assert list(store.read_deleted_topics()) == [OTHER_ID]


def test_a_topic_comes_back_with_its_settings_and_states(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkControllerStore
) -> None:
    server.put(CONFIG, ConfigEntityZNode.encode(SETTINGS))
    store.remember_deleted_topics([DELETED], EPOCH)
    server.remove(CONFIG)

    assert store.restore_topic(known(store), STATES, EPOCH) is None

    assert store.read_deleted_topics() == {}
    nodes = server.snapshot()
    assert ConfigEntityZNode.decode(nodes[CONFIG].data) == SETTINGS
    topic = TopicZNode.decode(nodes["/brokers/topics/t"].data)
    assert topic.topic_id == ID
    assert topic.partitions == {0: ReplicaAssignment((1, 2)), 1: ReplicaAssignment((2, 1))}
    assert ZnodeStore(zookeeper).read_partition_states([T0, T1]) == STATES
    changes = [path for path in nodes if path.startswith("/config/changes/config_change_")]
    assert len(changes) == 1


def test_settings_that_are_there_again_are_replaced(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.remember_deleted_topics([DELETED], EPOCH)
    server.put(CONFIG, ConfigEntityZNode.encode(SETTINGS))
    assert store.restore_topic(known(store), STATES, EPOCH) is None
    assert ConfigEntityZNode.decode(server.snapshot()[CONFIG].data) == {}


def test_a_topic_of_the_name_is_left_alone(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.remember_deleted_topics([DELETED], EPOCH)
    server.put(TopicZNode.path("t"), TopicZNode.encode(OTHER_ID, {0: ReplicaAssignment((3,))}))
    before = server.snapshot()
    assert store.restore_topic(DELETED, STATES, EPOCH) is WriteError.NODE_EXISTS
    assert server.snapshot() == before


def test_a_topic_that_is_forgotten_does_not_come_back(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    before = paths(server)
    assert store.restore_topic(DELETED, STATES, EPOCH) is WriteError.NO_NODE
    assert paths(server) == before


def test_a_deposed_controller_changes_nothing(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.remember_deleted_topics([DELETED], EPOCH)
    server.put("/controller_epoch", b"8")
    before = server.snapshot()
    with pytest.raises(ControllerMovedError):
        store.restore_topic(DELETED, STATES, EPOCH)
    with pytest.raises(ControllerMovedError):
        store.remember_deleted_topics([replace(DELETED, topic_id=OTHER_ID)], EPOCH)
    with pytest.raises(ControllerMovedError):
        store.forget_deleted_topics([ID], EPOCH)
    assert server.snapshot() == before


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_connection_repeats_what_is_remembered_and_forgotten(
    zookeeper: FakeZooKeeper, store: ZkControllerStore, moment: Moment
) -> None:
    store.remember_deleted_topics([], EPOCH)
    zookeeper.hook = once(moment, lose_connection, method="multi_many")
    assert store.remember_deleted_topics([DELETED], EPOCH) == {ID}
    zookeeper.hook = once(moment, lose_connection, method="multi_many")
    store.forget_deleted_topics([ID], EPOCH)
    assert store.read_deleted_topics() == {}


def test_damaged_and_hidden_znodes_are_told_from_absent_ones(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkControllerStore
) -> None:
    store.remember_deleted_topics([DELETED], EPOCH)
    server.put(DeletedTopicZNode.path(OTHER_ID), b"{}")
    found = read_deleted_topics(zookeeper)
    assert isinstance(found[ID], DeletedTopic)
    assert isinstance(found[OTHER_ID], BadDataError)
    server.deny(DeletedTopicZNode.path(ID))
    assert isinstance(store.read_deleted_topics([ID])[ID], BadDataError)
    server.deny(DeletedTopicsZNode.PATH)
    assert store.read_deleted_topics() == {}
