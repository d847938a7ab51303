"""Over how many partitions the keys of internal topics are spread, as the controller tells it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from regent.core.controller.effects import Effect
from regent.core.model import NO_EPOCH, NO_LEADER, TopicPartition
from regent.core.protocol.control import UpdateMetadataRequest
from regent.zk.codecs.topic_znodes import decode_coordinated_partitions
from regent.zk.znodes import TopicPartitionStateZNode, TopicPartitionsZNode
from tests.support.controller_parts import Candidate, requests
from tests.support.world import T0, World, topic_id

TOPIC = "__consumer_offsets"
NOTE = TopicPartitionsZNode.path(TOPIC)
FIRST = dict.fromkeys(range(3), (1, 2))
GROWN = dict.fromkeys(range(5), (1, 2))
ID = topic_id(9)


def metadata(effects: Iterable[Effect]) -> list[UpdateMetadataRequest]:
    sent = [order.request for order in requests(effects)]
    return [request for request in sent if isinstance(request, UpdateMetadataRequest)]


def told(effects: Iterable[Effect]) -> set[int]:
    """Return the numbers that brokers are told, with any partition of the topic."""
    topics = [topic for request in metadata(effects) for topic in request.topic_states]
    return {t.coordinated_partitions for t in topics if t.topic_name == TOPIC}


def noted(world: World) -> int:
    node = world.zookeeper.node(NOTE)
    assert node is not None
    return decode_coordinated_partitions("", node.data)


def again(active: Candidate) -> list[Effect]:
    """Begin another term: nothing stays in memory."""
    active.expire()
    return [*active.start(), *active.catch_up()]


def test_the_number_is_sent_with_every_partition_and_noted_with_the_first_state(
    world: World, active: Candidate
) -> None:
    world.put_topic(TOPIC, FIRST, ID)
    assert told(active.catch_up()) == {3}
    assert noted(world) == 3
    node = world.zookeeper.node(NOTE)
    assert node is not None
    assert TopicPartitionsZNode.decode(node.data) == ID


def test_added_partitions_do_not_change_it_also_for_the_next_controller(
    world: World, active: Candidate
) -> None:
    world.put_topic(TOPIC, FIRST, ID)
    active.catch_up()
    world.put_topic(TOPIC, GROWN, ID)
    assert told(active.catch_up()) == {3}
    assert told(again(active)) == {3}


def test_a_topic_created_again_has_a_number_of_its_own(world: World, active: Candidate) -> None:
    world.put_topic(TOPIC, FIRST, ID)
    active.catch_up()
    world.delete_topic(TOPIC)
    active.catch_up()
    world.put_topic(TOPIC, GROWN, topic_id(10))
    assert told(active.catch_up()) == {5}
    assert noted(world) == 5


@pytest.mark.parametrize("data", [b"", TopicPartitionsZNode.encode(ID)])
def test_the_number_of_a_topic_of_earlier_versions_is_noted_once(world: World, data: bytes) -> None:
    world.put_topic(TOPIC, FIRST, ID)
    world.zookeeper.put(NOTE, data)
    for number in FIRST:
        world.put_state(TopicPartition(TOPIC, number), 1, (1, 2), leader_epoch=4)
    candidate = Candidate(world, 0)
    assert told(candidate.start()) == {3}
    assert noted(world) == 3
    world.put_topic(TOPIC, GROWN, ID)
    candidate.catch_up()
    assert told(again(candidate)) == {3}


def test_a_note_that_an_acl_hides_is_not_replaced_by_a_guess(
    world: World, active: Candidate
) -> None:
    world.put_topic(TOPIC, FIRST, ID)
    active.catch_up()
    world.put_topic(TOPIC, GROWN, ID)
    active.catch_up()
    world.zookeeper.deny(NOTE)
    assert told(again(active)) == {0}, "brokers keep what they know"


def test_other_topics_have_no_number(active: Candidate, world: World) -> None:
    world.put_topic("u", FIRST)
    topics = [t for request in metadata(active.catch_up()) for t in request.topic_states]
    assert {t.coordinated_partitions for t in topics} == {0}


def test_brokers_need_not_wait_for_a_state_that_cannot_be_read(world: World) -> None:
    """The partition is listed, so that no broker counts too few; nothing else is forgotten."""
    world.put_state(T0, 1, (1, 2), leader_epoch=4)
    world.zookeeper.put(TopicPartitionStateZNode.path(T0), b"garbage")
    candidate = Candidate(world, 0)
    whole = [r for r in metadata(candidate.start()) if r.lists_all]
    assert whole
    assert not any(request.is_full for request in whole)
    (row,) = {row for request in whole for name, row in request.partitions() if name == T0}
    assert (row.leader, row.leader_epoch, row.partition_epoch) == (NO_LEADER, NO_EPOCH, NO_EPOCH)
    assert row.replicas == (1, 2)


def test_only_complete_lists_are_marked_as_such(world: World, active: Candidate) -> None:
    world.put_topic("u", FIRST)
    assert not any(request.lists_all for request in metadata(active.catch_up()))
    assert [request.lists_all for request in metadata(again(active))][-1]
