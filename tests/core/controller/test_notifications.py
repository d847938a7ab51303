"""Notifications through ZooKeeper: ISR changes and failed log directories."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.effects import RecordChanges
from regent.core.controller.events import LeaderAndIsrResponseReceived
from regent.core.controller.states import ReplicaState
from regent.core.errors import ControllerMovedError, Errors
from regent.core.model import (
    NO_LEADER,
    BrokerId,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import LeaderAndIsrResponse, PartitionError
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.znodes import IsrChangeNotificationSequenceZNode as IsrChange
from regent.zk.znodes import LogDirEventNotificationSequenceZNode as LogDirEvent
from tests.support.controller_parts import (
    Candidate,
    ControllerParts,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
)
from tests.support.fake_zookeeper import Moment, act_once
from tests.support.world import T0, T1, World, topic_id

ISR_CHANGES, LOG_DIR_EVENTS = "/isr_change_notification", "/log_dir_event_notification"
STATE = "/brokers/topics/t/partitions/%d/state"
U0 = TopicPartition("u", 0)


@pytest.fixture
def parts() -> ControllerParts:
    """Broker 1 leads t-0 and t-1, broker 2 is in sync."""
    parts = ControllerParts(brokers=(1, 2, 3))
    for partition in (T0, T1):
        parts.lead(partition, (1, 2, 3), leader=1, isr=(1, 2))
    return parts


def notify_isr_change(world: World, number: int, *partitions: TopicPartition) -> None:
    world.zookeeper.put(f"{IsrChange.PATH_PREFIX}{number:010d}", IsrChange.encode(partitions))


def notify_log_dir_failure(world: World, number: int, broker_id: BrokerId) -> None:
    world.zookeeper.put(f"{LogDirEvent.PATH_PREFIX}{number:010d}", LogDirEvent.encode(broker_id))


def left_in(world: World, path: str) -> list[str]:
    """Return the notifications that are left."""
    return [node for node in world.zookeeper.snapshot() if node.startswith(path + "/")]


# --- ISR changes ----------------------------------------------------------------------------------


def test_a_notified_isr_is_read_and_sent_to_all_brokers(parts: ControllerParts) -> None:
    parts.put_state(T0, 1, (1, 2, 3))
    notify_isr_change(parts, 0, T0)
    parts.notifications.on_isr_change_notification()
    assert parts.state(T0) == parts.context.partition_leadership_info(T0)
    effects = parts.effects()
    assert kinds(effects) == [(1, "UpdateMetadata"), (2, "UpdateMetadata"), (3, "UpdateMetadata")]
    row = metadata_rows(effects)[2][T0]
    assert (row.isr, row.partition_epoch) == ((1, 2, 3), 1)
    [said] = of_type(effects, RecordChanges)
    assert [*map(str, said.changes)] == ["t-0: leader 1, isr [1, 2] → [1, 2, 3]"]
    assert left_in(parts, ISR_CHANGES) == []


def test_many_notifications_are_read_and_deleted_together(parts: ControllerParts) -> None:
    for number in range(300):
        notify_isr_change(parts, number, T0, T1)
    calls: list[str] = []
    parts.session.hook = lambda c: calls.append(c.method) if c.moment is Moment.BEFORE else None
    parts.notifications.on_isr_change_notification()
    assert calls == ["children", "get_many", "get_many", "multi_many"]
    assert left_in(parts, ISR_CHANGES) == []
    assert {tuple(rows) for rows in metadata_rows(parts.effects()).values()} == {(T0, T1)}


def test_an_unknown_partition_is_not_read(parts: ControllerParts) -> None:
    parts.put_state(U0, 1, (1,))
    notify_isr_change(parts, 0, U0)
    parts.notifications.on_isr_change_notification()
    assert parts.context.partition_leadership_info(U0) is None
    assert parts.context.all_topics == {"t"}
    assert parts.effects() == []
    assert left_in(parts, ISR_CHANGES) == []


@pytest.mark.parametrize("data", [b"garbage", b'{"partitions": 1}', b""])
def test_an_unreadable_notification_is_deleted_with_the_others(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    parts.put_state(T0, 1, (1,))
    for number in range(3):
        parts.zookeeper.put(f"{IsrChange.PATH_PREFIX}{number:010d}", data)
    notify_isr_change(parts, 3, T0)
    parts.notifications.on_isr_change_notification()
    assert parts.known(T0) == (1, (1,), 0)
    assert left_in(parts, ISR_CHANGES) == []
    (line,) = caplog.messages
    assert line.startswith("3 notifications cannot be decoded, the first: /isr_change_notification")


def test_unusable_states_do_not_change_the_memory(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    parts.zookeeper.put(STATE % 0, b"garbage")
    parts.put_state(T1, 3, (3,), leader_epoch=5, controller_epoch=2)
    notify_isr_change(parts, 0, T0, T1)
    parts.notifications.on_isr_change_notification()
    assert parts.known(T0) == parts.known(T1) == (1, (1, 2), 0)
    assert parts.effects() == []
    (line,) = caplog.messages
    assert "2 ISR changes are ignored, the first: t-0" in line


def test_a_notification_written_meanwhile_is_kept_and_watched(parts: ControllerParts) -> None:
    act_once(parts.session, lambda: notify_isr_change(parts, 1, T1), method="multi_many")
    notify_isr_change(parts, 0, T0)
    parts.notifications.on_isr_change_notification()
    assert left_in(parts, ISR_CHANGES) == [f"{IsrChange.PATH_PREFIX}0000000001"]
    assert parts.watches[-1] == WatchEvent(WatchKind.CHILDREN, ISR_CHANGES)


def test_a_reassignment_is_complete_when_the_leader_writes_its_target_into_the_isr() -> None:
    parts = ControllerParts((1, 2, 3))
    parts.lead(T0, ReplicaAssignment((3, 1), (3,), (1,)), leader=1, isr=(1,))
    parts.context.partitions_being_reassigned.add(T0)
    parts.put_state(T0, 1, (1, 3))
    notify_isr_change(parts, 0, T0)
    parts.notifications.on_isr_change_notification()
    assert parts.topic("t").partitions[0] == ReplicaAssignment((3,))
    assert parts.leads(T0)[:2] == (3, (3,))
    assert left_in(parts, ISR_CHANGES) == []


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_reassignment_in_a_queued_topic_does_not_wait_for_a_sound_replica(
    is_queued: bool,
) -> None:
    parts = ControllerParts((1, 2, 3))
    suspect = SuspectReplicas({T0: LogEnd(0, 0)})
    parts.context.add_live_broker(replace(parts.context.registrations[3], suspects=suspect))
    parts.lead(T0, ReplicaAssignment((3, 1), (3,), (1,)), leader=1, isr=(1,))
    parts.context.partitions_being_reassigned.add(T0)
    if is_queued:
        parts.context.queue_topic_deletion(["t"])
    parts.put_state(T0, 1, (1, 3))
    notify_isr_change(parts, 0, T0)
    parts.notifications.on_isr_change_notification()
    assert (T0 in parts.context.partitions_being_reassigned) != is_queued


def test_without_notifications_nothing_is_written(parts: ControllerParts) -> None:
    before = len(parts.zookeeper.transactions)
    parts.notifications.on_isr_change_notification()
    parts.notifications.on_log_dir_event_notification()
    assert len(parts.zookeeper.transactions) == before
    assert parts.effects() == []


def test_a_deposed_controller_deletes_no_notification(parts: ControllerParts) -> None:
    notify_isr_change(parts, 0, T0)
    notify_log_dir_failure(parts, 0, 2)
    parts.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        parts.notifications.on_isr_change_notification()
    with pytest.raises(ControllerMovedError):
        parts.notifications.on_log_dir_event_notification()
    assert len(left_in(parts, ISR_CHANGES)) == len(left_in(parts, LOG_DIR_EVENTS)) == 1


# --- log directories ------------------------------------------------------------------------------


def test_a_broker_with_a_failed_log_directory_is_asked_for_its_replicas(
    parts: ControllerParts,
) -> None:
    for number, broker_id in enumerate((2, 2, 9)):
        notify_log_dir_failure(parts, number, broker_id)
    parts.notifications.on_log_dir_event_notification()
    effects = parts.effects()
    assert {b: set(rows) for b, rows in leader_and_isr_rows(effects).items()} == {2: {T0, T1}}
    assert not leader_and_isr_rows(effects)[2][T0].is_new
    assert parts.leads(T0) == (1, (1, 2), 0), "the broker has not answered"
    assert left_in(parts, LOG_DIR_EVENTS) == []


def answer_probe(
    parts: ControllerParts, broker_id: int, t0: Errors, t1: Errors, *, times: int = 1
) -> None:
    """Let a broker answer the last LeaderAndIsr request."""
    header, probe = leader_and_isr_requests(parts.effects(), broker_id)[-1]
    response = LeaderAndIsrResponse(Errors.NONE, (PartitionError(*T0, t0), PartitionError(*T1, t1)))
    for _ in range(times):
        parts.responses.on_leader_and_isr(
            LeaderAndIsrResponseReceived(broker_id, header, probe, response)
        )


def lose_t0(parts: ControllerParts) -> None:
    """Let broker 1 report that one of its two replicas is lost."""
    notify_log_dir_failure(parts, 0, 1)
    parts.notifications.on_log_dir_event_notification()
    answer_probe(parts, 1, Errors.KAFKA_STORAGE_ERROR, Errors.STALE_CONTROLLER_EPOCH)


def test_a_lost_replica_goes_offline(parts: ControllerParts) -> None:
    lose_t0(parts)
    assert parts.leads(T0) == (2, (2,), 1)
    assert parts.leads(T1) == (1, (1, 2), 0)
    assert parts.replica_state(T0, 1) is ReplicaState.OFFLINE


def test_a_lost_replica_is_asked_about_again_after_the_next_failure(parts: ControllerParts) -> None:
    lose_t0(parts)
    parts.effects()
    notify_log_dir_failure(parts, 1, 1)
    parts.notifications.on_log_dir_event_notification()
    asked = leader_and_isr_rows(parts.effects())
    assert {broker: set(rows) for broker, rows in asked.items()} == {1: {T0, T1}}
    assert asked[1][T0].leader == 2
    assert not parts.context.is_replica_online(1, T0), "the broker has not answered"


def test_a_repaired_replica_goes_online_and_all_brokers_are_notified(
    parts: ControllerParts,
) -> None:
    lose_t0(parts)
    notify_log_dir_failure(parts, 1, 1)
    parts.notifications.on_log_dir_event_notification()
    answer_probe(parts, 1, Errors.NONE, Errors.STALE_CONTROLLER_EPOCH)
    assert parts.context.is_replica_online(1, T0)
    assert parts.replica_state(T0, 1) is ReplicaState.ONLINE
    assert parts.leads(T0) == (2, (2,), 2), "it has not caught up"
    effects = parts.effects()
    rows_by_broker = leader_and_isr_rows(effects)
    assert {b: rows[T0].leader_epoch for b, rows in rows_by_broker.items()} == {1: 2, 2: 2, 3: 2}, (
        "a StopReplica of the previous epoch may still arrive"
    )
    metadata = metadata_rows(effects)
    assert {b: rows[T0].offline_replicas for b, rows in metadata.items()} == {1: (), 2: (), 3: ()}


def test_a_repaired_replica_leads_when_no_other_replica_can(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=1, isr=(1,))
    lose_t0(parts)
    assert parts.leads(T0)[:2] == (NO_LEADER, (1,))
    notify_log_dir_failure(parts, 1, 1)
    parts.notifications.on_log_dir_event_notification()
    answer_probe(parts, 1, Errors.NONE, Errors.STALE_CONTROLLER_EPOCH)
    assert parts.leads(T0)[:2] == (1, (1,))


def test_a_log_that_needs_a_later_leader_epoch_to_be_replaced_gets_one(
    parts: ControllerParts,
) -> None:
    notify_log_dir_failure(parts, 0, 2)
    parts.notifications.on_log_dir_event_notification()
    # The second answer is of the same leader epoch, which has ended.
    answer_probe(parts, 2, Errors.CORRUPT_MESSAGE, Errors.STALE_CONTROLLER_EPOCH, times=2)
    assert parts.leads(T0) == (1, (1, 2), 1)
    rows_by_broker = leader_and_isr_rows(parts.effects())
    assert {b: rows[T0].leader_epoch for b, rows in rows_by_broker.items()} == {1: 1, 2: 1, 3: 1}


def test_a_damaged_log_is_asked_about_again_when_the_deletion_waits_for_its_reassignment(
    parts: ControllerParts,
) -> None:
    parts.context.queue_topic_deletion([T0.topic])
    parts.deletions.mark_ineligible([T0.topic], "being moved")
    moving = ReplicaAssignment((1, 2, 3), adding_replicas=(3,))
    parts.context.update_partition_full_replica_assignment(T0, moving)
    parts.context.partitions_being_reassigned.add(T0)
    lose_t0(parts)
    parts.effects()
    parts.reassignments.on_isr_change([T0, T1])
    asked = leader_and_isr_rows(parts.effects())
    assert {broker: set(rows) for broker, rows in asked.items()} == {1: {T0}}


def test_a_reassignment_in_a_queued_topic_continues_without_a_lost_replica(
    parts: ControllerParts,
) -> None:
    parts.context.queue_topic_deletion([T0.topic])
    parts.deletions.mark_ineligible([T0.topic], "being moved")
    parts.context.partitions_being_reassigned.add(T0)
    lose_t0(parts)
    assert parts.leads(T0) == (2, (2,), 2)
    assert leader_and_isr_rows(parts.effects())[1][T0].leader_epoch == 2, (
        "brokers do not know leaders of queued topics"
    )
    parts.deletions.resume()
    assert leader_and_isr_rows(parts.effects()) == {}


def test_a_replica_that_is_still_lost_stays_offline(parts: ControllerParts) -> None:
    lose_t0(parts)
    notify_log_dir_failure(parts, 1, 1)
    parts.notifications.on_log_dir_event_notification()
    answer_probe(parts, 1, Errors.KAFKA_STORAGE_ERROR, Errors.STALE_CONTROLLER_EPOCH)
    assert parts.replica_state(T0, 1) is ReplicaState.OFFLINE
    assert parts.leads(T0) == (2, (2,), 1)


def test_a_stopped_replica_is_not_asked_about(parts: ControllerParts) -> None:
    parts.replicas.handle_state_changes([PartitionAndReplica(T0, 1)], ReplicaState.OFFLINE)
    parts.effects()
    notify_log_dir_failure(parts, 0, 1)
    parts.notifications.on_log_dir_event_notification()
    assert set(leader_and_isr_rows(parts.effects())[1]) == {T1}


def test_an_unreadable_failure_or_one_of_an_unknown_broker_is_deleted(
    parts: ControllerParts,
) -> None:
    notify_log_dir_failure(parts, 0, 9)
    parts.zookeeper.put(f"{LogDirEvent.PATH_PREFIX}0000000001", b"garbage")
    parts.notifications.on_log_dir_event_notification()
    assert parts.effects() == []
    assert left_in(parts, LOG_DIR_EVENTS) == []


# --- a new controller -----------------------------------------------------------------------------


def test_a_new_controller_deletes_the_notifications_of_its_predecessor(world: World) -> None:
    world.put_state(T0, 1, (1, 2), controller_epoch=0)
    notify_isr_change(world, 0, T0)
    notify_log_dir_failure(world, 0, 1)
    Candidate(world, 0).start()
    assert left_in(world, ISR_CHANGES) == left_in(world, LOG_DIR_EVENTS) == []


def test_notifications_after_the_start_of_a_term_are_handled(
    world: World, active: Candidate
) -> None:
    world.put_state(T0, 1, (1,), controller_epoch=1)
    notify_isr_change(world, 0, T0)
    notify_log_dir_failure(world, 0, 2)
    effects = active.catch_up()
    assert metadata_rows(effects)[2][T0].isr == (1,)
    assert set(leader_and_isr_rows(effects)[2]) == {T0, T1}
    assert left_in(world, ISR_CHANGES) == left_in(world, LOG_DIR_EVENTS) == []
    world.put_state(T0, 1, (1, 2), controller_epoch=1)
    notify_isr_change(world, 1, T0)
    assert metadata_rows(active.catch_up())[2][T0].isr == (1, 2), "the path is still watched"


def test_a_topic_created_meanwhile_is_read_before_its_isr(world: World, active: Candidate) -> None:
    world.put_topic("u", {0: (1, 2)}, topic_id(78))
    notify_isr_change(world, 0, U0)
    active.catch_up()
    assert world.leads(U0) == (1, (1, 2), 0)
