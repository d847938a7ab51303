"""A watch fires once: whatever the controller does about an event, it must set the watch again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from regent.core.controller.events import (
    BrokerChange,
    ControllerEvent,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    PreferredReplicaElection,
    TopicChange,
    TopicDeletion,
    ZkPartitionReassignment,
)
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.znodes import PreferredReplicaElectionZNode, ReassignPartitionsZNode
from tests.support.controller_parts import Candidate, ControllerParts
from tests.support.world import World, topic_id

REQUESTS = "/admin/delete_topics"
T0 = TopicPartition("t", 0)


@pytest.fixture
def world() -> World:
    world = World(brokers=(2, 3))
    world.put_topic("t", {0: (2, 3), 1: (3, 2)}, topic_id(1))
    return world


def restart_broker(world: World, number: int) -> None:
    world.restart(2 + number % 2)


def put_topic(world: World, number: int) -> None:
    world.put_topic(f"new-{number}", {0: (2, 3)}, topic_id(10 + number))


def grow(world: World, number: int) -> None:
    world.put_topic("t", dict.fromkeys(range(3 + number), (2, 3)), topic_id(1))


def request_deletion(world: World, number: int) -> None:
    world.zookeeper.put(f"{REQUESTS}/unknown-{number}")


def notify_isr_change(world: World, number: int) -> None:
    data = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    world.zookeeper.put(f"/isr_change_notification/isr_change_{number:010d}", data)


def notify_log_dir_event(world: World, number: int) -> None:
    path = f"/log_dir_event_notification/log_dir_event_{number:010d}"
    world.zookeeper.put(path, b'{"version":1,"broker":2,"event":1}')


def request_election(world: World, number: int) -> None:
    path = PreferredReplicaElectionZNode.PATH
    world.zookeeper.put(path, PreferredReplicaElectionZNode.encode([T0]))


def request_reassignment(world: World, number: int) -> None:
    data = ReassignPartitionsZNode.encode({TopicPartition("unknown", number): (2, 3)})
    world.zookeeper.put(ReassignPartitionsZNode.PATH, data)


@pytest.mark.parametrize(
    ("change", "event"),
    [
        (restart_broker, BrokerChange()),
        (put_topic, TopicChange()),
        (grow, PartitionModifications("t")),
        (request_deletion, TopicDeletion()),
        (notify_isr_change, IsrChangeNotification()),
        (notify_log_dir_event, LogDirEventNotification()),
        (request_election, PreferredReplicaElection()),
        (request_reassignment, ZkPartitionReassignment()),
    ],
)
def test_every_later_change_is_noticed_too(
    world: World, change: Callable[[World, int], None], event: ControllerEvent
) -> None:
    candidate = Candidate(world, 1)
    candidate.start()
    candidate.catch_up()
    for number in range(3):
        change(world, number)
        assert event in candidate.inbox, number
        candidate.catch_up()


# --- requests for the deletion of topics ----------------------------------------------------------


def at_the_start_of_a_term(parts: ControllerParts) -> None:
    parts.deletions.load()


def request_deletion_of(parts: ControllerParts, topic: str) -> None:
    parts.zookeeper.put(f"{REQUESTS}/{topic}")
    settle(parts)


def when_an_unknown_topic_was_deleted(parts: ControllerParts) -> None:
    request_deletion_of(parts, "unknown")


def while_a_topic_is_deleted(parts: ControllerParts) -> None:
    request_deletion_of(parts, "t")


def when_a_topic_was_deleted(parts: ControllerParts) -> None:
    request_deletion_of(parts, "t")
    for broker_id in (2, 3):
        deleted = {T0: Errors.NONE, TopicPartition("t", 1): Errors.NONE}
        parts.deletions.on_stop_replica_response(broker_id, deleted)
    assert "/brokers/topics/t" not in parts.zookeeper.snapshot()
    settle(parts)


def when_a_replica_could_not_be_deleted(parts: ControllerParts) -> None:
    request_deletion_of(parts, "t")
    parts.deletions.on_stop_replica_response(2, {T0: Errors.KAFKA_STORAGE_ERROR})
    parts.watches.clear()
    parts.deletions.on_topic_deletion()  # the scheduled one


def when_the_list_cannot_be_read(parts: ControllerParts) -> None:
    parts.zookeeper.deny(REQUESTS)
    parts.deletions.on_topic_deletion()
    parts.zookeeper.allow(REQUESTS)
    parts.deletions.on_topic_deletion()


def when_the_list_was_absent(parts: ControllerParts) -> None:
    parts.zookeeper.remove(REQUESTS)
    settle(parts)
    parts.zookeeper.put(REQUESTS)
    settle(parts)


def when_a_topic_is_unusable(parts: ControllerParts) -> None:
    parts.zookeeper.put("/brokers/topics/bad", b"garbage")
    parts.topics.on_topic_change()
    request_deletion_of(parts, "bad")


def settle(parts: ControllerParts) -> None:
    """Handle the watches on the list until none fires any more."""
    for _ in range(10):
        fired = [watch for watch in parts.watches if watch.path == REQUESTS]
        parts.watches.clear()
        if not fired:
            return
        parts.deletions.on_topic_deletion()
    raise AssertionError("the watches fire again and again")


ALWAYS = [
    at_the_start_of_a_term,
    when_an_unknown_topic_was_deleted,
    while_a_topic_is_deleted,
    when_the_list_cannot_be_read,
    when_the_list_was_absent,
    when_a_topic_is_unusable,
]
IF_ENABLED = [when_a_topic_was_deleted, when_a_replica_could_not_be_deleted]


@pytest.mark.parametrize(
    ("way", "is_enabled"),
    [(way, True) for way in (*ALWAYS, *IF_ENABLED)] + [(way, False) for way in ALWAYS],
)
def test_a_later_request_for_a_deletion_is_noticed(
    way: Callable[[ControllerParts], None], is_enabled: bool
) -> None:
    parts = ControllerParts((2, 3), ControllerSettings(delete_topic_enable=is_enabled))
    parts.zookeeper.put(REQUESTS)
    parts.put_topic("t", {0: (2, 3), 1: (3, 2)}, topic_id(1))
    parts.topics.on_topic_change()
    parts.deletions.load()
    way(parts)
    for topic in ("later", "last"):
        parts.watches.clear()
        parts.zookeeper.put(f"{REQUESTS}/{topic}")
        assert WatchEvent(WatchKind.CHILDREN, REQUESTS) in parts.watches, topic
        settle(parts)
        assert f"{REQUESTS}/{topic}" not in parts.zookeeper.snapshot()
