"""AlterPartition: accepted ISRs, the errors of the others, and which brokers are notified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.controller.effects import RecordChanges, SendResponse
from regent.core.controller.events import AlterPartitionReceived
from regent.core.errors import ControllerMovedError, Errors
from regent.core.model import (
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    LogEnd,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.zk.znodes import ConfigEntityZNode, TopicPartitionStateZNode
from tests.support.controller_parts import Candidate, ControllerParts, kinds, metadata_rows, of_type
from tests.support.fake_zookeeper import Call, Moment, act_once, lose_connection
from tests.support.world import T0, T1, World, leadership, topic_id

STATE = "/brokers/topics/t/partitions/%d/state"
RECOVERING = LeaderRecoveryState.RECOVERING


@pytest.fixture
def parts() -> ControllerParts:
    """t-0: leader 1, ISR 1 and 2, leader epoch 4, partition epoch 2; 3 is not in sync."""
    parts = ControllerParts(brokers=(1, 2, 3))
    parts.lead(T0, (1, 2, 3), leader=1, isr=(1, 2))
    for _ in range(2):
        put(parts, T0, 1, (1, 2), leader_epoch=4)
    return parts


def put(
    parts: ControllerParts,
    partition: TopicPartition,
    leader: int,
    isr: tuple[int, ...],
    **more: int,
) -> None:
    """Put a partition state into ZooKeeper and the controller's memory."""
    parts.put_state(partition, leader, isr, **more)
    stored = parts.state(partition)
    assert stored is not None
    parts.context.put_partition_leadership_info(partition, stored)


def row(*isr: int, partition: TopicPartition = T0, **fields: object) -> AlterPartitionRow:
    """Return a proposal with the epochs of the fixture."""
    proposal = AlterPartitionRow(*partition, None, 4, isr, (-1,) * len(isr), 0, 2)
    return proposal._replace(**fields)  # type: ignore[arg-type]


def request(
    parts: ControllerParts, *rows: AlterPartitionRow, sender: int = 1
) -> AlterPartitionRequest:
    return AlterPartitionRequest(sender, parts.context.live_broker_epochs.get(sender, 5), rows)


def propose(
    parts: ControllerParts, *rows: AlterPartitionRow, sender: int = 1
) -> list[AlteredPartition]:
    response, _ = parts.alter_partitions.alter(request(parts, *rows, sender=sender))
    assert response.error_code is Errors.NONE
    return list(response.partitions)


def outcome(parts: ControllerParts, proposal: AlterPartitionRow, sender: int = 1) -> Errors:
    """Return the error of one proposal; check that it writes nothing."""
    before = len(parts.zookeeper.transactions)
    (answer,) = propose(parts, proposal, sender=sender)
    assert len(parts.zookeeper.transactions) == before
    return answer.error_code


def on_write(parts: ControllerParts, moment: Moment, act: Callable[[], None]) -> None:
    """Call ``act`` once when partition states are written."""
    act_once(parts.session, act, moment=moment, method="multi_many")


# --- attempts ---


@pytest.mark.parametrize("attempt", [7, 8])
def test_an_attempt_that_arrives_after_a_later_one_is_not_carried_out(
    parts: ControllerParts, attempt: int
) -> None:
    """The leader knows that attempt 8 was refused, and waits for replica 3 no longer."""
    last = replace(request(parts, row(1, 2, 3)), attempt=8)
    parts.context.shutting_down_broker_ids.add(3)
    (answer,) = parts.alter_partitions.alter(last)[0].partitions
    assert answer.error_code is Errors.INELIGIBLE_REPLICA
    parts.context.shutting_down_broker_ids.clear()

    late = parts.alter_partitions.alter(replace(last, attempt=attempt))
    assert late == (AlterPartitionResponse(Errors.OPERATION_NOT_ATTEMPTED), [])
    answers = parts.alter_partitions.alter(replace(last, attempt=9))[0].partitions
    assert [answer.error_code for answer in answers] == [Errors.NONE]


