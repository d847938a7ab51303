"""The election of the controller: contents of ``/controller``, lost responses, epochs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from regent.core.controller.controller_election import ControllerElection
from regent.core.errors import BadDataError, ControllerMovedError, SessionExpiredError
from regent.core.model import MAX_CONTROLLER_EPOCH, NO_CONTROLLER, NO_SUSPECTS
from regent.core.ports import ControllerEpoch
from regent.zk.client.operations import ANY_VERSION, Create, Delete, SetData, WatchEvent, WatchKind
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import (
    BrokerIdZNode,
    ControllerTermsZNode,
    ControllerTermZNode,
    ControllerZNode,
)
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    act_once,
    lose_connection,
)
from tests.support.world import broker_info

CONTROLLER, EPOCH = "/controller", "/controller_epoch"


class Broker:
    """One broker's elector and its session."""

    def __init__(self, server: FakeZooKeeperServer, broker_id: int, **changes: Any) -> None:
        self.info = replace(broker_info(broker_id), **changes)
        self.watches: list[WatchEvent] = []
        self.zookeeper = FakeZooKeeper(server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)
        self.elector = ControllerElection(self.info, self.store)

    def register(self) -> Broker:
        self.store.register_broker(self.info, NO_SUSPECTS)
        return self

    def elect(self) -> ControllerEpoch | None:
        return self.elector.elect(now_ms=1)

    def on_election(self, moment: Moment, act: Callable[[], object], *, times: int = 1) -> None:
        """Call ``act`` at one moment of the transactions of the next elections."""
        left = times

        def hook(call: Call) -> None:
            nonlocal left
            if call.paths[:2] == (CONTROLLER, EPOCH) and call.moment is moment and left:
                left -= 1
                act()

        self.zookeeper.hook = hook


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


@pytest.fixture
def one(server: FakeZooKeeperServer) -> Broker:
    return Broker(server, 1)


@pytest.fixture
def two(server: FakeZooKeeperServer) -> Broker:
    return Broker(server, 2)


def holder(server: FakeZooKeeperServer) -> tuple[int, int] | None:
    """Return the broker that ``/controller`` names and the session that owns the znode."""
    node = server.snapshot().get(CONTROLLER)
    return node and (ControllerZNode.decode(node.data), node.stat.ephemeral_owner)


def epoch(server: FakeZooKeeperServer) -> tuple[bytes, int]:
    node = server.snapshot()[EPOCH]
    return node.data, node.stat.version


# --- elections ------------------------------------------------------------------------------------


def test_the_first_controller_has_epoch_1(server: FakeZooKeeperServer, one: Broker) -> None:
    assert one.elect() == ControllerEpoch(1, 1)
    assert holder(server) == (1, one.zookeeper.session_id)
    assert epoch(server) == (b"1", 1)
    assert one.elector.active_controller_id == 1
    assert one.elector.holds_controller_znode()


