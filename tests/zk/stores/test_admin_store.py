"""What administrators read and write, against a fake ZooKeeper that misbehaves on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.errors import BadDataError, BrokerNotFoundError
from regent.core.model import BrokerInfo, EndPoint, ReplicaAssignment
from regent.zk.client.conflicts import ConflictError
from regent.zk.client.operations import ConnectionLossError, Create
from regent.zk.codecs import znodes
from regent.zk.codecs.admin_znodes import ConfigEntityZNode
from regent.zk.stores.admin_store import (
    AddPartitionsOutcome,
    CreateTopicOutcome,
    NewTopic,
    NoClusterError,
    RulingController,
    TopicTooLargeError,
    ZkAdminStore,
)
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment
from tests.support.zookeeper_sessions import apply

OURS, THEIRS = "A" * 22, "B" * 22
ON_0 = {0: ReplicaAssignment((0, 1))}


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    for path in znodes.PERSISTENT_PATHS:
        server.put(path)
    return server


@pytest.fixture
def zookeeper(server: FakeZooKeeperServer) -> FakeZooKeeper:
    return FakeZooKeeper(server)


@pytest.fixture
def admin(zookeeper: FakeZooKeeper) -> ZkAdminStore:
    return ZkAdminStore(zookeeper)


def new_topic(topic_id: str = OURS, **config: str) -> NewTopic:
    return NewTopic(topic_id, ON_0, config)


def topic_in(server: FakeZooKeeperServer, topic: str) -> znodes.TopicZNodeData:
    return znodes.TopicZNode.decode(server.snapshot()[znodes.TopicZNode.path(topic)].data)


def config_in(server: FakeZooKeeperServer, topic: str) -> dict[str, str]:
    path = ConfigEntityZNode.path("topics", topic)
    return ConfigEntityZNode.decode(server.snapshot()[path].data)


def once(moment: Moment, method: str, action: Callable[[], None]) -> Callable[[Call], None]:
    """Return a hook that acts at the first such moment of a call that writes or reads topics."""
    pending = [action]

    def hook(call: Call) -> None:
        if pending and call.moment is moment and call.method == method:
            pending.pop()()

    return hook


def lose_connection() -> None:
    raise ConnectionLossError("lost")


# --- creating topics ------------------------------------------------------------------------------


def test_a_topic_is_created_in_one_transaction_configuration_first(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    before = len(server.transactions)

    outcomes = admin.create_topics({"t": new_topic(**{"retention.ms": "5"})})

    assert outcomes == {"t": CreateTopicOutcome.CREATED}
    (transaction,) = server.transactions[before:]
    assert [op.path for op in transaction.operations] == ["/config/topics/t", "/brokers/topics/t"]
    assert config_in(server, "t") == {"retention.ms": "5"}
    assert topic_in(server, "t") == znodes.TopicZNodeData(OURS, ON_0)


def test_a_thousand_topics_take_a_few_transactions(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    before = len(server.transactions)

    outcomes = admin.create_topics({f"t{n}": new_topic() for n in range(1000)})

    assert set(outcomes.values()) == {CreateTopicOutcome.CREATED}
    assert len(admin.read_topic_names()) == 1000
    assert len(server.transactions) - before <= 3


def test_an_existing_topic_is_left_alone_and_the_others_are_created(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    admin.create_topics({"old": new_topic(THEIRS, **{"retention.ms": "1"})})

    outcomes = admin.create_topics({"new": new_topic(), "old": new_topic()})

    assert outcomes == {
        "new": CreateTopicOutcome.CREATED,
        "old": CreateTopicOutcome.ALREADY_EXISTS,
    }
    assert topic_in(server, "old").topic_id == THEIRS
    assert config_in(server, "old") == {"retention.ms": "1"}


def test_a_topic_somebody_creates_at_the_same_time_is_theirs(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore
) -> None:
    other = ZkAdminStore(FakeZooKeeper(server))
    zookeeper.hook = once(
        Moment.BEFORE, "multi_many", lambda: void(other.create_topics({"t": new_topic(THEIRS)}))
    )

    outcomes = admin.create_topics({"a": new_topic(), "t": new_topic(), "z": new_topic()})

    assert outcomes == {
        "a": CreateTopicOutcome.CREATED,
        "t": CreateTopicOutcome.ALREADY_EXISTS,
        "z": CreateTopicOutcome.CREATED,
    }
    assert topic_in(server, "t").topic_id == THEIRS


def test_a_configuration_left_over_from_an_earlier_topic_is_replaced(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/config/topics/t", ConfigEntityZNode.encode({"retention.ms": "1"}))

    assert admin.create_topics({"t": new_topic()}) == {"t": CreateTopicOutcome.CREATED}
    assert config_in(server, "t") == {}


def test_a_left_over_configuration_that_vanishes_meanwhile_is_created_after_all(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore
) -> None:
    session = FakeZooKeeper(server)
    apply(session, Create("/config/topics/t", b"{}", ephemeral=True))
    zookeeper.hook = once(Moment.BEFORE, "multi_many", session.close)

    assert admin.create_topics({"t": new_topic()}) == {"t": CreateTopicOutcome.CREATED}
    assert config_in(server, "t") == {}


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_topic_whose_answer_was_lost_is_recognised_by_its_id(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore, moment: Moment
) -> None:
    zookeeper.hook = once(moment, "multi_many", lose_connection)

    assert admin.create_topics({"t": new_topic()}) == {"t": CreateTopicOutcome.CREATED}
    assert topic_in(server, "t").topic_id == OURS


def test_a_topic_too_large_for_a_znode_is_refused_before_anything_is_written(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    before = len(server.transactions)
    large = {partition: ReplicaAssignment((1, 2, 3)) for partition in range(70_000)}

    with pytest.raises(TopicTooLargeError, match="topic large: 70000 partitions"):
        admin.create_topics({"small": new_topic(), "large": NewTopic(OURS, large, {})})

    assert len(server.transactions) == before


def test_creating_topics_where_no_broker_ever_started_fails(
    server: FakeZooKeeperServer,
) -> None:
    with pytest.raises(NoClusterError):
        ZkAdminStore(FakeZooKeeper(FakeZooKeeperServer())).create_topics({"t": new_topic()})


def test_creating_nothing_writes_nothing(admin: ZkAdminStore) -> None:
    assert admin.create_topics({}) == {}


# --- adding partitions ----------------------------------------------------------------------------

ADDED = {1: ReplicaAssignment((1, 0))}


@pytest.fixture
def topic(admin: ZkAdminStore) -> str:
    admin.create_topics({"t": new_topic()})
    return "t"


def test_added_partitions_join_the_others_and_the_topic_id_stays(
    server: FakeZooKeeperServer, admin: ZkAdminStore, topic: str
) -> None:
    assert admin.add_partitions(topic, ADDED) is AddPartitionsOutcome.ADDED
    assert topic_in(server, topic) == znodes.TopicZNodeData(OURS, ON_0 | ADDED)


def test_partitions_are_added_to_what_a_controller_wrote_meanwhile(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore, topic: str
) -> None:
    moved = {0: ReplicaAssignment((2, 3))}
    path = znodes.TopicZNode.path(topic)
    zookeeper.hook = once(
        Moment.BEFORE, "multi", lambda: server.put(path, znodes.TopicZNode.encode(OURS, moved))
    )

    assert admin.add_partitions(topic, ADDED) is AddPartitionsOutcome.ADDED
    assert topic_in(server, topic).partitions == moved | ADDED


def test_partitions_that_somebody_else_added_first_are_not_overwritten(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore, topic: str
) -> None:
    theirs = {1: ReplicaAssignment((4, 5))}
    other = ZkAdminStore(FakeZooKeeper(server))
    zookeeper.hook = once(Moment.BEFORE, "multi", lambda: void(other.add_partitions(topic, theirs)))

    assert admin.add_partitions(topic, ADDED) is AddPartitionsOutcome.OTHER_PARTITIONS
    assert topic_in(server, topic).partitions == ON_0 | theirs


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_partitions_whose_answer_was_lost_are_added_once(
    server: FakeZooKeeperServer,
    zookeeper: FakeZooKeeper,
    admin: ZkAdminStore,
    topic: str,
    moment: Moment,
) -> None:
    zookeeper.hook = once(moment, "multi", lose_connection)

    assert admin.add_partitions(topic, ADDED) is AddPartitionsOutcome.ADDED
    assert server.snapshot()[znodes.TopicZNode.path(topic)].stat.version == 1


def test_a_topic_that_may_not_grow_is_not_touched(
    server: FakeZooKeeperServer, admin: ZkAdminStore, topic: str
) -> None:
    assert admin.add_partitions("nope", ADDED) is AddPartitionsOutcome.UNKNOWN_TOPIC

    server.put("/admin/delete_topics/t")
    assert admin.add_partitions(topic, ADDED) is AddPartitionsOutcome.BEING_DELETED

    moving = {0: ReplicaAssignment((0, 1, 2), adding_replicas=(2,))}
    server.put("/brokers/topics/moving", znodes.TopicZNode.encode(OURS, moving))
    assert admin.add_partitions("moving", ADDED) is AddPartitionsOutcome.BEING_REASSIGNED

    server.put("/brokers/topics/bad", b"garbage")
    with pytest.raises(BadDataError, match="topic bad"):
        admin.add_partitions("bad", ADDED)


def test_a_topic_that_changes_before_every_attempt_is_given_up(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore, topic: str
) -> None:
    path = znodes.TopicZNode.path(topic)

    def interfere(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            server.put(path, znodes.TopicZNode.encode(OURS, ON_0))

    zookeeper.hook = interfere

    with pytest.raises(ConflictError, match="topic t"):
        admin.add_partitions(topic, ADDED)


# --- the controller -------------------------------------------------------------------------------


def elect(server: FakeZooKeeperServer, broker_id: int, epoch: int) -> FakeZooKeeper:
    """Make a broker the controller, by a session of its own."""
    session = FakeZooKeeper(server)
    server.put("/controller_epoch", b"%d" % epoch)
    data = znodes.ControllerZNode.encode(broker_id, 0)
    apply(session, Create("/controller", data, ephemeral=True))
    return session


def test_who_rules_is_read_with_the_epoch_it_rules_by(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    assert admin.read_controller() is None

    elect(server, 2, epoch=7)

    assert admin.read_controller() == RulingController(2, 7, epoch_zk_version=0, zk_version=0)


def test_an_election_in_the_middle_of_the_read_is_not_mixed_up(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore
) -> None:
    first = elect(server, 1, epoch=1)

    def move() -> None:
        first.close()
        elect(server, 2, epoch=2)

    zookeeper.hook = once(Moment.BETWEEN, "get_many", move)

    controller = admin.read_controller()

    assert controller is not None
    assert (controller.broker_id, controller.controller_epoch) == (2, 2)


def test_a_controller_node_with_garbage_has_broker_id_minus_one(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/controller_epoch", b"3")
    server.put("/controller", b"garbage")

    controller = admin.read_controller()

    assert controller is not None
    assert controller.broker_id == -1


def test_where_the_controller_is_asked_is_in_its_registration(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    with pytest.raises(BrokerNotFoundError, match="there is no controller"):
        admin.read_controller_endpoint()
    elect(server, 2, epoch=7)
    with pytest.raises(BrokerNotFoundError, match="broker 2 is not registered"):
        admin.read_controller_endpoint()
    theirs = BrokerInfo(2, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),))
    server.put("/brokers/ids/2", znodes.BrokerIdZNode.encode(theirs))
    with pytest.raises(BrokerNotFoundError, match="it is not one of Regent's"):
        admin.read_controller_endpoint()

    ours = replace(theirs, control_endpoint="tcp://127.0.0.1:1")
    server.put("/brokers/ids/2", znodes.BrokerIdZNode.encode(ours))

    assert admin.read_controller_endpoint() == "tcp://127.0.0.1:1"


def test_deposing_deletes_the_controller_node_of_that_controller_only(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    session = elect(server, 1, epoch=1)
    first = admin.read_controller()
    assert first is not None
    session.close()
    elect(server, 2, epoch=2)
    second = admin.read_controller()
    assert second is not None

    assert not admin.depose_controller(first)
    assert admin.read_controller() == second

    assert admin.depose_controller(second)
    assert admin.read_controller() is None


def test_deposing_is_repeated_after_a_lost_answer(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore
) -> None:
    elect(server, 1, epoch=1)
    ruling = admin.read_controller()
    assert ruling is not None
    zookeeper.hook = once(Moment.AFTER, "multi", lose_connection)

    assert not admin.depose_controller(ruling)
    assert admin.read_controller() is None


# --- reading --------------------------------------------------------------------------------------


def test_a_registration_that_cannot_be_understood_is_an_error_of_its_own(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/brokers/ids/3", b"garbage")

    (registration,) = admin.read_brokers().values()

    assert isinstance(registration, BadDataError)
    assert admin.read_broker(4) is None


def test_configurations_are_read_for_all_topics_whether_they_have_one_or_not(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/config/topics/a", ConfigEntityZNode.encode({"retention.ms": "1"}))
    server.put("/config/topics/bad", b"garbage")

    configs = admin.read_topic_configs(["a", "b", "bad"])

    assert configs["a"] == {"retention.ms": "1"}
    assert configs["b"] == {}
    assert isinstance(configs["bad"], BadDataError)


def void(_: object) -> None:
    """Ignore a result where a function must return nothing."""