def test_a_broker_that_started_again_numbers_its_attempts_anew(parts: ControllerParts) -> None:
    parts.alter_partitions.alter(replace(request(parts, row(1)), attempt=8))
    parts.unregister(1)
    parts.context.add_live_broker(parts.register(1, incarnation=2))
    again = replace(request(parts, row(1, partition_epoch=3)), attempt=1)
    assert parts.alter_partitions.alter(again)[0].error_code is Errors.NONE


# --- accepted -------------------------------------------------------------------------------------


@pytest.mark.parametrize("isr", [(1, 2, 3), (1,), (1, 3), (3, 1)])
def test_an_accepted_isr_keeps_the_leader_epoch(
    parts: ControllerParts, isr: tuple[int, ...]
) -> None:
    answers = propose(parts, row(*isr))
    assert answers == [AlteredPartition("t", 0, Errors.NONE, 1, 4, isr, 0, 3)]
    stored = parts.state(T0)
    assert stored == leadership(1, isr, leader_epoch=4, partition_epoch=3, controller_epoch=1)
    assert stored == parts.context.partition_leadership_info(T0)


@pytest.mark.parametrize(
    ("changes", "isr", "eligible"),
    [
        ("", (1,), (3, 2)),
        ("23", (1,), (2,)),
        ("2", (1,), (2,)),
        ("3", (1, 2), ()),
        ("", (1, 2), ()),  # the leader is about to commit without them
    ],
)
def test_an_eligible_replica_that_may_lack_records_does_not_stay_eligible(
    parts: ControllerParts, changes: str, isr: tuple[int, ...], eligible: tuple[int, ...]
) -> None:
    """``min.insync.replicas`` was 3 when replica 3 left the ISR; it is lowered and raised."""
    entity = ConfigEntityZNode.path("topics", "t")
    parts.zookeeper.put(entity, ConfigEntityZNode.encode({"min.insync.replicas": "3"}))
    now = LeaderAndIsr(1, (1, 2), 4, eligible_leader_replicas=(3,))
    parts.put_leadership(T0, LeaderIsrAndControllerEpoch(now, 1))
    stored = parts.state(T0)
    assert stored is not None
    parts.context.put_partition_leadership_info(T0, stored)
    for value in changes:
        parts.zookeeper.put(entity, ConfigEntityZNode.encode({"min.insync.replicas": value}))
    response, _ = parts.alter_partitions.alter(request(parts, row(*isr, partition_epoch=3)))
    state = parts.state(T0)
    assert state is not None
    assert state.leader_and_isr.isr == isr
    assert state.leader_and_isr.eligible_leader_replicas == eligible
    assert response.with_eligible_replicas == ((T0,) if eligible else ())


@pytest.mark.parametrize("is_of_kafka", [False, True])
def test_where_a_broker_of_kafka_leads_no_replica_that_leaves_is_eligible(
    parts: ControllerParts, is_of_kafka: bool
) -> None:
    """It commits alone before 3.7, and its default of min.insync.replicas is its own."""
    entity = ConfigEntityZNode.path("topics", "t")
    parts.zookeeper.put(entity, ConfigEntityZNode.encode({"min.insync.replicas": "2"}))
    if is_of_kafka:
        registration = parts.context.registrations[1]
        info = replace(registration.info, control_endpoint=None)
        parts.context.add_live_broker(replace(registration, info=info))
    propose(parts, row(1))
    state = parts.state(T0)
    assert state is not None
    assert state.leader_and_isr.isr == (1,)
    assert state.leader_and_isr.eligible_leader_replicas == (() if is_of_kafka else (2,))


def test_a_repeated_proposal_leaves_the_eligible_replicas_alone(parts: ControllerParts) -> None:
    """Its answer was lost: it is of the partition epoch before."""
    now = LeaderAndIsr(1, (1, 2), 4, eligible_leader_replicas=(3,))
    parts.put_leadership(T0, LeaderIsrAndControllerEpoch(now, 1))
    stored = parts.state(T0)
    assert stored is not None
    parts.context.put_partition_leadership_info(T0, stored)
    response, changed = parts.alter_partitions.alter(request(parts, row(1, 2, partition_epoch=2)))
    assert (response.with_eligible_replicas, changed) == ((T0,), [])
    assert parts.state(T0) == stored


