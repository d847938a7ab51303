"""Failed log directories are notified until the notification succeeds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pykka import ActorRef

from regent.actors.log_dir_event_notifier import DirectoryFailed, LogDirEventNotifier, SessionBegun
from regent.actors.runtime import start_actor, stop_actor
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.stage import TIMEOUT_S, ask
from tests.support.world import KeptSession

BROKER_ID = 3


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/log_dir_event_notification")
    return server


@pytest.fixture
def session(server: FakeZooKeeperServer) -> KeptSession:
    return KeptSession(server)


@pytest.fixture
def notifier(session: KeptSession) -> Iterator[ActorRef[LogDirEventNotifier]]:
    ref = start_actor(LogDirEventNotifier, BROKER_ID, session)
    yield ref
    stop_actor(ref, TIMEOUT_S)


def notified(server: FakeZooKeeperServer) -> list[int]:
    """Return the notifications that a controller reads."""
    return list(ZkControllerStore(FakeZooKeeper(server)).read_log_dir_events().values())


def test_each_failure_is_notified_once(
    server: FakeZooKeeperServer, notifier: ActorRef[LogDirEventNotifier]
) -> None:
    ask(notifier, SessionBegun())
    assert notified(server) == []
    ask(notifier, DirectoryFailed())
    ask(notifier, SessionBegun())
    assert notified(server) == [BROKER_ID]
    ask(notifier, DirectoryFailed())
    assert notified(server) == [BROKER_ID, BROKER_ID]


def test_without_a_session_the_notification_waits_for_the_next_one(
    server: FakeZooKeeperServer,
    session: KeptSession,
    notifier: ActorRef[LogDirEventNotifier],
) -> None:
    server.expire(session.session_id)
    ask(notifier, DirectoryFailed())
    ask(notifier, SessionBegun())
    assert notified(server) == []
    session.renew(lambda _: None)
    ask(notifier, SessionBegun())
    ask(notifier, SessionBegun())
    assert notified(server) == [BROKER_ID]


def test_a_refused_notification_is_tried_again(
    server: FakeZooKeeperServer, notifier: ActorRef[LogDirEventNotifier]
) -> None:
    server.remove("/log_dir_event_notification")
    ask(notifier, DirectoryFailed())
    server.put("/log_dir_event_notification")
    ask(notifier, SessionBegun())
    assert notified(server) == [BROKER_ID]
