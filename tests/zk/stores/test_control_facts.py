"""What a broker reads about the sender of a control request."""

from __future__ import annotations

import pytest

from regent.core.errors import BadDataError
from regent.core.model import BrokerInfo
from regent.core.ports import ControlFacts, ControllerEpoch
from regent.core.protocol.control import ControlHeader
from regent.zk.client.operations import Delete
from regent.zk.stores.controller_store import ZkControllerStore, read_control_facts
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer, Moment, once

BROKER, CONTROLLER = 1, 0


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def zookeeper(server: FakeZooKeeperServer) -> FakeZooKeeper:
    return FakeZooKeeper(server)


def elect(server: FakeZooKeeperServer, broker_id: int) -> int:
    """Let another controller be elected; return its epoch."""
    store = ZkControllerStore(FakeZooKeeper(server))
    store.create_persistent_paths()
    store.create_controller_epoch()
    server.remove("/controller")
    current = store.read_controller_epoch()
    assert current is not None
    won = store.register_controller(broker_id, current, 0)
    assert isinstance(won, ControllerEpoch)
    return won.epoch


def register(zookeeper: FakeZooKeeper) -> int:
    return ZkControllerStore(zookeeper).register_broker(BrokerInfo(BROKER, ()))


def header(controller_id: int, epoch: int, broker_epoch: int) -> ControlHeader:
    return ControlHeader(controller_id, epoch, broker_epoch, broker_id=BROKER)


def test_the_active_controller_and_the_own_registration_are_confirmed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    sent = header(CONTROLLER, elect(server, CONTROLLER), register(zookeeper))
    assert read_control_facts(zookeeper, BROKER, sent).confirm(sent)


def test_another_controller_another_epoch_and_another_registration_are_not_confirmed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    sent = header(CONTROLLER, elect(server, CONTROLLER), register(zookeeper))
    facts = read_control_facts(zookeeper, BROKER, sent)
    for false in (
        sent._replace(controller_id=2),
        sent._replace(controller_epoch=2**31 - 1),
        sent._replace(broker_epoch=sent.broker_epoch + 1),
    ):
        assert read_control_facts(zookeeper, BROKER, false) == facts
        assert not facts.confirm(false)


def test_a_registration_of_another_session_is_not_ours(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    epoch = elect(server, CONTROLLER)
    sent = header(CONTROLLER, epoch, register(FakeZooKeeper(server)))
    expected = ControlFacts(CONTROLLER, epoch, -1)
    assert read_control_facts(zookeeper, BROKER, sent) == expected


def test_a_server_that_lags_behind_is_asked_again_after_a_sync(
    server: FakeZooKeeperServer,
) -> None:
    elect(server, 2)
    follower = server.add_follower(lag=100)
    server.connect_to = lambda: follower
    zookeeper = FakeZooKeeper(server)
    broker_epoch = register(zookeeper)
    server.connect_to = lambda: server.leader
    sent = header(CONTROLLER, elect(server, CONTROLLER), broker_epoch)
    assert zookeeper.is_behind
    assert read_control_facts(zookeeper, BROKER, sent).confirm(sent)


def test_a_controller_that_is_elected_during_the_read_is_found(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    """The former controller must not be taken for the one of the new epoch."""
    broker_epoch = register(zookeeper)
    former = elect(server, 2)
    zookeeper.hook = once(Moment.BETWEEN, lambda: elect(server, CONTROLLER), method="get_many")
    forged = header(2, former + 1, broker_epoch)
    assert not read_control_facts(zookeeper, BROKER, forged).confirm(forged)
    sent = forged._replace(controller_id=CONTROLLER)
    assert read_control_facts(zookeeper, BROKER, sent).confirm(sent)


def test_without_a_controller_nothing_is_confirmed(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    broker_epoch = register(zookeeper)
    sent = header(CONTROLLER, 1, broker_epoch)
    assert read_control_facts(zookeeper, BROKER, sent).controller_id == -1
    assert elect(server, CONTROLLER) == 1
    zookeeper.multi([Delete("/controller", -1)])
    assert read_control_facts(zookeeper, BROKER, sent) == (-1, 1, broker_epoch)


@pytest.mark.parametrize("path", ["/controller", "/controller_epoch"])
def test_a_znode_that_cannot_be_read_is_named(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, path: str
) -> None:
    sent = header(CONTROLLER, elect(server, CONTROLLER), register(zookeeper))
    server.put(path, b"garbage")
    with pytest.raises(BadDataError, match=path):
        read_control_facts(zookeeper, BROKER, sent)
    server.deny(path)
    with pytest.raises(BadDataError, match=f"{path}: ZooKeeper refuses to show it"):
        read_control_facts(zookeeper, BROKER, sent)