def test_an_accepted_isr_is_sent_to_all_brokers_by_update_metadata_only(
    parts: ControllerParts,
) -> None:
    propose(parts, row(1, 2, 3))
    effects = parts.effects()
    assert kinds(effects) == [(1, "UpdateMetadata"), (2, "UpdateMetadata"), (3, "UpdateMetadata")]
    assert metadata_rows(effects)[3][T0].isr == (1, 2, 3)
    assert metadata_rows(effects)[3][T0].partition_epoch == 3
    [said] = of_type(effects, RecordChanges)
    assert [*map(str, said.changes)] == ["t-0: leader 1, isr [1, 2] → [1, 2, 3]"]


def test_only_changed_partitions_are_returned_as_changed(parts: ControllerParts) -> None:
    parts.lead(T1, (1, 2), leader=1, isr=(1, 2))
    unchanged = row(2, 1, partition=T1, leader_epoch=0, partition_epoch=0)
    response, changed = parts.alter_partitions.alter(request(parts, unchanged, row(1)))
    assert [answer.error_code for answer in response.partitions] == [Errors.NONE, Errors.NONE]
    assert changed == [T0]


def test_many_proposals_are_written_in_one_transaction(parts: ControllerParts) -> None:
    partitions = [TopicPartition("t", n) for n in range(1, 300)]
    for partition in partitions:
        parts.lead(partition, (1, 2), leader=1, isr=(1, 2))
    rows = [row(1, partition=p, leader_epoch=0, partition_epoch=0) for p in partitions]
    before = len(parts.zookeeper.transactions)
    assert {answer.error_code for answer in propose(parts, *rows)} == {Errors.NONE}
    assert len(parts.zookeeper.transactions) == before + 1


def test_a_leader_that_is_shutting_down_may_add_a_replica(parts: ControllerParts) -> None:
    parts.context.shutting_down_broker_ids.add(1)
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.NONE


def test_an_isr_member_with_its_current_broker_epoch_is_accepted(parts: ControllerParts) -> None:
    epochs = parts.context.live_broker_epochs
    broker_epochs = tuple(epochs[broker_id] for broker_id in (1, 2, 3))
    assert (
        propose(parts, row(1, 2, 3, isr_broker_epochs=broker_epochs))[0].error_code is Errors.NONE
    )


def test_an_isr_member_with_an_unknown_broker_epoch_remains_suspect(parts: ControllerParts) -> None:
    lost = SuspectReplicas({T0: LogEnd(0, 1)})
    parts.context.add_live_broker(replace(parts.context.registrations[3], suspects=lost))
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.NONE
    assert parts.context.suspect_end(3, T0) is not None


def test_a_leader_outside_the_assignment_may_add_assigned_replicas(parts: ControllerParts) -> None:
    parts.context.update_partition_full_replica_assignment(T0, ReplicaAssignment((2, 3)))
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.NONE


# --- repeated proposals ---------------------------------------------------------------------------


@pytest.mark.parametrize("isr", [(1, 2), (2, 1)])
@pytest.mark.parametrize("partition_epoch", [0, 2])
def test_ci_36_the_present_isr_is_accepted_with_any_older_partition_epoch(
    parts: ControllerParts, isr: tuple[int, ...], partition_epoch: int
) -> None:
    proposal = row(*isr, partition_epoch=partition_epoch)
    before = len(parts.zookeeper.transactions)
    assert propose(parts, proposal) == [AlteredPartition("t", 0, Errors.NONE, 1, 4, (1, 2), 0, 2)]
    assert len(parts.zookeeper.transactions) == before


