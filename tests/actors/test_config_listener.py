"""The configuration listener: changes of brokers and topics reach the controller and the logs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pykka import ActorRef

from regent.actors.config_listener import CatchUp, ConfigListener, ConfigsChanged
from regent.actors.runtime import start_actor, stop_actor
from regent.core.controller.events import TopicUncleanLeaderElectionEnable
from regent.core.errors import SessionExpiredError
from regent.core.log_config import DEFAULT_LOG_CONFIG
from regent.core.model import TopicPartition
from tests.support.fake_zookeeper import Call, FakeZooKeeper, FakeZooKeeperServer, Moment
from tests.support.followed_configs import STARTED, FollowedConfigs, configure
from tests.support.stage import TIMEOUT_S, ask
from tests.support.world import KeptSession

UNCLEAN = {"unclean.leader.election.enable": "true"}


class Listening:
    """A listener over a session, and what it tells others."""

    def __init__(self, server: FakeZooKeeperServer) -> None:
        self.session = KeptSession(server)
        self.configs = FollowedConfigs(self.session)
        self.ref: ActorRef[ConfigListener] = start_actor(
            ConfigListener, "config-listener-1", self.configs.manager
        )

    def retention_ms(self, topic: str) -> int:
        return self.configs.log_config(topic).retention_ms


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/config/changes")
    return server


@pytest.fixture
def listener(server: FakeZooKeeperServer) -> Iterator[Listening]:
    listening = Listening(server)
    yield listening
    stop_actor(listening.ref, TIMEOUT_S)


def allow_unclean_elections(server: FakeZooKeeperServer, topic: str) -> None:
    configure(server, f"topics/{topic}", UNCLEAN, 7)


def test_a_change_is_sent_to_the_controller_once(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    allow_unclean_elections(server, "orders")
    ask(ref, ConfigsChanged())
    ask(ref, ConfigsChanged())
    assert listener.configs.events == [TopicUncleanLeaderElectionEnable("orders")]


def test_without_a_session_the_listener_reads_nothing_and_stays_alive(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref, session = listener.ref, listener.session
    allow_unclean_elections(server, "orders")
    server.expire(session.session_id)
    ask(ref, ConfigsChanged())
    assert listener.configs.events == []
    assert ref.is_alive()


def test_logs_use_the_configuration_of_their_topic(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    configure(server, "topics/orders", {"retention.ms": "5"})
    ask(ref, ConfigsChanged())
    assert listener.retention_ms("orders") == 5
    configure(server, "topics/orders", {}, number=8)
    ask(ref, ConfigsChanged())
    assert listener.retention_ms("orders") == DEFAULT_LOG_CONFIG.retention_ms


def test_logs_use_the_configuration_of_their_broker_unless_the_topic_overrides_it(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    configure(server, "topics/orders", {"retention.ms": "5"}, number=1)
    configure(server, "topics/payments", {}, number=2)
    configure(server, "brokers/<default>", {"log.retention.ms": "77"}, number=3)
    ask(ref, ConfigsChanged())
    assert [listener.retention_ms(topic) for topic in ("orders", "payments")] == [5, 77]
    configure(server, "brokers/1", {"log.retention.ms": "88"}, number=4)
    ask(ref, ConfigsChanged())
    assert [listener.retention_ms(topic) for topic in ("orders", "payments")] == [5, 88]


def test_the_settings_of_the_broker_are_passed_on_and_invalid_ones_are_ignored(
    server: FakeZooKeeperServer,
    listener: Listening,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ref = listener.ref
    invalid = {"log.retention.ms": "soon", "num.partitions": "4"}
    configure(server, "brokers/<default>", {"log.retention.ms": "77"}, number=1)
    configure(server, "brokers/1", {"max.connections": "5", **invalid}, number=2)
    ask(ref, ConfigsChanged())
    heard = listener.configs.changes
    assert heard == [{"log.retention.ms": 77, "max.connections": 5}]
    assert listener.retention_ms("unknown") == 77
    assert "brokers/1: the setting log.retention.ms must be a number" in caplog.text
    assert "the setting num.partitions cannot be changed while the broker runs" in caplog.text
    configure(server, "brokers/1", {}, number=3)
    ask(ref, ConfigsChanged())
    assert heard[1:] == [{"max.connections": STARTED["max.connections"]}]


def test_each_setting_that_cannot_be_used_is_named_once(
    server: FakeZooKeeperServer,
    listener: Listening,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As old versions, people and other tools leave them in ZooKeeper."""
    ref = listener.ref
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
    assert listener.retention_ms("orders") == 5
    configure(server, "topics/orders", {**bad, "retention.ms": "6"}, number=4)
    configure(server, "clients/app", {**quotas, "consumer_byte_rate": "1"}, number=5)
    assert told() == []
    configure(server, "topics/orders", {"segment.ms": "worse"}, number=6)
    assert told() == ["topics/orders: the setting segment.ms"]
    configure(server, "topics/orders", {}, number=7)
    configure(server, "topics/orders", {"segment.ms": "worse"}, number=8)
    assert told() == []  # both changes were read at once
    assert len(listener.configs.client_quotas) == 2


