"""Znodes that ZooKeeper refuses to show: each is bad data of its own path, and all else goes on."""

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
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.zk.codecs.admin_znodes import (
    DeleteTopicsZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
)
from regent.zk.codecs.znodes import (
    BrokerIdsZNode,
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    TopicPartitionStateZNode,
    TopicsZNode,
    TopicZNode,
)
from tests.support.term import T0, Candidate, Tree, leader_and_isr_rows, of_type, topic_id

E0 = TopicPartition("evil", 0)


@pytest.fixture
def candidate(tree: Tree) -> Candidate:
    """Broker 0, which stands for election in a cluster with one more topic, ``evil``."""
    tree.put_topic("evil", {0: (1, 2)}, topic_id(66))
    return Candidate(tree, 0)


def read_again(candidate: Candidate) -> None:
    """Do what the timer that was armed does."""
    candidate.handle(ReadAgain(candidate.controller.context.epoch))
    candidate.catch_up()


def assert_deaths_are_handled(tree: Tree, candidate: Candidate) -> None:
    """Let broker 1, which leads t-0, die: another leads, in the first term."""
    assert tree.leads(T0)[0] == 1
    tree.unregister(1)
    candidate.catch_up()
    assert tree.leads(T0)[0] == 2
    assert candidate.controller.is_active
    assert candidate.controller.context.epoch == 1


def test_an_unreadable_topic_is_set_aside_when_loading(tree: Tree, candidate: Candidate) -> None:
    tree.server.deny(TopicZNode.path("evil"))
    effects = candidate.start()
    bad = candidate.controller.context.bad_topics
    assert bad["evil"] == (
        "topic evil: /brokers/topics/evil: ZooKeeper refuses to show it: NO_AUTH;"
        " to allow it: setAcl /brokers/topics/evil world:anyone:cdrwa"
    )
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    assert_deaths_are_handled(tree, candidate)


def test_a_topic_that_can_be_read_again_is_led(tree: Tree, candidate: Candidate) -> None:
    tree.server.deny(TopicZNode.path("evil"))
    candidate.start()
    again = candidate.handle(ReadAgain(1))
    assert tree.state(E0) is None
    assert of_type(again, ScheduleEvent) == [ScheduleEvent(10_000, ReadAgain(1))]
    tree.server.allow(TopicZNode.path("evil"))
    assert of_type(candidate.handle(ReadAgain(1)), ScheduleEvent) == []
    assert tree.leads(E0) == (1, (1, 2), 0)
    assert candidate.controller.context.bad_topics == {}


def test_a_topic_that_cannot_be_read_any_more_stays_as_it_was(
    tree: Tree, candidate: Candidate
) -> None:
    candidate.start()
    tree.server.deny(TopicZNode.path("evil"))
    candidate.handle(PartitionModifications("evil"))
    assert "evil" in candidate.controller.context.bad_topics
    assert_deaths_are_handled(tree, candidate)
    assert tree.leads(E0)[0] == 2, "its leaders are replaced as well"


def test_an_unreadable_state_waits_and_all_else_goes_on(tree: Tree, candidate: Candidate) -> None:
    tree.put_state(E0, 1, (1, 2))
    tree.server.deny(TopicPartitionStateZNode.path(E0))
    candidate.start()
    assert_deaths_are_handled(tree, candidate)
    assert tree.leads(E0) == (1, (1, 2), 0)
    tree.server.allow(TopicPartitionStateZNode.path(E0))
    effects = candidate.handle(ReadAgain(1))
    assert tree.leads(E0) == (2, (2,), 1)
    assert E0 in leader_and_isr_rows(effects)[2]


@pytest.mark.parametrize("path", [TopicZNode.path("evil"), TopicPartitionStateZNode.path(E0)])
def test_a_move_that_could_not_be_read_is_finished_when_it_can_be(
    tree: Tree, candidate: Candidate, path: str
) -> None:
    tree.put_topic("evil", {0: ReplicaAssignment((2, 1), (2,), (1,))}, topic_id(66))
    tree.put_state(E0, 1, (1, 2))
    tree.server.deny(path)
    candidate.start()
    assert tree.leads(E0) == (1, (1, 2), 0)
    tree.server.allow(path)
    read_again(candidate)
    assert tree.leads(E0)[:2] == (2, (2,))
    assert tree.topic("evil").partitions == {0: ReplicaAssignment((2,))}


def test_a_state_that_became_unreadable_is_changed_when_it_can_be(
    tree: Tree, candidate: Candidate
) -> None:
    tree.put_topic("evil", {0: (2, 1)}, topic_id(66))
    candidate.start()
    tree.server.deny(TopicPartitionStateZNode.path(E0))
    assert_deaths_are_handled(tree, candidate)
    assert tree.leads(E0) == (2, (2, 1), 0), "the dead stay in the ISR while it cannot be read"
    tree.server.allow(TopicPartitionStateZNode.path(E0))
    read_again(candidate)
    assert tree.leads(E0) == (2, (2,), 1)


