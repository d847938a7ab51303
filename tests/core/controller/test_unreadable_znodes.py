"""Znodes that ZooKeeper refuses to show: only the things they describe are affected."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import ScheduleEvent
from regent.core.controller.events import (
    BrokerChange,
    LookAgain,
    PartitionModifications,
    ReadAgain,
    Reelect,
    TopicChange,
)
from regent.core.model import MAX_LEADER_EPOCH, ReplicaAssignment, TopicPartition
from regent.zk.znodes import (
    BrokerIdsZNode,
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    DeleteTopicsZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicsZNode,
    TopicZNode,
)
from tests.support.controller_parts import Candidate, leader_and_isr_rows, of_type
from tests.support.world import T0, World, topic_id

E0 = TopicPartition("evil", 0)


@pytest.fixture
def candidate(world: World) -> Candidate:
    """Broker 0, before its start, in a cluster with one more topic, ``evil``."""
    world.put_topic("evil", {0: (1, 2)}, topic_id(66))
    return Candidate(world, 0)


def read_again(candidate: Candidate) -> None:
    """Let the timer of the next read fire."""
    candidate.handle(ReadAgain(candidate.controller.context.epoch))
    candidate.catch_up()


def assert_failures_are_handled(world: World, candidate: Candidate) -> None:
    """Let broker 1, the leader of t-0, fail: another broker leads, in the first term."""
    assert world.leads(T0)[0] == 1
    world.unregister(1)
    candidate.catch_up()
    assert world.leads(T0)[0] == 2
    assert candidate.controller.is_active
    assert candidate.controller.context.epoch == 1


def test_an_unreadable_topic_is_quarantined_at_the_start_of_a_term(
    world: World, candidate: Candidate
) -> None:
    world.zookeeper.deny(TopicZNode.path("evil"))
    effects = candidate.start()
    bad = candidate.controller.context.bad_topics
    assert bad["evil"] == (
        "topic evil: /brokers/topics/evil: ZooKeeper refuses to show it: NO_AUTH;"
        " to allow it: setAcl /brokers/topics/evil world:anyone:cdrwa"
    )
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    assert_failures_are_handled(world, candidate)


def test_a_topic_gets_leaders_when_it_can_be_read_again(world: World, candidate: Candidate) -> None:
    world.zookeeper.deny(TopicZNode.path("evil"))
    candidate.start()
    again = candidate.handle(ReadAgain(1))
    assert world.state(E0) is None
    assert of_type(again, ScheduleEvent) == [ScheduleEvent(10_000, ReadAgain(1))]
    world.zookeeper.allow(TopicZNode.path("evil"))
    assert of_type(candidate.handle(ReadAgain(1)), ScheduleEvent) == []
    assert world.leads(E0) == (1, (1, 2), 0)
    assert candidate.controller.context.bad_topics == {}


def test_a_topic_that_becomes_unreadable_keeps_its_state(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.zookeeper.deny(TopicZNode.path("evil"))
    candidate.handle(PartitionModifications("evil"))
    assert "evil" in candidate.controller.context.bad_topics
    assert_failures_are_handled(world, candidate)
    assert world.leads(E0)[0] == 2, "its leaders are replaced too"


def test_an_unreadable_state_waits_and_everything_else_continues(
    world: World, candidate: Candidate
) -> None:
    world.put_state(E0, 1, (1, 2))
    world.zookeeper.deny(TopicPartitionStateZNode.path(E0))
    candidate.start()
    assert_failures_are_handled(world, candidate)
    assert world.leads(E0) == (1, (1, 2), 0)
    world.zookeeper.allow(TopicPartitionStateZNode.path(E0))
    effects = candidate.handle(ReadAgain(1))
    assert world.leads(E0) == (2, (2,), 1)
    assert E0 in leader_and_isr_rows(effects)[2]


@pytest.mark.parametrize("epoch", [MAX_LEADER_EPOCH, 2**31 - 1, 2**31, 2**63 - 1])
def test_a_leader_epoch_at_the_end_of_its_range_costs_only_that_partition(
    world: World, candidate: Candidate, epoch: int
) -> None:
    world.put_state(E0, 1, (1, 2), leader_epoch=epoch)
    path = TopicPartitionStateZNode.path(E0)
    before = world.zookeeper.snapshot()[path].data
    candidate.start()
    assert_failures_are_handled(world, candidate)
    assert world.zookeeper.snapshot()[path].data == before, "no epoch beyond the range is written"


@pytest.mark.parametrize("path", [TopicZNode.path("evil"), TopicPartitionStateZNode.path(E0)])
def test_a_reassignment_that_could_not_be_read_is_finished_when_possible(
    world: World, candidate: Candidate, path: str
) -> None:
    world.put_topic("evil", {0: ReplicaAssignment((2, 1), (2,), (1,))}, topic_id(66))
    world.put_state(E0, 1, (1, 2))
    world.zookeeper.deny(path)
    candidate.start()
    assert world.leads(E0) == (1, (1, 2), 0)
    world.zookeeper.allow(path)
    read_again(candidate)
    assert world.leads(E0)[:2] == (2, (2,))
    assert world.topic("evil").partitions == {0: ReplicaAssignment((2,))}


def test_a_state_that_became_inaccessible_is_changed_when_possible(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("evil", {0: (2, 1)}, topic_id(66))
    candidate.start()
    world.zookeeper.deny(TopicPartitionStateZNode.path(E0))
    world.zookeeper.deny_writing(TopicPartitionStateZNode.path(E0))
    assert_failures_are_handled(world, candidate)
    assert world.leads(E0) == (2, (2, 1), 0), "offline replicas stay in the ISR meanwhile"
    world.zookeeper.allow(TopicPartitionStateZNode.path(E0))
    read_again(candidate)
    assert world.leads(E0) == (2, (2,), 1)


def test_an_unreadable_registration_is_ignored_until_it_can_be_read(
    world: World, candidate: Candidate
) -> None:
    world.zookeeper.deny(BrokerIdZNode.path(2))
    candidate.start()
    assert sorted(candidate.controller.context.registrations) == [0, 1]
    world.zookeeper.allow(BrokerIdZNode.path(2))
    read_again(candidate)
    assert sorted(candidate.controller.context.registrations) == [0, 1, 2]
    assert candidate.controller.context.epoch == 1


def test_a_registration_that_becomes_unreadable_keeps_its_state(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.zookeeper.deny(BrokerIdZNode.path(2))
    assert_failures_are_handled(world, candidate)


@pytest.mark.parametrize(
    "path",
    [
        DeleteTopicsZNode.PATH,
        IsrChangeNotificationZNode.PATH,
        LogDirEventNotificationZNode.PATH,
        ReassignPartitionsZNode.PATH,
        PreferredReplicaElectionZNode.PATH,
    ],
)
def test_unreadable_requests_are_handled_when_they_can_be_read(
    world: World, candidate: Candidate, path: str
) -> None:
    if path not in world.zookeeper.snapshot():
        world.zookeeper.put(path, b"{}")
    world.zookeeper.deny(path)
    effects = candidate.start()
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    assert_failures_are_handled(world, candidate)
    world.zookeeper.allow(path)
    world.zookeeper.put("/admin/delete_topics/evil")
    read_again(candidate)
    context = candidate.controller.context
    assert "evil" in context.topics_to_be_deleted | (set(context.all_topics) ^ {"evil", "t"})
    assert candidate.controller.context.epoch == 1


@pytest.mark.parametrize("path", [BrokerIdsZNode.PATH, TopicsZNode.PATH])
def test_a_list_that_becomes_unreadable_is_not_treated_as_empty(
    world: World, candidate: Candidate, path: str
) -> None:
    candidate.start()
    world.zookeeper.deny(path)
    world.register(3)
    world.put_topic("late", {0: (1, 2)}, topic_id(67))
    for event in (BrokerChange(), TopicChange()):
        candidate.handle(event)
    context = candidate.controller.context
    assert {1, 2} < set(context.registrations)
    assert {"evil", "t"} <= set(context.all_topics)
    world.zookeeper.allow(path)
    read_again(candidate)
    assert sorted(context.registrations) == [0, 1, 2, 3]
    assert sorted(context.all_topics) == ["evil", "late", "t"]


@pytest.mark.parametrize("path", [BrokerIdsZNode.PATH, TopicsZNode.PATH])
def test_a_broker_that_cannot_read_the_lists_uses_no_controller_epochs(
    world: World, candidate: Candidate, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    world.zookeeper.deny(path)
    effects = candidate.start()
    assert of_type(effects, ScheduleEvent) == [ScheduleEvent(1000, Reelect())]
    assert world.zookeeper.node(ControllerZNode.PATH) is None
    assert world.zookeeper.node(ControllerEpochZNode.PATH) is None
    assert f"cannot stand for election: {path}: ZooKeeper refuses to show it" in caplog.text
    world.zookeeper.allow(path)
    candidate.handle(Reelect())
    assert candidate.controller.is_active
    assert candidate.controller.context.epoch == 1


def test_failures_are_seen_while_registrations_cannot_be_listed(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.zookeeper.deny(BrokerIdsZNode.PATH)
    assert_failures_are_handled(world, candidate)
    world.register(1)
    world.zookeeper.allow(BrokerIdsZNode.PATH)
    read_again(candidate)
    assert world.leads(T0)[0] == 2
    assert sorted(candidate.controller.context.registrations) == [0, 1, 2]


def test_the_failure_of_a_controller_whose_znode_is_hidden_is_found_by_polling(
    world: World, candidate: Candidate
) -> None:
    other = Candidate(world, 5)
    other.start()
    candidate.start()
    world.zookeeper.deny(ControllerZNode.PATH)
    assert of_type(candidate.handle(LookAgain()), ScheduleEvent) == [ScheduleEvent(1000, Reelect())]
    assert candidate.handle(LookAgain()) == [], "at most one attempt a second"
    other.expire()
    assert candidate.catch_up() == [], "no watch fires"
    candidate.handle(LookAgain())
    assert candidate.controller.is_active


def test_a_change_made_while_a_znode_was_hidden_is_found_by_polling(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.zookeeper.deny(TopicsZNode.PATH)
    world.put_topic("late", {0: (1, 2)}, topic_id(67))
    world.zookeeper.allow(TopicsZNode.PATH)
    assert candidate.catch_up() == [], "no watch fires"
    candidate.handle(LookAgain())
    assert world.leads(TopicPartition("late", 0)) == (1, (1, 2), 0)
    assert candidate.controller.context.epoch == 1