def test_a_proposal_repeated_after_a_lost_response_gets_the_same_response(
    parts: ControllerParts,
) -> None:
    assert propose(parts, row(1, 2, 3)) == propose(parts, row(1, 2, 3))
    assert parts.leads(T0) == (1, (1, 2, 3), 4)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_write_whose_response_is_lost_succeeds(parts: ControllerParts, moment: Moment) -> None:
    on_write(parts, moment, lose_connection)
    response, changed = parts.alter_partitions.alter(request(parts, row(1, 2, 3)))
    assert response.partitions == (AlteredPartition("t", 0, Errors.NONE, 1, 4, (1, 2, 3), 0, 3),)
    assert changed == [T0]
    assert parts.state(T0) == parts.context.partition_leadership_info(T0)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "offset"),
    [(9, 0), (1, -1), (1, 1)],
    ids=["unknown broker", "earlier epoch", "later epoch"],
)
def test_a_request_without_the_current_broker_epoch_is_refused_as_a_whole(
    parts: ControllerParts, sender: int, offset: int
) -> None:
    sent = request(parts, row(1), sender=sender)
    sent = AlterPartitionRequest(sender, sent.broker_epoch + offset, sent.partitions)
    answer = parts.alter_partitions.alter(sent)
    assert answer == (AlterPartitionResponse(Errors.STALE_BROKER_EPOCH), [])
    assert parts.effects() == []
    assert parts.leads(T0) == (1, (1, 2), 4)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 5}, Errors.NOT_CONTROLLER),
        ({"leader_epoch": 3, "partition_epoch": 3}, Errors.NOT_CONTROLLER),
        ({"partition_epoch": 1, "new_isr": ()}, Errors.INVALID_UPDATE_VERSION),
        ({"new_isr": (), "isr_broker_epochs": ()}, Errors.INVALID_REQUEST),
        ({"isr_broker_epochs": (-1,)}, Errors.INVALID_REQUEST),
        (
            {"leader_recovery_state": 1, "new_isr": (1,), "isr_broker_epochs": (-1,)},
            Errors.INVALID_REQUEST,
        ),
        ({"leader_recovery_state": 2}, Errors.INVALID_REQUEST),
        ({"topic": "u"}, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "u", "topic_id": topic_id(8)}, Errors.UNKNOWN_TOPIC_ID),
        ({"topic_id": topic_id(8)}, Errors.INCONSISTENT_TOPIC_ID),
    ],
)
def test_an_invalid_proposal_gets_the_error_of_kafka(
    parts: ControllerParts, fields: dict[str, object], error: Errors
) -> None:
    parts.context.add_topic_id("t", topic_id(7))
    assert outcome(parts, row(1, 3)._replace(**fields)) is error  # type: ignore[arg-type]


def test_a_topic_id_without_a_known_name_is_of_the_topic_with_that_id(
    parts: ControllerParts,
) -> None:
    """The broker that passes it on for a broker of Kafka may not know of the topic yet."""
    parts.context.add_topic_id("t", topic_id(7))
    (answer,) = propose(parts, row(1, topic=":unknown", topic_id=topic_id(7)))
    assert (answer.topic, answer.error_code) == ("t", Errors.NONE)
    unknown = row(1, topic=":unknown", topic_id=topic_id(8))
    assert outcome(parts, unknown) is Errors.UNKNOWN_TOPIC_ID


def test_a_proposal_with_the_correct_topic_id_is_accepted(parts: ControllerParts) -> None:
    parts.context.add_topic_id("t", topic_id(7))
    (answer,) = propose(parts, row(1, topic_id=topic_id(7)))
    assert answer.error_code is Errors.NONE


def test_a_broker_that_is_not_the_leader_is_fenced_even_for_the_present_isr(
    parts: ControllerParts,
) -> None:
    assert outcome(parts, row(1, 2), sender=2) is Errors.FENCED_LEADER_EPOCH
    put(parts, T0, -1, (1,), leader_epoch=4)
    assert outcome(parts, row(1, partition_epoch=3)) is Errors.FENCED_LEADER_EPOCH


