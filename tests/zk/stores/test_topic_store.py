"""Creation, growth and deletion marks of topics, with a fake ZooKeeper that loses connections."""

from __future__ import annotations

import pytest

from regent.core.admin.admin_requests import NewTopic
from regent.core.errors import ApiError, Errors
from regent.core.model import ReplicaAssignment
from regent.core.topic_validation import protected_topic, unknown_topic
from regent.zk import znodes
from regent.zk.client.operations import Create
from regent.zk.codecs.topic_znodes import TopicZNodeData
from regent.zk.stores.topic_store import ZkTopicStore
from regent.zk.stores.znode_store import NoClusterError
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)
from tests.support.zookeeper_sessions import apply

DONE = ApiError(Errors.NONE)
ALREADY_MARKED = ApiError(Errors.NONE, "topic t is already marked for deletion")
OURS, THEIRS = "A" * 22, "B" * 22
ON_0 = {0: ReplicaAssignment((0, 1))}


@pytest.fixture
def store(zookeeper: FakeZooKeeper) -> ZkTopicStore:
    return ZkTopicStore(zookeeper)


def new_topic(topic_id: str = OURS, **config: str) -> NewTopic:
    return NewTopic(topic_id, ON_0, config)


def exists(topic: str) -> ApiError:
    return ApiError(Errors.TOPIC_ALREADY_EXISTS, f"topic {topic} already exists")


def topic_in(server: FakeZooKeeperServer, topic: str) -> TopicZNodeData:
    return znodes.TopicZNode.decode(server.snapshot()[znodes.TopicZNode.path(topic)].data)


def config_in(server: FakeZooKeeperServer, topic: str) -> dict[str, str]:
    path = ConfigEntityZNode.path("topics", topic)
    return ConfigEntityZNode.decode(server.snapshot()[path].data)


# --- creating topics ------------------------------------------------------------------------------


