"""Topics that are created, extended, removed and rewritten by tools of all versions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import ControllerMovedError
from regent.core.model import (
    EPOCH_OF_LOST_TOPIC,
    LEADER_DURING_DELETE,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrRequest, LeaderAndIsrType, StopReplicaRequest
from regent.zk.client.operations import Committed, Create, WatchKind
from regent.zk.stores.fenced_writes import BYTES_OF_FENCE
from regent.zk.znodes import (
    DeleteTopicsTopicZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicZNode,
)
from tests.support.controller_parts import (
    ControllerParts,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    metadata_rows,
    requests,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Moment, act_once
from tests.support.world import T0, T1, broker_info, leadership, topic_id

T = "/brokers/topics/t"


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(1, 2, 3))


@pytest.fixture
def grown(parts: ControllerParts) -> ControllerParts:
    """A topic t with two partitions, created by the controller, without pending effects."""
    parts.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    parts.topics.on_topic_change()
    parts.effects()
    parts.watches.clear()
    return parts


def full_requests(parts: ControllerParts, broker_id: int) -> list[LeaderAndIsrRequest]:
    """Restart a broker; return the FULL requests sent to it."""
    parts.unregister(broker_id)
    parts.register(broker_id, incarnation=2)
    parts.brokers.on_broker_change()
    sent = leader_and_isr_requests(parts.effects(), broker_id)
    return [request for _, request in sent if request.type is LeaderAndIsrType.FULL]


# --- new topics -----------------------------------------------------------------------------------


def test_a_new_topic_gets_leaders_and_its_replicas_are_notified(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1, 2), 1: (2, 9)}, topic_id(77))
    parts.topics.on_topic_change()
    assert parts.leads(T0) == (1, (1, 2), 0)
    assert parts.leads(T1) == (2, (2,), 0)
    assert parts.context.topic_id("t") == topic_id(77)
    assert parts.replica_state(T0, 2) is ReplicaState.ONLINE
    effects = parts.effects()
    rows = leader_and_isr_rows(effects)
    assert {b: sorted(of_broker) for b, of_broker in rows.items()} == {1: [T0], 2: [T0, T1]}
    assert all(row.is_new for of_broker in rows.values() for row in of_broker.values())
    assert sorted(metadata_rows(effects)[3]) == [T0, T1]
    ids = {
        topic.topic_id
        for sent in requests(effects)
        if isinstance(sent.request, LeaderAndIsrRequest)
        for topic in sent.request.topic_states
    }
    assert ids == {topic_id(77)}


def test_a_new_topic_without_live_replicas_waits(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (9,)}, topic_id(77))
    parts.topics.on_topic_change()
    assert parts.context.partition_state(T0) is PartitionState.NEW
    assert parts.state(T0) is None


def test_a_topic_may_have_no_partitions(parts: ControllerParts) -> None:
    parts.put_topic("t", {}, topic_id(77))
    parts.topics.on_topic_change()
    assert list(parts.context.all_topics) == ["t"]
    assert parts.sent() == []


def test_known_topics_are_not_read_again(grown: ControllerParts) -> None:
    paths: list[str] = []
    grown.session.hook = lambda call: paths.extend(call.paths)
    grown.put_topic("u", {0: (3,)}, topic_id(78))
    grown.topics.on_topic_change()
    assert f"{TopicZNode.path('u')}" in paths
    assert T not in paths
    assert list(grown.context.all_topics) == ["t", "u"]


def test_reading_a_topic_sets_a_watch(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1,)}, topic_id(77))
    parts.topics.on_topic_change()
    parts.watches.clear()
    parts.put_topic("t", {0: (1,), 1: (2,)}, topic_id(77))
    parts.put_topic("u", {0: (1,)})
    assert [(w.kind, w.path) for w in parts.watches] == [
        (WatchKind.CHANGED, T),
        (WatchKind.CHILDREN, "/brokers/topics"),
    ]


# --- topic ids ------------------------------------------------------------------------------------


def test_a_topic_without_an_id_gets_one(parts: ControllerParts) -> None:
    moving = ReplicaAssignment((1, 2), adding_replicas=(2,))
    parts.put_topic("t", {0: moving, 1: (2,)})
    parts.topics.on_topic_change()
    stored = parts.topic("t")
    assert stored.topic_id == parts.context.topic_id("t") == topic_id(1)
    assert stored.partitions == {0: moving, 1: ReplicaAssignment((2,))}
    assert parts.context.topic_name(topic_id(1)) == "t"


def test_each_topic_gets_its_own_id(parts: ControllerParts) -> None:
    for topic in ("t", "u", "v"):
        parts.put_topic(topic, {0: (1,)})
    parts.topics.on_topic_change()
    assert len({parts.topic(topic).topic_id for topic in ("t", "u", "v")}) == 3


def test_a_topic_rewritten_by_an_old_tool_keeps_its_id(grown: ControllerParts) -> None:
    grown.zookeeper.put(T, b'{"version":1,"partitions":{"0":[1,2],"1":[2,3],"2":[3,1]}}')
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == topic_id(77), "KAFKA-12835"
    assert grown.context.topic_id("t") == topic_id(77)
    assert grown.leads(TopicPartition("t", 2)) == (3, (3, 1), 0)


def test_a_tool_cannot_change_a_topic_id(grown: ControllerParts) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(99))
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == topic_id(77)


def test_an_id_lost_before_the_term_is_restored_from_the_broker(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1,)}, topic_id(77))
    parts.put_state(T0, 1, (1,))
    parts.put_topic("t", {0: (1,), 1: (2,)})
    parts.put_topic("u", {0: (1,)})
    parts.topic_ids.last_known_ids = {"t": topic_id(77), "u": topic_id(78)}
    parts.topics.load()
    assert parts.topic("t").topic_id == topic_id(77)
    assert parts.topic("u").topic_id == topic_id(1), "never rewritten, so it is another topic"


def test_an_id_given_to_a_topic_of_kafka_outlives_the_term(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1,)})
    parts.put_state(T0, 1, (1,))
    parts.topics.load()
    parts.zookeeper.put(T, b'{"version":1,"partitions":{"0":[1],"1":[2]}}')  # by a tool
    parts.context.remove_topic("t")  # another controller, whose broker has not heard of the topic
    parts.topics.load()
    assert parts.topic("t").topic_id == parts.context.topic_id("t") == topic_id(1)


def test_a_lost_id_is_not_restored_from_an_earlier_topic_of_the_same_name(
    grown: ControllerParts,
) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)})
    grown.context.remove_topic("t")  # another controller, whose broker remembers the earlier topic
    grown.topic_ids.last_known_ids = {"t": topic_id(66)}
    grown.topics.load()
    assert grown.topic("t").topic_id == grown.context.topic_id("t") == topic_id(77)


def test_a_topic_extended_before_it_has_an_id_does_not_get_that_of_a_deleted_topic(
    parts: ControllerParts,
) -> None:
    parts.topic_ids.last_known_ids = {"t": topic_id(77)}  # its deletion has not reached the broker
    parts.put_topic("t", {0: (1,)})
    parts.put_topic("t", {0: (1,), 1: (2,)})
    parts.topics.on_topic_change()
    assert parts.topic("t").topic_id == topic_id(1)


def test_the_id_is_written_again_after_a_concurrent_write(parts: ControllerParts) -> None:
    def write() -> None:
        parts.put_topic("t", {0: (1,), 1: (2,)})

    parts.put_topic("t", {0: (1,)})
    act_once(parts.session, write, method="multi_many", path=T)
    parts.topics.on_topic_change()
    stored = parts.topic("t")
    assert sorted(stored.partitions) == [0, 1], "the concurrent write is kept"
    assert stored.topic_id == parts.context.topic_id("t") is not None
    assert parts.leads(T1) == (2, (2,), 0)


def test_a_topic_that_changes_in_every_round_is_quarantined_until_its_watch_fires(
    parts: ControllerParts,
) -> None:
    def hook(call: Call) -> None:
        if T in call.paths and call.method == "multi_many" and call.moment is Moment.BEFORE:
            parts.put_topic("t", {0: (1,)})

    parts.put_topic("t", {0: (1,)})
    parts.session.hook = hook
    parts.watches.clear()
    parts.topics.on_topic_change()
    assert list(parts.context.all_topics) == []
    assert (WatchKind.CHANGED, T) in parts.watches
    assert full_requests(parts, 1) == [], "a FULL request would delete its logs"
    parts.zookeeper.put("/admin/delete_topics/t")
    parts.deletions.on_topic_deletion()
    assert T in parts.zookeeper.snapshot(), "brokers may still have its logs"
    parts.session.hook = None
    parts.topics.on_partition_modifications("t")
    assert parts.context.bad_topics == {}
    assert parts.context.is_topic_queued_for_deletion("t")


def test_a_topic_with_the_id_of_another_topic_is_quarantined(grown: ControllerParts) -> None:
    grown.put_topic("copy", {0: (1,)}, topic_id(77))
    grown.put_topic("fine", {0: (1,)}, topic_id(78))
    grown.topics.on_topic_change()
    assert list(grown.context.all_topics) == ["t", "fine"]
    assert topic_id(77) in grown.context.bad_topics["copy"]
    assert grown.state(TopicPartition("copy", 0)) is None
    grown.put_topic("copy", {0: (1,)}, topic_id(79))
    grown.topics.on_partition_modifications("copy")
    assert grown.leads(TopicPartition("copy", 0)) == (1, (1,), 0)
    assert grown.context.bad_topics == {}


def test_a_copied_topic_is_accepted_when_the_original_is_removed(grown: ControllerParts) -> None:
    grown.put_topic("copy", {0: (1,)}, topic_id(77))
    grown.topics.on_topic_change()
    grown.delete_topic("t")
    grown.topics.on_topic_change()
    assert list(grown.context.all_topics) == ["copy"]
    assert grown.context.bad_topics == {}


# --- added partitions -----------------------------------------------------------------------------


def test_added_partitions_get_leaders_and_the_others_do_not_change(grown: ControllerParts) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3), 2: (3, 1)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.leads(TopicPartition("t", 2)) == (3, (3, 1), 0)
    rows = leader_and_isr_rows(grown.effects())
    assert {b: list(of_broker) for b, of_broker in rows.items()} == {
        1: [("t", 2)],
        3: [("t", 2)],
    }


def test_edited_replicas_and_missing_partitions_change_nothing(grown: ControllerParts) -> None:
    grown.put_topic("t", {0: (3,)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.context.partition_replica_assignment(T0) == (1, 2)
    assert grown.context.partition_replica_assignment(T1) == (2, 3)
    assert grown.effects() == []


def test_the_controllers_own_write_sends_nothing(grown: ControllerParts) -> None:
    grown.topics.on_partition_modifications("t")
    assert grown.effects() == []


def test_a_topic_first_seen_by_its_change_is_created(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1, 2)}, topic_id(77))
    parts.topics.on_partition_modifications("t")
    assert parts.leads(T0) == (1, (1, 2), 0)
    parts.effects()
    parts.topics.on_topic_change()
    assert parts.effects() == []


def test_a_topic_queued_for_deletion_gets_no_partitions(grown: ControllerParts) -> None:
    grown.context.queue_topic_deletion(["t"])
    grown.put_topic("t", {0: (1, 2), 1: (2, 3), 2: (3, 1)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.state(TopicPartition("t", 2)) is None
    assert sorted(grown.topic("t").partitions) == [0, 1]
    assert grown.sent() == []


# --- removed topics -------------------------------------------------------------------------------


def test_a_topic_removed_by_a_tool_is_removed_from_all_brokers(grown: ControllerParts) -> None:
    grown.delete_topic("t")
    grown.topics.on_topic_change()
    effects = grown.effects()
    assert list(grown.context.all_topics) == []
    assert grown.context.topic_id("t") is None
    assert grown.context.topics_to_be_deleted == set()
    rows = metadata_rows(effects)
    assert sorted(rows) == [1, 2, 3]
    assert {row.leader for row in rows[3].values()} == {LEADER_DURING_DELETE}
    stops = stop_replica_rows(effects)
    assert {b: sorted(of_broker) for b, of_broker in stops.items()} == {
        1: [T0],
        2: [T0, T1],
        3: [T1],
    }
    assert stops[2][T1] == (1, EPOCH_OF_LOST_TOPIC, True), "deletion was not requested"
    assert {
        topic.topic_id
        for sent in requests(effects)
        if isinstance(sent.request, StopReplicaRequest)
        for topic in sent.request.topic_states
    } == {topic_id(77)}


def test_reassignments_of_a_topic_removed_by_a_tool_are_removed_from_the_znode(
    grown: ControllerParts,
) -> None:
    elsewhere = TopicPartition("u", 0)
    grown.context.update_partition_full_replica_assignment(
        T0, ReplicaAssignment((3, 1, 2), (3,), (1, 2))
    )
    grown.context.partitions_being_reassigned.add(T0)
    path = ReassignPartitionsZNode.PATH
    grown.zookeeper.put(path, ReassignPartitionsZNode.encode({T0: (3,), elsewhere: (1,)}))
    grown.delete_topic("t")
    grown.topics.on_topic_change()
    left = ReassignPartitionsZNode.decode(grown.zookeeper.snapshot()[path].data)
    assert left == {elsewhere: (1,)}
    assert grown.context.partitions_being_reassigned == set()


def test_a_topic_recreated_between_two_reads_is_a_new_topic(grown: ControllerParts) -> None:
    grown.delete_topic("t")
    grown.put_topic("t", {0: (3, 1)}, topic_id(78))
    assert (WatchKind.DELETED, T) in grown.watches, "the name is the same, but the watch fired"
    grown.topics.on_topic_change()
    assert grown.effects() == []
    grown.topics.on_partition_modifications("t")
    assert grown.context.topic_id("t") == topic_id(78)
    assert grown.context.topic_name(topic_id(77)) is None
    assert grown.context.partitions_of("t") == [T0]
    assert grown.leads(T0) == (3, (3, 1), 0)
    to_1 = [sent.request for sent in grown.sent() if sent.broker_id == 1]
    stop = next(i for i, request in enumerate(to_1) if isinstance(request, StopReplicaRequest))
    lead = next(i for i, request in enumerate(to_1) if isinstance(request, LeaderAndIsrRequest))
    assert stop < lead, "the old replica is stopped first"


def test_a_topic_recreated_between_two_watches_is_a_new_topic(grown: ControllerParts) -> None:
    grown.delete_topic("t")
    grown.topics.on_partition_modifications("t")
    grown.put_topic("t", {0: (3, 1)}, topic_id(78))
    grown.topics.on_topic_change()
    assert grown.context.topic_id("t") == topic_id(78)
    assert grown.context.partitions_of("t") == [T0]
    assert grown.leads(T0) == (3, (3, 1), 0)
    assert stop_replica_rows(grown.effects())[2][T1].delete_partition


def test_a_topic_recreated_without_an_id_does_not_get_the_old_one(grown: ControllerParts) -> None:
    grown.delete_topic("t")
    grown.put_topic("t", {0: (1,)})
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == grown.context.topic_id("t") == topic_id(1)


# --- unreadable znodes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"not JSON", b"[]", b'{"partitions":{"0":"1"}}', b'{"version":1,"partitions":{"0":[]}}'],
)
def test_an_unreadable_topic_is_quarantined_and_the_others_are_not(
    parts: ControllerParts, data: bytes
) -> None:
    parts.zookeeper.put("/brokers/topics/bad", data)
    parts.put_topic("t", {0: (1,)}, topic_id(77))
    parts.topics.on_topic_change()
    assert list(parts.context.all_topics) == ["t"]
    assert list(parts.context.bad_topics) == ["bad"]
    assert parts.leads(T0) == (1, (1,), 0)
    assert parts.zookeeper.snapshot()["/brokers/topics/bad"].data == data


def test_a_topic_without_an_id_gets_one_although_an_earlier_topic_was_to_be_deleted(
    parts: ControllerParts,
) -> None:
    parts.zookeeper.put(DeleteTopicsTopicZNode.path("t"))
    parts.put_topic("t", {0: (1, 2)})
    parts.zookeeper.deny_writing(T)
    parts.topics.on_topic_change()
    parts.deletions.on_topic_deletion()
    assert list(parts.context.bad_topics) == ["t"]
    parts.zookeeper.allow(T)
    parts.topics.read_again()
    assert parts.context.bad_topics == {}
    assert parts.topic("t").topic_id is not None


def test_a_topic_too_large_to_get_an_id_has_none(parts: ControllerParts) -> None:
    parts.zookeeper.max_request_bytes = 400 + BYTES_OF_FENCE
    parts.put_topic("large", dict.fromkeys(range(20), (1, 2, 3)))
    parts.put_topic("t", {0: (1, 2)})
    parts.topics.on_topic_change()
    assert parts.context.topic_id("large") is None
    assert parts.leads(TopicPartition("large", 19)) == (1, (1, 2, 3), 0)
    assert parts.context.topic_id("t") is not None


def test_an_ephemeral_topic_has_no_leaders_and_does_not_stop_the_others(
    parts: ControllerParts,
) -> None:
    tool = FakeZooKeeper(parts.zookeeper)
    data = TopicZNode.encode(topic_id(5), {0: ReplicaAssignment((1, 2))})
    assert isinstance(tool.multi([Create(T, data, ephemeral=True)]), Committed)
    parts.put_topic("u", {0: (1, 2)})
    parts.topics.on_topic_change()
    assert parts.state(T0) is None
    assert parts.context.partition_state(T0) is PartitionState.NEW
    assert parts.leads(TopicPartition("u", 0)) == (1, (1, 2), 0)


def test_a_repaired_topic_gets_leaders(parts: ControllerParts) -> None:
    parts.zookeeper.put(T, b"not JSON")
    parts.topics.on_topic_change()
    parts.watches.clear()
    parts.put_topic("t", {0: (1, 2)})
    assert (WatchKind.CHANGED, T) in parts.watches
    parts.topics.on_partition_modifications("t")
    assert parts.context.bad_topics == {}
    assert parts.leads(T0) == (1, (1, 2), 0)


def test_a_topic_that_becomes_unreadable_keeps_its_state(grown: ControllerParts) -> None:
    grown.zookeeper.put(T, b"not JSON")
    grown.topics.on_partition_modifications("t")
    assert list(grown.context.bad_topics) == ["t"]
    assert grown.context.partitions_of("t") == [T0, T1]
    assert grown.known(T0) == (1, (1, 2), 0)
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.context.bad_topics == {}


def test_an_unreadable_topic_that_is_removed_leaves_no_entry(grown: ControllerParts) -> None:
    grown.zookeeper.put(T, b"not JSON")
    grown.zookeeper.put("/brokers/topics/bad", b"not JSON")
    grown.topics.on_partition_modifications("t")
    grown.topics.on_topic_change()
    for topic in ("t", "bad"):
        grown.delete_topic(topic)
    grown.topics.on_topic_change()
    assert grown.context.bad_topics == {}
    assert list(grown.context.all_topics) == []


def test_a_repaired_topic_continues_with_its_stored_leaderships(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1, 2), 1: (9, 8)}, topic_id(77))
    parts.put_state(T0, 9, (9, 2), leader_epoch=4)
    parts.put_state(T1, 9, (9,), leader_epoch=4)
    parts.zookeeper.put(T, b"not JSON")
    parts.topics.load()
    parts.put_topic("t", {0: (1, 2), 1: (9, 8)}, topic_id(77))
    parts.topics.on_partition_modifications("t")
    assert parts.leads(T0) == (2, (2,), 5)
    assert parts.known(T1) == (-1, (9,), 5), "known without a leader"


# --- replicas that must not be treated as stray ---------------------------------------------------


def test_a_returning_broker_gets_the_replicas_of_a_topic_repaired_meanwhile(
    parts: ControllerParts,
) -> None:
    parts.put_topic("t", {0: (3, 1)}, topic_id(77))
    parts.put_state(T0, 3, (3,), leader_epoch=4)
    parts.zookeeper.put(T, b"not JSON")
    parts.topics.load()
    parts.unregister(3)
    parts.brokers.on_broker_change()
    parts.put_topic("t", {0: (3, 1)}, topic_id(77))
    parts.topics.on_partition_modifications("t")
    parts.effects()
    parts.register(3, incarnation=2)
    parts.brokers.on_broker_change()
    sent = leader_and_isr_requests(parts.effects(), 3)
    (full,) = (request for _, request in sent if request.type is LeaderAndIsrType.FULL)
    assert [partition for partition, _ in full.partitions()] == [T0], "the broker has the only copy"


def test_no_request_is_full_while_a_state_is_unreadable(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1, 2)}, topic_id(77))
    state = TopicPartitionStateZNode.path(T0)
    parts.zookeeper.put(state, b"not JSON")
    parts.topics.load()
    parts.partitions.startup()
    assert full_requests(parts, 2) == []
    parts.put_state(T0, 1, (1, 2), leader_epoch=4)
    parts.partitions.trigger_online_partition_state_change()
    assert parts.context.unreadable_partitions == set()
    assert len(full_requests(parts, 2)) == 1


# --- at the start of a term -----------------------------------------------------------------------


def test_a_term_starts_with_all_topics_and_leaderships(parts: ControllerParts) -> None:
    moving = ReplicaAssignment((2, 3), adding_replicas=(3,))
    parts.put_topic("t", {0: (1, 2), 1: moving}, topic_id(77))
    parts.put_topic("u", {0: (3,)})
    parts.put_state(T0, 2, (2,), leader_epoch=4)
    parts.topics.load()
    assert list(parts.context.all_topics) == ["t", "u"]
    assert parts.known(T0) == (2, (2,), 4)
    assert parts.known(T1) is None
    assert parts.context.partitions_being_reassigned == {T1}
    assert parts.topic("u").topic_id is not None
    assert parts.sent() == [], "nothing is sent before everything is read"


def test_an_unreadable_state_does_not_prevent_the_start_of_a_term(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    parts.zookeeper.put(TopicPartitionStateZNode.path(T0), b"not JSON")
    parts.put_state(T1, 2, (2,), leader_epoch=4)
    parts.topics.load()
    assert parts.known(T0) is None
    assert parts.known(T1) == (2, (2,), 4)
    assert parts.context.unreadable_partitions == {T0}


def test_a_deposed_controller_writes_no_ids_and_creates_nothing(parts: ControllerParts) -> None:
    parts.put_topic("t", {0: (1,)})
    parts.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        parts.topics.on_topic_change()
    assert parts.topic("t").topic_id is None
    assert parts.state(T0) is None
    assert kinds(parts.effects()) == []


def test_reading_leaderships_of_an_earlier_term_does_not_rewrite_them(
    parts: ControllerParts,
) -> None:
    parts.put_topic("t", {0: (1, 2)}, topic_id(77))
    parts.put_state(T0, 1, (1, 2), leader_epoch=4, controller_epoch=0)
    before = len(parts.zookeeper.transactions)
    parts.topics.load()
    assert len(parts.zookeeper.transactions) == before
    assert parts.context.partition_leadership_info(T0) == leadership(
        1, (1, 2), leader_epoch=4, controller_epoch=0
    )


def test_a_topic_rewritten_by_an_old_tool_keeps_its_id_and_reassignment(
    parts: ControllerParts,
) -> None:
    moving = ReplicaAssignment((3, 1, 2), (3,), (2,))
    parts.put_topic("t", {0: moving}, topic_id(77))
    parts.topics.load()
    parts.put_topic("t", {0: (3, 1, 2), 1: (1, 2)})
    parts.topics.on_partition_modifications("t")
    stored = parts.topic("t")
    assert stored.topic_id == topic_id(77)
    assert stored.partitions == {0: moving, 1: ReplicaAssignment((1, 2))}


def test_a_replica_being_removed_is_also_stopped_when_its_topic_is_removed(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.put_replica_state(T0, 3, ReplicaState.ONLINE)  # it could not be stopped
    parts.delete_topic("t")
    parts.topics.on_topic_change()
    assert set(stop_replica_rows(parts.effects())) == {1, 2, 3}


# --- brokers that take no replicas ----------------------------------------------------------------


def bar(parts: ControllerParts, broker_id: int) -> None:
    """Register a broker again, with ``no_replicas``."""
    parts.unregister(broker_id)
    parts.register_as(replace(broker_info(broker_id, 2), no_replicas=True))
    parts.brokers.on_broker_change()
    parts.effects()


def replicas_of(parts: ControllerParts, number: int) -> tuple[int, ...]:
    node = parts.node(T)
    assert node is not None
    stored = TopicZNode.decode(node.data).partitions[number].replicas
    known = parts.context.partition_replica_assignment(TopicPartition("t", number))
    assert tuple(known) == stored
    return stored


def test_new_replicas_on_a_broker_that_takes_none_are_placed_on_others(
    parts: ControllerParts,
) -> None:
    bar(parts, 3)
    parts.put_topic("t", {0: (3, 1), 1: (2, 3), 2: (1, 2)}, topic_id(77))
    parts.topics.on_topic_change()
    assert [replicas_of(parts, number) for number in range(3)] == [(2, 1), (2, 1), (1, 2)]
    assert parts.leads(T0) == (2, (2, 1), 0)


def test_a_replica_stays_where_there_is_no_other_broker_for_it(parts: ControllerParts) -> None:
    bar(parts, 3)
    parts.put_topic("t", {0: (1, 2, 3)}, topic_id(77))
    parts.topics.on_topic_change()
    assert replicas_of(parts, 0) == (1, 2, 3)
    assert parts.leads(T0) == (1, (1, 2, 3), 0)


def test_such_a_replica_is_not_placed_on_a_host_with_another_one(parts: ControllerParts) -> None:
    for broker_id in (1, 2):
        parts.unregister(broker_id)
        parts.register_as(replace(broker_info(broker_id, 2), node_host="m"))
    bar(parts, 3)
    parts.put_topic("t", {0: (3, 1), 1: (3,)}, topic_id(77))
    parts.topics.on_topic_change()
    assert [replicas_of(parts, number) for number in range(2)] == [(3, 1), (2,)]


def test_a_replica_with_records_stays_on_a_broker_that_takes_none(grown: ControllerParts) -> None:
    bar(grown, 3)
    grown.put_topic("t", {0: (1, 2), 1: (2, 3), 2: (3, 2)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert [replicas_of(grown, number) for number in range(3)] == [(1, 2), (2, 3), (1, 2)]


def test_a_new_controller_places_the_replicas_that_were_named_before_its_term() -> None:
    parts = ControllerParts(brokers=(1, 2))
    parts.register_as(replace(broker_info(3), no_replicas=True))
    parts.put_topic("t", {0: (3, 1)}, topic_id(77))
    parts.brokers.load()
    parts.topics.load()
    assert replicas_of(parts, 0) == (2, 1)
