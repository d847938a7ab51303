"""Topic deletion: control requests, delays, failures, and remaining znodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from regent.core.controller.effects import ScheduleEvent, SendControlRequest
from regent.core.controller.events import TopicDeletion, TopicDeletionStopReplicaResponseReceived
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.controller.term import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    BrokerId,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import (
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from regent.zk.codecs.znodes import TopicPartitionStateZNode
from tests.support.fake_zookeeper import Call, Moment, act_once
from tests.support.term import (
    Office,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
    requests,
    stop_replica_rows,
    topic_id,
)

STARTED, SUCCESSFUL = ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL
INELIGIBLE, OFFLINE = ReplicaState.DELETION_INELIGIBLE, ReplicaState.OFFLINE
FOO = (TopicPartition("foo", 0), TopicPartition("foo", 1))
BAR = (TopicPartition("bar", 0), TopicPartition("bar", 1))
RETRY = ScheduleEvent(10_000, TopicDeletion())


def make_office(settings: ControllerSettings | None = None) -> Office:
    """Topics foo and bar, two partitions each on brokers 1 to 3, without pending effects."""
    office = Office(brokers=(1, 2, 3), settings=settings)
    office.server.put("/admin/delete_topics")
    for number, topic in enumerate(("foo", "bar")):
        office.put_topic(topic, {0: (1, 2, 3), 1: (2, 3, 1)}, topic_id(number))
        office.server.put(f"/config/topics/{topic}", b"{}")
    office.topics.on_topic_change()
    office.effects()
    return office


@pytest.fixture
def office() -> Office:
    return make_office()


def request_deletion(office: Office, *topics: str) -> None:
    """Request the deletion of topics, and let the controller handle it."""
    for topic in topics:
        office.server.put(f"/admin/delete_topics/{topic}")
    office.deletions.on_topic_deletion()


def answer(
    office: Office,
    partitions: Iterable[TopicPartition],
    *brokers: BrokerId,
    error: Errors = Errors.NONE,
) -> None:
    """Let brokers answer the StopReplica of these partitions."""
    for broker_id in brokers:
        office.deletions.on_stop_replica_response(broker_id, dict.fromkeys(partitions, error))


def states(office: Office, partitions: Iterable[TopicPartition]) -> dict[BrokerId, ReplicaState]:
    """Return the replica state of each broker, which is the same for all partitions."""
    found = {b: {office.replica_state(tp, b) for tp in partitions} for b in (1, 2, 3)}
    assert all(len(of_broker) == 1 for of_broker in found.values()), found
    return {broker_id: of_broker.pop() for broker_id, of_broker in found.items()}


def left_of(office: Office, topic: str) -> list[str]:
    """Return the znodes of a topic, its configuration and its deletion request."""
    return [path for path in office.server.snapshot() if topic in path.split("/")]


def fail_broker(office: Office, broker_id: BrokerId) -> None:
    office.unregister(broker_id)
    office.brokers.on_broker_change()


def return_broker(office: Office, broker_id: BrokerId) -> None:
    office.register(broker_id, incarnation=2)
    office.brokers.on_broker_change()


# --- a complete deletion --------------------------------------------------------------------------


def test_tdm_02_every_replica_is_asked_and_every_broker_is_notified_once(office: Office) -> None:
    request_deletion(office, "bar", "foo")
    context = office.context
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == {"foo", "bar"}
    assert context.topics_ineligible_for_deletion == set()
    for partitions in (FOO, BAR):
        assert set(states(office, partitions).values()) == {STARTED}
        assert {context.partition_state(tp) for tp in partitions} == {PartitionState.NON_EXISTENT}
    assert context.offline_partition_count == 0
    effects = office.effects()
    rows = metadata_rows(effects)
    assert set(rows) == {1, 2, 3}
    assert all(set(of_broker) == {*FOO, *BAR} for of_broker in rows.values())
    assert {row.leader for row in rows[1].values()} == {LEADER_DURING_DELETE}
    # One UpdateMetadata, one StopReplica and one with deletion, for all topics together.
    assert sorted(kinds(effects)) == sorted(
        (b, kind) for b in (1, 2, 3) for kind in ("StopReplica", "StopReplica", "UpdateMetadata")
    )
    deletes = [
        {row.delete_partition for _, row in sent.request.partitions()}
        for sent in requests(effects)
        if isinstance(sent.request, StopReplicaRequest)
    ]
    assert deletes == [{False}] * 3 + [{True}] * 3
    epochs = {row.leader_epoch for row in stop_replica_rows(effects)[1].values()}
    assert epochs == {EPOCH_DURING_DELETE}


def test_an_answer_about_an_earlier_topic_of_the_same_name_is_ignored(office: Office) -> None:
    request_deletion(office, "foo")
    for sent in requests(office.effects()):
        if isinstance(sent.request, StopReplicaRequest):
            topics = tuple(replace(t, topic_id=topic_id(9)) for t in sent.request.topic_states)
            earlier, done = StopReplicaRequest(topics), StopReplicaResponse(Errors.NONE)
            office.responses.on_stop_replica(
                TopicDeletionStopReplicaResponseReceived(sent.broker_id, sent.header, earlier, done)
            )
    assert set(states(office, FOO).values()) == {STARTED}


def test_tdm_03_when_every_replica_is_deleted_nothing_remains(office: Office) -> None:
    request_deletion(office, "foo", "bar")
    answer(office, (*FOO, *BAR), 1, 2)
    assert left_of(office, "foo") != []
    answer(office, (*FOO, *BAR), 3)
    context = office.context
    assert list(context.all_topics) == []
    assert context.topic_id("foo") is None
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == set()
    assert context.topics_ineligible_for_deletion == set()
    assert states(office, FOO) == dict.fromkeys((1, 2, 3), ReplicaState.NON_EXISTENT)
    assert [*left_of(office, "foo"), *left_of(office, "bar")] == []
    office.effects()
    office.topics.on_topic_change()
    office.topics.on_partition_modifications("foo")
    office.deletions.on_topic_deletion()
    assert office.effects() == [], "the watches of the deletion change nothing"


def test_kafka_13572_a_repeated_deletion_request_changes_nothing(office: Office) -> None:
    office.put_state(FOO[0], 3, (1, 2, 3))
    stored = office.state(FOO[0])
    assert stored is not None
    office.context.put_partition_leadership_info(FOO[0], stored)
    assert office.context.preferred_replica_imbalance_count == 1
    request_deletion(office, "foo")
    assert office.context.preferred_replica_imbalance_count == 0
    office.effects()
    office.deletions.on_topic_deletion()
    assert office.effects() == []
    assert office.context.preferred_replica_imbalance_count == 0


def test_a_topic_without_partitions_is_deleted_at_once(office: Office) -> None:
    office.put_topic("empty", {}, topic_id(9))
    office.topics.on_topic_change()
    request_deletion(office, "empty")
    assert left_of(office, "empty") == []
    assert "empty" not in office.context.all_topics


def test_del_12_a_topic_with_missing_znodes_is_deleted(office: Office) -> None:
    office.server.remove(TopicPartitionStateZNode.path(FOO[0]))
    office.server.remove("/brokers/topics/foo/partitions/0")
    request_deletion(office, "foo")
    answer(office, FOO, 1, 2, 3)
    assert left_of(office, "foo") == []


def test_a_topic_without_a_first_leader_is_deleted(office: Office) -> None:
    office.put_topic("leaderless", {0: (8, 9)}, topic_id(9))
    office.topics.on_topic_change()
    request_deletion(office, "leaderless")
    assert office.context.topics_ineligible_for_deletion == {"leaderless"}
    partition = TopicPartition("leaderless", 0)
    for broker_id in (8, 9):
        return_broker(office, broker_id)
    answer(office, [partition], 8, 9)
    assert left_of(office, "leaderless") == []


def test_many_topics_need_as_many_calls_as_one() -> None:
    def calls(count: int) -> tuple[int, int]:
        office = make_office()
        topics = [f"t{n}" for n in range(count)]
        for n, topic in enumerate(topics):
            office.put_topic(topic, dict.fromkeys(range(10), (1, 2, 3)), topic_id(10 + n))
        office.topics.on_topic_change()
        office.effects()
        seen = 0

        def hook(call: Call) -> None:
            nonlocal seen
            seen += call.moment is Moment.BEFORE

        office.zookeeper.hook = hook
        request_deletion(office, *topics)
        partitions = [TopicPartition(topic, p) for topic in topics for p in range(10)]
        answer(office, partitions, 1, 2, 3)
        assert len(office.context.all_topics) == 2
        return seen, len(office.sent())

    assert calls(50) == calls(1)


# --- requests that delete nothing, or unknown topics ----------------------------------------------


def test_del_11_when_deletion_is_disabled_the_request_is_deleted_and_the_topic_stays() -> None:
    office = make_office(ControllerSettings(delete_topic_enable=False))
    before = left_of(office, "foo")
    request_deletion(office, "foo", "absent")
    assert left_of(office, "foo") == before
    assert left_of(office, "absent") == []
    assert not office.context.is_topic_queued_for_deletion("foo")
    assert office.sent() == []
    office.server.put("/admin/delete_topics/foo")
    office.deletions.load()
    assert left_of(office, "foo") == before


def test_del_09_a_request_for_an_unknown_topic_is_deleted(office: Office) -> None:
    request_deletion(office, "absent")
    assert left_of(office, "absent") == []
    assert office.context.topics_to_be_deleted == set()
    assert office.sent() == []


def test_a_topic_created_and_deleted_before_the_next_read_is_removed(office: Office) -> None:
    office.put_topic("brief", {0: (1, 2)})
    office.server.put("/config/topics/brief", b"{}")
    request_deletion(office, "brief")
    assert left_of(office, "brief") == []
    office.topics.on_topic_change()
    assert "brief" not in office.context.all_topics
    assert office.sent() == []


def test_an_unreadable_topic_can_be_deleted(office: Office) -> None:
    office.server.put("/brokers/topics/bad", b"not JSON")
    office.server.put("/brokers/topics/bad/partitions/0/state", b"not JSON either")
    office.topics.on_topic_change()
    request_deletion(office, "bad")
    assert left_of(office, "bad") == []
    assert office.context.bad_topics == {}, "its replicas are stray now"


def test_a_topic_hidden_by_an_acl_is_deleted_with_its_replicas_when_it_can_be_read() -> None:
    office = Office(brokers=(1, 2, 3))
    office.put_topic("foo", {0: (1, 2, 3)}, topic_id(0))
    office.server.deny("/brokers/topics/foo")
    office.topics.on_topic_change()

    def allow(call: Call) -> None:
        if call.paths == ("/brokers/topics/foo",) and call.moment is Moment.AFTER:
            office.server.allow("/brokers/topics/foo")

    office.zookeeper.hook = allow
    request_deletion(office, "foo")
    assert left_of(office, "foo") != [], "the topic could not be read"
    assert of_type(office.effects(), ScheduleEvent) == [RETRY]
    office.topics.read_again()
    office.deletions.on_topic_deletion()
    assert states(office, FOO[:1]) == {1: STARTED, 2: STARTED, 3: STARTED}
    answer(office, FOO[:1], 1, 2, 3)
    assert left_of(office, "foo") == []


def test_a_topic_repaired_after_its_last_read_is_read_before_it_is_deleted(
    office: Office,
) -> None:
    office.server.put("/brokers/topics/bad", b"not JSON")
    office.topics.on_topic_change()
    office.put_topic("bad", {0: (1, 2)}, topic_id(7))
    request_deletion(office, "bad")
    assert "/brokers/topics/bad" in left_of(office, "bad"), "brokers may have its logs"
    assert RETRY in office.effects()
    office.topics.on_partition_modifications("bad")
    office.deletions.on_topic_deletion()
    assert office.context.is_topic_queued_for_deletion("bad")


def test_a_known_topic_that_became_unreadable_is_deleted_with_its_replicas(office: Office) -> None:
    office.server.put("/brokers/topics/foo", b"not JSON")
    office.topics.on_partition_modifications("foo")
    request_deletion(office, "foo")
    assert set(states(office, FOO).values()) == {STARTED}
    answer(office, FOO, 1, 2, 3)
    assert left_of(office, "foo") == []
    assert office.context.bad_topics == {}


# --- replicas that are offline --------------------------------------------------------------------


def test_tdm_04_to_06_an_offline_broker_delays_the_deletion_of_its_topics(office: Office) -> None:
    fail_broker(office, 2)
    request_deletion(office, "foo")
    context = office.context
    assert states(office, FOO) == {1: STARTED, 2: INELIGIBLE, 3: STARTED}
    assert context.topics_ineligible_for_deletion == {"foo"}
    answer(office, FOO, 1, 3)
    assert states(office, FOO) == {1: SUCCESSFUL, 2: OFFLINE, 3: SUCCESSFUL}
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == {"foo"}
    assert context.topics_ineligible_for_deletion == {"foo"}
    office.effects()
    return_broker(office, 2)
    assert states(office, FOO) == {1: SUCCESSFUL, 2: STARTED, 3: SUCCESSFUL}
    assert set(stop_replica_rows(office.effects())) == {2}
    answer(office, FOO, 2)
    assert left_of(office, "foo") == []


def test_tdm_07_a_broker_that_fails_during_the_deletion_delays_it(office: Office) -> None:
    request_deletion(office, "foo")
    fail_broker(office, 2)
    assert states(office, FOO) == {1: STARTED, 2: INELIGIBLE, 3: STARTED}
    assert office.context.topics_ineligible_for_deletion == {"foo"}
    answer(office, FOO, 1, 3)
    return_broker(office, 2)
    answer(office, FOO, 2)
    assert left_of(office, "foo") == []


def test_a_delayed_topic_does_not_delay_others(office: Office) -> None:
    office.put_topic("baz", {0: (1, 3)}, topic_id(9))
    office.topics.on_topic_change()
    fail_broker(office, 2)
    request_deletion(office, "foo", "baz")
    answer(office, [*FOO, TopicPartition("baz", 0)], 1, 3)
    assert left_of(office, "baz") == []
    assert left_of(office, "foo") != []


def test_a_restarted_broker_is_asked_again(office: Office) -> None:
    request_deletion(office, "foo")
    answer(office, FOO, 1, 3)
    office.unregister(2)
    office.effects()
    return_broker(office, 2)
    assert states(office, FOO)[2] is STARTED
    assert all(row.delete_partition for row in stop_replica_rows(office.effects())[2].values())
    answer(office, FOO, 2)
    assert left_of(office, "foo") == []


def test_a_broker_that_fails_after_its_deletion_delays_nothing(office: Office) -> None:
    request_deletion(office, "foo")
    answer(office, FOO, 2)
    fail_broker(office, 2)
    assert office.context.topics_ineligible_for_deletion == set()
    answer(office, FOO, 1, 3)
    assert left_of(office, "foo") == []


def test_a_broker_that_is_shutting_down_still_deletes(office: Office) -> None:
    office.context.shutting_down_broker_ids.add(2)
    request_deletion(office, "foo")
    assert states(office, FOO)[2] is STARTED


def test_a_broker_whose_requests_were_dropped_is_asked_again(office: Office) -> None:
    request_deletion(office, "foo")
    answer(office, FOO, 1)
    office.effects()
    office.brokers.tell_everything(2)
    assert states(office, FOO) == {1: SUCCESSFUL, 2: INELIGIBLE, 3: STARTED}
    answer(office, FOO, 3)
    assert states(office, FOO)[2] is STARTED, "asked again after the other answers"
    answer(office, FOO, 2)
    assert left_of(office, "foo") == []


def test_a_broker_whose_new_channel_completes_a_reassignment_is_asked_once(office: Office) -> None:
    single = TopicPartition("single", 0)
    office.put_topic("single", {0: (1, 2)}, topic_id(2))
    office.topics.on_topic_change()
    moved = ReplicaAssignment((2, 1), removing_replicas=(1,))
    office.context.update_partition_full_replica_assignment(single, moved)
    office.context.partitions_being_reassigned.add(single)
    request_deletion(office, "single")
    office.effects()
    office.brokers.tell_everything(2)
    assert office.context.topics_with_deletion_started == {"single"}
    asked = [
        row.delete_partition
        for sent in of_type(office.effects(), SendControlRequest)
        if isinstance(sent.request, StopReplicaRequest) and sent.broker_id == 2
        for _, row in sent.request.partitions()
    ]
    assert asked == [False, True]


# --- failed deletions of replicas -----------------------------------------------------------------


def test_a_replica_that_could_not_be_deleted_is_tried_again_later(office: Office) -> None:
    request_deletion(office, "foo")
    answer(office, FOO, 1, 3)
    office.effects()
    answer(office, FOO, 2, error=Errors.KAFKA_STORAGE_ERROR)
    assert states(office, FOO) == {1: SUCCESSFUL, 2: OFFLINE, 3: SUCCESSFUL}
    assert office.context.topics_ineligible_for_deletion == {"foo"}
    assert of_type(office.effects(), ScheduleEvent) == [RETRY]
    office.deletions.on_topic_deletion()
    assert states(office, FOO)[2] is STARTED
    answer(office, FOO, 2)
    assert left_of(office, "foo") == []


def test_failures_of_many_brokers_are_tried_again_together(office: Office) -> None:
    request_deletion(office, "foo")
    for _ in range(3):
        office.effects()
        answer(office, FOO, 1, 2, 3, error=Errors.KAFKA_STORAGE_ERROR)
        assert of_type(office.effects(), ScheduleEvent) == [RETRY]
        office.deletions.on_topic_deletion()
        assert set(states(office, FOO).values()) == {STARTED}


def test_an_answer_may_contain_errors_of_some_partitions(office: Office) -> None:
    request_deletion(office, "foo")
    answer(office, FOO, 1, 3)
    errors = {FOO[0]: Errors.NONE, FOO[1]: Errors.KAFKA_STORAGE_ERROR}
    office.deletions.on_stop_replica_response(2, errors)
    assert office.replica_state(FOO[0], 2) is SUCCESSFUL
    office.deletions.on_topic_deletion()
    office.effects()
    assert office.replica_state(FOO[1], 2) is STARTED
    answer(office, FOO[1:], 2)
    assert left_of(office, "foo") == []


def test_unexpected_answers_change_nothing(office: Office) -> None:
    answer(office, FOO, 1)
    answer(office, [TopicPartition("absent", 0)], 1)
    request_deletion(office, "foo")
    answer(office, FOO, 1, 1, 9)
    answer(office, FOO, 1, error=Errors.KAFKA_STORAGE_ERROR)
    assert states(office, FOO) == {1: SUCCESSFUL, 2: STARTED, 3: STARTED}


def test_znodes_that_could_not_be_deleted_are_tried_again_later(office: Office) -> None:
    number = itertools.count(5)

    def create_children(call: Call) -> None:
        if call.method == "multi_many" and call.moment is Moment.BEFORE:
            office.server.put(f"/brokers/topics/foo/partitions/{next(number)}")

    request_deletion(office, "foo")
    answer(office, FOO, 1, 2)
    office.zookeeper.hook = create_children
    office.effects()
    answer(office, FOO, 3)
    assert of_type(office.effects(), ScheduleEvent) == [RETRY]
    assert {"/brokers/topics/foo", "/admin/delete_topics/foo"} <= set(left_of(office, "foo"))
    office.zookeeper.hook = None
    office.deletions.on_topic_deletion()
    assert left_of(office, "foo") == []
    assert "foo" not in office.context.all_topics


# --- topics with changes in progress --------------------------------------------------------------


def test_a_topic_that_is_being_reassigned_is_deleted_afterwards(office: Office) -> None:
    office.context.partitions_being_reassigned.add(FOO[1])
    request_deletion(office, "foo", "bar")
    assert office.context.topics_ineligible_for_deletion == {"foo"}
    assert office.context.topics_with_deletion_started == {"bar"}
    return_broker(office, 4)
    office.deletions.resume(["foo"])
    assert office.context.topics_with_deletion_started == {"bar"}, (
        "the reassignment is not complete"
    )
    office.context.partitions_being_reassigned.clear()
    office.deletions.resume(["foo"])
    answer(office, FOO, 1, 2, 3)
    assert left_of(office, "foo") == []


def move(office: Office, partition: TopicPartition) -> None:
    """Reassign a partition to a broker that does not exist yet."""
    moving = ReplicaAssignment((1, 2, 3, 4), adding_replicas=(4,))
    office.context.update_partition_full_replica_assignment(partition, moving)
    office.context.partitions_being_reassigned.add(partition)


def test_a_reassignment_that_delays_a_deletion_gets_a_new_leader(office: Office) -> None:
    move(office, FOO[0])
    request_deletion(office, "foo")
    office.effects()
    fail_broker(office, 1)
    assert office.leads(FOO[0])[0] == 2, "without a leader it could not complete"
    assert set(leader_and_isr_rows(office.effects())) == {2, 3}
    assert office.leads(FOO[1]) == (2, (2, 3, 1), 0), (
        "the deletion does not wait for the other partition"
    )


def test_a_reassignment_without_a_leader_gets_one_when_the_broker_returns(office: Office) -> None:
    move(office, FOO[0])
    request_deletion(office, "foo")
    office.put_state(FOO[0], 1, (1,), leader_epoch=3)
    fail_broker(office, 1)
    assert office.context.partition_state(FOO[0]) is PartitionState.OFFLINE
    return_broker(office, 1)
    assert office.leads(FOO[0])[:2] == (1, (1,))
    assert office.context.partition_state(FOO[0]) is PartitionState.ONLINE
    assert office.context.topics_with_deletion_started == set()


def test_del_07_partitions_added_to_a_queued_topic_are_removed(office: Office) -> None:
    request_deletion(office, "foo")
    replicas = dict.fromkeys(range(3), (1, 2, 3))
    office.put_topic("foo", replicas)
    office.topics.on_partition_modifications("foo")
    stored = office.topic("foo")
    assert stored.partitions == {0: ReplicaAssignment((1, 2, 3)), 1: ReplicaAssignment((2, 3, 1))}
    assert stored.topic_id == topic_id(0)
    office.topics.on_partition_modifications("foo")
    assert office.topic("foo") == stored
    answer(office, FOO, 1, 2, 3)
    assert left_of(office, "foo") == []


def test_added_partitions_are_removed_despite_a_concurrent_write(office: Office) -> None:
    def add_another() -> None:
        office.put_topic("foo", dict.fromkeys(range(4), (1, 2, 3)), topic_id(0))

    request_deletion(office, "foo")
    office.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    act_once(office.zookeeper, add_another, method="multi_many")
    office.topics.on_partition_modifications("foo")
    assert sorted(office.topic("foo").partitions) == [0, 1]


def test_added_partitions_are_removed_when_an_acl_allows_it(office: Office) -> None:
    request_deletion(office, "foo")
    office.server.deny_writing("/brokers/topics/foo")
    office.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    office.topics.on_partition_modifications("foo")
    assert office.context.must_read_again
    office.server.allow("/brokers/topics/foo")
    office.topics.read_again()
    assert sorted(office.topic("foo").partitions) == [0, 1]
    office.context.must_read_again = False
    office.topics.read_again()
    assert not office.context.must_read_again


def test_a_topic_removed_during_the_removal_of_partitions_is_not_created_again(
    office: Office,
) -> None:
    request_deletion(office, "foo")
    office.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    act_once(office.zookeeper, lambda: office.delete_topic("foo"), method="multi_many")
    office.topics.on_partition_modifications("foo")
    assert "/brokers/topics/foo" not in office.server.snapshot()


# --- at the start of a term -----------------------------------------------------------------------


def test_tdm_01_queued_and_ineligible_topics_at_the_start_of_a_term() -> None:
    office = Office(brokers=(1, 2, 3))
    moving = ReplicaAssignment((1, 2), adding_replicas=(2,))
    assignments = [ReplicaAssignment((1,)), ReplicaAssignment((1, 9)), moving, moving]
    for number, replicas in enumerate(assignments):
        office.put_topic(f"t{number}", {0: replicas}, topic_id(number))
    for topic in ("t0", "t1", "t2", "absent"):
        office.server.put(f"/admin/delete_topics/{topic}")
    office.topics.load()
    office.deletions.load()
    assert office.context.topics_to_be_deleted == {"t0", "t1", "t2"}
    assert office.context.topics_ineligible_for_deletion == {"t1", "t2"}
    assert left_of(office, "absent") == []
    assert office.sent() == [], "nothing is sent before everything is read"


def test_a_replica_with_a_failed_log_is_asked_because_the_log_may_only_be_damaged(
    office: Office,
) -> None:
    office.context.replicas_on_offline_dirs[2] = {FOO[0]}
    request_deletion(office, "foo")
    assert office.replica_state(FOO[0], 2) is STARTED
    office.effects()
    answer(office, FOO[:1], 2, error=Errors.KAFKA_STORAGE_ERROR)
    assert office.context.topics_ineligible_for_deletion == {"foo"}
    assert of_type(office.effects(), ScheduleEvent) == [], "a failed directory is not tried again"


def test_other_replicas_do_not_fail_with_a_failed_replica(office: Office) -> None:
    request_deletion(office, "foo")
    office.deletions.fail([PartitionAndReplica(FOO[0], 2)])
    assert office.replica_state(FOO[0], 2) is INELIGIBLE
    assert office.replica_state(FOO[1], 2) is STARTED
    assert office.replica_state(BAR[0], 2) is ReplicaState.ONLINE


def test_each_broker_gets_one_request_of_each_kind_in_sequence(office: Office) -> None:
    request_deletion(office, "foo", "bar")
    to_1: list[SendControlRequest] = [s for s in office.sent() if s.broker_id == 1]
    assert isinstance(to_1[0].request, UpdateMetadataRequest), "clients are refused first"
    assert len(to_1) == 3


def test_a_late_answer_of_a_failed_replica_is_ignored(office: Office) -> None:
    request_deletion(office, "foo")
    office.deletions.fail([PartitionAndReplica(partition, 2) for partition in FOO])
    answer(office, FOO, 1, 2, 3)
    assert left_of(office, "foo") != []
