"""Topics that are created, extended, removed and rewritten by tools of all versions."""

from __future__ import annotations

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
from regent.zk.codecs.admin_znodes import ReassignPartitionsZNode
from regent.zk.codecs.znodes import TopicPartitionStateZNode, TopicZNode
from regent.zk.stores.fenced_writes import BYTES_OF_FENCE
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Moment, act_once
from tests.support.term import (
    T0,
    T1,
    Office,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    leadership,
    metadata_rows,
    requests,
    stop_replica_rows,
    topic_id,
)

T = "/brokers/topics/t"


@pytest.fixture
def office() -> Office:
    return Office(brokers=(1, 2, 3))


@pytest.fixture
def grown(office: Office) -> Office:
    """A topic t with two partitions, created by the controller, without pending effects."""
    office.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    office.topics.on_topic_change()
    office.effects()
    office.watches.clear()
    return office


def full_requests(office: Office, broker_id: int) -> list[LeaderAndIsrRequest]:
    """Restart a broker; return the FULL requests sent to it."""
    office.unregister(broker_id)
    office.register(broker_id, incarnation=2)
    office.brokers.on_broker_change()
    sent = leader_and_isr_requests(office.effects(), broker_id)
    return [request for _, request in sent if request.type is LeaderAndIsrType.FULL]


# --- new topics -----------------------------------------------------------------------------------


def test_a_new_topic_gets_leaders_and_its_replicas_are_notified(office: Office) -> None:
    office.put_topic("t", {0: (1, 2), 1: (2, 9)}, topic_id(77))
    office.topics.on_topic_change()
    assert office.leads(T0) == (1, (1, 2), 0)
    assert office.leads(T1) == (2, (2,), 0)
    assert office.context.topic_id("t") == topic_id(77)
    assert office.replica_state(T0, 2) is ReplicaState.ONLINE
    effects = office.effects()
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


def test_a_new_topic_without_live_replicas_waits(office: Office) -> None:
    office.put_topic("t", {0: (9,)}, topic_id(77))
    office.topics.on_topic_change()
    assert office.context.partition_state(T0) is PartitionState.NEW
    assert office.state(T0) is None


def test_a_topic_may_have_no_partitions(office: Office) -> None:
    office.put_topic("t", {}, topic_id(77))
    office.topics.on_topic_change()
    assert list(office.context.all_topics) == ["t"]
    assert office.sent() == []


def test_known_topics_are_not_read_again(grown: Office) -> None:
    paths: list[str] = []
    grown.zookeeper.hook = lambda call: paths.extend(call.paths)
    grown.put_topic("u", {0: (3,)}, topic_id(78))
    grown.topics.on_topic_change()
    assert f"{TopicZNode.path('u')}" in paths
    assert T not in paths
    assert list(grown.context.all_topics) == ["t", "u"]


def test_reading_a_topic_sets_a_watch(office: Office) -> None:
    office.put_topic("t", {0: (1,)}, topic_id(77))
    office.topics.on_topic_change()
    office.watches.clear()
    office.put_topic("t", {0: (1,), 1: (2,)}, topic_id(77))
    office.put_topic("u", {0: (1,)})
    assert [(w.kind, w.path) for w in office.watches] == [
        (WatchKind.CHANGED, T),
        (WatchKind.CHILDREN, "/brokers/topics"),
    ]


# --- topic ids ------------------------------------------------------------------------------------


def test_a_topic_without_an_id_gets_one(office: Office) -> None:
    moving = ReplicaAssignment((1, 2), adding_replicas=(2,))
    office.put_topic("t", {0: moving, 1: (2,)})
    office.topics.on_topic_change()
    stored = office.topic("t")
    assert stored.topic_id == office.context.topic_id("t") == topic_id(1)
    assert stored.partitions == {0: moving, 1: ReplicaAssignment((2,))}
    assert office.context.topic_name(topic_id(1)) == "t"


def test_each_topic_gets_its_own_id(office: Office) -> None:
    for topic in ("t", "u", "v"):
        office.put_topic(topic, {0: (1,)})
    office.topics.on_topic_change()
    assert len({office.topic(topic).topic_id for topic in ("t", "u", "v")}) == 3


