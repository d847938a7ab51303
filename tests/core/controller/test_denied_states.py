"""Partitions whose ``state`` znode may not be read, or not be written, while brokers start again.

The controller acts when it may read and write again. Until then no broker is sent a leadership in a
leader epoch whose records its log may have lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.controller.effects import Effect, ScheduleEvent
from regent.core.controller.events import (
    ApiPartitionReassignment,
    ControlRequestFailed,
    LeaderAndIsrResponseReceived,
    ReadAgain,
)
from regent.core.controller.services import ControllerSettings
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import Errors
from regent.core.model import (
    NO_LEADER,
    NO_LOG_END,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
)
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    UpdateMetadataRequest,
)
from regent.core.protocol.messages.partitions import AlterPartitionReassignmentsRequest
from regent.zk.znodes import (
    IsrChangeNotificationSequenceZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
)
from tests.support.controller_parts import (
    Candidate,
    ControllerParts,
    leader_and_isr_requests,
    leader_and_isr_rows,
    of_type,
    requests,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import FakeZooKeeperServer
from tests.support.world import T0, T1, World, topic_id

PATH = TopicPartitionStateZNode.path(T0)
LEADERS_WRITE = ControllerSettings(isr_changes_through_zookeeper=True)
SHORT = SuspectReplicas({T0: LogEnd(4, 7)})
EMPTY = SuspectReplicas({T0: NO_LOG_END})
suspects = pytest.mark.parametrize("found", [SHORT, EMPTY], ids=["short", "empty"])
Deny = Callable[[FakeZooKeeperServer, str], None]


def deny_all(server: FakeZooKeeperServer, path: str) -> None:
    """Deny reads and writes of a node."""
    server.deny(path)
    server.deny_writing(path)


denials = pytest.mark.parametrize(
    "deny", [deny_all, FakeZooKeeperServer.deny_writing], ids=["all", "write"]
)
LeaderAndIsr = tuple[ControlHeader, LeaderAndIsrRequest]


@pytest.fixture
def world() -> World:
    """Broker 1 leads, broker 2 is in sync; broker 3 has no replica."""
    world = World((1, 2))
    world.put_topic("t", {0: (1, 2)})
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    return world


@pytest.fixture
def candidate(world: World) -> Candidate:
    """Broker 3, which becomes the controller when it starts."""
    return Candidate(world, 3)


def allow(world: World, candidate: Candidate) -> list[Effect]:
    """Repair the ACL, and let the timer that reads again fire."""
    world.zookeeper.allow(PATH)
    effects = candidate.handle(ReadAgain(candidate.controller.context.epoch))
    return [*effects, *candidate.catch_up()]


def answer(
    candidate: Candidate, broker_id: int, request: LeaderAndIsr, error: Errors
) -> list[Effect]:
    """Let a broker answer a request about t-0."""
    response = LeaderAndIsrResponse(Errors.NONE, (PartitionError(*T0, error),))
    return candidate.handle(LeaderAndIsrResponseReceived(broker_id, *request, response))


def with_a_hidden_isr(world: World) -> Candidate:
    """Return a controller that does not know that broker 1 added broker 2 to the ISR."""
    candidate = Candidate(world, 3, LEADERS_WRITE)
    world.put_state(T0, 1, (1,), leader_epoch=5)
    candidate.start()
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    world.zookeeper.deny(PATH)
    return candidate


def leaders_sent(effects: list[Effect], broker_id: int) -> set[int]:
    """Return the leaders of t-0 that were sent to a broker."""
    sent = leader_and_isr_requests(effects, broker_id)
    return {row.leader for _, request in sent for _, row in request.partitions()}


@denials
@suspects
def test_a_suspect_leader_that_restarted_is_not_sent_its_old_leadership(
    world: World, candidate: Candidate, found: SuspectReplicas, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.restart(1, found)
    effects = candidate.catch_up()
    assert world.leads(T0) == (1, (1, 2), 5)
    assert leaders_sent(effects, 1) == {NO_LEADER}
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    effects = allow(world, candidate)
    assert world.leads(T0) == (2, (2,), 6)
    for replica in (1, 2):
        assert leader_and_isr_rows(effects)[replica][T0].leader_epoch == 6


@denials
def test_a_leader_that_failed_and_returns_suspect_is_not_sent_its_old_leadership(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.unregister(1)
    candidate.catch_up()
    world.register(1, incarnation=2, suspects=EMPTY)
    assert leaders_sent(candidate.catch_up(), 1) == {NO_LEADER}
    allow(world, candidate)
    assert world.leads(T0) == (2, (2,), 6)


def test_a_leader_that_restarts_is_not_sent_an_isr_that_it_may_have_changed(world: World) -> None:
    candidate = with_a_hidden_isr(world)
    world.restart(1)
    assert leaders_sent(candidate.catch_up(), 1) == set()
    effects = allow(world, candidate)
    rows = leader_and_isr_rows(effects)
    assert world.leads(T0) == (2, (2,), 6)
    assert {rows[replica][T0].isr for replica in (1, 2)} == {(2,)}
    told_all = [
        (sent.broker_id, sent.request.is_full)
        for sent in requests(effects)
        if isinstance(sent.request, UpdateMetadataRequest)
    ]
    assert {(1, True), (2, True)} <= set(told_all), "a deleted partition would stay known"


def test_a_suspect_replica_is_not_sent_an_isr_from_before_its_leader_added_it(world: World) -> None:
    candidate = with_a_hidden_isr(world)
    world.unregister(2)
    candidate.catch_up()
    candidate.handle(ReadAgain(1))
    world.register(2, incarnation=2, suspects=SHORT)
    assert leaders_sent(candidate.catch_up(), 2) == set(), "it would take itself for replaced"
    rows = leader_and_isr_rows(allow(world, candidate))
    assert world.leads(T0) == (1, (1,), 6)
    assert rows[2][T0].isr == (1,)


@suspects
def test_a_new_controller_that_cannot_replace_a_suspect_leader_does_not_let_it_lead(
    world: World, candidate: Candidate, found: SuspectReplicas
) -> None:
    world.restart(1, found)
    world.zookeeper.deny_writing(PATH)
    effects = candidate.start()
    assert leaders_sent(effects, 1) == {NO_LEADER}
    assert candidate.controller.context.offline_partition_count == 1
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    allow(world, candidate)
    assert world.leads(T0) == (2, (2,), 6)


@denials
def test_a_suspect_leader_whose_partition_waits_for_another_replica_is_removed_when_possible(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.unregister(2)
    candidate.catch_up()
    world.restart(1, SHORT)
    candidate.catch_up()
    assert leaders_sent(allow(world, candidate), 1) == {NO_LEADER}
    assert world.leads(T0)[:2] == (NO_LEADER, (1, 2))
    world.register(2)
    candidate.catch_up()
    assert world.leads(T0)[:2] == (2, (2,))


@denials
def test_a_suspect_leader_stays_removed_when_the_isr_shrinks_before_the_next_read(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.restart(1, SHORT)
    effects = candidate.catch_up()
    world.zookeeper.allow(PATH)
    world.unregister(2)
    effects += candidate.catch_up()
    assert leaders_sent(effects, 1) == {NO_LEADER}
    assert world.leads(T0)[0] == NO_LEADER


@denials
def test_a_suspect_leader_that_asks_for_a_later_epoch_does_not_lead_in_it(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.restart(1, SHORT)
    request = leader_and_isr_requests(candidate.catch_up(), 1)[0]
    world.zookeeper.allow(PATH)
    effects = answer(candidate, 1, request, Errors.CORRUPT_MESSAGE)
    assert leaders_sent(effects, 1) <= {NO_LEADER, 2}
    assert world.leads(T0)[0] != 1 or world.leads(T0)[2] == 5


@denials
def test_an_offline_leader_is_replaced_when_the_state_can_be_written(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.unregister(1)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.catch_up()
    assert world.leads(T0) == (1, (1, 2), 5)
    again = candidate.handle(ReadAgain(1))
    assert of_type(again, ScheduleEvent) == [ScheduleEvent(10_000, ReadAgain(1))]
    assert of_type(allow(world, candidate), ScheduleEvent) == []
    assert world.leads(T0)[:2] == (2, (2,))


@denials
def test_an_offline_follower_leaves_the_isr_when_the_state_can_be_written(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.unregister(2)
    candidate.catch_up()
    assert world.leads(T0) == (1, (1, 2), 5)
    allow(world, candidate)
    assert world.leads(T0) == (1, (1,), 6)


@denials
def test_a_follower_whose_log_failed_leaves_the_isr_when_the_state_can_be_written(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    deny(world.zookeeper, PATH)
    answer(candidate, 2, request, Errors.KAFKA_STORAGE_ERROR)
    assert world.leads(T0) == (1, (1, 2), 5)
    allow(world, candidate)
    assert world.leads(T0) == (1, (1,), 6)
    state = candidate.controller.context.replica_state(PartitionAndReplica(T0, 2))
    assert state is ReplicaState.OFFLINE


@denials
@suspects
def test_a_restarted_suspect_follower_leaves_the_isr_when_the_state_can_be_written(
    world: World, candidate: Candidate, found: SuspectReplicas, deny: Deny
) -> None:
    candidate.start()
    deny(world.zookeeper, PATH)
    world.restart(2, found)
    candidate.catch_up()
    assert world.leads(T0) == (1, (1, 2), 5)
    effects = allow(world, candidate)
    assert world.leads(T0) == (1, (1,), 6)
    for replica in (1, 2):
        row = leader_and_isr_rows(effects)[replica][T0]
        assert (row.leader, row.isr, row.leader_epoch) == (1, (1,), 6)


def test_a_new_controller_removes_a_suspect_follower_when_the_state_can_be_written(
    world: World, candidate: Candidate
) -> None:
    world.restart(2, SHORT)
    world.zookeeper.deny_writing(PATH)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.start()
    assert world.leads(T0) == (1, (1, 2), 5)
    effects = allow(world, candidate)
    assert world.leads(T0) == (1, (1,), 6)
    assert leader_and_isr_rows(effects)[2][T0].isr == (1,)


def test_a_suspect_leader_does_not_lead_while_its_state_can_be_read_but_not_written(
    world: World, candidate: Candidate
) -> None:
    world.restart(1, EMPTY)
    world.zookeeper.deny(PATH)
    candidate.start()
    world.zookeeper.allow(PATH)
    world.zookeeper.deny_writing(PATH)
    assert leaders_sent(candidate.handle(ReadAgain(1)), 1) == {NO_LEADER}
    allow(world, candidate)
    assert world.leads(T0) == (2, (2,), 6)


def test_an_elected_suspect_replica_is_sent_its_leadership_again(
    world: World, candidate: Candidate
) -> None:
    world.unregister(2)
    world.restart(1, SHORT)
    world.register(2, incarnation=2, suspects=EMPTY)
    candidate.start()
    assert world.leads(T0) == (1, (1,), 6)
    world.zookeeper.deny(PATH)
    epoch = candidate.controller.context.registrations[1].broker_epoch
    again = candidate.handle(ControlRequestFailed(1, ControlHeader(3, 1, epoch)))
    assert leaders_sent(again, 1) == {1}
    assert world.leads(T0) == (1, (1,), 6)


@pytest.mark.parametrize(
    ("state", "is_new"),
    [
        (ReplicaState.NEW, True),
        (ReplicaState.ONLINE, False),
        (ReplicaState.NON_EXISTENT, None),
        (ReplicaState.OFFLINE, None),
    ],
)
def test_a_late_request_to_a_replica_depends_on_its_state(
    state: ReplicaState, is_new: bool | None
) -> None:
    parts = ControllerParts((1, 2, 4))
    parts.lead(T0, (1, 2, 4), leader=1, isr=(1, 2))
    parts.put_replica_state(T0, 4, state)
    suspect = replace(parts.context.registrations[2], suspects=SHORT)
    parts.context.add_live_broker(suspect)
    parts.partitions.settle_late([T0])
    assert parts.leads(T0)[:2] == (1, (1,))
    rows = leader_and_isr_rows(parts.effects())
    is_new_by_replica = {replica: rows[replica][T0].is_new for replica in rows}
    assert is_new_by_replica == {1: False, 2: False} | ({} if is_new is None else {4: is_new})


def test_the_last_step_of_a_reassignment_is_written_when_possible(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("t", {0: ReplicaAssignment((2, 1), (2,), (1,))})
    world.zookeeper.deny_writing(PATH)
    candidate.start()
    assert world.leads(T0) == (1, (1, 2), 5)
    allow(world, candidate)
    assert world.leads(T0)[:2] == (2, (2,))
    assert world.topic("t").partitions == {0: ReplicaAssignment((2,))}


def test_a_replica_that_is_not_needed_any_more_stays_while_the_state_cannot_be_read(
    world: World,
) -> None:
    """It may be in the ISR: the leader may have added it before it knows of the new assignment."""
    world.put_topic("t", {0: ReplicaAssignment((1, 2), (2,))})
    world.zookeeper.deny(PATH)
    candidate = Candidate(world, 3, LEADERS_WRITE)
    candidate.start()
    request = AlterPartitionReassignmentsRequest.of({T0: (1,)})
    effects = candidate.handle(ApiPartitionReassignment(1, request))
    assert world.topic("t").partitions == {0: ReplicaAssignment((1,))}
    assert stop_replica_rows(effects) == {}
    effects = allow(world, candidate)
    assert world.leads(T0)[:2] == (1, (1,))
    assert stop_replica_rows(effects)[2][T0].delete_partition


def test_a_partition_gets_its_first_leader_when_its_state_can_be_created(
    world: World, candidate: Candidate
) -> None:
    path = TopicPartitionsZNode.path("t")
    world.zookeeper.put(path)
    world.zookeeper.deny_writing(path)
    world.put_topic("t", {0: (1, 2), 1: (1, 2)}, topic_id(1))
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.start()
    world.zookeeper.allow(path)
    candidate.handle(ReadAgain(1))
    assert world.leads(T1) == (1, (1, 2), 0)


def test_a_suspect_leader_of_a_topic_queued_for_deletion_may_lead() -> None:
    """A reassignment that the deletion waits for could not finish otherwise."""
    parts = ControllerParts((1, 2))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.context.add_live_broker(replace(parts.context.registrations[1], suspects=SHORT))
    parts.context.note_leaders_with_losses([T0])
    assert parts.context.must_not_lead(1, T0)
    parts.context.queue_topic_deletion(["t"])
    assert not parts.context.must_not_lead(1, T0)


def test_an_elected_suspect_leader_leads_on_while_it_is_shutting_down() -> None:
    parts = ControllerParts((1, 2))
    parts.lead(T0, (1, 2), leader=1, isr=(1,))
    parts.context.add_live_broker(replace(parts.context.registrations[1], suspects=SHORT))
    parts.context.shutting_down_broker_ids.add(1)
    parts.brokers.on_replicas_become_offline([PartitionAndReplica(T0, 2)])
    assert parts.context.partition_state(T0) is PartitionState.OFFLINE
    parts.brokers.send_complete_state(1)
    assert leaders_sent(parts.effects(), 1) == {1}


def test_an_isr_written_by_a_leader_is_read_when_possible(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.zookeeper.deny(PATH)
    world.put_state(T0, 1, (1,), leader_epoch=5)
    change = IsrChangeNotificationSequenceZNode.encode([T0])
    world.zookeeper.put("/isr_change_notification/isr_change_0", change)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.catch_up()
    allow(world, candidate)
    known = candidate.controller.context.partition_leadership_info(T0)
    assert known is not None
    assert known.leader_and_isr.isr == (1,)


def test_a_suspect_leader_that_is_shutting_down_is_removed_when_its_partition_is_first_read() -> (
    None
):
    parts = ControllerParts((1,))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2), state=PartitionState.NEW)
    parts.context.add_live_broker(replace(parts.context.registrations[1], suspects=EMPTY))
    parts.context.shutting_down_broker_ids.add(1)
    parts.partitions.settle([T0])
    assert parts.leads(T0)[0] == NO_LEADER


def test_a_replica_elected_before_its_reassignment_could_start_is_sent_its_leadership() -> None:
    """A suspect leader shuts down: the election is unclean."""
    parts = ControllerParts((1, 2))
    parts.lead(T0, (1,), leader=1, isr=(1,))
    assignment = ReplicaAssignment((1, 2), (2,))
    parts.context.update_partition_full_replica_assignment(T0, assignment)
    parts.context.add_live_broker(replace(parts.context.registrations[1], suspects=EMPTY))
    parts.context.shutting_down_broker_ids.add(1)
    parts.services.settings.unclean_leader_election_enable = True
    parts.partitions.settle_late([T0])
    assert parts.leads(T0)[0] == 2
    assert leaders_sent(parts.effects(), 2) == {2}


@denials
def test_a_repaired_replica_is_used_when_a_new_leader_epoch_can_be_written(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    answer(candidate, 2, request, Errors.KAFKA_STORAGE_ERROR)
    deny(world.zookeeper, PATH)
    answer(candidate, 2, request, Errors.NONE)
    assert world.leads(T0) == (1, (1,), 6)
    effects = allow(world, candidate)
    assert {b: rows[T0].leader_epoch for b, rows in leader_and_isr_rows(effects).items()} == {
        1: 7,
        2: 7,
    }
    state = candidate.controller.context.replica_state(PartitionAndReplica(T0, 2))
    assert state is ReplicaState.ONLINE
    candidate.handle(ReadAgain(1))
    assert world.leads(T0) == (1, (1,), 7), "no second new epoch"


@denials
def test_a_damaged_log_gets_a_later_leader_epoch_when_it_can_be_written(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    deny(world.zookeeper, PATH)
    answer(candidate, 2, request, Errors.CORRUPT_MESSAGE)
    assert leader_and_isr_rows(allow(world, candidate))[2][T0].leader_epoch == 6


@denials
def test_a_repaired_replica_whose_broker_failed_meanwhile_is_not_used(
    world: World, candidate: Candidate, deny: Deny
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    answer(candidate, 2, request, Errors.KAFKA_STORAGE_ERROR)
    deny(world.zookeeper, PATH)
    answer(candidate, 2, request, Errors.NONE)
    world.unregister(2)
    candidate.catch_up()
    allow(world, candidate)
    state = candidate.controller.context.replica_state(PartitionAndReplica(T0, 2))
    assert state is ReplicaState.OFFLINE
    assert world.leads(T0) == (1, (1,), 6)


def test_a_replica_of_a_removed_topic_does_not_wait_to_be_used(
    world: World, candidate: Candidate
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    deny_all(world.zookeeper, PATH)
    answer(candidate, 2, request, Errors.CORRUPT_MESSAGE)
    assert candidate.controller.context.waiting_to_restart == {PartitionAndReplica(T0, 2)}
    candidate.controller.context.remove_topic("t")
    assert not candidate.controller.context.waiting_to_restart


def test_a_repaired_replica_is_used_after_the_next_election(
    world: World, candidate: Candidate
) -> None:
    request = leader_and_isr_requests(candidate.start(), 2)[0]
    answer(candidate, 2, request, Errors.KAFKA_STORAGE_ERROR)
    deny_all(world.zookeeper, PATH)
    world.restart(1, SHORT)
    candidate.catch_up()
    world.zookeeper.allow(PATH)
    answer(candidate, 2, request, Errors.NONE)  # broker 1 must not lead before this answer
    leadership = candidate.controller.context.partition_leadership_info(T0)
    assert leadership is not None
    assert leadership.leader_and_isr.leader_epoch == 7, "all ISR members are suspect: 1 is elected"
    candidate.handle(ReadAgain(1))
    state = candidate.controller.context.replica_state(PartitionAndReplica(T0, 2))
    assert state is ReplicaState.ONLINE


def test_a_waiting_replica_that_is_no_longer_assigned_is_not_used() -> None:
    parts = ControllerParts((1, 2, 4))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.context.waiting_to_restart.add(PartitionAndReplica(T0, 4))
    parts.replicas.restart_waiting()
    assert parts.leads(T0) == (1, (1, 2), 0)
    assert not parts.context.waiting_to_restart