def test_an_election_is_one_transaction_of_znode_epoch_and_term(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.elect()
    created, elected = server.transactions
    assert created.operations == (Create(EPOCH, b"0"),)
    assert elected.operations == (
        Create(CONTROLLER, ControllerZNode.encode(1, 1), ephemeral=True),
        SetData(EPOCH, b"1", 0),
        Create("/regent"),
        Create(ControllerTermsZNode.PATH),
        Create(ControllerTermZNode.path(f"{one.zookeeper.session_id:x}", 1), ephemeral=True),
    )


def test_a_kraft_controller_keeps_its_znode(server: FakeZooKeeperServer, one: Broker) -> None:
    """It writes a znode of no session, and migrates the cluster. A second controller would harm."""
    data = b'{"version":2,"brokerid":3000,"timestamp":"1","kraftControllerEpoch":5}'
    server.put(CONTROLLER, data)
    with pytest.raises(BadDataError, match="the KRaft controller 3000 holds /controller"):
        one.elect()
    assert server.snapshot()[CONTROLLER].data == data


@pytest.mark.parametrize("kraft_epoch", [-1, "x", None])
def test_a_znode_of_no_session_and_of_no_kraft_controller_is_replaced(
    server: FakeZooKeeperServer, one: Broker, kraft_epoch: object
) -> None:
    """A broker of Kafka in ZooKeeper mode writes the epoch -1."""
    fields = {"version": 2, "brokerid": 3, "timestamp": "1", "kraftControllerEpoch": kraft_epoch}
    server.put(CONTROLLER, json.dumps(fields).encode())
    assert one.elect() is not None
    assert holder(server) == (1, one.zookeeper.session_id)


def test_the_next_controller_has_the_next_epoch(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    one.elect()
    one.zookeeper.close()
    assert two.elect() == ControllerEpoch(2, 2)
    assert epoch(server) == (b"2", 2)


def test_an_existing_controller_znode_is_not_replaced(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    one.elect()
    before = len(server.transactions)
    assert two.elect() is None
    assert two.elector.active_controller_id == 1
    assert not two.elector.holds_controller_znode()
    assert len(server.transactions) == before


def test_look_reads_the_active_controller_without_an_election(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.elector.read_active_controller()
    assert one.elector.active_controller_id == NO_CONTROLLER
    assert server.snapshot() == {}


def test_a_broker_that_lost_the_election_is_notified_when_the_znode_is_deleted(
    one: Broker, two: Broker
) -> None:
    one.elect()
    two.elect()
    one.zookeeper.close()
    assert two.watches == [WatchEvent(WatchKind.DELETED, CONTROLLER)]


# --- concurrent elections -------------------------------------------------------------------------


def test_a_znode_created_meanwhile_is_not_replaced(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    one.on_election(Moment.BEFORE, two.elect)
    assert one.elect() is None
    assert one.elector.active_controller_id == 2
    assert epoch(server) == (b"1", 1)


def test_a_znode_created_and_deleted_meanwhile_is_taken_in_the_next_epoch(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    def elect_and_close() -> None:
        two.elect()
        two.zookeeper.close()

    one.on_election(Moment.BEFORE, elect_and_close)
    assert one.elect() == ControllerEpoch(2, 2)
    assert holder(server) == (1, one.zookeeper.session_id)


def test_an_election_gives_up_when_the_znode_changes_in_every_round(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    def elect_and_close() -> None:
        other = Broker(server, 3)
        other.elect()
        other.zookeeper.close()

    one.on_election(Moment.BEFORE, elect_and_close, times=100)
    with pytest.raises(ControllerMovedError):
        one.elect()
    assert holder(server) is None
    assert one.watches, "a watch fired, which starts another attempt"


def test_two_brokers_may_create_the_epoch_znode_at_the_same_time(one: Broker, two: Broker) -> None:
    act_once(one.zookeeper, two.elect, method="multi", path=EPOCH)
    assert one.elect() is None
    assert one.elector.active_controller_id == 2


# --- lost responses -------------------------------------------------------------------------------


def test_an_election_whose_response_is_lost_is_won(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.on_election(Moment.AFTER, lose_connection)
    assert one.elect() == ControllerEpoch(1, 1)
    assert epoch(server) == (b"1", 1), "the epoch is raised once"


def test_an_election_whose_request_is_lost_is_repeated(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.on_election(Moment.BEFORE, lose_connection)
    assert one.elect() == ControllerEpoch(1, 1)
    assert epoch(server) == (b"1", 1)


def test_a_lost_response_followed_by_session_expiry_is_not_a_won_election(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    def expire() -> None:
        one.zookeeper.close()
        two.elect()
        lose_connection()

    one.on_election(Moment.AFTER, expire)
    with pytest.raises(SessionExpiredError):
        one.elect()
    assert holder(server) == (2, two.zookeeper.session_id)
    assert epoch(server) == (b"2", 2)


def test_a_lost_response_is_not_a_won_election_if_an_admin_deleted_the_znode(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    def remove() -> None:
        ZkControllerStore(FakeZooKeeper(server)).delete_controller(1)
        two.elect()
        lose_connection()

    one.on_election(Moment.AFTER, remove)
    assert one.elect() is None
    assert one.elector.active_controller_id == 2
    assert epoch(server) == (b"2", 2)


# --- in the place of another controller -----------------------------------------------------------


def of_kafka(server: FakeZooKeeperServer, broker_id: int) -> Broker:
    """Register a broker of Kafka."""
    kafka = Broker(server, broker_id, control_endpoint=None, replication_endpoint=None)
    return kafka.register()


def ruler(server: FakeZooKeeperServer, broker_id: int) -> Broker:
    """Register a broker that is there to rule brokers of Kafka."""
    return Broker(server, broker_id, no_replicas=True).register()


def test_a_broker_without_replicas_takes_the_place_of_a_controller_of_kafka_in_one_transaction(
    server: FakeZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, ours = of_kafka(server, 3), ruler(server, 10)
    kafka.elect()
    with caplog.at_level("INFO"):
        assert ours.elect() == ControllerEpoch(2, 2)
    assert holder(server) == (10, ours.zookeeper.session_id)
    assert server.transactions[-1].operations[:3] == (
        Delete(CONTROLLER, ANY_VERSION),
        Create(CONTROLLER, ControllerZNode.encode(10, 1), ephemeral=True),
        SetData(EPOCH, b"2", 1),
    )
    (line,) = [message for message in caplog.messages if "of Kafka" in message]
    assert "taking the place of the controller 3" in line
    assert kafka.elect() is None
    assert ours.elector.holds_controller_znode()


@pytest.mark.parametrize("no_replicas", [False, True])
def test_a_broker_without_replicas_leaves_a_controller_of_ours(
    server: FakeZooKeeperServer, no_replicas: bool
) -> None:
    ours = ruler(server, 10)
    other = Broker(server, 11, no_replicas=no_replicas).register()
    other.elect()
    assert ours.elect() is None
    assert ours.elector.active_controller_id == 11


def test_a_broker_with_replicas_leaves_a_controller_of_kafka(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    of_kafka(server, 3).elect()
    assert one.elect() is None
    assert one.elector.active_controller_id == 3


def before_call(act: Callable[[], object], at: int) -> Callable[[Call], None]:
    """Return a hook that acts before the call with this number; the first is 1."""
    calls = count(1)

    def hook(call: Call) -> None:
        if call.moment is Moment.BEFORE and next(calls) == at:
            act()

    return hook


@pytest.mark.parametrize("by_request", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_at_no_moment_a_broker_without_replicas_takes_the_place_of_the_next_controller(
    server: FakeZooKeeperServer, at: int, by_request: bool
) -> None:
    kafka, other, ours = of_kafka(server, 3), ruler(server, 11), ruler(server, 10)
    seen, next_one = kafka.elect(), list[ControllerEpoch | None]()
    assert seen is not None

    def change() -> None:
        kafka.zookeeper.close()
        next_one.append(other.elect())

    ours.zookeeper.hook = before_call(change, at)
    with suppress(ControllerMovedError):
        ours.elector.take_over(seen, now_ms=1) if by_request else ours.elect()
    found = holder(server)
    assert found is not None
    assert found[0] == (11 if any(next_one) else 10)


def test_of_two_brokers_without_replicas_one_takes_the_place_of_a_controller_of_kafka(
    server: FakeZooKeeperServer,
) -> None:
    of_kafka(server, 3).elect()
    first, second = ruler(server, 10), ruler(server, 11)
    act_once(first.zookeeper, second.elect, method="multi")
    assert first.elect() is None
    assert holder(server) == (11, second.zookeeper.session_id)
    assert first.elector.active_controller_id == 11


def test_the_place_of_a_controller_of_kafka_is_taken_though_the_answer_is_lost(
    server: FakeZooKeeperServer,
) -> None:
    of_kafka(server, 3).elect()
    ours = ruler(server, 10)
    act_once(ours.zookeeper, lose_connection, moment=Moment.AFTER, method="multi")
    assert ours.elect() == ControllerEpoch(2, 2)
    assert ours.elector.holds_controller_znode()


def test_a_controller_of_unknown_kind_is_left_in_its_place(server: FakeZooKeeperServer) -> None:
    kafka, ours = of_kafka(server, 3), ruler(server, 10)
    kafka.elect()
    server.put(BrokerIdZNode.path(3), b"not JSON")
    with pytest.raises(BadDataError, match="broker 3: "):
        ours.elect()
    server.remove(BrokerIdZNode.path(3))
    with pytest.raises(ControllerMovedError, match="3 is not registered"):
        ours.elect()
    assert holder(server) == (3, kafka.zookeeper.session_id)


# --- unexpected znodes ----------------------------------------------------------------------------


def test_an_unknown_znode_of_the_own_session_is_replaced(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.elect()
    again = ControllerElection(broker_info(1), ZkControllerStore(one.zookeeper))
    assert again.elect(now_ms=2) == ControllerEpoch(2, 2)
    assert holder(server) == (1, one.zookeeper.session_id)


def test_a_znode_of_the_own_session_with_another_broker_id_is_replaced(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.elect()
    server.put(CONTROLLER, ControllerZNode.encode(7, 0))
    assert not one.elector.holds_controller_znode()
    assert one.elect() == ControllerEpoch(2, 2)
    assert holder(server) == (1, one.zookeeper.session_id)


def test_a_znode_of_the_own_session_is_not_deleted_after_the_epoch_changed(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    one.elect()

    def hook(call: Call) -> None:
        if call.paths == (EPOCH, CONTROLLER) and call.moment is Moment.BEFORE:
            one.zookeeper.hook = None
            server.put(EPOCH, b"5")

    one.zookeeper.hook = hook
    assert one.elect() == ControllerEpoch(6, 3), "the second round checks the epoch that it read"


def test_a_znode_of_an_earlier_session_of_this_broker_blocks_until_it_expires(
    server: FakeZooKeeperServer, one: Broker
) -> None:
    former = Broker(server, 1)
    former.elect()
    assert one.elect() is None
    assert one.elector.active_controller_id == NO_CONTROLLER, "KAFKA-13407"
    assert not one.elector.holds_controller_znode()
    former.zookeeper.close()
    assert one.elect() == ControllerEpoch(2, 2)


def test_an_unreadable_znode_is_replaced_only_by_the_session_that_owns_it(
    server: FakeZooKeeperServer, one: Broker, two: Broker
) -> None:
    two.elect()
    server.put(CONTROLLER, b"\xff{]")
    assert one.elect() is None
    assert one.elector.active_controller_id == NO_CONTROLLER
    assert not two.elector.holds_controller_znode()
    assert two.elect() == ControllerEpoch(2, 2), "only the owning session may replace it"


@pytest.mark.parametrize("data", [ControllerZNode.encode(2, 0), b"", b"nonsense"])
def test_a_znode_without_a_session_is_replaced(
    server: FakeZooKeeperServer, one: Broker, data: bytes
) -> None:
    server.put(CONTROLLER, data)
    one.elector.read_active_controller()
    assert one.elector.active_controller_id == NO_CONTROLLER
    assert one.elect() == ControllerEpoch(1, 1)
    assert holder(server) == (1, one.zookeeper.session_id)


# --- session expiry -------------------------------------------------------------------------------


def test_the_active_controller_is_unknown_without_a_session(one: Broker, two: Broker) -> None:
    two.elect()
    one.elect()
    one.elector.reset()
    assert one.elector.active_controller_id == NO_CONTROLLER


def test_an_expired_session_wins_no_election(server: FakeZooKeeperServer, one: Broker) -> None:
    one.zookeeper.close()
    with pytest.raises(SessionExpiredError):
        one.elect()
    assert server.snapshot() == {}


# --- epochs ---------------------------------------------------------------------------------------


@pytest.fixture
def veteran(server: FakeZooKeeperServer) -> Broker:
    """A broker that has received controller epoch 41."""
    broker = Broker(server, 3)
    broker.elector = ControllerElection(broker.info, broker.store, lambda: 41)
    return broker


@pytest.mark.parametrize("stored", [None, b"1", b"41"])
def test_a_broker_that_received_a_higher_epoch_is_elected_above_it(
    server: FakeZooKeeperServer, veteran: Broker, stored: bytes | None
) -> None:
    if stored is not None:
        server.put(EPOCH, stored)
    won = veteran.elect()
    assert won is not None
    assert won.epoch == 42


def test_a_raised_controller_epoch_is_continued(
    server: FakeZooKeeperServer, veteran: Broker
) -> None:
    server.put(EPOCH, b"1000")
    assert veteran.elect() == ControllerEpoch(1001, 1)


def test_the_highest_controller_epoch_refuses_elections_and_all_brokers_say_the_same_remedy(
    server: FakeZooKeeperServer, veteran: Broker, one: Broker
) -> None:
    server.put(EPOCH, b"%d" % MAX_CONTROLLER_EPOCH)
    store = ZkControllerStore(one.zookeeper)
    accepted = ControllerElection(broker_info(1), store, lambda: MAX_CONTROLLER_EPOCH)
    said = set()
    for elect in (veteran.elect, lambda: accepted.elect(now_ms=1)):
        with pytest.raises(
            BadDataError, match=r"stop all brokers.*control-plane\.properties"
        ) as why:
            elect()
        said.add(str(why.value))
    with pytest.raises(BadDataError) as why:
        accepted.raise_epoch(MAX_CONTROLLER_EPOCH, 0)
    assert said == {str(why.value)}, "no broker knows what the others have accepted"
    assert epoch(server) == (b"%d" % MAX_CONTROLLER_EPOCH, 0)
    assert holder(server) is None
    server.put(EPOCH, b"41")
    assert veteran.elect() == ControllerEpoch(42, 2)