def test_a_registration_that_cannot_be_read_is_left_out_until_it_can_be(
    tree: Tree, candidate: Candidate
) -> None:
    tree.server.deny(BrokerIdZNode.path(2))
    candidate.start()
    assert sorted(candidate.controller.context.registrations) == [0, 1]
    tree.server.allow(BrokerIdZNode.path(2))
    read_again(candidate)
    assert sorted(candidate.controller.context.registrations) == [0, 1, 2]
    assert candidate.controller.context.epoch == 1


def test_a_registration_that_cannot_be_read_any_more_is_as_it_was(
    tree: Tree, candidate: Candidate
) -> None:
    candidate.start()
    tree.server.deny(BrokerIdZNode.path(2))
    assert_deaths_are_handled(tree, candidate)


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
def test_requests_that_cannot_be_read_are_not_seen_until_they_can_be(
    tree: Tree, candidate: Candidate, path: str
) -> None:
    if path not in tree.server.snapshot():
        tree.server.put(path, b"{}")
    tree.server.deny(path)
    effects = candidate.start()
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    assert_deaths_are_handled(tree, candidate)
    tree.server.allow(path)
    tree.server.put("/admin/delete_topics/evil")
    read_again(candidate)
    context = candidate.controller.context
    assert "evil" in context.topics_to_be_deleted | (set(context.all_topics) ^ {"evil", "t"})
    assert candidate.controller.context.epoch == 1


@pytest.mark.parametrize("path", [BrokerIdsZNode.PATH, TopicsZNode.PATH])
def test_a_list_that_is_not_shown_any_more_is_not_an_empty_one(
    tree: Tree, candidate: Candidate, path: str
) -> None:
    candidate.start()
    tree.server.deny(path)
    tree.register(3)
    tree.put_topic("late", {0: (1, 2)}, topic_id(67))
    for event in (BrokerChange(), TopicChange()):
        candidate.handle(event)
    context = candidate.controller.context
    assert {1, 2} < set(context.registrations)
    assert {"evil", "t"} <= set(context.all_topics)
    tree.server.allow(path)
    read_again(candidate)
    assert sorted(context.registrations) == [0, 1, 2, 3]
    assert sorted(context.all_topics) == ["evil", "late", "t"]


@pytest.mark.parametrize("path", [BrokerIdsZNode.PATH, TopicsZNode.PATH])
def test_who_cannot_read_the_lists_uses_up_no_epochs(
    tree: Tree, candidate: Candidate, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    tree.server.deny(path)
    effects = candidate.start()
    assert of_type(effects, ScheduleEvent) == [ScheduleEvent(1000, Reelect())]
    assert tree.server.node(ControllerZNode.PATH) is None
    assert tree.server.node(ControllerEpochZNode.PATH) is None
    assert f"cannot stand for election: {path}: ZooKeeper refuses to show it" in caplog.text
    tree.server.allow(path)
    candidate.handle(Reelect())
    assert candidate.controller.is_active
    assert candidate.controller.context.epoch == 1


def test_deaths_are_seen_while_registrations_cannot_be_listed(
    tree: Tree, candidate: Candidate
) -> None:
    candidate.start()
    tree.server.deny(BrokerIdsZNode.PATH)
    assert_deaths_are_handled(tree, candidate)
    tree.register(1)
    tree.server.allow(BrokerIdsZNode.PATH)
    read_again(candidate)
    assert tree.leads(T0)[0] == 2
    assert sorted(candidate.controller.context.registrations) == [0, 1, 2]


def test_the_end_of_a_controller_whose_znode_is_not_shown_is_noticed_by_looking(
    tree: Tree, candidate: Candidate
) -> None:
    other = Candidate(tree, 5)
    other.start()
    candidate.start()
    tree.server.deny(ControllerZNode.PATH)
    assert of_type(candidate.handle(LookAgain()), ScheduleEvent) == [ScheduleEvent(1000, Reelect())]
    assert candidate.handle(LookAgain()) == [], "one attempt a second, however often it looks"
    other.expire()
    assert candidate.catch_up() == [], "nobody is told"
    candidate.handle(LookAgain())
    assert candidate.controller.is_active


def test_what_was_asked_for_while_it_was_not_shown_is_found_by_looking(
    tree: Tree, candidate: Candidate
) -> None:
    candidate.start()
    tree.server.deny(TopicsZNode.PATH)
    tree.put_topic("late", {0: (1, 2)}, topic_id(67))
    tree.server.allow(TopicsZNode.PATH)
    assert candidate.catch_up() == [], "nobody is told"
    candidate.handle(LookAgain())
    assert tree.leads(TopicPartition("late", 0)) == (1, (1, 2), 0)
    assert candidate.controller.context.epoch == 1
