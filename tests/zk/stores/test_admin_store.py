"""Reads and writes of admins, with a fake ZooKeeper that loses connections."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import BadDataError, BrokerNotFoundError, NoControlPortError
from regent.core.model import BrokerInfo, EndPoint, TopicPartition
from regent.zk import znodes
from regent.zk.client.operations import Create
from regent.zk.stores.admin_store import ActiveController, ZkAdminStore
from regent.zk.stores.znode_store import NoClusterError
from regent.zk.znodes import ConfigEntityZNode, ReassignPartitionsZNode
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)
from tests.support.zookeeper_sessions import apply


@pytest.fixture
def admin(zookeeper: FakeZooKeeper) -> ZkAdminStore:
    return ZkAdminStore(zookeeper)


# --- reassignments of other tools -----------------------------------------------------------------


def test_pending_reassignments_of_other_tools_are_read(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    assert admin.read_pending_reassignments() == {}

    moves = {TopicPartition("t", 0): (1, 2)}
    server.put(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode(moves))
    assert admin.read_pending_reassignments() == moves

    server.put(ReassignPartitionsZNode.PATH, b"garbage")
    with pytest.raises(BadDataError, match="/admin/reassign_partitions"):
        admin.read_pending_reassignments()


# --- the controller -------------------------------------------------------------------------------


def elect(server: FakeZooKeeperServer, broker_id: int, epoch: int) -> FakeZooKeeper:
    """Make a broker the controller, with its own session."""
    session = FakeZooKeeper(server)
    server.put("/controller_epoch", b"%d" % epoch)
    data = znodes.ControllerZNode.encode(broker_id, 0)
    apply(session, Create("/controller", data, ephemeral=True))
    return session


def test_the_controller_is_read_with_its_epoch(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    assert admin.read_controller() is None

    elect(server, 2, epoch=7)

    assert admin.read_controller() == ActiveController(2, 7, epoch_zk_version=0, zk_version=0)


def test_the_time_of_the_election_is_read() -> None:
    server = FakeZooKeeperServer(now_ms=lambda: 7_000)
    elect(server, 2, epoch=7)
    controller = ZkAdminStore(FakeZooKeeper(server)).read_controller()
    assert controller is not None
    assert controller.elected_ms == 7_000


def test_an_election_during_the_read_does_not_mix_two_controllers(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, admin: ZkAdminStore
) -> None:
    first = elect(server, 1, epoch=1)

    def move() -> None:
        first.close()
        elect(server, 2, epoch=2)

    zookeeper.hook = once(Moment.BETWEEN, move, method="get_many")

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


def test_the_controllers_endpoint_is_in_its_registration(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    with pytest.raises(BrokerNotFoundError, match="there is no controller"):
        admin.read_controller_endpoint()
    elect(server, 2, epoch=7)
    with pytest.raises(BrokerNotFoundError, match="broker 2 is not registered"):
        admin.read_controller_endpoint()
    theirs = BrokerInfo(2, (EndPoint("PLAINTEXT", "127.0.0.1", 9092),))
    server.put("/brokers/ids/2", znodes.BrokerIdZNode.encode(theirs))
    with pytest.raises(NoControlPortError, match="controller is broker 2, one of Kafka"):
        admin.read_controller_endpoint()

    ours = replace(theirs, control_endpoint="tcp://127.0.0.1:1")
    server.put("/brokers/ids/2", znodes.BrokerIdZNode.encode(ours))

    assert admin.read_controller_endpoint() == "tcp://127.0.0.1:1"


def test_a_command_does_not_wait_for_a_controller_where_no_broker_ever_started() -> None:
    nowhere = ZkAdminStore(FakeZooKeeper(FakeZooKeeperServer()))
    with pytest.raises(NoClusterError, match="it has no /brokers/topics: no broker has ever"):
        nowhere.read_controller_endpoint()


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
    zookeeper.hook = once(Moment.AFTER, lose_connection)

    assert not admin.depose_controller(ruling)
    assert admin.read_controller() is None


# --- reading --------------------------------------------------------------------------------------


def test_an_unreadable_registration_is_an_error_of_its_own(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/brokers/ids/3", b"garbage")

    (registration,) = admin.read_brokers().values()

    assert isinstance(registration, BadDataError)
    assert admin.read_broker(4) is None


def test_configurations_of_topics_with_and_without_one_are_read(
    server: FakeZooKeeperServer, admin: ZkAdminStore
) -> None:
    server.put("/config/topics/a", ConfigEntityZNode.encode({"retention.ms": "1"}))
    server.put("/config/topics/bad", b"garbage")

    configs = admin.configs.read_topic_configs(["a", "b", "bad"])

    assert configs["a"] == {"retention.ms": "1"}
    assert configs["b"] == {}
    assert isinstance(configs["bad"], BadDataError)
