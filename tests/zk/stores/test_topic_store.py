from __future__ import annotations

import pytest

from regent.core.admin.admin_requests import NewTopic
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment
from regent.zk.codecs.admin_znodes import DeleteTopicsTopicZNode
from regent.zk.codecs.znodes import TopicZNode
from regent.zk.stores.topic_store import ZkTopicStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.term import Tree, topic_id

ON_0 = {0: ReplicaAssignment((0,))}
MORE = {1: ReplicaAssignment((0,))}


@pytest.fixture
def tree() -> Tree:
    tree = Tree()
    tree.register(0)
    return tree


@pytest.fixture
def store(tree: Tree) -> ZkTopicStore:
    return ZkTopicStore(FakeZooKeeper(tree.server))


def test_topics_are_created_once(tree: Tree, store: ZkTopicStore):
    assert store.create_topics({"t": NewTopic(topic_id(1), ON_0, {})}) == {"t": Errors.NONE}
    again = store.create_topics({"t": NewTopic(topic_id(2), ON_0, {})})
    assert again == {"t": Errors.TOPIC_ALREADY_EXISTS}
    assert tree.topic("t").topic_id == topic_id(1)
    assert list(store.read_topic_names()) == ["t"]
    assert set(store.read_topics(["t", "nobody"])) == {"t"}


def test_a_topic_that_is_too_large_leaves_the_others_alone(tree: Tree, store: ZkTopicStore):
    too_many = {n: ReplicaAssignment((0,)) for n in range(100_000)}
    wanted = {
        "large": NewTopic(topic_id(1), too_many, {}),
        "small": NewTopic(topic_id(2), ON_0, {}),
    }
    created = store.create_topics(wanted)
    assert created == {"large": Errors.INVALID_PARTITIONS, "small": Errors.NONE}
    assert list(store.read_topic_names()) == ["small"]


def test_partitions_are_added_to_each_topic_that_takes_them(tree: Tree, store: ZkTopicStore):
    tree.put_topic("t", {0: (0,)})
    tree.put_topic("deleting", {0: (0,)})
    tree.put_topic("moving", {0: ReplicaAssignment((0, 1), (1,))})
    tree.put_topic("grown", {0: (0,), 1: (0,), 2: (0,)})
    tree.server.put(TopicZNode.path("garbage"), b"{")
    tree.server.put(DeleteTopicsTopicZNode.path("deleting"))
    names = ("t", "nobody", "deleting", "moving", "grown", "garbage")
    assert store.add_partitions(dict.fromkeys(names, MORE)) == {
        "t": Errors.NONE,
        "nobody": Errors.UNKNOWN_TOPIC_OR_PARTITION,
        "deleting": Errors.INVALID_TOPIC_EXCEPTION,
        "moving": Errors.REASSIGNMENT_IN_PROGRESS,
        "grown": Errors.INVALID_PARTITIONS,
        "garbage": Errors.UNKNOWN_SERVER_ERROR,
    }
    assert set(tree.topic("t").partitions) == {0, 1}


def test_a_wish_to_delete_may_be_repeated(tree: Tree, store: ZkTopicStore):
    tree.put_topic("t", {0: (0,)})
    for _ in range(2):
        marked = store.mark_for_deletion(["t", "nobody"])
        assert marked == {"t": Errors.NONE, "nobody": Errors.UNKNOWN_TOPIC_OR_PARTITION}
    assert set(store.read_topics_being_deleted()) == {"t"}
