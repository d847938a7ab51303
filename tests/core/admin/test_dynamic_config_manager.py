"""Changed configurations, read over the fake ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.config.settings import KAFKA_SETTINGS
from regent.core.admin.config_handlers import BrokerConfigHandler
from regent.core.admin.dynamic_config_manager import CHANGE_EXPIRATION_MS
from regent.core.controller.events import (
    ControllerEvent,
    TopicUncleanLeaderElectionEnable,
    UncleanLeaderElectionEnable,
)
from regent.core.errors import SessionExpiredError
from regent.core.setting import SettingValues
from regent.zk.client.operations import Committed, Create, WatchEvent, WatchKind
from regent.zk.znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer, act_once
from tests.support.followed_configs import STARTED, FollowedConfigs

UNCLEAN_ELECTION = "unclean.leader.election.enable"
UNCLEAN = {UNCLEAN_ELECTION: "true"}


class ConfigReader:
    """A tree with ``/config/changes``, and the reader of broker 1."""

    def __init__(self, *, default: bool = False) -> None:
        self.now_ms = 1_000_000
        self.server = FakeZooKeeperServer(now_ms=lambda: self.now_ms)
        self.server.put("/config/changes")
        self.tool = FakeZooKeeper(self.server)
        self.watches: list[WatchEvent] = []
        self.session = FakeZooKeeper(self.server, self.watches.append)
        self.configs = FollowedConfigs(self.session, {**STARTED, UNCLEAN_ELECTION: default})

    def configure(self, entity: str, config: dict[str, str]) -> None:
        """Change a configuration as Kafka's tools do."""
        entity_type, _, name = entity.partition("/")
        self.server.put(ConfigEntityZNode.path(entity_type, name), ConfigEntityZNode.encode(config))
        self.notify(ConfigEntityChangeNotificationSequenceZNode.encode(entity))

    def notify(self, data: bytes) -> None:
        """Create a notification."""
        prefix = ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX
        assert isinstance(self.tool.multi([Create(prefix, data, sequential=True)]), Committed)

    def catch_up(self) -> list[ControllerEvent]:
        """Read the changes; return the events for the controller."""
        self.configs.events.clear()
        self.configs.manager.catch_up()
        return list(self.configs.events)

    def quotas(self) -> object:
        """Read the changes; return all quotas; None: they have not changed."""
        self.configs.client_quotas.clear()
        self.configs.manager.catch_up()
        assert len(self.configs.client_quotas) < 2
        return self.configs.client_quotas[0] if self.configs.client_quotas else None


@pytest.fixture
def cluster() -> ConfigReader:
    return ConfigReader()


def test_a_topic_that_allows_unclean_elections_is_an_event(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.configure("topics/payments", {"retention.ms": "1"})
    assert cluster.catch_up() == [TopicUncleanLeaderElectionEnable("orders")]


def test_a_change_is_read_once_and_the_next_one_fires_a_watch(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    assert cluster.catch_up() != []
    assert cluster.catch_up() == []
    cluster.configure("topics/orders", UNCLEAN)
    assert cluster.watches == [WatchEvent(WatchKind.CHILDREN, "/config/changes")]
    assert cluster.catch_up() == [TopicUncleanLeaderElectionEnable("orders")]


def test_the_configuration_decides_and_not_the_notification(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.configure("topics/orders", {})
    assert cluster.catch_up() == []


def test_both_versions_of_notifications_are_read(cluster: ConfigReader):
    cluster.server.put(
        "/config/topics/orders", b'{"config":' + b'{"unclean.leader.election.enable":"TRUE"}}'
    )
    cluster.notify(b'{"version":1,"entity_type":"topics","entity_name":"orders"}')
    assert cluster.catch_up() == [TopicUncleanLeaderElectionEnable("orders")]


@pytest.mark.parametrize(
    "garbage", [b"", b"not JSON", b'{"version":3}', b'{"version":2,"entity_path":"topics"}']
)
def test_an_unreadable_notification_is_skipped_and_later_ones_are_read(
    cluster: ConfigReader, garbage: bytes
):
    cluster.notify(garbage)
    cluster.configure("topics/orders", UNCLEAN)
    assert cluster.catch_up() == [TopicUncleanLeaderElectionEnable("orders")]


def test_an_unreadable_configuration_allows_nothing(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.server.put("/config/topics/orders", b"not JSON")
    assert cluster.catch_up() == []


def test_the_default_follows_the_cluster_wide_and_the_broker_configuration(
    cluster: ConfigReader,
):
    assert cluster.catch_up() == []
    cluster.configure("brokers/<default>", UNCLEAN)
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]
    cluster.configure("brokers/2", {"unclean.leader.election.enable": "false"})
    assert cluster.catch_up() == [], "the configuration of another broker"
    cluster.configure("brokers/1", {"unclean.leader.election.enable": "false"})
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(False)]
    cluster.configure("brokers/1", {})
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]


def test_a_starting_broker_reads_the_default_without_a_notification(cluster: ConfigReader):
    cluster.server.put("/config/brokers/<default>", ConfigEntityZNode.encode(UNCLEAN))
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]