def test_all_topics_are_read_again_after_unread_notifications_were_deleted(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    configure(server, "topics/orders", {"retention.ms": "5"}, number=0)
    ask(ref, ConfigsChanged())
    configure(server, "topics/orders", {"retention.ms": "6"}, number=1)
    server.remove("/config/changes/config_change_0000000001")
    configure(server, "topics/payments", {}, number=2)
    ask(ref, ConfigsChanged())
    assert listener.retention_ms("orders") == 6


@pytest.mark.parametrize("method", ["children", "get_many", "children_many"])
def test_a_change_that_could_not_be_read_is_read_in_the_next_session(
    server: FakeZooKeeperServer, listener: Listening, method: str
) -> None:
    """``get_many``: the read of configurations, after that of the notifications."""
    ref, session, configs = listener.ref, listener.session, listener.configs
    configure(server, "topics/orders", {"retention.ms": "5", **UNCLEAN}, number=1)
    configure(server, "brokers/1", {"log.retention.ms": "7"}, number=2)
    reads = iter(range(10))

    def expire(call: Call) -> None:
        is_read = (call.method, call.moment) == (method, Moment.BEFORE)
        if is_read and next(reads) == (method == "get_many"):
            server.expire(session.session_id)

    session.hook = expire
    ask(ref, ConfigsChanged())
    assert [*configs.events, *configs.changes, *configs.logs.configured] == []
    session.hook = None
    session.renew(lambda _: None)
    ask(ref, ConfigsChanged())
    assert configs.events == [TopicUncleanLeaderElectionEnable("orders")]
    assert configs.changes == [{"log.retention.ms": 7}]
    assert listener.retention_ms("orders") == 5


def test_a_throttle_holds_until_it_is_removed(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    topic_partition = TopicPartition("orders", 0)
    configure(server, "brokers/1", {"follower.replication.throttled.rate": "1000"}, number=1)
    replicas = {"follower.replication.throttled.replicas": "0:1,0:2"}
    configure(server, "topics/orders", replicas, number=2)
    ask(ref, ConfigsChanged())
    assert listener.configs.throttles.follower.is_throttled(topic_partition)
    assert not listener.configs.throttles.leader.is_throttled(topic_partition)
    configure(server, "topics/orders", {}, number=3)
    ask(ref, ConfigsChanged())
    assert not listener.configs.throttles.follower.is_throttled(topic_partition)


def test_catch_up_reads_after_a_sync_and_returns_when_the_throttle_is_in_force(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref, session = listener.ref, listener.session
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
    assert listener.configs.throttles.leader.is_throttled(TopicPartition("orders", 0))
    assert calls[:2] == ["sync", "children"]
    assert calls.count("get_many") == 2, "notifications, configurations"


def test_catch_up_fails_without_a_session(server: FakeZooKeeperServer, listener: Listening) -> None:
    ref, session = listener.ref, listener.session
    server.expire(session.session_id)
    with pytest.raises(SessionExpiredError):
        ask(ref, CatchUp())
    session.renew(lambda _: None)
    assert ask(ref, CatchUp()) is None


def test_notifications_that_cannot_be_read_do_not_block_catch_up(
    server: FakeZooKeeperServer, listener: Listening
) -> None:
    ref = listener.ref
    server.deny("/config/changes")
    assert ask(ref, CatchUp()) is None


def test_topics_are_loaded_in_one_read_and_have_defaults_without_a_configuration(
    server: FakeZooKeeperServer,
) -> None:
    configure(server, "topics/orders", {"retention.ms": "5"})
    session = FakeZooKeeper(server)
    calls: list[str] = []
    session.hook = lambda call: calls.append(call.method)
    configs = FollowedConfigs(session, {**STARTED, "log.retention.ms": 9})
    configs.manager.load(["orders", "payments"])
    configs.manager.load([])
    assert set(calls) == {"get_many"}
    assert [configs.log_config(t).retention_ms for t in ("orders", "payments")] == [5, 9]


def test_changed_quotas_reach_the_listener(server: FakeZooKeeperServer, listener: Listening):
    ref = listener.ref
    ask(ref, ConfigsChanged())
    assert listener.configs.client_quotas == [{}]
    configure(server, "users/<default>/clients/c", {"request_percentage": "5"})
    ask(ref, ConfigsChanged())
    ask(ref, ConfigsChanged())
    quotas = listener.configs.client_quotas[-1]
    assert quotas["users/<default>/clients/c"] == {"request_percentage": "5"}