def test_a_topic_rewritten_by_an_old_tool_keeps_its_id(grown: Office) -> None:
    grown.server.put(T, b'{"version":1,"partitions":{"0":[1,2],"1":[2,3],"2":[3,1]}}')
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == topic_id(77), "KAFKA-12835"
    assert grown.context.topic_id("t") == topic_id(77)
    assert grown.leads(TopicPartition("t", 2)) == (3, (3, 1), 0)


def test_a_tool_cannot_change_a_topic_id(grown: Office) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(99))
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == topic_id(77)


def test_an_id_lost_before_the_term_is_restored_from_the_broker(office: Office) -> None:
    office.put_topic("t", {0: (1,)}, topic_id(77))
    office.put_state(T0, 1, (1,))
    office.put_topic("t", {0: (1,), 1: (2,)})
    office.put_topic("u", {0: (1,)})
    office.topic_ids.last_known_ids = {"t": topic_id(77), "u": topic_id(78)}
    office.topics.load()
    assert office.topic("t").topic_id == topic_id(77)
    assert office.topic("u").topic_id == topic_id(1), "never rewritten, so it is another topic"


def test_a_lost_id_is_not_restored_from_an_earlier_topic_of_the_same_name(
    grown: Office,
) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)})
    grown.context.remove_topic("t")  # another controller, whose broker remembers the earlier topic
    grown.topic_ids.last_known_ids = {"t": topic_id(66)}
    grown.topics.load()
    assert grown.topic("t").topic_id == grown.context.topic_id("t") == topic_id(77)


def test_a_topic_extended_before_it_has_an_id_does_not_get_that_of_a_deleted_topic(
    office: Office,
) -> None:
    office.topic_ids.last_known_ids = {"t": topic_id(77)}  # its deletion has not reached the broker
    office.put_topic("t", {0: (1,)})
    office.put_topic("t", {0: (1,), 1: (2,)})
    office.topics.on_topic_change()
    assert office.topic("t").topic_id == topic_id(1)


def test_the_id_is_written_again_after_a_concurrent_write(office: Office) -> None:
    def write() -> None:
        office.put_topic("t", {0: (1,), 1: (2,)})

    office.put_topic("t", {0: (1,)})
    act_once(office.zookeeper, write, method="multi_many", path=T)
    office.topics.on_topic_change()
    stored = office.topic("t")
    assert sorted(stored.partitions) == [0, 1], "the concurrent write is kept"
    assert stored.topic_id == office.context.topic_id("t") is not None
    assert office.leads(T1) == (2, (2,), 0)


def test_a_topic_that_changes_in_every_round_is_set_aside_until_its_watch_fires(
    office: Office,
) -> None:
    def hook(call: Call) -> None:
        if T in call.paths and call.method == "multi_many" and call.moment is Moment.BEFORE:
            office.put_topic("t", {0: (1,)})

    office.put_topic("t", {0: (1,)})
    office.zookeeper.hook = hook
    office.watches.clear()
    office.topics.on_topic_change()
    assert list(office.context.all_topics) == []
    assert (WatchKind.CHANGED, T) in office.watches
    assert full_requests(office, 1) == [], "a FULL request would delete its logs"
    office.server.put("/admin/delete_topics/t")
    office.deletions.on_topic_deletion()
    assert T in office.server.snapshot(), "brokers may still have its logs"
    office.zookeeper.hook = None
    office.topics.on_partition_modifications("t")
    assert office.context.bad_topics == {}
    assert office.leads(T0) == (1, (1,), 0)


def test_a_topic_with_the_id_of_another_topic_is_set_aside(grown: Office) -> None:
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


def test_a_copied_topic_is_accepted_when_the_original_is_removed(grown: Office) -> None:
    grown.put_topic("copy", {0: (1,)}, topic_id(77))
    grown.topics.on_topic_change()
    grown.delete_topic("t")
    grown.topics.on_topic_change()
    assert list(grown.context.all_topics) == ["copy"]
    assert grown.context.bad_topics == {}


