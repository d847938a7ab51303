"""The controller's view of ZooKeeper: reads, conditional writes, creations and watches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.errors import (
    BadDataError,
    BrokerIdInUseError,
    ControllerMovedError,
    ForeignDirectoryError,
    RegentError,
    SessionExpiredError,
)
from regent.core.model import (
    BrokerInfo,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    LogEnd,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.ports import ControllerEpoch, ControllerRegistration, ControllerStore, WriteError
from regent.zk import znodes
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.session import SessionKeeper
from regent.zk.stores.cluster_identity import join_cluster
from regent.zk.stores.controller_store import (
    ZkControllerStore,
    has_led_partitions,
    is_broker_of_kafka,
)
from regent.zk.stores.producer_ids import ZkProducerIds
from regent.zk.znodes import (
    PERSISTENT_PATHS,
    BrokerIdZNode,
    ProducerIdBlockZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicPartitionZNode,
    TopicZNode,
)
from tests.support.cluster_notes import NotesInMemory
from tests.support.fake_zookeeper import Call, FakeZooKeeperServer, Moment, lose_connection, once
from tests.support.world import KeptSession, broker_info, leadership, topic_id

EPOCH = "/controller_epoch"
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
STATE = leadership(1, (1, 2))


class Broker:
    """A store, its session, and the watches that fired."""

    def __init__(self, server: FakeZooKeeperServer) -> None:
        self.watches: list[WatchEvent] = []
        self.zookeeper = KeptSession(server, self.watches.append)
        self.store = ZkControllerStore(self.zookeeper)


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put(EPOCH, b"7")
    return server


@pytest.fixture
def broker(server: FakeZooKeeperServer) -> Broker:
    return Broker(server)


@pytest.fixture
def store(broker: Broker) -> ZkControllerStore:
    return broker.store


def lose(broker: Broker, moment: Moment, path: str) -> None:
    """Lose the next request that writes ``path``, or its answer."""
    broker.zookeeper.hook = once(moment, lose_connection, path=path)


def put_topic(
    server: FakeZooKeeperServer, topic: str, *partitions: int, id: str | None = None
) -> None:
    assignments = {p: ReplicaAssignment((1, 2)) for p in partitions}
    server.put(TopicZNode.path(topic), TopicZNode.encode(id, assignments))


def put_state(
    server: FakeZooKeeperServer, partition: TopicPartition, state: LeaderIsrAndControllerEpoch
) -> None:
    path = TopicPartitionStateZNode.path(partition)
    server.put(path, TopicPartitionStateZNode.encode(state))


def test_the_store_implements_the_port_of_the_core(store: ZkControllerStore) -> None:
    port: ControllerStore = store
    assert port.read_controller_epoch() == ControllerEpoch(7, 0)


# --- election -------------------------------------------------------------------------------------


def test_the_controller_znode_is_read(server: FakeZooKeeperServer, broker: Broker) -> None:
    store = broker.store
    assert store.read_controller() is None
    other = Broker(server)
    other.store.register_controller(3, ControllerEpoch(7, 0), now_ms=5)
    assert broker.watches == [WatchEvent(WatchKind.CREATED, "/controller")]
    assert store.read_controller() == ControllerRegistration(
        3, is_own_session=False, is_ephemeral=True
    )
    own = other.store.read_controller()
    assert own == ControllerRegistration(3, is_own_session=True, is_ephemeral=True)
    server.put("/controller", b"garbage")
    assert store.read_controller() == ControllerRegistration(
        -1, is_own_session=False, is_ephemeral=True
    )
    other.zookeeper.close()
    server.put("/controller", znodes.ControllerZNode.encode(4, 0))
    assert store.read_controller() == ControllerRegistration(
        4, is_own_session=False, is_ephemeral=False
    )


def test_the_controller_epoch_is_read(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    server.put(EPOCH, b"8")
    assert store.read_controller_epoch() == ControllerEpoch(8, 1)
    server.put(EPOCH, b"eight")
    assert store.read_controller_epoch() == ControllerEpoch(0, 2), "as if it had been deleted"


def test_the_epoch_is_created_once() -> None:
    server = FakeZooKeeperServer()
    store = Broker(server).store
    assert store.read_controller_epoch() is None
    for _ in range(2):
        store.create_controller_epoch()
    assert store.read_controller_epoch() == ControllerEpoch(0, 0)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_an_election_succeeds_after_a_lost_request_or_answer(
    server: FakeZooKeeperServer, broker: Broker, moment: Moment
) -> None:
    lose(broker, moment, "/controller")
    assert broker.store.register_controller(1, ControllerEpoch(7, 0), 5) == ControllerEpoch(8, 1)
    assert server.snapshot()[EPOCH].data == b"8"


def test_an_election_with_an_outdated_epoch_is_lost(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    server.put(EPOCH, b"8")
    assert store.register_controller(1, ControllerEpoch(7, 0), 5) is None
    assert "/controller" not in server.snapshot()


def test_an_election_fails_while_another_broker_has_the_znode(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    former = ControllerEpoch(7, 0)
    now = Broker(server).store.register_controller(1, former, 5)
    assert now == ControllerEpoch(8, 1)
    for known in (former, now):
        assert store.register_controller(1, known, 5) is None, (
            "the znode is of a former session, not of this attempt"
        )
    assert store.read_controller_epoch() == now


def test_a_znode_of_an_earlier_term_does_not_count_as_a_won_election(
    store: ZkControllerStore,
) -> None:
    now = store.register_controller(1, ControllerEpoch(7, 0), 5)
    assert now is not None
    assert store.register_controller(1, now, 5) is None
    assert store.register_controller(2, ControllerEpoch(7, 0), 5) is None


def test_an_election_uses_an_epoch_above_the_highest_one_the_broker_has_seen(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    won = store.register_controller(1, ControllerEpoch(7, 0), 5, accepted_epoch=41)
    assert won == ControllerEpoch(42, 1)
    assert server.snapshot()[EPOCH].data == b"42"


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_controller_raises_its_epoch_after_a_lost_request_or_answer(
    server: FakeZooKeeperServer, broker: Broker, moment: Moment
) -> None:
    now = broker.store.register_controller(1, ControllerEpoch(7, 0), 5)
    assert now is not None
    lose(broker, moment, EPOCH)
    assert broker.store.raise_controller_epoch(1, 42, now.zk_version) == ControllerEpoch(42, 2)
    assert server.snapshot()[EPOCH].data == b"42"


def test_only_the_present_controller_raises_the_epoch(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    former = broker.store.register_controller(1, ControllerEpoch(7, 0), 5)
    assert former is not None
    with pytest.raises(ControllerMovedError):
        broker.store.raise_controller_epoch(1, 42, former.zk_version - 1)
    server.remove("/controller")
    with pytest.raises(ControllerMovedError):
        broker.store.raise_controller_epoch(1, 42, former.zk_version)
    Broker(server).store.register_controller(2, former, 5)
    with pytest.raises(ControllerMovedError):
        broker.store.raise_controller_epoch(1, 42, former.zk_version + 1)
    assert server.snapshot()[EPOCH].data == b"9"


def test_a_controller_whose_znode_is_overwritten_does_not_raise_the_epoch(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    now = broker.store.register_controller(1, ControllerEpoch(7, 0), 5)
    assert now is not None

    broker.zookeeper.hook = once(
        Moment.BEFORE, lambda: server.put("/controller", b"garbage"), path=EPOCH
    )
    with pytest.raises(ControllerMovedError):
        broker.store.raise_controller_epoch(1, 42, now.zk_version)
    assert server.snapshot()["/controller"].data == b"garbage"
    assert server.snapshot()[EPOCH].data == b"8"


def test_only_the_own_term_deletes_the_controller_znode(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    store.register_controller(1, ControllerEpoch(7, 0), 5)
    with pytest.raises(ControllerMovedError):
        store.delete_controller(epoch_zk_version=0)
    assert "/controller" in server.snapshot()
    store.delete_controller(epoch_zk_version=1)
    assert "/controller" not in server.snapshot()
    store.delete_controller(epoch_zk_version=1)


# --- registration ---------------------------------------------------------------------------------


def test_the_broker_epoch_is_the_czxid_of_the_registration(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    info = broker_info(3)
    epoch = broker.store.register_broker(info)
    node = server.snapshot()["/brokers/ids/3"]
    assert epoch == node.stat.czxid == node.stat.mzxid
    assert node.stat.ephemeral_owner == broker.zookeeper.session_id
    assert BrokerIdZNode.decode(node.data, 3) == info
    assert set(PERSISTENT_PATHS) <= set(server.snapshot()), "persistent paths are created"


def test_registering_again_in_one_session_changes_nothing(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    first = store.register_broker(broker_info(3))
    before = len(server.transactions)
    assert store.register_broker(broker_info(3)) == first
    assert len(server.transactions) == before


def test_a_registration_that_is_removed_while_it_is_made_again_lists_the_suspects(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    info, suspects = broker_info(3), SuspectReplicas({T0: LogEnd(1, 5)})
    broker.store.register_broker(info, suspects)
    path = BrokerIdZNode.path(3)

    def remove(call: Call) -> None:
        if call == (Moment.AFTER, "get", (path,)):
            broker.zookeeper.hook = None
            server.remove(path)

    broker.zookeeper.hook = remove
    epoch = broker.store.register_broker(info, suspects)
    assert broker.store.read_broker(3) == BrokerRegistration(info, epoch, suspects)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_registration_succeeds_after_a_lost_request_or_answer(
    server: FakeZooKeeperServer, broker: Broker, moment: Moment
) -> None:
    lose(broker, moment, "/brokers/ids/3")
    epoch = broker.store.register_broker(broker_info(3))
    assert epoch == server.snapshot()["/brokers/ids/3"].stat.czxid


def test_the_first_block_of_producer_ids_is_written_once_more_as_null(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    """Data of no bytes, which earlier versions wrote, end a broker of Kafka that reads them."""
    path = ProducerIdBlockZNode.PATH
    server.put(path)
    broker.store.register_broker(broker_info(3))
    assert (server.snapshot()[path].data, server.snapshot()[path].stat.version) == (b"", 1)
    ZkProducerIds(broker.zookeeper, 3).take_block()
    written = server.snapshot()[path]
    broker.store.create_persistent_paths()
    assert server.snapshot()[path] == written


def test_a_cluster_has_partitions_when_one_has_had_a_leader(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    assert not has_led_partitions(broker.zookeeper)
    for path in (
        TopicZNode.path("t"),
        TopicPartitionsZNode.path("t"),
        TopicPartitionZNode.path(T0),
    ):
        server.put(path)
        assert not has_led_partitions(broker.zookeeper), path
    server.put(TopicPartitionStateZNode.path(T0))
    assert has_led_partitions(broker.zookeeper)


@pytest.mark.parametrize("path", PERSISTENT_PATHS)
def test_persistent_paths_are_created_after_a_lost_answer(
    server: FakeZooKeeperServer, broker: Broker, path: str
) -> None:
    lose(broker, Moment.AFTER, path)
    broker.store.register_broker(broker_info(3))
    assert path in server.snapshot()


def test_an_id_in_use_by_another_process_is_refused(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    Broker(server).store.register_broker(broker_info(3))
    before = server.snapshot()["/brokers/ids/3"]
    with pytest.raises(BrokerIdInUseError, match="broker id 3"):
        store.register_broker(broker_info(3))
    assert server.snapshot()["/brokers/ids/3"] == before


def test_a_new_session_has_a_new_epoch(server: FakeZooKeeperServer, broker: Broker) -> None:
    first = broker.store.register_broker(broker_info(3))
    broker.zookeeper.expire()
    broker.zookeeper.renew(broker.watches.append)
    assert broker.store.register_broker(broker_info(3)) > first


def test_a_registration_of_the_former_session_is_replaced(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    first = broker.store.register_broker(broker_info(3))
    broker.zookeeper.renew(broker.watches.append)  # and the server did not end the former one
    second = broker.store.register_broker(broker_info(3, incarnation=2))
    assert second > first
    node = server.snapshot()["/brokers/ids/3"]
    assert node.stat.ephemeral_owner == broker.zookeeper.session_id


@pytest.mark.parametrize("has_registered_before", [False, True])
def test_a_persistent_registration_is_replaced(
    server: FakeZooKeeperServer, broker: Broker, has_registered_before: bool
) -> None:
    if has_registered_before:
        broker.store.register_broker(broker_info(3))
        broker.zookeeper.expire()
        broker.zookeeper.renew(broker.watches.append)
    server.put("/brokers/ids/3", b"made by hand")
    broker.store.register_broker(broker_info(3))
    assert server.snapshot()["/brokers/ids/3"].stat.ephemeral_owner != 0


def test_every_broker_notices_the_deletion_of_its_registration(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    first = broker.store.register_broker(broker_info(3))
    broker.store.read_brokers()
    broker.store.unwatch_all_but_controller()
    server.remove("/brokers/ids/3")
    assert WatchEvent(WatchKind.DELETED, "/brokers/ids/3") in broker.watches
    assert broker.store.register_broker(broker_info(3)) > first
    broker.watches.clear()
    server.remove("/brokers/ids/3")
    assert broker.watches == [WatchEvent(WatchKind.DELETED, "/brokers/ids/3")]


@pytest.mark.parametrize("data", [b"garbage", b"", b"{}"])
def test_an_overwritten_registration_is_written_again_with_the_same_broker_epoch(
    server: FakeZooKeeperServer, broker: Broker, data: bytes
) -> None:
    epoch = broker.store.register_broker(broker_info(3))
    written = server.snapshot()["/brokers/ids/3"].data
    controller = Broker(server)
    server.put("/brokers/ids/3", data)
    controller.store.read_brokers()
    assert WatchEvent(WatchKind.CHANGED, "/brokers/ids/3") in broker.watches
    assert broker.store.register_broker(broker_info(3)) == epoch
    assert server.snapshot()["/brokers/ids/3"].data == written
    assert controller.watches == [WatchEvent(WatchKind.CHANGED, "/brokers/ids/3")]
    broker.watches.clear()
    before = len(server.transactions)
    assert broker.store.register_broker(broker_info(3)) == epoch, (
        "its own change fires the watch too"
    )
    assert len(server.transactions) == before


def test_rewriting_a_registration_is_retried_after_a_concurrent_change(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    broker.store.register_broker(broker_info(3))
    server.put("/brokers/ids/3", b"garbage")

    def hook(call: Call) -> None:
        if call == Call(Moment.BEFORE, "multi", ("/brokers/ids/3",)):
            server.put("/brokers/ids/3", b"more garbage")

    broker.zookeeper.hook = hook
    with pytest.raises(RequestRefusedError, match="BAD_VERSION"):
        broker.store.register_broker(broker_info(3))
    broker.zookeeper.hook = None
    broker.store.register_broker(broker_info(3))
    assert isinstance(broker.store.read_broker(3), BrokerRegistration)


def test_a_registration_written_again_succeeds_although_the_answer_is_lost(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    epoch = broker.store.register_broker(broker_info(3))
    written = server.snapshot()["/brokers/ids/3"].data
    server.put("/brokers/ids/3", b"garbage")
    lose(broker, Moment.AFTER, "/brokers/ids/3")
    assert broker.store.register_broker(broker_info(3)) == epoch
    assert server.snapshot()["/brokers/ids/3"].data == written


class OfACluster(Broker):
    """A broker that has stored the id of the first cluster."""

    def __init__(self, server: FakeZooKeeperServer) -> None:
        super().__init__(server)
        notes = NotesInMemory()
        notes.cluster_id = join_cluster(self.zookeeper)
        self.store = ZkControllerStore(self.zookeeper, notes.check_cluster)


@pytest.mark.parametrize("found", [None, "another"])
def test_no_broker_registers_in_the_data_of_another_cluster(
    server: FakeZooKeeperServer, found: str | None
) -> None:
    broker = OfACluster(server)
    server.remove("/cluster/id")
    if found:
        server.put("/cluster/id", znodes.ClusterIdZNode.encode(found))
    before = server.snapshot()
    for write in (
        lambda: broker.store.register_broker(broker_info(3)),
        lambda: broker.store.register_controller(3, ControllerEpoch(7, 0), 5),
        broker.store.create_controller_epoch,
    ):
        with pytest.raises(ForeignDirectoryError, match=f"not of {found}"):
            write()
    assert server.snapshot() == before


def test_a_registration_fails_when_the_cluster_id_is_deleted_at_the_last_moment(
    server: FakeZooKeeperServer,
) -> None:
    broker = OfACluster(server)

    broker.zookeeper.hook = once(
        Moment.BEFORE, lambda: server.remove("/cluster/id"), path="/brokers/ids/3"
    )
    with pytest.raises(ForeignDirectoryError):
        broker.store.register_broker(broker_info(3))
    assert "/brokers/ids/3" not in server.snapshot()


# --- brokers --------------------------------------------------------------------------------------


def test_brokers_are_read_sorted_by_id(server: FakeZooKeeperServer, broker: Broker) -> None:
    registrations = {}
    for broker_id in (10, 9):
        epoch = Broker(server).store.register_broker(broker_info(broker_id))
        registrations[broker_id] = BrokerRegistration(broker_info(broker_id), epoch)
    server.put("/brokers/ids/8", b"garbage")
    for name in ("not-a-number", "010", "٩", str(2**31), "9" * 5000):
        server.put(f"/brokers/ids/{name}", BrokerIdZNode.encode(broker_info(9)))
    brokers = broker.store.read_brokers()
    assert list(brokers) == [8, 9, 10]
    assert brokers[10] == registrations[10]
    assert isinstance(brokers[8], BadDataError)
    assert str(brokers[8]).startswith("broker 8: ")
    assert broker.store.read_broker(9) == registrations[9]
    assert isinstance(broker.store.read_broker(8), BadDataError)
    assert broker.store.read_broker(7) is None


def test_new_changed_and_lost_brokers_fire_watches(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    one = Broker(server)
    one.store.register_broker(broker_info(1))
    broker.store.read_brokers()
    server.put("/brokers/ids/1", b"changed")
    Broker(server).store.register_broker(broker_info(2))
    assert broker.watches == [
        WatchEvent(WatchKind.CHANGED, "/brokers/ids/1"),
        WatchEvent(WatchKind.CHILDREN, "/brokers/ids"),
    ]


def test_a_broker_that_leaves_between_list_and_read_is_missing(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    one = Broker(server)
    one.store.register_broker(broker_info(1))

    broker.zookeeper.hook = once(Moment.BEFORE, one.zookeeper.close, method="get_many")
    assert broker.store.read_brokers() == {}
    assert WatchEvent(WatchKind.CHILDREN, "/brokers/ids") in broker.watches


def test_a_cluster_without_any_path_has_no_brokers_and_no_topics(store: ZkControllerStore) -> None:
    assert store.read_brokers() == {}
    assert store.read_topic_names() == ()


# --- topics ---------------------------------------------------------------------------------------


def test_invalid_topic_names_are_skipped_with_one_log_line(
    server: FakeZooKeeperServer, store: ZkControllerStore, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("t", "a topic", "x" * 250, "ü"):
        server.put(TopicZNode.path(name))
    assert store.read_topic_names() == ("t",)
    assert caplog.messages == [
        "3 children of /brokers/topics cannot be topics, the first: 'a topic'"
        ' has other characters than ASCII letters, digits, ".", "_" and "-"'
    ]


def test_topics_are_read(server: FakeZooKeeperServer, broker: Broker) -> None:
    put_topic(server, "u", 1, 0, id=topic_id(5))
    put_topic(server, "t", 0)
    put_topic(server, "t", 0)
    server.put("/brokers/topics/bad", b"garbage")
    assert broker.store.read_topic_names() == ("bad", "t", "u")
    topics = broker.store.read_topics(["t", "u", "bad", "absent"])
    assert list(topics) == ["t", "u", "bad"]
    u = topics["u"]
    assert not isinstance(u, BadDataError)
    assert u.topic_id == topic_id(5)
    assert list(u.partitions) == [0, 1]
    t = topics["t"]
    assert not isinstance(t, BadDataError)
    stat = server.snapshot()["/brokers/topics/t"].stat
    assert (t.topic_id, t.zk_version, t.created_zxid) == (None, 1, stat.czxid)
    assert str(topics["bad"]).startswith("topic bad: ")
    put_topic(server, "absent", 0)
    assert broker.watches == [WatchEvent(WatchKind.CHILDREN, "/brokers/topics")]


def test_a_topic_is_written_on_condition_of_its_version(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    for topic in ("t", "u", "v"):
        put_topic(server, topic, 0)
    read = store.read_topics(["t", "u", "v"])
    topics = {name: t for name, t in read.items() if not isinstance(t, BadDataError)}
    put_topic(server, "u", 0, 1)
    outcomes = store.write_topics({"t": topics["t"], "u": topics["u"]}, epoch_zk_version=0)
    assert outcomes == {"t": 1, "u": WriteError.BAD_VERSION}
    assert b'"1"' in server.snapshot()["/brokers/topics/u"].data
    absent = {"gone": topics["v"]}
    assert store.write_topics(absent, 0) == {"gone": WriteError.NO_NODE}
    with pytest.raises(ControllerMovedError):
        store.write_topics({"v": topics["v"]}, epoch_zk_version=3)


def test_topics_say_whether_they_allow_unclean_elections(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    config = '{"version":1,"config":{"unclean.leader.election.enable":"%s"}}'
    for topic, value in (("yes", "True"), ("spaces", " true "), ("no", "false"), ("odd", "yes")):
        server.put(f"/config/topics/{topic}", (config % value).encode())
    server.put("/config/topics/silent", b'{"version":1,"config":{"retention.ms":"5"}}')
    server.put("/config/topics/empty", b"")
    server.put("/config/topics/bad", b"garbage")
    settings = store.read_unclean_leader_election(
        ["yes", "spaces", "no", "odd", "silent", "empty", "bad", "absent"]
    )
    assert isinstance(settings["bad"], BadDataError)
    del settings["bad"]  # type: ignore[attr-defined]
    assert settings == {"yes": True, "spaces": True, "no": False}


# --- partition states -----------------------------------------------------------------------------


def test_states_are_read(server: FakeZooKeeperServer, store: ZkControllerStore) -> None:
    put_state(server, T0, leadership(2, (2, 1), leader_epoch=3, controller_epoch=4, recovery=1))
    put_state(server, T1, STATE)
    put_state(server, T1, STATE)
    server.put(TopicPartitionStateZNode.path(U0), b"garbage")
    states = store.read_partition_states([T1, T0, U0, TopicPartition("u", 1)])
    assert list(states) == [T1, T0, U0]
    assert states[T0] == leadership(2, (2, 1), leader_epoch=3, controller_epoch=4, recovery=1)
    assert states[T1] == leadership(1, (1, 2), partition_epoch=1)
    assert isinstance(states[U0], BadDataError)


def test_states_are_created_with_their_parents(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    put_topic(server, "t", 0, 1)
    put_topic(server, "u", 0)
    states = {T0: STATE, U0: STATE, T1: STATE, TopicPartition("gone", 0): STATE}
    outcomes = store.create_partition_states(states, epoch_zk_version=0)
    assert outcomes == {T0: 0, U0: 0, T1: 0, TopicPartition("gone", 0): WriteError.NO_NODE}
    assert store.read_partition_states(states) == {T0: STATE, U0: STATE, T1: STATE}
    partition = server.snapshot()[TopicPartitionZNode.path(T0)]
    assert partition.data == b""


def test_the_id_of_a_topic_is_stored_with_its_first_state(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    for topic in ("t", "u"):
        put_topic(server, topic, 0)
    assert store.read_noted_topic_id("t") is None
    store.create_partition_states({T0: STATE, U0: STATE}, 0, {"t": topic_id(7), "u": None})
    store.create_partition_states({T1: STATE}, 0, {"t": topic_id(8)})
    assert store.read_noted_topic_id("t") == topic_id(7)
    assert store.read_noted_topic_id("u") is None
    for garbage in (b"garbage", b'{"topic_id":"short"}'):
        server.put(TopicPartitionsZNode.path("u"), garbage)
        assert store.read_noted_topic_id("u") is None


def test_an_id_that_a_topic_gets_is_stored_beside_the_states_that_it_has(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    for topic in ("t", "u"):
        put_topic(server, topic, 0)
    path = TopicPartitionsZNode.path("t")
    server.put(path, TopicPartitionsZNode.encode(None, 3))
    topics = {
        topic: replace(read, topic_id=topic_id(7))
        for topic, read in store.read_topics(["t", "u"]).items()
        if not isinstance(read, BadDataError)
    }
    assert store.assign_topic_ids(topics, 0) == {"t": 1, "u": 1}
    assert store.assign_topic_ids(topics, 0)["t"] is WriteError.BAD_VERSION
    assert server.snapshot()[path].data == TopicPartitionsZNode.encode(topic_id(7), 3)
    assert TopicPartitionsZNode.path("u") not in server.snapshot()


def test_states_are_created_under_nodes_that_exist_already(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    put_topic(server, "t", 0, 1)
    server.put(TopicPartitionZNode.path(T0))  # created by a controller that died
    put_state(server, T1, leadership(2, (2,)))
    outcomes = store.create_partition_states({T0: STATE, T1: STATE}, 0)
    assert outcomes == {T0: 0, T1: WriteError.NODE_EXISTS}
    assert store.read_partition_states([T0, T1]) == {T0: STATE, T1: leadership(2, (2,))}


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("/brokers/topics/t/partitions", 0),
        # The caller reads the znode and finds its own content.
        (TopicPartitionStateZNode.path(T0), WriteError.NODE_EXISTS),
    ],
)
def test_a_creation_with_a_lost_answer_happens_once(
    server: FakeZooKeeperServer, broker: Broker, path: str, outcome: int | WriteError
) -> None:
    put_topic(server, "t", 0)
    lose(broker, Moment.AFTER, path)
    assert broker.store.create_partition_states({T0: STATE}, 0) == {T0: outcome}
    assert broker.store.read_partition_states([T0]) == {T0: STATE}


def test_states_are_updated_on_condition_of_their_epoch(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    for partition in (T0, T1):
        put_state(server, partition, STATE)
    put_state(server, T1, leadership(1, (1,)))
    changed = leadership(2, (2,), leader_epoch=1, controller_epoch=8)
    outcomes = store.update_partition_states({T0: changed, T1: changed, U0: changed}, 0)
    assert outcomes == {T0: 1, T1: WriteError.BAD_VERSION, U0: WriteError.NO_NODE}
    assert store.read_partition_states([T0, T1]) == {
        T0: leadership(2, (2,), leader_epoch=1, controller_epoch=8, partition_epoch=1),
        T1: leadership(1, (1,), partition_epoch=1),
    }


def test_no_state_is_written_for_a_deposed_controller(
    server: FakeZooKeeperServer, store: ZkControllerStore
) -> None:
    put_topic(server, "t", 0, 1)
    put_state(server, T0, STATE)
    before = server.snapshot()
    server.put(EPOCH, b"8")
    with pytest.raises(ControllerMovedError):
        store.update_partition_states({T0: leadership(2, (2,))}, epoch_zk_version=0)
    with pytest.raises(ControllerMovedError):
        store.create_partition_states({T1: STATE}, epoch_zk_version=0)
    after = server.snapshot()
    del before[EPOCH], after[EPOCH]
    assert after == before


# --- watches --------------------------------------------------------------------------------------


def test_dropping_the_watches_leaves_the_one_on_the_controller(
    server: FakeZooKeeperServer, broker: Broker
) -> None:
    Broker(server).store.register_broker(broker_info(1))
    put_topic(server, "t", 0)
    broker.store.read_controller()
    broker.store.read_brokers()
    broker.store.read_broker(2)
    broker.store.read_topics(broker.store.read_topic_names())
    broker.store.unwatch_all_but_controller()
    Broker(server).store.register_broker(broker_info(2))
    server.put("/brokers/ids/1", b"")
    put_topic(server, "t", 0, 1)
    put_topic(server, "u", 0)
    assert broker.watches == []
    server.put("/controller")
    assert broker.watches == [WatchEvent(WatchKind.CREATED, "/controller")]


def test_watches_can_be_dropped_when_they_are_gone_with_the_session(broker: Broker) -> None:
    broker.store.read_brokers()
    broker.zookeeper.expire()
    broker.store.unwatch_all_but_controller()
    between_sessions = SessionKeeper(
        "127.0.0.1:1",
        6000,
        on_watch=lambda _: None,
        on_established=lambda _: None,
        on_expired=lambda: None,
    )
    ZkControllerStore(between_sessions).unwatch_all_but_controller()


def test_all_other_calls_fail_after_the_session(broker: Broker) -> None:
    store = broker.store
    broker.zookeeper.expire()
    for call in (
        store.read_controller,
        store.read_controller_epoch,
        store.create_controller_epoch,
        lambda: store.register_controller(1, ControllerEpoch(7, 0), 5),
        lambda: store.delete_controller(0),
        lambda: store.register_broker(broker_info(1)),
        store.read_brokers,
        store.read_topic_names,
        lambda: store.read_topics(["t"]),
        lambda: store.read_partition_states([T0]),
        lambda: store.create_partition_states({T0: STATE}, 0),
        lambda: store.update_partition_states({T0: STATE}, 0),
    ):
        with pytest.raises(SessionExpiredError):
            call()


OF_OURS = broker_info(5)
OF_KAFKA = BrokerInfo(5, OF_OURS.endpoints)


@pytest.mark.parametrize("seen", [None, OF_OURS])
def test_a_broker_of_kafka_is_known_as_one_although_the_server_lags_behind(
    server: FakeZooKeeperServer, seen: BrokerInfo | None
):
    """Its requests would be refused else, and it never sends them again."""
    path = BrokerIdZNode.path(5)
    if seen is not None:
        server.put(path, BrokerIdZNode.encode(seen))
    behind = server.add_follower(lag=100)
    server.connect_to = lambda: behind
    zookeeper = Broker(server).zookeeper
    if seen is not None:
        server.remove(path)
    server.put(path, BrokerIdZNode.encode(OF_KAFKA))
    assert is_broker_of_kafka(zookeeper, 5)


def test_who_is_registered_as_ours_or_not_at_all_is_no_broker_of_kafka(
    server: FakeZooKeeperServer,
):
    zookeeper = Broker(server).zookeeper
    with pytest.raises(RegentError, match="broker 5 is not registered"):
        is_broker_of_kafka(zookeeper, 5)
    server.put(BrokerIdZNode.path(5), BrokerIdZNode.encode(OF_OURS))
    assert not is_broker_of_kafka(zookeeper, 5)


def test_a_cluster_has_partitions_although_the_server_lags_behind(server: FakeZooKeeperServer):
    """Else a broker would take none for all that there are."""
    behind = server.add_follower(lag=100)
    server.connect_to = lambda: behind
    zookeeper = Broker(server).zookeeper
    server.put(TopicPartitionStateZNode.path(T0))
    assert has_led_partitions(zookeeper)
