"""One cluster, one id; one address, one broker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from regent.core.errors import BadDataError, ForeignDirectoryError
from regent.core.model import BrokerInfo, EndPoint
from regent.zk.client.operations import Create, Operation, Refused, WatchEvent, ZkError
from regent.zk.client.requests import RequestRefusedError
from regent.zk.stores.cluster_identity import (
    EndPointInUseError,
    check_cluster,
    check_end_points,
    join_cluster,
    read_mark,
    write_mark,
)
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdZNode, ClusterIdZNode
from tests.support.cluster_notes import NotesInMemory
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    SavedData,
    lose_connection,
    once,
)


@pytest.fixture
def server() -> FakeZooKeeperServer:
    return FakeZooKeeperServer()


# --- the cluster id -------------------------------------------------------------------------------


def test_the_first_broker_chooses_and_the_others_agree(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    chosen = join_cluster(zookeeper)
    assert re.fullmatch("[A-Za-z0-9_-]{22}", chosen)
    assert join_cluster(FakeZooKeeper(server)) == chosen
    assert server.snapshot()["/cluster/id"].data == b'{"version":"1","id":"%s"}' % chosen.encode()


def test_two_clusters_have_two_ids(zookeeper: FakeZooKeeper) -> None:
    assert join_cluster(zookeeper) != join_cluster(FakeZooKeeper(FakeZooKeeperServer()))


def test_of_two_concurrent_brokers_the_faster_one_sets_the_id(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    faster: list[str] = []

    zookeeper.hook = once(
        Moment.BEFORE,
        lambda: faster.append(join_cluster(FakeZooKeeper(server))),
        path="/cluster/id",
    )
    assert [join_cluster(zookeeper)] == faster


@pytest.mark.parametrize("path", ["/cluster", "/cluster/id"])
@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_request_or_answer_does_not_make_two_ids(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, path: str, moment: Moment
) -> None:
    zookeeper.hook = once(moment, lose_connection, path=path)
    chosen = join_cluster(zookeeper)
    assert ClusterIdZNode.decode(server.snapshot()["/cluster/id"].data) == chosen


def test_an_unreadable_id_is_not_replaced(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put("/cluster/id", b"nonsense")
    with pytest.raises(BadDataError, match="/cluster/id"):
        join_cluster(zookeeper)
    assert server.snapshot()["/cluster/id"].data == b"nonsense"


class ForbiddingZooKeeper(FakeZooKeeper):
    """A ZooKeeper in which this session may not create nodes."""

    def multi(self, operations: Sequence[Operation]) -> Refused:
        """Refuse."""
        assert isinstance(operations[0], Create)
        return Refused(0, ZkError.NO_AUTH)


def test_a_denied_creation_of_the_id_is_an_error(server: FakeZooKeeperServer) -> None:
    with pytest.raises(RequestRefusedError, match="cannot create /cluster: NO_AUTH"):
        join_cluster(ForbiddingZooKeeper(server))


# --- the data of another or an older cluster ------------------------------------------------------


@pytest.fixture
def logs(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper) -> NotesInMemory:
    """The stored cluster id and zxid of a broker that is registered."""
    notes = NotesInMemory()
    notes.cluster_id = join_cluster(zookeeper)
    notes.note_seen(controller_epoch=1, zxid=server.zxid)
    return notes


def test_a_broker_without_a_stored_cluster_id_joins_any_cluster(zookeeper: FakeZooKeeper) -> None:
    check_cluster(zookeeper, NotesInMemory())


def test_the_data_of_the_own_cluster_are_accepted(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, logs: NotesInMemory
) -> None:
    server.put("/later")
    check_cluster(zookeeper, logs)


def test_a_zookeeper_that_lost_its_data_is_refused_and_stays_empty(logs: NotesInMemory) -> None:
    emptied = FakeZooKeeperServer()
    with pytest.raises(ForeignDirectoryError, match="not of None"):
        check_cluster(FakeZooKeeper(emptied), logs)
    assert not emptied.snapshot()


def test_the_data_of_another_cluster_are_refused(logs: NotesInMemory) -> None:
    another = FakeZooKeeper(FakeZooKeeperServer())
    other_id = join_cluster(another)
    with pytest.raises(ForeignDirectoryError, match=other_id):
        check_cluster(another, logs)


def test_older_data_of_the_own_cluster_are_refused(logs: NotesInMemory) -> None:
    older = FakeZooKeeperServer()
    assert logs.cluster_id is not None
    older.put("/cluster/id", ClusterIdZNode.encode(logs.cluster_id))
    with pytest.raises(ForeignDirectoryError, match="was seen"):
        check_cluster(FakeZooKeeper(older), logs)


def test_older_data_are_refused_although_their_transactions_continue_with_higher_ids(
    server: FakeZooKeeperServer, logs: NotesInMemory
) -> None:
    zookeeper = FakeZooKeeper(server)
    write_mark(zookeeper)
    older = server.save()
    write_mark(zookeeper)
    noted = read_mark(zookeeper)
    assert noted is not None
    logs.note_seen(mark=noted)
    server.put("/later")
    check_cluster(zookeeper, logs)
    server.deny("/regent/progress_mark")
    check_cluster(zookeeper, logs)
    server.allow("/regent/progress_mark")
    server.expire_all()
    server.replace(SavedData(older.tree, 2**32))
    with pytest.raises(ForeignDirectoryError, match="was seen"):
        check_cluster(FakeZooKeeper(server), logs)


def test_an_unreadable_id_is_refused(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, logs: NotesInMemory
) -> None:
    server.put("/cluster/id", b"nonsense")
    with pytest.raises(BadDataError, match="/cluster/id"):
        check_cluster(zookeeper, logs)


# --- addresses ------------------------------------------------------------------------------------


def info(broker_id: int, *ports: int, host: str = "h") -> BrokerInfo:
    return BrokerInfo(broker_id, tuple(EndPoint(f"L{p}", host, p, "SSL") for p in ports))


def register(server: FakeZooKeeperServer, broker: BrokerInfo) -> None:
    ZkControllerStore(FakeZooKeeper(server)).register_broker(broker)


@pytest.mark.parametrize(
    ("other", "ours"),
    [
        (info(1, 9092), info(2, 9093)),
        (info(1, 9092), info(2, 9092, host="elsewhere")),
        (info(2, 9092), info(2, 9092)),
    ],
)
def test_unused_addresses_and_the_brokers_former_ones_are_accepted(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, other: BrokerInfo, ours: BrokerInfo
) -> None:
    register(server, other)
    check_end_points(zookeeper, ours)


def test_an_address_of_another_broker_is_refused(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    register(server, info(1, 9091, 9092))
    with pytest.raises(
        EndPointInUseError, match=r"end points h:9092 in .* by broker 1: .* another --port"
    ):
        check_end_points(zookeeper, info(2, 9092))


def test_a_control_port_with_a_name_that_is_another_brokers_is_refused(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    register(server, info(1, 9091))
    ours = replace(info(2, 9092, 9091), control_endpoint="tcp://h:9091")
    with pytest.raises(EndPointInUseError, match=r"h:9091 in .* another --control-port"):
        check_end_points(zookeeper, ours)


CONTROL = {"control_endpoint": "tcp://h:9100"}
REPLICATION = {"replication_endpoint": "tcp://H:9100"}
CLIENTS = {"endpoints": (EndPoint("L", "h", 9100, "SSL"),)}


@pytest.mark.parametrize("theirs", [CLIENTS, CONTROL, REPLICATION])
@pytest.mark.parametrize(
    ("ours", "option"),
    [(CLIENTS, "--port"), (CONTROL, "--control-port"), (REPLICATION, "--replication-port")],
)
def test_every_address_of_any_kind_belongs_to_one_broker(
    server: FakeZooKeeperServer,
    zookeeper: FakeZooKeeper,
    theirs: dict[str, Any],
    ours: dict[str, Any],
    option: str,
) -> None:
    register(server, replace(info(1, 9091), **theirs))
    with pytest.raises(EndPointInUseError, match=rf"(?i)h:9100 .* broker 1: .* {option},"):
        check_end_points(zookeeper, replace(info(2, 9092), **ours))


def test_of_two_brokers_that_register_together_the_later_one_ends(
    server: FakeZooKeeperServer,
) -> None:
    sessions = {b: FakeZooKeeper(server) for b in (1, 2)}
    for broker_id in (2, 1):
        check_end_points(sessions[broker_id], info(broker_id, 9092))  # both find nothing
    epochs = {b: ZkControllerStore(sessions[b]).register_broker(info(b, 9092)) for b in (2, 1)}
    check_end_points(sessions[2], info(2, 9092), epochs[2])
    with pytest.raises(EndPointInUseError, match="registered by broker 2"):
        check_end_points(sessions[1], info(1, 9092), epochs[1])


def test_a_registration_that_no_session_owns_blocks_no_address(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put(BrokerIdZNode.path(1), BrokerIdZNode.encode(info(1, 9092)))
    check_end_points(zookeeper, info(2, 9092))


def test_an_unreadable_registration_blocks_no_address(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
) -> None:
    server.put(BrokerIdZNode.path(1), b"nonsense")
    check_end_points(zookeeper, info(2, 9092))


def test_the_check_of_addresses_sets_no_watch(server: FakeZooKeeperServer) -> None:
    watches: list[WatchEvent] = []
    register(server, info(1, 9092))
    check_end_points(FakeZooKeeper(server, watches.append), info(2, 9093))
    register(server, info(3, 9094))
    server.put(BrokerIdZNode.path(1), b"")
    assert watches == []