def test_a_default_equal_to_the_file_is_no_event():
    cluster = ConfigReader(default=True)
    cluster.configure("brokers/<default>", UNCLEAN)
    assert cluster.catch_up() == []


def test_old_notifications_are_deleted_and_recent_ones_stay(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.now_ms += CHANGE_EXPIRATION_MS + 1
    cluster.configure("topics/payments", UNCLEAN)
    cluster.catch_up()
    left = cluster.tool.children("/config/changes")
    assert left == ["config_change_0000000001"]
    assert cluster.catch_up() == []


def test_a_notification_stays_until_there_is_a_much_later_one(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.now_ms += CHANGE_EXPIRATION_MS + 1
    cluster.catch_up()
    assert cluster.tool.children("/config/changes") == ["config_change_0000000000"]


def test_after_missed_notifications_everything_that_may_have_changed_is_read(
    cluster: ConfigReader,
):
    cluster.configure("topics/orders", {})
    cluster.catch_up()
    cluster.configure("brokers/<default>", UNCLEAN)
    cluster.configure("topics/orders", {"retention.ms": "7"})
    cluster.now_ms += CHANGE_EXPIRATION_MS + 1
    cluster.configure("topics/payments", {})
    FollowedConfigs(cluster.tool).manager.catch_up()
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]
    assert cluster.configs.log_config("orders").retention_ms == 7, "any topic may have changed"
    cluster.server.put("/config/topics/orders", ConfigEntityZNode.encode({"retention.ms": "8"}))
    cluster.catch_up()
    assert cluster.configs.log_config("orders").retention_ms == 7, "nothing has said so"


def test_no_change_is_missed_when_the_session_expires_during_the_deletion(
    cluster: ConfigReader,
):
    cluster.configure("brokers/<default>", UNCLEAN)
    cluster.now_ms += CHANGE_EXPIRATION_MS + 1
    cluster.configure("brokers/2", UNCLEAN)

    def expire() -> None:
        cluster.server.expire(cluster.session.session_id)

    act_once(cluster.session, expire, method="multi_many")
    with pytest.raises(SessionExpiredError):
        cluster.catch_up()
    cluster.session._session_id = cluster.server.open_session(cluster.watches.append)
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]


def test_no_change_is_missed_after_an_expired_session(cluster: ConfigReader):
    cluster.configure("topics/orders", UNCLEAN)
    cluster.server.expire(cluster.session.session_id)
    with pytest.raises(SessionExpiredError):
        cluster.catch_up()
    cluster.session._session_id = cluster.server.open_session(cluster.watches.append)
    assert cluster.catch_up() == [TopicUncleanLeaderElectionEnable("orders")]


def test_topics_with_changed_configurations_are_configured_once(cluster: ConfigReader):
    cluster.configure("topics/payments", {"retention.ms": "1"})
    cluster.configure("topics/orders", {})
    cluster.configure("clients/producer", {"producer_byte_rate": "1"})
    cluster.catch_up()
    cluster.catch_up()
    assert cluster.configs.logs.configured == [["orders", "payments"]]
    cluster.configure("topics/orders", {})
    cluster.configure("topics/payments", {"retention.ms": "2"})
    cluster.catch_up()
    assert cluster.configs.logs.configured[1:] == [["payments"]]


