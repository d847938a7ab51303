"""The listener as an actor: what it learns it tells the controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest
from pykka import ActorRef

from actors.config_listener import ConfigListener, ConfigsChanged, start_config_listener
from actors.runtime import stop_actor
from config.settings import ControllerConfig
from core.controller.events import ControllerEvent, TopicUncleanLeaderElectionEnable
from tests.support.fake_zookeeper import FakeZooKeeper, FakeZooKeeperServer
from tests.support.stage import TIMEOUT_S, ask
from zk.admin_znodes import ConfigEntityChangeNotificationSequenceZNode, ConfigEntityZNode

Listening: TypeAlias = tuple[ActorRef[ConfigListener], FakeZooKeeper]


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    server.put("/config/changes")
    return server


@pytest.fixture
def told() -> list[ControllerEvent]:
    return []


@pytest.fixture
def listener(server: FakeZooKeeperServer, told: list[ControllerEvent]) -> Iterator[Listening]:
    session = FakeZooKeeper(server)
    ref = start_config_listener(1, session, ControllerConfig(), told.append)
    yield ref, session
    stop_actor(ref, TIMEOUT_S)


def allow_unclean_elections(server: FakeZooKeeperServer, topic: str) -> None:
    config = ConfigEntityZNode.encode({"unclean.leader.election.enable": "true"})
    server.put(ConfigEntityZNode.path("topics", topic), config)
    notification = ConfigEntityChangeNotificationSequenceZNode.encode(f"topics/{topic}")
    server.put(ConfigEntityChangeNotificationSequenceZNode.PATH_PREFIX + "0000000007", notification)


def test_what_the_listener_learns_it_tells_the_controller_once(
    server: FakeZooKeeperServer, told: list[ControllerEvent], listener: Listening
) -> None:
    ref, _ = listener
    allow_unclean_elections(server, "orders")
    ask(ref, ConfigsChanged())
    ask(ref, ConfigsChanged())
    assert told == [TopicUncleanLeaderElectionEnable("orders")]


def test_between_sessions_the_listener_learns_nothing_and_lives(
    server: FakeZooKeeperServer, told: list[ControllerEvent], listener: Listening
) -> None:
    ref, session = listener
    allow_unclean_elections(server, "orders")
    server.expire(session.session_id)
    ask(ref, ConfigsChanged())
    assert told == []
    assert ref.is_alive()
