"""Topics whose znodes may not be read, or not be written, when they are to get their ids."""

from __future__ import annotations

import pytest

from core.controller.effects import ScheduleEvent
from core.controller.events import ReadAgain
from tests.support.term import T0, T1, Candidate, Tree, leader_and_isr_rows, topic_id
from zk.znodes import TopicPartitionsZNode, TopicZNode

TOPIC = TopicZNode.path("t")
NOTED = TopicPartitionsZNode.path("t")


@pytest.fixture
def tree() -> Tree:
    """Broker 1 leads, 2 follows in sync."""
    tree = Tree()
    for broker_id in (1, 2):
        tree.register(broker_id)
    return tree


@pytest.fixture
def candidate(tree: Tree) -> Candidate:
    """Broker 3, which rules when it has started."""
    return Candidate(tree, 3)


def test_a_topic_that_gets_its_id_late_is_led_with_it(tree: Tree, candidate: Candidate) -> None:
    candidate.start()
    tree.put_topic("t", {0: (1, 2)})
    tree.server.deny_writing(TOPIC)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.catch_up()
    assert candidate.controller.context.bad_topics.keys() == {"t"}
    tree.server.allow(TOPIC)
    effects = candidate.handle(ReadAgain(1))
    assert not candidate.controller.context.bad_topics
    assert tree.topic("t").topic_id == candidate.controller.context.topic_id("t") is not None
    assert leader_and_isr_rows(effects)[1][T0].leader == 1


def test_a_known_topic_rewritten_without_its_id_gets_it_back_when_it_may_be_written(
    tree: Tree, candidate: Candidate
) -> None:
    tree.put_topic("t", {0: (1, 2)}, topic_id(7))
    candidate.start()
    tree.server.deny_writing(TOPIC)
    tree.put_topic("t", {0: (1, 2), 1: (1, 2)})
    candidate.catch_up()
    assert candidate.controller.context.topic_id("t") == topic_id(7)
    tree.server.allow(TOPIC)
    candidate.handle(ReadAgain(1))
    assert tree.topic("t").topic_id == topic_id(7)
    assert tree.leads(T1) == (1, (1, 2), 0)


def test_a_topic_gets_no_other_id_while_the_one_it_had_cannot_be_read(
    tree: Tree, candidate: Candidate
) -> None:
    tree.put_topic("t", {0: (1, 2)}, topic_id(7))
    tree.server.put(NOTED, TopicPartitionsZNode.encode(topic_id(7)))
    tree.put_state(T0, 1, (1, 2), leader_epoch=5)
    tree.put_topic("t", {0: (1, 2)})
    tree.server.deny(NOTED)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.start()
    assert tree.topic("t").topic_id is None
    tree.server.allow(NOTED)
    candidate.handle(ReadAgain(1))
    assert tree.topic("t").topic_id == topic_id(7)