def test_only_logs_whose_configuration_changes_with_the_broker_are_configured(
    cluster: ConfigReader,
):
    cluster.configure("topics/payments", {"retention.ms": "1"})
    cluster.configure("topics/orders", {})
    cluster.catch_up()
    cluster.configure("brokers/1", {"log.retention.ms": "5"})
    cluster.catch_up()
    assert cluster.configs.logs.configured[1:] == [["orders"]]
    cluster.configure("brokers/1", {"log.retention.ms": "5", "max.connections": "5"})
    cluster.catch_up()
    assert len(cluster.configs.logs.configured) == 2


def test_changed_settings_of_this_broker_are_passed_on_with_their_values(cluster: ConfigReader):
    changes = cluster.configs.changes
    cluster.catch_up()
    assert changes == []
    cluster.configure("brokers/<default>", {"min.insync.replicas": "2", "log.retention.ms": "5"})
    cluster.configure("brokers/1", {"min.insync.replicas": "3"})
    cluster.configure("brokers/2", {"min.insync.replicas": "4"})
    cluster.catch_up()
    assert changes == [{"min.insync.replicas": 3, "log.retention.ms": 5}]
    cluster.configure("brokers/2", {})
    cluster.configure("brokers/1", {"min.insync.replicas": " 3 "})
    cluster.catch_up()
    assert len(changes) == 1, "the values are the same"
    cluster.configure("brokers/1", {})
    cluster.catch_up()
    assert changes[1:] == [{"min.insync.replicas": 2}]


