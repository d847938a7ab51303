"""The configuration listener: changes of brokers and topics reach the controller and the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import pytest
from pykka import ActorRef

from regent.actors.config_listener import (
    CatchUp,
    ConfigListener,
    ConfigsChanged,
    start_config_listener,
)
from regent.actors.runtime import stop_actor
from regent.actors.topic_configs import TopicConfigs
from regent.broker.broker_settings import broker_settings
from regent.config.settings import Settings
from regent.config.tables.controller import ControllerConfig
from regent.core.controller.events import ControllerEvent, TopicUncleanLeaderElectionEnable
from regent.core.errors import SessionExpiredError
from regent.core.log_config import DEFAULT_LOG_CONFIG, LogConfig
from regent.core.model import TopicPartition
from regent.core.replication.replication_quota import ReplicationQuotas
from regent.zk.stores.config_store import ZkConfigStore
from regent.zk.znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment
from tests.support.memory_logs import MemoryLogs
from tests.support.stage import TIMEOUT_S, ask
from tests.support.world import KeptSession

UNCLEAN = {"unclean.leader.election.enable": "true"}

ClientQuotas: TypeAlias = Mapping[str, Mapping[str, str]]
Listening: TypeAlias = tuple[ActorRef[ConfigListener], KeptSession]


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/config/changes")
    return server


@pytest.fixture
def sent() -> list[ControllerEvent]:
    return []


@pytest.fixture
def logs() -> MemoryLogs:
    return MemoryLogs()


@pytest.fixture
def quotas() -> ReplicationQuotas:
    return ReplicationQuotas(1)


@pytest.fixture
def heard() -> list[Mapping[str, str]]:
    return []


@pytest.fixture
def client_quotas() -> list[ClientQuotas]:
    return []


@pytest.fixture
def listener(
    server: FakeZooKeeperServer,
    sent: list[ControllerEvent],
    logs: MemoryLogs,
    quotas: ReplicationQuotas,
    heard: list[Mapping[str, str]],
    client_quotas: list[ClientQuotas],
) -> Iterator[Listening]:
    session = KeptSession(server)
    configs = TopicConfigs(logs, quotas, ZkConfigStore(session), DEFAULT_LOG_CONFIG)
    ref = start_config_listener(
        1,
        session,
        ControllerConfig(),
        sent.append,
        configs,
        heard.append,
        client_quotas.append,
        broker_settings(Settings(), 1),
    )
    yield ref, session
    stop_actor(ref, TIMEOUT_S)


def configure(
    server: FakeZooKeeperServer, entity: str, config: dict[str, str], number: int = 7
) -> None:
    """Change a configuration as Kafka's tools do."""
    entity_type, _, name = entity.partition("/")
    server.put(ConfigEntityZNode.path(entity_type, name), ConfigEntityZNode.encode(config))
    notification = ConfigEntityChangeNotificationSequenceZNode.encode(entity)
    prefix = ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX
    server.put(f"{prefix}{number:010d}", notification)


def allow_unclean_elections(server: FakeZooKeeperServer, topic: str) -> None:
    configure(server, f"topics/{topic}", UNCLEAN)


def retention_ms(logs: MemoryLogs, topic: str) -> int:
    return logs.get_or_create(TopicPartition(topic, 0), None, is_new=True).config.retention_ms


def test_a_change_is_sent_to_the_controller_once(
    server: FakeZooKeeperServer, sent: list[ControllerEvent], listener: Listening
) -> None:
    ref, _ = listener
    allow_unclean_elections(server, "orders")
    ask(ref, ConfigsChanged())
    ask(ref, ConfigsChanged())
    assert sent == [TopicUncleanLeaderElectionEnable("orders")]


def test_without_a_session_the_listener_reads_nothing_and_stays_alive(
    server: FakeZooKeeperServer, sent: list[ControllerEvent], listener: Listening
) -> None:
    ref, session = listener
    allow_unclean_elections(server, "orders")
    server.expire(session.session_id)
    ask(ref, ConfigsChanged())
    assert sent == []
    assert ref.is_alive()


def test_logs_use_the_configuration_of_their_topic(
    server: FakeZooKeeperServer, logs: MemoryLogs, listener: Listening
) -> None:
    ref, _ = listener
    configure(server, "topics/orders", {"retention.ms": "5"})
    ask(ref, ConfigsChanged())
    assert retention_ms(logs, "orders") == 5
    configure(server, "topics/orders", {}, number=8)
    ask(ref, ConfigsChanged())
    assert retention_ms(logs, "orders") == DEFAULT_LOG_CONFIG.retention_ms