def test_a_topic_is_created_in_one_transaction_configuration_first(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    before = len(server.transactions)

    outcomes = store.create_topics({"t": new_topic(**{"retention.ms": "5"})})

    assert outcomes == {"t": DONE}
    (transaction,) = server.transactions[before:]
    assert [op.path for op in transaction.operations] == ["/config/topics/t", "/brokers/topics/t"]
    assert config_in(server, "t") == {"retention.ms": "5"}
    assert topic_in(server, "t") == TopicZNodeData(OURS, ON_0)


def test_a_thousand_topics_take_a_few_transactions(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    before = len(server.transactions)

    outcomes = store.create_topics({f"t{n}": new_topic() for n in range(1000)})

    assert set(outcomes.values()) == {DONE}
    assert len(store.read_topic_names()) == 1000
    assert len(server.transactions) - before <= 3


def test_an_existing_topic_is_unchanged_and_the_others_are_created(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    store.create_topics({"old": new_topic(THEIRS, **{"retention.ms": "1"})})

    outcomes = store.create_topics({"new": new_topic(), "old": new_topic()})

    assert outcomes == {
        "new": DONE,
        "old": exists("old"),
    }
    assert topic_in(server, "old").topic_id == THEIRS
    assert config_in(server, "old") == {"retention.ms": "1"}


def test_a_concurrently_created_topic_is_the_others(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore
) -> None:
    other = ZkTopicStore(FakeZooKeeper(server))
    zookeeper.hook = once(
        Moment.BEFORE, lambda: void(other.create_topics({"t": new_topic(THEIRS)}))
    )

    outcomes = store.create_topics({"a": new_topic(), "t": new_topic(), "z": new_topic()})

    assert outcomes == {
        "a": DONE,
        "t": exists("t"),
        "z": DONE,
    }
    assert topic_in(server, "t").topic_id == THEIRS


def test_the_configuration_of_an_earlier_topic_is_replaced(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    server.put("/config/topics/t", ConfigEntityZNode.encode({"retention.ms": "1"}))

    assert store.create_topics({"t": new_topic()}) == {"t": DONE}
    assert config_in(server, "t") == {}


def test_the_configuration_of_an_earlier_topic_may_be_deleted_concurrently(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore
) -> None:
    session = FakeZooKeeper(server)
    apply(session, Create("/config/topics/t", b"{}", ephemeral=True))
    zookeeper.hook = once(Moment.BEFORE, session.close)

    assert store.create_topics({"t": new_topic()}) == {"t": DONE}
    assert config_in(server, "t") == {}


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_topic_whose_answer_was_lost_is_recognised_by_its_id(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore, moment: Moment
) -> None:
    zookeeper.hook = once(moment, lose_connection)

    assert store.create_topics({"t": new_topic()}) == {"t": DONE}
    assert topic_in(server, "t").topic_id == OURS


def test_a_topic_too_large_for_a_znode_does_not_affect_the_others(store: ZkTopicStore) -> None:
    large = {partition: ReplicaAssignment((1, 2, 3)) for partition in range(70_000)}

    created = store.create_topics({"small": new_topic(), "large": NewTopic(OURS, large, {})})

    assert created["small"] == DONE
    assert created["large"].error_code is Errors.INVALID_PARTITIONS
    assert created["large"].message.startswith("topic large: 70000 partitions take")
    assert store.read_topic_names() == ["small"]


def test_creating_topics_where_no_broker_ever_started_fails(
    server: FakeZooKeeperServer,
) -> None:
    with pytest.raises(NoClusterError):
        ZkTopicStore(FakeZooKeeper(FakeZooKeeperServer())).create_topics({"t": new_topic()})


def test_creating_nothing_writes_nothing(store: ZkTopicStore) -> None:
    assert store.create_topics({}) == {}


# --- adding partitions ----------------------------------------------------------------------------

ADDED = {1: ReplicaAssignment((1, 0))}


def grow(store: ZkTopicStore, topic: str) -> ApiError:
    return store.add_partitions({topic: ADDED})[topic]


@pytest.fixture
def topic(store: ZkTopicStore) -> str:
    store.create_topics({"t": new_topic()})
    return "t"


def test_added_partitions_join_the_others_and_the_topic_id_stays(
    server: FakeZooKeeperServer, store: ZkTopicStore, topic: str
) -> None:
    assert grow(store, topic) == DONE
    assert topic_in(server, topic) == TopicZNodeData(OURS, ON_0 | ADDED)


def test_partitions_are_added_to_a_concurrently_written_assignment(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore, topic: str
) -> None:
    moved = {0: ReplicaAssignment((2, 3))}
    path = znodes.TopicZNode.path(topic)
    zookeeper.hook = once(
        Moment.BEFORE, lambda: server.put(path, znodes.TopicZNode.encode(OURS, moved))
    )

    assert grow(store, topic) == DONE
    assert topic_in(server, topic).partitions == moved | ADDED


def test_concurrently_added_partitions_are_not_overwritten(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore, topic: str
) -> None:
    theirs = {1: ReplicaAssignment((4, 5))}
    other = ZkTopicStore(FakeZooKeeper(server))
    zookeeper.hook = once(Moment.BEFORE, lambda: void(other.add_partitions({topic: theirs})))

    assert grow(store, topic).error_code is Errors.INVALID_PARTITIONS
    assert topic_in(server, topic).partitions == ON_0 | theirs


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_partitions_whose_answer_was_lost_are_added_once(
    server: FakeZooKeeperServer,
    zookeeper: FakeZooKeeper,
    store: ZkTopicStore,
    topic: str,
    moment: Moment,
) -> None:
    zookeeper.hook = once(moment, lose_connection)

    assert grow(store, topic) == DONE
    assert server.snapshot()[znodes.TopicZNode.path(topic)].stat.version == 1


def test_a_topic_that_may_not_grow_is_unchanged(
    server: FakeZooKeeperServer, store: ZkTopicStore, topic: str
) -> None:
    assert grow(store, "nope") == unknown_topic("nope")

    server.put("/admin/delete_topics/t")
    assert grow(store, topic).error_code is Errors.INVALID_TOPIC_EXCEPTION

    moving = {0: ReplicaAssignment((0, 1, 2), adding_replicas=(2,))}
    server.put("/brokers/topics/moving", znodes.TopicZNode.encode(OURS, moving))
    assert grow(store, "moving").error_code is Errors.REASSIGNMENT_IN_PROGRESS

    server.put("/brokers/topics/bad", b"garbage")
    error_code, message = grow(store, "bad")
    assert error_code is Errors.UNKNOWN_SERVER_ERROR
    assert "topic bad" in message


def test_a_topic_that_changes_before_every_attempt_is_given_up(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore, topic: str
) -> None:
    path = znodes.TopicZNode.path(topic)

    def interfere(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            server.put(path, znodes.TopicZNode.encode(OURS, ON_0))

    zookeeper.hook = interfere

    assert grow(store, topic) == ApiError(
        Errors.UNKNOWN_SERVER_ERROR, "topic t: other clients keep changing it; try again"
    )


# --- deleting -------------------------------------------------------------------------------------


@pytest.fixture
def two(store: ZkTopicStore) -> None:
    store.create_topics({"t": new_topic(), "u": new_topic()})


@pytest.mark.usefixtures("two")
def test_topics_are_marked_in_one_transaction(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    before = len(server.transactions)

    assert store.mark_for_deletion(["t", "u"]) == {"t": DONE, "u": DONE}

    assert len(server.transactions) == before + 1
    assert server.snapshot()["/admin/delete_topics/t"].data == b""
    assert store.read_topics_being_deleted() == {"t", "u"}


@pytest.mark.usefixtures("two")
def test_marked_and_unknown_topics_do_not_affect_the_others(
    server: FakeZooKeeperServer, store: ZkTopicStore
) -> None:
    server.put("/admin/delete_topics/t")

    outcomes = store.mark_for_deletion(["nope", "t", "u"])

    assert outcomes == {"nope": unknown_topic("nope"), "t": ALREADY_MARKED, "u": DONE}
    assert "/admin/delete_topics/nope" not in server.snapshot()


@pytest.mark.usefixtures("two")
def test_a_protected_topic_is_not_marked_also_if_it_is_protected_at_this_moment(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore
) -> None:
    administrator = ZkTopicStore(FakeZooKeeper(server))
    protection = {"regent.deletion.protection": "true"}
    administrator.configs.alter_topic_config("u", protection)

    def protect(call: Call) -> None:
        if call.method == "multi_many" and call.moment is Moment.BEFORE:
            zookeeper.hook = None
            administrator.configs.alter_topic_config("t", protection)

    zookeeper.hook = protect
    outcomes = store.mark_for_deletion(["t", "u"])

    refused = Errors.TOPIC_DELETION_DISABLED
    assert {t: o.error_code for t, o in outcomes.items()} == {"t": refused, "u": refused}
    assert outcomes["t"] == protected_topic("t")
    assert store.read_topics_being_deleted() == set()


def test_a_topic_without_settings_is_not_marked_if_it_is_protected_at_this_moment(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, store: ZkTopicStore
) -> None:
    store.create_topics({"t": new_topic()})
    server.remove("/config/topics/t")

    def protect(call: Call) -> None:
        if call.method == "multi_many" and call.moment is Moment.BEFORE:
            zookeeper.hook = None
            protection = {"regent.deletion.protection": "true"}
            ZkTopicStore(FakeZooKeeper(server)).configs.alter_topic_config("t", protection)

    zookeeper.hook = protect
    assert store.mark_for_deletion(["t"]) == {"t": protected_topic("t")}


@pytest.mark.usefixtures("two")
def test_a_lost_deletion_request_is_repeated(zookeeper: FakeZooKeeper, store: ZkTopicStore) -> None:
    zookeeper.hook = once(Moment.BEFORE, lose_connection)

    assert store.mark_for_deletion(["t"]) == {"t": DONE}


@pytest.mark.usefixtures("two")
def test_after_a_lost_answer_the_own_mark_is_found(
    zookeeper: FakeZooKeeper, store: ZkTopicStore
) -> None:
    zookeeper.hook = once(Moment.AFTER, lose_connection)

    assert store.mark_for_deletion(["t"]) == {"t": ALREADY_MARKED}


def test_before_the_first_broker_started_no_topic_can_be_deleted() -> None:
    with pytest.raises(NoClusterError):
        ZkTopicStore(FakeZooKeeper(FakeZooKeeperServer())).mark_for_deletion(["t"])


def void(_: object) -> None:
    """Ignore a result where a function must return nothing."""
