"""Changes of configurations, with a fake ZooKeeper that loses connections."""

from __future__ import annotations

import json

import pytest

from regent.core.errors import BadDataError
from regent.core.model import ReplicaAssignment
from regent.zk import znodes
from regent.zk.client.operations import ConflictError, Create, SetData
from regent.zk.stores.config_store import UnknownTopicError, ZkConfigStore
from regent.zk.znodes import ConfigEntityZNode
from tests.support.fake_zookeeper import (
    Call,
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

CONFIG = "/config/topics/t"


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    for path in znodes.PERSISTENT_PATHS:
        server.put(path)
    for topic in ("t", "u"):
        data = znodes.TopicZNode.encode("A" * 22, {0: ReplicaAssignment((0, 1))})
        server.put(znodes.TopicZNode.path(topic), data)
    return server


@pytest.fixture
def configs(zookeeper: FakeZooKeeper) -> ZkConfigStore:
    return ZkConfigStore(zookeeper)


def config_of(server: FakeZooKeeperServer) -> dict[str, str]:
    return ConfigEntityZNode.decode(server.snapshot()[CONFIG].data)


def changes(server: FakeZooKeeperServer) -> list[object]:
    prefix = "/config/changes/config_change_"
    return [json.loads(n.data) for path, n in server.snapshot().items() if path.startswith(prefix)]


# --- settings -------------------------------------------------------------------------------------


def test_configurations_are_merged_and_notified_in_one_transaction(
    server: FakeZooKeeperServer, configs: ZkConfigStore
) -> None:
    server.put(CONFIG, ConfigEntityZNode.encode({"retention.ms": "1", "segment.ms": "2"}))

    config = configs.alter_topic_config("t", {"retention.ms": None, "preallocate": "true"})

    assert config == config_of(server) == {"segment.ms": "2", "preallocate": "true"}
    written, notification = server.transactions[-1].operations[1:]
    assert isinstance(written, SetData)
    assert isinstance(notification, Create)
    assert notification.path == "/config/changes/config_change_0000000000"
    assert changes(server) == [{"version": 2, "entity_path": "topics/t"}]


@pytest.mark.parametrize("leftover", [None, b""])
def test_a_topic_without_a_configuration_gets_one(
    server: FakeZooKeeperServer, configs: ZkConfigStore, leftover: bytes | None
) -> None:
    if leftover is not None:
        server.put(CONFIG, leftover)

    assert configs.alter_topic_config("t", {"segment.ms": "2"}) == config_of(server)


def test_a_concurrent_change_is_kept(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    server.put(CONFIG, ConfigEntityZNode.encode({"retention.ms": "1"}))
    theirs = ConfigEntityZNode.encode({"segment.ms": "9"})
    zookeeper.hook = once(Moment.BEFORE, lambda: server.put(CONFIG, theirs))

    config = configs.alter_topic_config("t", {"preallocate": "true"})

    assert config == config_of(server) == {"segment.ms": "9", "preallocate": "true"}
    assert len(changes(server)) == 1


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_after_a_lost_answer_the_configuration_is_written_again(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore, moment: Moment
) -> None:
    zookeeper.hook = once(moment, lose_connection)

    assert configs.alter_topic_config("t", {"segment.ms": "2"}) == {"segment.ms": "2"}

    assert config_of(server) == {"segment.ms": "2"}
    assert len(changes(server)) == (1 if moment is Moment.BEFORE else 2)


def test_a_concurrently_deleted_topic_gets_no_configuration(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    zookeeper.hook = once(Moment.BEFORE, lambda: server.remove("/brokers/topics/t"))

    with pytest.raises(UnknownTopicError, match="topic t does not exist"):
        configs.alter_topic_config("t", {"segment.ms": "2"})
    assert CONFIG not in server.snapshot()
    assert changes(server) == []


def test_a_configuration_that_changes_before_every_attempt_is_given_up(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    server.put(CONFIG)

    def interfere(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            server.put(CONFIG)

    zookeeper.hook = interfere

    with pytest.raises(ConflictError, match="topic t"):
        configs.alter_topic_config("t", {"segment.ms": "2"})


def test_an_unreadable_configuration_is_not_replaced(
    server: FakeZooKeeperServer, configs: ZkConfigStore
) -> None:
    server.put(CONFIG, b"garbage")

    with pytest.raises(BadDataError):
        configs.alter_topic_config("t", {"segment.ms": "2"})
    assert server.snapshot()[CONFIG].data == b"garbage"


# --- settings of brokers --------------------------------------------------------------------------

BROKER = "/config/brokers/1"


def test_a_change_is_decided_again_when_another_client_was_first(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    server.put(BROKER, ConfigEntityZNode.encode({"log.cleanup.policy": "delete"}))
    theirs = ConfigEntityZNode.encode({"log.cleanup.policy": "compact", "log.roll.ms": "9"})
    zookeeper.hook = once(Moment.BEFORE, lambda: server.put(BROKER, theirs))

    config = configs.change_config(
        "brokers/1", lambda old: {"log.cleanup.policy": f"{old['log.cleanup.policy']},x"}
    )

    assert config == {"log.cleanup.policy": "compact,x", "log.roll.ms": "9"}
    assert ConfigEntityZNode.decode(server.snapshot()[BROKER].data) == config
    assert changes(server) == [{"version": 2, "entity_path": "brokers/1"}]


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_change_whose_answer_is_lost_is_written_once(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore, moment: Moment
) -> None:
    zookeeper.hook = once(moment, lose_connection)

    config = configs.change_config("brokers/<default>", lambda _: {"log.roll.ms": "2"})

    assert config == {"log.roll.ms": "2"}
    assert changes(server) == [{"version": 2, "entity_path": "brokers/<default>"}]


def test_a_configuration_without_a_change_is_not_written(
    server: FakeZooKeeperServer, configs: ZkConfigStore
) -> None:
    assert configs.change_config("brokers/1", lambda _: {"log.roll.ms": None}) == {}
    assert BROKER not in server.snapshot()
    assert changes(server) == []


def test_settings_that_change_before_every_attempt_are_given_up(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    def interfere(call: Call) -> None:
        if call.method == "multi" and call.moment is Moment.BEFORE:
            server.put(BROKER)

    zookeeper.hook = interfere

    with pytest.raises(ConflictError, match="brokers/1"):
        configs.change_config("brokers/1", lambda _: {"log.roll.ms": "2"})


# --- quotas of clients ----------------------------------------------------------------------------

QUOTA = {"producer_byte_rate": "5"}


def test_the_first_quota_of_a_pair_creates_the_nodes_of_its_user(
    server: FakeZooKeeperServer, configs: ZkConfigStore
) -> None:
    assert configs.change_config("users/u/clients/c", lambda _: QUOTA) == QUOTA
    assert configs.change_config("users/u", lambda _: QUOTA) == QUOTA
    nodes = server.snapshot()
    for path in ("/config/users/u", "/config/users/u/clients/c"):
        assert ConfigEntityZNode.decode(nodes[path].data) == QUOTA
    assert changes(server) == [
        {"version": 2, "entity_path": "users/u/clients/c"},
        {"version": 2, "entity_path": "users/u"},
    ]


def test_a_user_that_another_client_creates_meanwhile_is_kept(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, configs: ZkConfigStore
) -> None:
    theirs = ConfigEntityZNode.encode({"SCRAM-SHA-256": "salt=x"})
    zookeeper.hook = once(Moment.BEFORE, lambda: server.put("/config/users/u", theirs))
    configs.change_config("users/u/clients/c", lambda _: QUOTA)
    nodes = server.snapshot()
    assert nodes["/config/users/u"].data == theirs
    assert ConfigEntityZNode.decode(nodes["/config/users/u/clients/c"].data) == QUOTA


def test_the_first_user_is_set_before_a_broker_has_run() -> None:
    server = FakeZooKeeperServer()
    ZkConfigStore(FakeZooKeeper(server)).change_config("users/u", lambda _: QUOTA)
    assert ConfigEntityZNode.decode(server.snapshot()["/config/users/u"].data) == QUOTA
    assert changes(server) == [{"version": 2, "entity_path": "users/u"}]


def test_keys_of_a_listener_are_written_again_so_that_brokers_read_their_files(
    server: FakeZooKeeperServer, configs: ZkConfigStore
) -> None:
    keys = {"listener.name.a.ssl.keystore.location": "/a.pem"}
    for _ in range(2):
        assert configs.change_config("brokers/1", lambda _: keys) == keys
    configs.change_config("brokers/1", lambda _: {"log.roll.ms": None})
    assert changes(server) == [{"version": 2, "entity_path": "brokers/1"}] * 2