class Part:
    """Follows two settings."""

    reconfigurable_configs: tuple[str, ...] = ("max.connections", "log.roll.ms")

    def __init__(self) -> None:
        self.changes: list[tuple[object, object]] = []

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Note the former and the present value of one of them."""
        self.changes.append((old["max.connections"], new["max.connections"]))


def test_a_part_is_told_only_of_changes_of_settings_that_it_has_named():
    part = Part()
    handler = BrokerConfigHandler(1, KAFKA_SETTINGS, STARTED, (part,))
    by_default = STARTED["max.connections"]
    handler.process({"brokers/1": {"max.connections": "5", "log.retention.ms": "7"}})
    handler.process({"brokers/1": {"max.connections": "5", "log.retention.ms": "8"}})
    handler.process({"brokers/<default>": {"max.connections": "4"}, "brokers/2": {}})
    handler.process({"brokers/1": {}})
    handler.process({"topics/t": {"retention.ms": "1"}})
    assert part.changes == [(by_default, 5), (5, 4)]


def test_keys_that_are_set_to_the_same_value_are_read_again():
    name = "listener.name.a.ssl.keystore.location"
    rows = {**KAFKA_SETTINGS, name: KAFKA_SETTINGS["ssl.keystore.location"]}
    part = Part()
    part.reconfigurable_configs = ("ssl.keystore.location",)
    handler = BrokerConfigHandler(1, rows, {**STARTED, name: ""}, (part,))
    for _ in range(2):
        handler.process({"brokers/1": {name: "/a.pem"}})
    handler.process({"brokers/<default>": {"max.connections": "4"}})
    handler.process({"brokers/1": {}})
    handler.process({"brokers/1": {}})
    assert len(part.changes) == 3


# --- quotas of clients ----------------------------------------------------------------------------

SLOW, FAST = {"producer_byte_rate": "5"}, {"producer_byte_rate": "50"}


def test_the_first_look_reads_all_quotas(cluster: ConfigReader):
    of_all = {
        "users/u": {"request_percentage": "5"},
        "users/u/clients/c": SLOW,
        "clients/<default>": FAST,
        "ips/127.0.0.1": {"connection_creation_rate": "5"},
    }
    for path, config in of_all.items():
        cluster.server.put(f"/config/{path}", ConfigEntityZNode.encode(config))
    assert cluster.quotas() == of_all
    assert cluster.quotas() is None


def test_a_change_replaces_the_quotas_of_its_entity(cluster: ConfigReader):
    cluster.configure("clients/a", SLOW)
    cluster.configure("clients/b", SLOW)
    assert cluster.quotas() == {"clients/a": SLOW, "clients/b": SLOW}
    cluster.configure("clients/b", FAST)
    cluster.configure("users/u/clients/b", FAST)
    assert cluster.quotas() == {
        "clients/a": SLOW,
        "clients/b": FAST,
        "users/u/clients/b": FAST,
    }


def test_a_deleted_quota_is_no_limit_and_an_unreadable_one_holds(cluster: ConfigReader):
    cluster.configure("clients/a", SLOW)
    cluster.configure("clients/b", SLOW)
    cluster.catch_up()
    cluster.server.remove("/config/clients/a")
    cluster.server.put("/config/clients/b", b"garbage")
    for entity in ("clients/a", "clients/b"):
        cluster.notify(ConfigEntityChangeNotificationSequenceZNode.encode(entity))
    assert cluster.quotas() == {"clients/b": SLOW}


# --- what cannot be read ---

KEPT = {"retention.ms": "-1", "cleanup.policy": "compact"}
PATH = "/config/topics/orders"


def hide(server: FakeZooKeeperServer) -> None:
    server.deny(PATH)


def damage(server: FakeZooKeeperServer) -> None:
    server.put(PATH, b'{"version":1,"config":{"retention.ms":-1}}')


@pytest.mark.parametrize("spoil", [hide, damage])
def test_what_was_known_of_a_topic_holds_while_it_cannot_be_read(
    cluster: ConfigReader, spoil: Callable[[FakeZooKeeperServer], None]
):
    cluster.configure("topics/orders", KEPT)
    cluster.catch_up()
    known = cluster.configs.log_config("orders")
    spoil(cluster.server)
    cluster.notify(ConfigEntityChangeNotificationSequenceZNode.encode("topics/orders"))
    cluster.catch_up()
    cluster.configs.manager.load(["orders"])
    assert cluster.configs.log_config("orders") == known


@pytest.mark.parametrize("spoil", [hide, damage])
def test_nothing_is_deleted_of_a_topic_that_could_never_be_read_and_its_repair_is_noticed(
    cluster: ConfigReader, spoil: Callable[[FakeZooKeeperServer], None]
):
    """A change of an ACL fires no watch, and brings no notification."""
    cluster.server.put(PATH, ConfigEntityZNode.encode(KEPT))
    spoil(cluster.server)
    cluster.configs.manager.load(["orders", "others"])
    config = cluster.configs.log_config("orders")
    assert (config.retention_ms, config.retention_bytes, config.is_compacted) == (-1, -1, False)
    assert cluster.configs.log_config("others").retention_ms > 0
    assert cluster.configs.manager.unreadable == {"topics/orders"}
    cluster.server.allow(PATH)
    cluster.server.put(PATH, ConfigEntityZNode.encode(KEPT))
    cluster.catch_up()
    assert cluster.configs.log_config("orders").is_compacted
    assert not cluster.configs.manager.unreadable


def test_settings_of_brokers_hold_while_they_cannot_be_read(cluster: ConfigReader):
    cluster.configure("brokers/<default>", UNCLEAN)
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(True)]
    cluster.server.put("/config/brokers/<default>", b"garbage")
    cluster.notify(ConfigEntityChangeNotificationSequenceZNode.encode("brokers/<default>"))
    assert cluster.catch_up() == []
    cluster.configure("brokers/<default>", {})
    assert cluster.catch_up() == [UncleanLeaderElectionEnable(False)]


def test_after_missed_notifications_all_quotas_are_read(cluster: ConfigReader):
    cluster.configure("clients/a", SLOW)
    cluster.catch_up()
    cluster.configure("clients/a", FAST)
    *_, change = sorted(cluster.tool.children("/config/changes") or ())
    cluster.configure("topics/t", {})
    cluster.server.remove(f"/config/changes/{change}")
    assert cluster.quotas() == {"clients/a": FAST}