def test_a_state_written_by_a_newer_controller_is_not_changed(parts: ControllerParts) -> None:
    put(parts, T0, 1, (1, 2), leader_epoch=4, controller_epoch=2)
    assert outcome(parts, row(1, 2, 3)) is Errors.NOT_CONTROLLER


@pytest.mark.parametrize("reason", ["offline", "shutting down", "log directory failed"])
def test_an_unavailable_replica_cannot_join_the_isr(parts: ControllerParts, reason: str) -> None:
    match reason:
        case "offline":
            parts.context.remove_live_broker(3)
        case "shutting down":
            parts.context.shutting_down_broker_ids.add(3)
        case _:
            parts.context.replicas_on_offline_dirs[3] = {T0}
    assert outcome(parts, row(1, 2, 3)) is Errors.INELIGIBLE_REPLICA
    assert propose(parts, row(1))[0].error_code is Errors.NONE, "a smaller ISR is accepted"


def test_a_topic_queued_for_deletion_is_unknown(parts: ControllerParts) -> None:
    parts.context.queue_topic_deletion(["t"])
    assert outcome(parts, row(1)) is Errors.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("unusable", ["topic", "state"])
def test_a_partition_that_cannot_be_read_gets_a_retriable_error(
    parts: ControllerParts, unusable: str
) -> None:
    """Its leadership may go on with the same epochs: the leader would wait for other ones."""
    unread = row(1, topic="u")
    if unusable == "topic":
        parts.context.bad_topics["u"] = "it ended controllers"
    else:
        parts.context.unreadable_partitions.add(unread.topic_partition)
    assert outcome(parts, unread) is Errors.UNKNOWN_SERVER_ERROR


def test_a_refusal_contains_the_present_state_and_is_not_sent_to_other_brokers(
    parts: ControllerParts,
) -> None:
    (answer,) = propose(parts, row(1, 3, partition_epoch=1))
    held = AlteredPartition("t", 0, Errors.INVALID_UPDATE_VERSION, 1, 4, (1, 2), 0, 2)
    assert answer == held
    assert parts.effects() == []


