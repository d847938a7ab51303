"""That a log directory has failed is told until it has been told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pykka import ActorRef

from regent.actors.log_dir_event_notifier import DirectoryFailed, LogDirEventNotifier, SessionBegun
from regent.actors.runtime import start_actor, stop_actor
from regent.zk.stores.controller_store import ZkControllerStore
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.stage import TIMEOUT_S, ask
from tests.support.term import KeptSession

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
    ref = start_actor(LogDirEventNotifier, TIMEOUT_S, BROKER_ID, session)
    yield ref
    stop_actor(ref, TIMEOUT_S)


def told(server: FakeZooKeeperServer) -> list[int]:
    """What a controller reads."""
    return list(ZkControllerStore(FakeZooKeeper(server)).read_log_dir_events().values())


def test_the_controller_is_told_of_each_failure(
    server: FakeZooKeeperServer, notifier: ActorRef[LogDirEventNotifier]
) -> None:
    ask(notifier, SessionBegun())
    assert told(server) == []
    ask(notifier, DirectoryFailed())
    ask(notifier, SessionBegun())
    assert told(server) == [BROKER_ID]
    ask(notifier, DirectoryFailed())
    assert told(server) == [BROKER_ID, BROKER_ID]


def test_between_sessions_it_waits_for_the_next_one(
    server: FakeZooKeeperServer,
    session: KeptSession,
    notifier: ActorRef[LogDirEventNotifier],
) -> None:
    server.expire(session.session_id)
    ask(notifier, DirectoryFailed())
    ask(notifier, SessionBegun())
    assert told(server) == []
    session.renew(lambda _: None)
    ask(notifier, SessionBegun())
    ask(notifier, SessionBegun())
    assert told(server) == [BROKER_ID]


def test_a_zookeeper_that_does_not_want_it_is_asked_again(
    server: FakeZooKeeperServer, notifier: ActorRef[LogDirEventNotifier]
) -> None:
    server.remove("/log_dir_event_notification")
    ask(notifier, DirectoryFailed())
    server.put("/log_dir_event_notification")
    ask(notifier, SessionBegun())
    assert told(server) == [BROKER_ID]