# --- added partitions -----------------------------------------------------------------------------


def test_added_partitions_get_leaders_and_the_others_do_not_change(grown: Office) -> None:
    grown.put_topic("t", {0: (1, 2), 1: (2, 3), 2: (3, 1)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.leads(TopicPartition("t", 2)) == (3, (3, 1), 0)
    rows = leader_and_isr_rows(grown.effects())
    assert {b: list(of_broker) for b, of_broker in rows.items()} == {
        1: [("t", 2)],
        3: [("t", 2)],
    }


def test_edited_replicas_and_missing_partitions_change_nothing(grown: Office) -> None:
    grown.put_topic("t", {0: (3,)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.context.partition_replica_assignment(T0) == (1, 2)
    assert grown.context.partition_replica_assignment(T1) == (2, 3)
    assert grown.effects() == []


def test_the_controllers_own_write_sends_nothing(grown: Office) -> None:
    grown.topics.on_partition_modifications("t")
    assert grown.effects() == []


def test_a_topic_first_seen_by_its_change_is_created(office: Office) -> None:
    office.put_topic("t", {0: (1, 2)}, topic_id(77))
    office.topics.on_partition_modifications("t")
    assert office.leads(T0) == (1, (1, 2), 0)
    office.effects()
    office.topics.on_topic_change()
    assert office.effects() == []


def test_a_topic_queued_for_deletion_gets_no_partitions(grown: Office) -> None:
    grown.context.queue_topic_deletion(["t"])
    grown.put_topic("t", {0: (1, 2), 1: (2, 3), 2: (3, 1)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.state(TopicPartition("t", 2)) is None
    assert sorted(grown.topic("t").partitions) == [0, 1]
    assert grown.sent() == []


# --- removed topics -------------------------------------------------------------------------------


def test_a_topic_removed_by_a_tool_is_removed_from_all_brokers(grown: Office) -> None:
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
    grown: Office,
) -> None:
    elsewhere = TopicPartition("u", 0)
    grown.context.update_partition_full_replica_assignment(
        T0, ReplicaAssignment((3, 1, 2), (3,), (1, 2))
    )
    grown.context.partitions_being_reassigned.add(T0)
    path = ReassignPartitionsZNode.PATH
    grown.server.put(path, ReassignPartitionsZNode.encode({T0: (3,), elsewhere: (1,)}))
    grown.delete_topic("t")
    grown.topics.on_topic_change()
    left = ReassignPartitionsZNode.decode(grown.server.snapshot()[path].data)
    assert left == {elsewhere: (1,)}
    assert grown.context.partitions_being_reassigned == set()


def test_a_topic_recreated_between_two_reads_is_a_new_topic(grown: Office) -> None:
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


def test_a_topic_recreated_between_two_watches_is_a_new_topic(grown: Office) -> None:
    grown.delete_topic("t")
    grown.topics.on_partition_modifications("t")
    grown.put_topic("t", {0: (3, 1)}, topic_id(78))
    grown.topics.on_topic_change()
    assert grown.context.topic_id("t") == topic_id(78)
    assert grown.context.partitions_of("t") == [T0]
    assert grown.leads(T0) == (3, (3, 1), 0)
    assert stop_replica_rows(grown.effects())[2][T1].delete_partition


def test_a_topic_recreated_without_an_id_does_not_get_the_old_one(grown: Office) -> None:
    grown.delete_topic("t")
    grown.put_topic("t", {0: (1,)})
    grown.topics.on_partition_modifications("t")
    assert grown.topic("t").topic_id == grown.context.topic_id("t") == topic_id(1)


# --- unreadable znodes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"not JSON", b"[]", b'{"partitions":{"0":"1"}}', b'{"version":1,"partitions":{"0":[]}}'],
)
def test_an_unreadable_topic_is_set_aside_and_the_others_are_not(
    office: Office, data: bytes
) -> None:
    office.server.put("/brokers/topics/bad", data)
    office.put_topic("t", {0: (1,)}, topic_id(77))
    office.topics.on_topic_change()
    assert list(office.context.all_topics) == ["t"]
    assert list(office.context.bad_topics) == ["bad"]
    assert office.leads(T0) == (1, (1,), 0)
    assert office.server.snapshot()["/brokers/topics/bad"].data == data


def test_a_topic_too_large_to_get_an_id_has_none(office: Office) -> None:
    office.server.max_request_bytes = 400 + BYTES_OF_FENCE
    office.put_topic("large", dict.fromkeys(range(20), (1, 2, 3)))
    office.put_topic("t", {0: (1, 2)})
    office.topics.on_topic_change()
    assert office.context.topic_id("large") is None
    assert office.leads(TopicPartition("large", 19)) == (1, (1, 2, 3), 0)
    assert office.context.topic_id("t") is not None


def test_an_ephemeral_topic_has_no_leaders_and_does_not_stop_the_others(office: Office) -> None:
    tool = FakeZooKeeper(office.server)
    data = TopicZNode.encode(topic_id(5), {0: ReplicaAssignment((1, 2))})
    assert isinstance(tool.multi([Create(T, data, ephemeral=True)]), Committed)
    office.put_topic("u", {0: (1, 2)})
    office.topics.on_topic_change()
    assert office.state(T0) is None
    assert office.context.partition_state(T0) is PartitionState.NEW
    assert office.leads(TopicPartition("u", 0)) == (1, (1, 2), 0)


def test_a_repaired_topic_gets_leaders(office: Office) -> None:
    office.server.put(T, b"not JSON")
    office.topics.on_topic_change()
    office.watches.clear()
    office.put_topic("t", {0: (1, 2)})
    assert (WatchKind.CHANGED, T) in office.watches
    office.topics.on_partition_modifications("t")
    assert office.context.bad_topics == {}
    assert office.leads(T0) == (1, (1, 2), 0)


def test_a_topic_that_becomes_unreadable_keeps_its_state(grown: Office) -> None:
    grown.server.put(T, b"not JSON")
    grown.topics.on_partition_modifications("t")
    assert list(grown.context.bad_topics) == ["t"]
    assert grown.context.partitions_of("t") == [T0, T1]
    assert grown.known(T0) == (1, (1, 2), 0)
    grown.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    grown.topics.on_partition_modifications("t")
    assert grown.context.bad_topics == {}


def test_an_unreadable_topic_that_is_removed_leaves_no_entry(grown: Office) -> None:
    grown.server.put(T, b"not JSON")
    grown.server.put("/brokers/topics/bad", b"not JSON")
    grown.topics.on_partition_modifications("t")
    grown.topics.on_topic_change()
    for topic in ("t", "bad"):
        grown.delete_topic(topic)
    grown.topics.on_topic_change()
    assert grown.context.bad_topics == {}
    assert list(grown.context.all_topics) == []


def test_a_repaired_topic_continues_with_its_stored_leaderships(office: Office) -> None:
    office.put_topic("t", {0: (1, 2), 1: (9, 8)}, topic_id(77))
    office.put_state(T0, 9, (9, 2), leader_epoch=4)
    office.put_state(T1, 9, (9,), leader_epoch=4)
    office.server.put(T, b"not JSON")
    office.topics.load()
    office.put_topic("t", {0: (1, 2), 1: (9, 8)}, topic_id(77))
    office.topics.on_partition_modifications("t")
    assert office.leads(T0) == (2, (2,), 5)
    assert office.known(T1) == (-1, (9,), 5), "known without a leader"


# --- replicas that must not be treated as stray ---------------------------------------------------


def test_a_returning_broker_gets_the_replicas_of_a_topic_repaired_meanwhile(
    office: Office,
) -> None:
    office.put_topic("t", {0: (3, 1)}, topic_id(77))
    office.put_state(T0, 3, (3,), leader_epoch=4)
    office.server.put(T, b"not JSON")
    office.topics.load()
    office.unregister(3)
    office.brokers.on_broker_change()
    office.put_topic("t", {0: (3, 1)}, topic_id(77))
    office.topics.on_partition_modifications("t")
    office.effects()
    office.register(3, incarnation=2)
    office.brokers.on_broker_change()
    sent = leader_and_isr_requests(office.effects(), 3)
    (full,) = (request for _, request in sent if request.type is LeaderAndIsrType.FULL)
    assert [partition for partition, _ in full.partitions()] == [T0], "the broker has the only copy"


def test_no_request_is_full_while_a_state_is_unreadable(office: Office) -> None:
    office.put_topic("t", {0: (1, 2)}, topic_id(77))
    state = TopicPartitionStateZNode.path(T0)
    office.server.put(state, b"not JSON")
    office.topics.load()
    office.partitions.startup()
    assert full_requests(office, 2) == []
    office.put_state(T0, 1, (1, 2), leader_epoch=4)
    office.partitions.trigger_online_partition_state_change()
    assert office.context.unreadable_partitions == set()
    assert len(full_requests(office, 2)) == 1


# --- at the start of a term -----------------------------------------------------------------------


def test_a_term_starts_with_all_topics_and_leaderships(office: Office) -> None:
    moving = ReplicaAssignment((2, 3), adding_replicas=(3,))
    office.put_topic("t", {0: (1, 2), 1: moving}, topic_id(77))
    office.put_topic("u", {0: (3,)})
    office.put_state(T0, 2, (2,), leader_epoch=4)
    office.topics.load()
    assert list(office.context.all_topics) == ["t", "u"]
    assert office.known(T0) == (2, (2,), 4)
    assert office.known(T1) is None
    assert office.context.partitions_being_reassigned == {T1}
    assert office.topic("u").topic_id is not None
    assert office.sent() == [], "nothing is sent before everything is read"


def test_an_unreadable_state_does_not_prevent_the_start_of_a_term(office: Office) -> None:
    office.put_topic("t", {0: (1, 2), 1: (2, 3)}, topic_id(77))
    office.server.put(TopicPartitionStateZNode.path(T0), b"not JSON")
    office.put_state(T1, 2, (2,), leader_epoch=4)
    office.topics.load()
    assert office.known(T0) is None
    assert office.known(T1) == (2, (2,), 4)
    assert office.context.unreadable_partitions == {T0}


def test_a_deposed_controller_writes_no_ids_and_creates_nothing(office: Office) -> None:
    office.put_topic("t", {0: (1,)})
    office.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        office.topics.on_topic_change()
    assert office.topic("t").topic_id is None
    assert office.state(T0) is None
    assert kinds(office.effects()) == []


def test_reading_leaderships_of_an_earlier_term_does_not_rewrite_them(office: Office) -> None:
    office.put_topic("t", {0: (1, 2)}, topic_id(77))
    office.put_state(T0, 1, (1, 2), leader_epoch=4, controller_epoch=0)
    before = len(office.server.transactions)
    office.topics.load()
    assert len(office.server.transactions) == before
    assert office.context.partition_leadership_info(T0) == leadership(
        1, (1, 2), leader_epoch=4, controller_epoch=0
    )


def test_a_topic_rewritten_by_an_old_tool_keeps_its_id_and_reassignment(office: Office) -> None:
    moving = ReplicaAssignment((3, 1, 2), (3,), (2,))
    office.put_topic("t", {0: moving}, topic_id(77))
    office.topics.load()
    office.put_topic("t", {0: (3, 1, 2), 1: (1, 2)})
    office.topics.on_partition_modifications("t")
    stored = office.topic("t")
    assert stored.topic_id == topic_id(77)
    assert stored.partitions == {0: moving, 1: ReplicaAssignment((1, 2))}


def test_a_replica_being_removed_is_also_stopped_when_its_topic_is_removed(office: Office) -> None:
    office.lead(T0, (1, 2), leader=1, isr=(1, 2))
    office.put_replica_state(T0, 3, ReplicaState.ONLINE)  # it could not be stopped
    office.delete_topic("t")
    office.topics.on_topic_change()
    assert set(stop_replica_rows(office.effects())) == {1, 2, 3}
