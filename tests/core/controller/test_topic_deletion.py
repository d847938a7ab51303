"""Topic deletion: control requests, delays, failures, and remaining znodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from regent.core.controller.effects import ScheduleEvent, SendControlRequest
from regent.core.controller.events import TopicDeletion, TopicDeletionStopReplicaResponseReceived
from regent.core.controller.services import ControllerSettings
from regent.core.controller.states import PartitionState, ReplicaState
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
from regent.zk.znodes import TopicPartitionStateZNode
from tests.support.controller_parts import (
    ControllerParts,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
    requests,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import Call, Moment, act_once
from tests.support.world import topic_id

STARTED, SUCCESSFUL = ReplicaState.DELETION_STARTED, ReplicaState.DELETION_SUCCESSFUL
INELIGIBLE, OFFLINE = ReplicaState.DELETION_INELIGIBLE, ReplicaState.OFFLINE
FOO = (TopicPartition("foo", 0), TopicPartition("foo", 1))
BAR = (TopicPartition("bar", 0), TopicPartition("bar", 1))
RETRY = ScheduleEvent(10_000, TopicDeletion())


def make_office(settings: ControllerSettings | None = None) -> ControllerParts:
    """Topics foo and bar, two partitions each on brokers 1 to 3, without pending effects."""
    parts = ControllerParts(brokers=(1, 2, 3), settings=settings)
    parts.zookeeper.put("/admin/delete_topics")
    for number, topic in enumerate(("foo", "bar")):
        parts.put_topic(topic, {0: (1, 2, 3), 1: (2, 3, 1)}, topic_id(number))
        parts.zookeeper.put(f"/config/topics/{topic}", b"{}")
    parts.topics.on_topic_change()
    parts.effects()
    return parts


@pytest.fixture
def parts() -> ControllerParts:
    return make_office()


def request_deletion(parts: ControllerParts, *topics: str) -> None:
    """Request the deletion of topics, and let the controller handle it."""
    for topic in topics:
        parts.zookeeper.put(f"/admin/delete_topics/{topic}")
    parts.deletions.on_topic_deletion()


def answer(
    parts: ControllerParts,
    partitions: Iterable[TopicPartition],
    *brokers: BrokerId,
    error: Errors = Errors.NONE,
) -> None:
    """Let brokers answer the StopReplica of these partitions."""
    for broker_id in brokers:
        parts.deletions.on_stop_replica_response(broker_id, dict.fromkeys(partitions, error))


def states(
    parts: ControllerParts, partitions: Iterable[TopicPartition]
) -> dict[BrokerId, ReplicaState]:
    """Return the replica state of each broker, which is the same for all partitions."""
    found = {b: {parts.replica_state(tp, b) for tp in partitions} for b in (1, 2, 3)}
    assert all(len(of_broker) == 1 for of_broker in found.values()), found
    return {broker_id: of_broker.pop() for broker_id, of_broker in found.items()}


def left_of(parts: ControllerParts, topic: str) -> list[str]:
    """Return the znodes of a topic, its configuration and its deletion request."""
    return [
        path
        for path in parts.zookeeper.snapshot()
        if topic in path.split("/") and not path.startswith("/regent/deleted_topics/")
    ]


def fail_broker(parts: ControllerParts, broker_id: BrokerId) -> None:
    parts.unregister(broker_id)
    parts.brokers.on_broker_change()


def return_broker(parts: ControllerParts, broker_id: BrokerId) -> None:
    parts.register(broker_id, incarnation=2)
    parts.brokers.on_broker_change()


# --- a complete deletion --------------------------------------------------------------------------


def test_tdm_02_every_replica_is_asked_and_every_broker_is_notified_once(
    parts: ControllerParts,
) -> None:
    request_deletion(parts, "bar", "foo")
    context = parts.context
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == {"foo", "bar"}
    assert context.topics_ineligible_for_deletion == set()
    for partitions in (FOO, BAR):
        assert set(states(parts, partitions).values()) == {STARTED}
        assert {context.partition_state(tp) for tp in partitions} == {PartitionState.NON_EXISTENT}
    assert context.offline_partition_count == 0
    effects = parts.effects()
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


def test_an_answer_about_an_earlier_topic_of_the_same_name_is_ignored(
    parts: ControllerParts,
) -> None:
    request_deletion(parts, "foo")
    for sent in requests(parts.effects()):
        if isinstance(sent.request, StopReplicaRequest):
            topics = tuple(replace(t, topic_id=topic_id(9)) for t in sent.request.topic_states)
            earlier, done = StopReplicaRequest(topics), StopReplicaResponse(Errors.NONE)
            parts.responses.on_stop_replica(
                TopicDeletionStopReplicaResponseReceived(sent.broker_id, sent.header, earlier, done)
            )
    assert set(states(parts, FOO).values()) == {STARTED}


def test_tdm_03_when_every_replica_is_deleted_nothing_remains(parts: ControllerParts) -> None:
    request_deletion(parts, "foo", "bar")
    answer(parts, (*FOO, *BAR), 1, 2)
    assert left_of(parts, "foo") != []
    answer(parts, (*FOO, *BAR), 3)
    context = parts.context
    assert list(context.all_topics) == []
    assert context.topic_id("foo") is None
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == set()
    assert context.topics_ineligible_for_deletion == set()
    assert states(parts, FOO) == dict.fromkeys((1, 2, 3), ReplicaState.NON_EXISTENT)
    assert [*left_of(parts, "foo"), *left_of(parts, "bar")] == []
    parts.effects()
    parts.topics.on_topic_change()
    parts.topics.on_partition_modifications("foo")
    parts.deletions.on_topic_deletion()
    assert parts.effects() == [], "the watches of the deletion change nothing"


def test_kafka_13572_a_repeated_deletion_request_changes_nothing(parts: ControllerParts) -> None:
    parts.put_state(FOO[0], 3, (1, 2, 3))
    stored = parts.state(FOO[0])
    assert stored is not None
    parts.context.put_partition_leadership_info(FOO[0], stored)
    assert parts.context.preferred_replica_imbalance_count == 1
    request_deletion(parts, "foo")
    assert parts.context.preferred_replica_imbalance_count == 0
    parts.effects()
    parts.deletions.on_topic_deletion()
    assert parts.effects() == []
    assert parts.context.preferred_replica_imbalance_count == 0


def test_a_topic_without_partitions_is_deleted_at_once(parts: ControllerParts) -> None:
    parts.put_topic("empty", {}, topic_id(9))
    parts.topics.on_topic_change()
    request_deletion(parts, "empty")
    assert left_of(parts, "empty") == []
    assert "empty" not in parts.context.all_topics


def test_del_12_a_topic_with_missing_znodes_is_deleted(parts: ControllerParts) -> None:
    parts.zookeeper.remove(TopicPartitionStateZNode.path(FOO[0]))
    parts.zookeeper.remove("/brokers/topics/foo/partitions/0")
    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 2, 3)
    assert left_of(parts, "foo") == []


def test_a_topic_without_a_first_leader_is_deleted(parts: ControllerParts) -> None:
    parts.put_topic("leaderless", {0: (8, 9)}, topic_id(9))
    parts.topics.on_topic_change()
    request_deletion(parts, "leaderless")
    assert parts.context.topics_ineligible_for_deletion == {"leaderless"}
    partition = TopicPartition("leaderless", 0)
    for broker_id in (8, 9):
        return_broker(parts, broker_id)
    answer(parts, [partition], 8, 9)
    assert left_of(parts, "leaderless") == []


def test_many_topics_need_as_many_calls_as_one() -> None:
    def calls(count: int) -> tuple[int, int]:
        parts = make_office()
        topics = [f"t{n}" for n in range(count)]
        for n, topic in enumerate(topics):
            parts.put_topic(topic, dict.fromkeys(range(10), (1, 2, 3)), topic_id(10 + n))
        parts.topics.on_topic_change()
        parts.effects()
        seen = 0

        def hook(call: Call) -> None:
            nonlocal seen
            seen += call.moment is Moment.BEFORE

        parts.session.hook = hook
        request_deletion(parts, *topics)
        partitions = [TopicPartition(topic, p) for topic in topics for p in range(10)]
        answer(parts, partitions, 1, 2, 3)
        assert len(parts.context.all_topics) == 2
        return seen, len(parts.sent())

    assert calls(50) == calls(1)


# --- requests that delete nothing, or unknown topics ----------------------------------------------


def test_del_11_when_deletion_is_disabled_the_request_is_deleted_and_the_topic_stays() -> None:
    parts = make_office(ControllerSettings(delete_topic_enable=False))
    before = left_of(parts, "foo")
    request_deletion(parts, "foo", "absent")
    assert left_of(parts, "foo") == before
    assert left_of(parts, "absent") == []
    assert not parts.context.is_topic_queued_for_deletion("foo")
    assert parts.sent() == []
    parts.zookeeper.put("/admin/delete_topics/foo")
    parts.deletions.load()
    assert left_of(parts, "foo") == before


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("/config/topics/foo", "regent.deletion.protection"),
        ("/config/brokers/<default>", "delete.topic.enable"),
    ],
)
def test_a_request_that_a_tool_writes_for_what_may_not_be_deleted_is_removed(
    parts: ControllerParts, path: str, settings: str
) -> None:
    value = "true" if "protection" in settings else "false"
    config = f'{{"version":1,"config":{{"{settings}":"{value}"}}}}'.encode()
    parts.zookeeper.put(path, config)
    before = left_of(parts, "foo")
    request_deletion(parts, "foo")
    assert left_of(parts, "foo") == before
    assert not parts.context.is_topic_queued_for_deletion("foo")
    assert parts.sent() == []


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("/config/topics/foo", "regent.deletion.protection"),
        ("/config/brokers/<default>", "delete.topic.enable"),
    ],
)
def test_a_deletion_that_was_accepted_goes_on_when_deletions_are_forbidden(
    parts: ControllerParts, path: str, settings: str
) -> None:
    """Also in the next term: some replicas may be deleted, so the topic must not come back."""
    fail_broker(parts, 3)
    request_deletion(parts, "foo")
    value = "true" if "protection" in settings else "false"
    config = f'{{"version":1,"config":{{"{settings}":"{value}"}}}}'.encode()
    parts.zookeeper.put(path, config)
    parts.deletions.on_topic_deletion()
    assert parts.context.is_topic_queued_for_deletion("foo")
    parts.context.topics_to_be_deleted.clear()  # as at the start of a term
    parts.deletions.load()
    assert parts.context.is_topic_queued_for_deletion("foo")
    assert "/admin/delete_topics/foo" in left_of(parts, "foo")


def test_del_09_a_request_for_an_unknown_topic_is_deleted(parts: ControllerParts) -> None:
    request_deletion(parts, "absent")
    assert left_of(parts, "absent") == []
    assert parts.context.topics_to_be_deleted == set()
    assert parts.sent() == []


def test_a_topic_created_and_deleted_before_the_next_read_is_removed(
    parts: ControllerParts,
) -> None:
    parts.put_topic("brief", {0: (1, 2)})
    parts.zookeeper.put("/config/topics/brief", b"{}")
    request_deletion(parts, "brief")
    assert left_of(parts, "brief") == []
    parts.topics.on_topic_change()
    assert "brief" not in parts.context.all_topics
    assert parts.sent() == []


def test_an_unreadable_topic_can_be_deleted(parts: ControllerParts) -> None:
    parts.zookeeper.put("/brokers/topics/bad", b"not JSON")
    parts.zookeeper.put("/brokers/topics/bad/partitions/0/state", b"not JSON either")
    parts.topics.on_topic_change()
    request_deletion(parts, "bad")
    assert left_of(parts, "bad") == []
    assert parts.context.bad_topics == {}, "its replicas are stray now"


def test_a_topic_hidden_by_an_acl_is_deleted_with_its_replicas_when_it_can_be_read() -> None:
    parts = ControllerParts(brokers=(1, 2, 3))
    parts.put_topic("foo", {0: (1, 2, 3)}, topic_id(0))
    parts.zookeeper.deny("/brokers/topics/foo")
    parts.topics.on_topic_change()

    def allow(call: Call) -> None:
        if call.paths == ("/brokers/topics/foo",) and call.moment is Moment.AFTER:
            parts.zookeeper.allow("/brokers/topics/foo")

    parts.session.hook = allow
    request_deletion(parts, "foo")
    assert left_of(parts, "foo") != [], "the topic could not be read"
    assert of_type(parts.effects(), ScheduleEvent) == [RETRY]
    parts.topics.read_again()
    parts.deletions.on_topic_deletion()
    assert states(parts, FOO[:1]) == {1: STARTED, 2: STARTED, 3: STARTED}
    answer(parts, FOO[:1], 1, 2, 3)
    assert left_of(parts, "foo") == []


def test_a_topic_repaired_after_its_last_read_is_read_before_it_is_deleted(
    parts: ControllerParts,
) -> None:
    parts.zookeeper.put("/brokers/topics/bad", b"not JSON")
    parts.topics.on_topic_change()
    parts.put_topic("bad", {0: (1, 2)}, topic_id(7))
    request_deletion(parts, "bad")
    assert "/brokers/topics/bad" in left_of(parts, "bad"), "brokers may have its logs"
    assert RETRY in parts.effects()
    parts.topics.on_partition_modifications("bad")
    parts.deletions.on_topic_deletion()
    assert parts.context.is_topic_queued_for_deletion("bad")


@pytest.mark.parametrize("is_found_in_list", [True, False])
def test_a_topic_repaired_in_the_middle_of_its_deletion_is_not_led_again(
    parts: ControllerParts, *, is_found_in_list: bool
) -> None:
    """The states of its partitions are gone, but an ACL kept its znode: epochs begin at 0 again."""
    parts.zookeeper.put("/brokers/topics/bad", b"not JSON")
    parts.topics.on_topic_change()
    parts.zookeeper.put("/admin/delete_topics/bad")
    parts.put_topic("bad", {0: (1, 2)}, topic_id(7))
    if is_found_in_list:
        parts.topics.on_topic_change()
    else:
        parts.topics.on_partition_modifications("bad")
    bad = TopicPartition("bad", 0)
    assert parts.state(bad) is None
    answer(parts, [bad], 1, 2)
    assert left_of(parts, "bad") == []


@pytest.mark.parametrize("method", ["children_many", "multi_many"])
def test_a_topic_repaired_while_its_znodes_are_being_deleted_keeps_them_until_brokers_are_asked(
    parts: ControllerParts, method: str
) -> None:
    parts.zookeeper.put("/brokers/topics/bad", b"not JSON")
    parts.zookeeper.put("/brokers/topics/bad/partitions/0/state", b"{}")
    parts.topics.on_topic_change()
    before = left_of(parts, "bad")
    act_once(parts.session, lambda: parts.put_topic("bad", {0: (1, 2)}, topic_id(7)), method=method)
    request_deletion(parts, "bad")
    assert set(left_of(parts, "bad")) == {*before, "/admin/delete_topics/bad"}
    assert RETRY in parts.effects()


def test_a_known_topic_that_became_unreadable_is_deleted_with_its_replicas(
    parts: ControllerParts,
) -> None:
    parts.zookeeper.put("/brokers/topics/foo", b"not JSON")
    parts.topics.on_partition_modifications("foo")
    request_deletion(parts, "foo")
    assert set(states(parts, FOO).values()) == {STARTED}
    answer(parts, FOO, 1, 2, 3)
    assert left_of(parts, "foo") == []
    assert parts.context.bad_topics == {}


# --- replicas that are offline --------------------------------------------------------------------


def test_tdm_04_to_06_an_offline_broker_delays_the_deletion_of_its_topics(
    parts: ControllerParts,
) -> None:
    fail_broker(parts, 2)
    request_deletion(parts, "foo")
    context = parts.context
    assert states(parts, FOO) == {1: STARTED, 2: INELIGIBLE, 3: STARTED}
    assert context.topics_ineligible_for_deletion == {"foo"}
    answer(parts, FOO, 1, 3)
    assert states(parts, FOO) == {1: SUCCESSFUL, 2: OFFLINE, 3: SUCCESSFUL}
    assert context.topics_to_be_deleted == context.topics_with_deletion_started == {"foo"}
    assert context.topics_ineligible_for_deletion == {"foo"}
    parts.effects()
    return_broker(parts, 2)
    assert states(parts, FOO) == {1: SUCCESSFUL, 2: STARTED, 3: SUCCESSFUL}
    assert set(stop_replica_rows(parts.effects())) == {2}
    answer(parts, FOO, 2)
    assert left_of(parts, "foo") == []


def test_tdm_07_a_broker_that_fails_during_the_deletion_delays_it(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    fail_broker(parts, 2)
    assert states(parts, FOO) == {1: STARTED, 2: INELIGIBLE, 3: STARTED}
    assert parts.context.topics_ineligible_for_deletion == {"foo"}
    answer(parts, FOO, 1, 3)
    return_broker(parts, 2)
    answer(parts, FOO, 2)
    assert left_of(parts, "foo") == []


def test_a_delayed_topic_does_not_delay_others(parts: ControllerParts) -> None:
    parts.put_topic("baz", {0: (1, 3)}, topic_id(9))
    parts.topics.on_topic_change()
    fail_broker(parts, 2)
    request_deletion(parts, "foo", "baz")
    answer(parts, [*FOO, TopicPartition("baz", 0)], 1, 3)
    assert left_of(parts, "baz") == []
    assert left_of(parts, "foo") != []


def test_a_restarted_broker_is_asked_again(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 3)
    parts.unregister(2)
    parts.effects()
    return_broker(parts, 2)
    assert states(parts, FOO)[2] is STARTED
    assert all(row.delete_partition for row in stop_replica_rows(parts.effects())[2].values())
    answer(parts, FOO, 2)
    assert left_of(parts, "foo") == []


def test_a_broker_that_fails_after_its_deletion_delays_nothing(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    answer(parts, FOO, 2)
    fail_broker(parts, 2)
    assert parts.context.topics_ineligible_for_deletion == set()
    answer(parts, FOO, 1, 3)
    assert left_of(parts, "foo") == []


def test_a_broker_that_is_shutting_down_still_deletes(parts: ControllerParts) -> None:
    parts.context.shutting_down_broker_ids.add(2)
    request_deletion(parts, "foo")
    assert states(parts, FOO)[2] is STARTED


def test_a_broker_whose_requests_were_dropped_is_asked_again(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    answer(parts, FOO, 1)
    parts.effects()
    parts.brokers.send_complete_state(2)
    assert states(parts, FOO) == {1: SUCCESSFUL, 2: INELIGIBLE, 3: STARTED}
    answer(parts, FOO, 3)
    assert states(parts, FOO)[2] is STARTED, "asked again after the other answers"
    answer(parts, FOO, 2)
    assert left_of(parts, "foo") == []


def test_a_broker_whose_new_channel_completes_a_reassignment_is_asked_once(
    parts: ControllerParts,
) -> None:
    single = TopicPartition("single", 0)
    parts.put_topic("single", {0: (1, 2)}, topic_id(2))
    parts.topics.on_topic_change()
    moved = ReplicaAssignment((2, 1), removing_replicas=(1,))
    parts.context.update_partition_full_replica_assignment(single, moved)
    parts.context.partitions_being_reassigned.add(single)
    request_deletion(parts, "single")
    parts.effects()
    parts.brokers.send_complete_state(2)
    assert parts.context.topics_with_deletion_started == {"single"}
    asked = [
        row.delete_partition
        for sent in of_type(parts.effects(), SendControlRequest)
        if isinstance(sent.request, StopReplicaRequest) and sent.broker_id == 2
        for _, row in sent.request.partitions()
    ]
    assert asked == [False, True]


# --- failed deletions of replicas -----------------------------------------------------------------


def test_a_replica_that_could_not_be_deleted_is_tried_again_later(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 3)
    parts.effects()
    answer(parts, FOO, 2, error=Errors.KAFKA_STORAGE_ERROR)
    assert states(parts, FOO) == {1: SUCCESSFUL, 2: OFFLINE, 3: SUCCESSFUL}
    assert parts.context.topics_ineligible_for_deletion == {"foo"}
    assert of_type(parts.effects(), ScheduleEvent) == [RETRY]
    parts.deletions.on_topic_deletion()
    assert states(parts, FOO)[2] is STARTED
    answer(parts, FOO, 2)
    assert left_of(parts, "foo") == []


def test_failures_of_many_brokers_are_tried_again_together(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    for _ in range(3):
        parts.effects()
        answer(parts, FOO, 1, 2, 3, error=Errors.KAFKA_STORAGE_ERROR)
        assert of_type(parts.effects(), ScheduleEvent) == [RETRY]
        parts.deletions.on_topic_deletion()
        assert set(states(parts, FOO).values()) == {STARTED}


def test_an_answer_may_contain_errors_of_some_partitions(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 3)
    errors = {FOO[0]: Errors.NONE, FOO[1]: Errors.KAFKA_STORAGE_ERROR}
    parts.deletions.on_stop_replica_response(2, errors)
    assert parts.replica_state(FOO[0], 2) is SUCCESSFUL
    parts.deletions.on_topic_deletion()
    parts.effects()
    assert parts.replica_state(FOO[1], 2) is STARTED
    answer(parts, FOO[1:], 2)
    assert left_of(parts, "foo") == []


def test_an_answer_from_before_a_replica_was_asked_again_does_not_count(
    parts: ControllerParts,
) -> None:
    """With the defect, seed 59011753: since it answered, its broker had created the log again."""
    received: list[list[TopicDeletionStopReplicaResponseReceived]] = []
    for event_id in (1, 2):
        parts.context.event_id = event_id
        request_deletion(parts, "foo")
        received.append(
            [
                TopicDeletionStopReplicaResponseReceived(
                    sent.broker_id, sent.header, sent.request, StopReplicaResponse(Errors.NONE)
                )
                for sent in parts.sent()
                if isinstance(sent.request, StopReplicaRequest)
            ]
        )
        if event_id == 1:
            answer(parts, FOO, 1, 3)
            answer(parts, FOO, 2, error=Errors.KAFKA_STORAGE_ERROR)
    for event in received[0]:
        parts.responses.on_stop_replica(event)
    assert states(parts, FOO)[2] is STARTED
    for event in received[1]:
        parts.responses.on_stop_replica(event)
    assert left_of(parts, "foo") == []


def test_unexpected_answers_change_nothing(parts: ControllerParts) -> None:
    answer(parts, FOO, 1)
    answer(parts, [TopicPartition("absent", 0)], 1)
    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 1, 9)
    answer(parts, FOO, 1, error=Errors.KAFKA_STORAGE_ERROR)
    assert states(parts, FOO) == {1: SUCCESSFUL, 2: STARTED, 3: STARTED}


def test_znodes_that_could_not_be_deleted_are_tried_again_later(parts: ControllerParts) -> None:
    number = itertools.count(5)

    def create_children(call: Call) -> None:
        if call.method == "multi_many" and call.moment is Moment.BEFORE:
            parts.zookeeper.put(f"/brokers/topics/foo/partitions/{next(number)}")

    request_deletion(parts, "foo")
    answer(parts, FOO, 1, 2)
    parts.session.hook = create_children
    parts.effects()
    answer(parts, FOO, 3)
    assert of_type(parts.effects(), ScheduleEvent) == [RETRY]
    assert {"/brokers/topics/foo", "/admin/delete_topics/foo"} <= set(left_of(parts, "foo"))
    parts.session.hook = None
    parts.deletions.on_topic_deletion()
    assert left_of(parts, "foo") == []
    assert "foo" not in parts.context.all_topics


# --- topics with changes in progress --------------------------------------------------------------


def test_a_topic_that_is_being_reassigned_is_deleted_afterwards(parts: ControllerParts) -> None:
    parts.context.partitions_being_reassigned.add(FOO[1])
    request_deletion(parts, "foo", "bar")
    assert parts.context.topics_ineligible_for_deletion == {"foo"}
    assert parts.context.topics_with_deletion_started == {"bar"}
    return_broker(parts, 4)
    parts.deletions.resume(["foo"])
    assert parts.context.topics_with_deletion_started == {"bar"}, "the reassignment is not complete"
    parts.context.partitions_being_reassigned.clear()
    parts.deletions.resume(["foo"])
    answer(parts, FOO, 1, 2, 3)
    assert left_of(parts, "foo") == []


def move(parts: ControllerParts, partition: TopicPartition) -> None:
    """Reassign a partition to a broker that does not exist yet."""
    moving = ReplicaAssignment((1, 2, 3, 4), adding_replicas=(4,))
    parts.context.update_partition_full_replica_assignment(partition, moving)
    parts.context.partitions_being_reassigned.add(partition)


def test_a_reassignment_that_delays_a_deletion_gets_a_new_leader(parts: ControllerParts) -> None:
    move(parts, FOO[0])
    request_deletion(parts, "foo")
    parts.effects()
    fail_broker(parts, 1)
    assert parts.leads(FOO[0])[0] == 2, "without a leader it could not complete"
    assert set(leader_and_isr_rows(parts.effects())) == {2, 3}
    assert parts.leads(FOO[1]) == (2, (2, 3, 1), 0), (
        "the deletion does not wait for the other partition"
    )


def test_a_reassignment_without_a_leader_gets_one_when_the_broker_returns(
    parts: ControllerParts,
) -> None:
    move(parts, FOO[0])
    request_deletion(parts, "foo")
    parts.put_state(FOO[0], 1, (1,), leader_epoch=3)
    fail_broker(parts, 1)
    assert parts.context.partition_state(FOO[0]) is PartitionState.OFFLINE
    return_broker(parts, 1)
    assert parts.leads(FOO[0])[:2] == (1, (1,))
    assert parts.context.partition_state(FOO[0]) is PartitionState.ONLINE
    assert parts.context.topics_with_deletion_started == set()


def test_del_07_partitions_added_to_a_queued_topic_are_removed(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    replicas = dict.fromkeys(range(3), (1, 2, 3))
    parts.put_topic("foo", replicas)
    parts.topics.on_partition_modifications("foo")
    stored = parts.topic("foo")
    assert stored.partitions == {0: ReplicaAssignment((1, 2, 3)), 1: ReplicaAssignment((2, 3, 1))}
    assert stored.topic_id == topic_id(0)
    parts.topics.on_partition_modifications("foo")
    assert parts.topic("foo") == stored
    answer(parts, FOO, 1, 2, 3)
    assert left_of(parts, "foo") == []


def test_added_partitions_are_removed_despite_a_concurrent_write(parts: ControllerParts) -> None:
    def add_another() -> None:
        parts.put_topic("foo", dict.fromkeys(range(4), (1, 2, 3)), topic_id(0))

    request_deletion(parts, "foo")
    parts.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    act_once(parts.session, add_another, method="multi_many")
    parts.topics.on_partition_modifications("foo")
    assert sorted(parts.topic("foo").partitions) == [0, 1]


def test_added_partitions_are_removed_when_an_acl_allows_it(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    parts.zookeeper.deny_writing("/brokers/topics/foo")
    parts.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    parts.topics.on_partition_modifications("foo")
    assert parts.context.must_read_again
    parts.zookeeper.allow("/brokers/topics/foo")
    parts.topics.read_again()
    assert sorted(parts.topic("foo").partitions) == [0, 1]
    parts.context.must_read_again = False
    parts.topics.read_again()
    assert not parts.context.must_read_again


def test_a_topic_removed_during_the_removal_of_partitions_is_not_created_again(
    parts: ControllerParts,
) -> None:
    request_deletion(parts, "foo")
    parts.put_topic("foo", dict.fromkeys(range(3), (1, 2, 3)), topic_id(0))
    act_once(parts.session, lambda: parts.delete_topic("foo"), method="multi_many")
    parts.topics.on_partition_modifications("foo")
    assert "/brokers/topics/foo" not in parts.zookeeper.snapshot()


# --- at the start of a term -----------------------------------------------------------------------


def test_tdm_01_queued_and_ineligible_topics_at_the_start_of_a_term() -> None:
    parts = ControllerParts(brokers=(1, 2, 3))
    moving = ReplicaAssignment((1, 2), adding_replicas=(2,))
    assignments = [ReplicaAssignment((1,)), ReplicaAssignment((1, 9)), moving, moving]
    for number, replicas in enumerate(assignments):
        parts.put_topic(f"t{number}", {0: replicas}, topic_id(number))
    for topic in ("t0", "t1", "t2", "absent"):
        parts.zookeeper.put(f"/admin/delete_topics/{topic}")
    parts.topics.load()
    parts.deletions.load()
    assert parts.context.topics_to_be_deleted == {"t0", "t1", "t2"}
    assert parts.context.topics_ineligible_for_deletion == {"t1", "t2"}
    assert left_of(parts, "absent") == []
    assert parts.sent() == [], "nothing is sent before everything is read"


def test_a_replica_with_a_failed_log_is_asked_because_the_log_may_only_be_damaged(
    parts: ControllerParts,
) -> None:
    parts.context.replicas_on_offline_dirs[2] = {FOO[0]}
    request_deletion(parts, "foo")
    assert parts.replica_state(FOO[0], 2) is STARTED
    parts.effects()
    answer(parts, FOO[:1], 2, error=Errors.KAFKA_STORAGE_ERROR)
    assert parts.context.topics_ineligible_for_deletion == {"foo"}
    assert of_type(parts.effects(), ScheduleEvent) == [], "a failed directory is not tried again"


def test_a_failed_log_of_an_earlier_topic_is_tried_again(parts: ControllerParts) -> None:
    parts.context.replicas_on_offline_dirs[2] = {FOO[0]}
    request_deletion(parts, "foo")
    parts.effects()
    answer(parts, FOO[:1], 2, error=Errors.INCONSISTENT_TOPIC_ID)
    assert of_type(parts.effects(), ScheduleEvent) == [RETRY], "it may be set aside in between"


def test_other_replicas_do_not_fail_with_a_failed_replica(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    parts.deletions.fail([PartitionAndReplica(FOO[0], 2)])
    assert parts.replica_state(FOO[0], 2) is INELIGIBLE
    assert parts.replica_state(FOO[1], 2) is STARTED
    assert parts.replica_state(BAR[0], 2) is ReplicaState.ONLINE


def test_each_broker_gets_one_request_of_each_kind_in_sequence(parts: ControllerParts) -> None:
    request_deletion(parts, "foo", "bar")
    to_1: list[SendControlRequest] = [s for s in parts.sent() if s.broker_id == 1]
    assert isinstance(to_1[0].request, UpdateMetadataRequest), "clients are refused first"
    assert len(to_1) == 3


def test_a_late_answer_of_a_failed_replica_is_ignored(parts: ControllerParts) -> None:
    request_deletion(parts, "foo")
    parts.deletions.fail([PartitionAndReplica(partition, 2) for partition in FOO])
    answer(parts, FOO, 1, 2, 3)
    assert left_of(parts, "foo") != []