def test_a_refusal_for_an_unknown_partition_is_not_sent_to_other_brokers(
    parts: ControllerParts,
) -> None:
    assert propose(parts, row(1, topic="u")) == [
        AlteredPartition("u", 0, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    assert parts.effects() == []


def test_many_refusals_are_one_log_line(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    propose(parts, *(row(1, partition=TopicPartition("u", n)) for n in range(5)))
    (line,) = caplog.messages
    assert "5 ISRs proposed by broker 1 were refused, the first: u-0 with UNKNOWN_TOPIC" in line


# --- recovery state (KIP-704) ---------------------------------------------------------------------


def test_a_leader_can_report_that_it_has_recovered(parts: ControllerParts) -> None:
    put(parts, T0, 1, (1,), leader_epoch=4, recovery=RECOVERING)
    (answer,) = propose(parts, row(1, partition_epoch=3))
    assert (answer.error_code, answer.leader_recovery_state) == (Errors.NONE, 0)
    stored = parts.state(T0)
    assert stored is not None
    assert stored.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERED


def test_no_replica_joins_the_isr_of_a_recovering_leader(parts: ControllerParts) -> None:
    put(parts, T0, 1, (1,), leader_epoch=4, recovery=RECOVERING)
    joined = row(1, 2, partition_epoch=3, leader_recovery_state=1)
    assert outcome(parts, joined) is Errors.INVALID_REQUEST
    alone = row(1, partition_epoch=3, leader_recovery_state=1)
    assert outcome(parts, alone) is Errors.NONE
    # No controller writes this state.
    put(parts, T0, 1, (1, 2), leader_epoch=4, recovery=RECOVERING)
    assert propose(parts, alone._replace(partition_epoch=4))[0].isr == (1,)
    assert propose(parts, row(1, 2, partition_epoch=5))[0].isr == (1, 2)


# --- concurrent writes ----------------------------------------------------------------------------


def test_a_conflict_answers_with_the_stored_state_and_is_not_retried(
    parts: ControllerParts,
) -> None:
    on_write(parts, Moment.BEFORE, lambda: parts.put_state(T0, 1, (1,), leader_epoch=4))
    response, changed = parts.alter_partitions.alter(request(parts, row(1, 2, 3)))
    held = AlteredPartition("t", 0, Errors.INVALID_UPDATE_VERSION, 1, 4, (1,), 0, 3)
    assert response.partitions == (held,)
    assert changed == [T0]
    assert parts.known(T0) == parts.leads(T0) == (1, (1,), 4)
    assert metadata_rows(parts.effects())[2][T0].isr == (1,)


def test_a_conflicting_write_of_a_newer_controller_is_not_copied_into_memory(
    parts: ControllerParts,
) -> None:
    def write() -> None:
        parts.put_state(T0, 2, (2,), leader_epoch=5, controller_epoch=2)

    on_write(parts, Moment.BEFORE, write)
    (answer,) = propose(parts, row(1, 2, 3))
    assert (answer.error_code, answer.leader) == (Errors.NOT_CONTROLLER, 1)
    assert parts.known(T0) == (1, (1, 2), 4)


def test_a_conflict_with_an_unreadable_state_fails_only_that_partition(
    parts: ControllerParts,
) -> None:
    parts.lead(T1, (1, 2), leader=1, isr=(1, 2))
    on_write(parts, Moment.BEFORE, lambda: parts.zookeeper.put(STATE % 0, b"garbage"))
    other = row(1, partition=T1, leader_epoch=0, partition_epoch=0)
    answers = propose(parts, row(1, 2, 3), other)
    assert [a.error_code for a in answers] == [Errors.UNKNOWN_SERVER_ERROR, Errors.NONE]
    assert parts.leads(T1) == (1, (1,), 0)


def test_a_state_that_cannot_be_written_gets_a_retriable_error(parts: ControllerParts) -> None:
    parts.zookeeper.deny_writing(TopicPartitionStateZNode.path(T0))
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_SERVER_ERROR


def test_a_state_that_stays_unwritable_is_logged_once_in_ten_seconds(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    parts.zookeeper.deny_writing(TopicPartitionStateZNode.path(T0))
    for now_ms in range(0, 20_000, 100):
        parts.context.now_ms = now_ms
        propose(parts, row(1, 2, 3))
    lines = [line for line in caplog.messages if "t-0" in line]
    assert len(lines) == 4, "two, twice"


def test_a_partition_deleted_before_the_write_is_unknown(parts: ControllerParts) -> None:
    on_write(parts, Moment.BEFORE, lambda: parts.delete_topic("t"))
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_deleted_after_a_conflict_is_unknown(parts: ControllerParts) -> None:
    def hook(call: Call) -> None:
        if call == (Moment.BEFORE, "multi_many", call.paths):
            parts.put_state(T0, 1, (1,), leader_epoch=4)
        elif call == (Moment.BEFORE, "get_many", call.paths):
            parts.delete_topic("t")

    parts.session.hook = hook
    assert propose(parts, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deposed_controller_writes_nothing(parts: ControllerParts) -> None:
    on_write(parts, Moment.BEFORE, parts.elect_another_controller)
    with pytest.raises(ControllerMovedError):
        parts.alter_partitions.alter(request(parts, row(1, 2, 3)))
    assert parts.leads(T0) == (1, (1, 2), 4)


def test_a_deposed_controller_resigns_and_answers_not_controller(
    world: World, active: Candidate
) -> None:
    sender = active.controller.context.live_broker_epochs[1]
    world.elect_another_controller()
    proposal = row(1, leader_epoch=0, partition_epoch=0)
    sent = AlterPartitionRequest(1, sender, (proposal,))
    effects = active.handle(AlterPartitionReceived(7, sent))
    answers = of_type(effects, SendResponse)
    assert answers == [SendResponse(7, AlterPartitionResponse(Errors.NOT_CONTROLLER))]
    assert not active.controller.is_active