def test_logs_use_the_configuration_of_their_broker_unless_the_topic_overrides_it(
    server: FakeZooKeeperServer, logs: MemoryLogs, listener: Listening
) -> None:
    ref, _ = listener
    configure(server, "topics/orders", {"retention.ms": "5"}, number=1)
    configure(server, "topics/payments", {}, number=2)
    configure(server, "brokers/<default>", {"log.retention.ms": "77"}, number=3)
    ask(ref, ConfigsChanged())
    assert [retention_ms(logs, topic) for topic in ("orders", "payments")] == [5, 77]
    configure(server, "brokers/1", {"log.retention.ms": "88"}, number=4)
    ask(ref, ConfigsChanged())
    assert [retention_ms(logs, topic) for topic in ("orders", "payments")] == [5, 88]


def test_the_settings_of_the_broker_are_passed_on_and_invalid_ones_are_ignored(
    server: FakeZooKeeperServer,
    heard: list[Mapping[str, str]],
    logs: MemoryLogs,
    listener: Listening,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ref, _ = listener
    invalid = {"log.retention.ms": "soon", "num.partitions": "4"}
    configure(server, "brokers/<default>", {"log.retention.ms": "77"}, number=1)
    configure(server, "brokers/1", {"max.connections": "5", **invalid}, number=2)
    ask(ref, ConfigsChanged())
    assert heard == [{"log.retention.ms": "77", "max.connections": "5"}]
    assert retention_ms(logs, "unknown") == 77
    assert "brokers/1: the setting log.retention.ms must be a number" in caplog.text
    assert "the setting num.partitions cannot be changed while the broker runs" in caplog.text
    configure(server, "brokers/1", {}, number=3)
    ask(ref, ConfigsChanged())
    assert heard[1:] == [{"log.retention.ms": "77"}]


def test_each_setting_that_cannot_be_used_is_named_once(
    server: FakeZooKeeperServer,
    logs: MemoryLogs,
    listener: Listening,
    client_quotas: list[ClientQuotas],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As old versions, people and other tools leave them in ZooKeeper."""
    ref, _ = listener
    bad = {"segment.ms": "bad", "no.such.setting": "x", "retention.ms": "5"}
    brokers = {"log.roll.ms": "soon", "my.plugin.url": "x", "num.io.threads": "16"}
    quotas = {"producer_byte_rate": "much", "bogus": "1"}

    def told() -> list[str]:
        ask(ref, ConfigsChanged())
        lines = [r.getMessage() for r in caplog.records if "it is ignored" in r.getMessage()]
        caplog.clear()
        return sorted(line.partition(" must")[0].partition(" is not")[0] for line in lines)

    configure(server, "topics/orders", bad, number=1)
    configure(server, "brokers/<default>", brokers, number=2)
    configure(server, "clients/app", quotas, number=3)
    assert told() == [
        "brokers/<default>: the setting log.roll.ms",
        "clients/app: the setting bogus",
        "clients/app: the setting producer_byte_rate",
        "topics/orders: the setting no.such.setting",
        "topics/orders: the setting segment.ms",
    ]
    assert retention_ms(logs, "orders") == 5
    configure(server, "topics/orders", {**bad, "retention.ms": "6"}, number=4)
    configure(server, "clients/app", {**quotas, "consumer_byte_rate": "1"}, number=5)
    assert told() == []
    configure(server, "topics/orders", {"segment.ms": "worse"}, number=6)
    assert told() == ["topics/orders: the setting segment.ms"]
    configure(server, "topics/orders", {}, number=7)
    configure(server, "topics/orders", {"segment.ms": "worse"}, number=8)
    assert told() == []  # both changes were read at once
    assert len(client_quotas) == 2


def test_all_topics_are_read_again_after_unread_notifications_were_deleted(
    server: FakeZooKeeperServer, logs: MemoryLogs, listener: Listening
) -> None:
    ref, _ = listener
    configure(server, "topics/orders", {"retention.ms": "5"}, number=0)
    ask(ref, ConfigsChanged())
    configure(server, "topics/orders", {"retention.ms": "6"}, number=1)
    server.remove("/config/changes/config_change_0000000001")
    configure(server, "topics/payments", {}, number=2)
    ask(ref, ConfigsChanged())
    assert retention_ms(logs, "orders") == 6


def test_a_change_that_could_not_be_read_is_read_in_the_next_session(
    server: FakeZooKeeperServer,
    sent: list[ControllerEvent],
    logs: MemoryLogs,
    listener: Listening,
) -> None:
    ref, session = listener
    configure(server, "topics/orders", {"retention.ms": "5", **UNCLEAN})
    reads = iter(range(10))

    def expire_before_the_logs_are_configured(call: Call) -> None:
        is_read = call.method == "get_many" and call.moment is Moment.BEFORE
        if is_read and next(reads) == 2:  # after the reads of notifications and configurations
            server.expire(session.session_id)

    session.hook = expire_before_the_logs_are_configured
    ask(ref, ConfigsChanged())
    assert sent == [TopicUncleanLeaderElectionEnable("orders")]
    assert retention_ms(logs, "orders") == DEFAULT_LOG_CONFIG.retention_ms
    session.hook = None
    session.renew(lambda _: None)
    ask(ref, ConfigsChanged())
    assert sent == [TopicUncleanLeaderElectionEnable("orders")]
    assert retention_ms(logs, "orders") == 5


def test_a_throttle_holds_until_it_is_removed(
    server: FakeZooKeeperServer, listener: Listening, quotas: ReplicationQuotas
) -> None:
    ref, _ = listener
    topic_partition = TopicPartition("orders", 0)
    configure(server, "brokers/1", {"follower.replication.throttled.rate": "1000"}, number=1)
    replicas = {"follower.replication.throttled.replicas": "0:1,0:2"}
    configure(server, "topics/orders", replicas, number=2)
    ask(ref, ConfigsChanged())
    assert quotas.follower.is_throttled(topic_partition)
    assert not quotas.leader.is_throttled(topic_partition)
    configure(server, "topics/orders", {}, number=3)
    ask(ref, ConfigsChanged())
    assert not quotas.follower.is_throttled(topic_partition)


def test_catch_up_reads_after_a_sync_and_returns_when_the_throttle_is_in_force(
    server: FakeZooKeeperServer, listener: Listening, quotas: ReplicationQuotas
) -> None:
    ref, session = listener
    ask(ref, ConfigsChanged())
    calls: list[str] = []

    def change_before_the_sync(call: Call) -> None:
        if call.moment is Moment.BEFORE:
            calls.append(call.method)
        if call == Call(Moment.BEFORE, "sync", ("/",)):
            configure(server, "brokers/1", {"leader.replication.throttled.rate": "9"}, number=1)
            replicas = {"leader.replication.throttled.replicas": "*"}
            configure(server, "topics/orders", replicas, number=2)

    session.hook = change_before_the_sync
    ask(ref, CatchUp())
    assert quotas.leader.is_throttled(TopicPartition("orders", 0))
    assert calls[:2] == ["sync", "children"]
    assert calls.count("get_many") == 3, "notifications, configurations, topics of logs"


def test_catch_up_fails_without_a_session(server: FakeZooKeeperServer, listener: Listening) -> None:
    ref, session = listener
    server.expire(session.session_id)
    with pytest.raises(SessionExpiredError):
        ask(ref, CatchUp())
    session.renew(lambda _: None)
    assert ask(ref, CatchUp()) is None


def test_notifications_that_cannot_be_read_do_not_block_catch_up(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref, _ = listener
    server.deny("/config/changes")
    assert ask(ref, CatchUp()) is None


def test_topics_are_loaded_in_one_read_and_have_defaults_without_a_configuration(
    server: FakeZooKeeperServer,
) -> None:
    configure(server, "topics/orders", {"retention.ms": "5"})
    logs, session = MemoryLogs(), FakeZooKeeper(server)
    calls: list[str] = []
    session.hook = lambda call: calls.append(call.method)
    configs = TopicConfigs(
        logs, ReplicationQuotas(1), ZkConfigStore(session), LogConfig(retention_ms=9)
    )
    configs.load(["orders", "payments"])
    configs.load([])
    assert set(calls) == {"get_many"}
    assert [retention_ms(logs, topic) for topic in ("orders", "payments")] == [5, 9]


def test_changed_quotas_reach_the_listener(
    server: FakeZooKeeperServer, listener: Listening, client_quotas: list[ClientQuotas]
):
    ref, _ = listener
    ask(ref, ConfigsChanged())
    assert client_quotas == []
    configure(server, "users/<default>/clients/c", {"request_percentage": "5"})
    ask(ref, ConfigsChanged())
    ask(ref, ConfigsChanged())
    (quotas,) = client_quotas
    assert quotas["users/<default>/clients/c"] == {"request_percentage": "5"}
