"""Which ISRs leaders get, what those who do not get them are told, and who hears of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from regent.core.controller.effects import Reply
from regent.core.controller.events import AlterPartitionReceived
from regent.core.errors import ControllerMovedError, Errors
from regent.core.model import (
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
from regent.zk.client.operations import ConnectionLossError
from regent.zk.codecs.znodes import TopicPartitionStateZNode
from tests.support.fake_zookeeper import Call, Moment
from tests.support.term import (
    T0,
    T1,
    Candidate,
    Office,
    Tree,
    kinds,
    leadership,
    metadata_rows,
    of_type,
    topic_id,
)

STATE = "/brokers/topics/t/partitions/%d/state"
RECOVERING = LeaderRecoveryState.RECOVERING


@pytest.fixture
def office() -> Office:
    """t-0 is led by 1 with 2 in sync, at leader epoch 4 and partition epoch 2; 3 could join."""
    office = Office(brokers=(1, 2, 3))
    office.lead(T0, (1, 2, 3), leader=1, isr=(1, 2))
    for _ in range(2):
        put(office, T0, 1, (1, 2), leader_epoch=4)
    return office


def put(
    office: Office, partition: TopicPartition, leader: int, isr: tuple[int, ...], **more: int
) -> None:
    """Let ZooKeeper and the controller hold a leadership."""
    office.put_state(partition, leader, isr, **more)
    stored = office.state(partition)
    assert stored is not None
    office.context.put_partition_leadership_info(partition, stored)


def row(*isr: int, partition: TopicPartition = T0, **fields: object) -> AlterPartitionRow:
    """Return a proposal that rests on what the fixture holds."""
    proposal = AlterPartitionRow(*partition, None, 4, isr, (-1,) * len(isr), 0, 2)
    return proposal._replace(**fields)  # type: ignore[arg-type]


def request(office: Office, *rows: AlterPartitionRow, sender: int = 1) -> AlterPartitionRequest:
    return AlterPartitionRequest(sender, office.context.live_broker_epochs.get(sender, 5), rows)


def propose(office: Office, *rows: AlterPartitionRow, sender: int = 1) -> list[AlteredPartition]:
    response, _ = office.alter_partitions.alter(request(office, *rows, sender=sender))
    assert response.error_code is Errors.NONE
    return list(response.partitions)


def outcome(office: Office, proposal: AlterPartitionRow, sender: int = 1) -> Errors:
    """Return the error of one proposal, which writes nothing."""
    before = len(office.server.transactions)
    (answer,) = propose(office, proposal, sender=sender)
    assert len(office.server.transactions) == before
    return answer.error_code


def on_write(office: Office, moment: Moment, act: Callable[[], None]) -> None:
    """Act once when states are written."""

    def hook(call: Call) -> None:
        if call.method == "multi_many" and call.moment is moment:
            office.zookeeper.hook = None
            act()

    office.zookeeper.hook = hook


def lose() -> None:
    raise ConnectionLossError("lost")


# --- accepted -------------------------------------------------------------------------------------


@pytest.mark.parametrize("isr", [(1, 2, 3), (1,), (1, 3), (3, 1)])
def test_a_leader_gets_its_isr_and_keeps_its_leader_epoch(
    office: Office, isr: tuple[int, ...]
) -> None:
    answers = propose(office, row(*isr))
    assert answers == [AlteredPartition("t", 0, Errors.NONE, 1, 4, isr, 0, 3)]
    stored = office.state(T0)
    assert stored == leadership(1, isr, leader_epoch=4, partition_epoch=3, controller_epoch=1)
    assert stored == office.context.partition_leadership_info(T0)


def test_everybody_hears_of_it_by_metadata_alone(office: Office) -> None:
    propose(office, row(1, 2, 3))
    effects = office.effects()
    assert kinds(effects) == [(1, "UpdateMetadata"), (2, "UpdateMetadata"), (3, "UpdateMetadata")]
    assert metadata_rows(effects)[3][T0].isr == (1, 2, 3)
    assert metadata_rows(effects)[3][T0].partition_epoch == 3
    assert "t-0: leader 1, isr [1, 2] → [1, 2, 3]" in repr(effects)


def test_those_that_changed_are_handed_on(office: Office) -> None:
    office.lead(T1, (1, 2), leader=1, isr=(1, 2))
    as_it_is = row(2, 1, partition=T1, leader_epoch=0, partition_epoch=0)
    response, changed = office.alter_partitions.alter(request(office, as_it_is, row(1)))
    assert [answer.error_code for answer in response.partitions] == [Errors.NONE, Errors.NONE]
    assert changed == [T0]


def test_many_are_written_at_once(office: Office) -> None:
    partitions = [TopicPartition("t", n) for n in range(1, 300)]
    for partition in partitions:
        office.lead(partition, (1, 2), leader=1, isr=(1, 2))
    rows = [row(1, partition=p, leader_epoch=0, partition_epoch=0) for p in partitions]
    before = len(office.server.transactions)
    assert {answer.error_code for answer in propose(office, *rows)} == {Errors.NONE}
    assert len(office.server.transactions) == before + 1


def test_a_leader_that_is_shutting_down_may_name_its_successor(office: Office) -> None:
    office.context.shutting_down_broker_ids.add(1)
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.NONE


def test_a_member_named_in_its_present_life_is_eligible(office: Office) -> None:
    epochs = office.context.live_broker_epochs
    lives = tuple(epochs[broker_id] for broker_id in (1, 2, 3))
    assert propose(office, row(1, 2, 3, isr_broker_epochs=lives))[0].error_code is Errors.NONE


def test_a_member_of_an_unknown_life_stays_suspect(office: Office) -> None:
    lost = SuspectReplicas({T0: LogEnd(0, 1)})
    office.context.add_live_broker(replace(office.context.registrations[3], suspects=lost))
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.NONE
    assert office.context.suspect_end(3, T0) is not None


def test_a_leader_a_broken_move_left_over_may_let_its_successors_join(office: Office) -> None:
    office.context.update_partition_full_replica_assignment(T0, ReplicaAssignment((2, 3)))
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.NONE


# --- the same again -------------------------------------------------------------------------------


@pytest.mark.parametrize("isr", [(1, 2), (2, 1)])
@pytest.mark.parametrize("partition_epoch", [0, 2])
def test_ci_36_what_is_so_already_is_a_success_whatever_version_it_rests_on(
    office: Office, isr: tuple[int, ...], partition_epoch: int
) -> None:
    proposal = row(*isr, partition_epoch=partition_epoch)
    before = len(office.server.transactions)
    assert propose(office, proposal) == [AlteredPartition("t", 0, Errors.NONE, 1, 4, (1, 2), 0, 2)]
    assert len(office.server.transactions) == before


def test_a_proposal_repeated_because_its_answer_was_lost_gets_the_same_answer(
    office: Office,
) -> None:
    assert propose(office, row(1, 2, 3)) == propose(office, row(1, 2, 3))
    assert office.leads(T0) == (1, (1, 2, 3), 4)


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_write_whose_answer_is_lost_is_a_success(office: Office, moment: Moment) -> None:
    on_write(office, moment, lose)
    response, changed = office.alter_partitions.alter(request(office, row(1, 2, 3)))
    assert response.partitions == (AlteredPartition("t", 0, Errors.NONE, 1, 4, (1, 2, 3), 0, 3),)
    assert changed == [T0]
    assert office.state(T0) == office.context.partition_leadership_info(T0)


# --- refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "offset"), [(9, 0), (1, -1), (1, 1)], ids=["unknown", "former life", "later life"]
)
def test_who_is_not_the_registered_broker_is_refused_as_a_whole(
    office: Office, sender: int, offset: int
) -> None:
    asked = request(office, row(1), sender=sender)
    asked = AlterPartitionRequest(sender, asked.broker_epoch + offset, asked.partitions)
    answer = office.alter_partitions.alter(asked)
    assert answer == (AlterPartitionResponse(Errors.STALE_BROKER_EPOCH), [])
    assert office.effects() == []
    assert office.leads(T0) == (1, (1, 2), 4)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"leader_epoch": 5}, Errors.NOT_CONTROLLER),
        ({"partition_epoch": 3}, Errors.NOT_CONTROLLER),
        ({"leader_epoch": 3, "partition_epoch": 3}, Errors.NOT_CONTROLLER),
        ({"leader_epoch": 3}, Errors.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 1}, Errors.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 1, "new_isr": ()}, Errors.INVALID_UPDATE_VERSION),
        ({"new_isr": (), "isr_broker_epochs": ()}, Errors.INVALID_REQUEST),
        ({"new_isr": (2, 3)}, Errors.INVALID_REQUEST),
        ({"new_isr": (1, 7)}, Errors.INVALID_REQUEST),
        ({"new_isr": (1, 1)}, Errors.INVALID_REQUEST),
        ({"isr_broker_epochs": (-1,)}, Errors.INVALID_REQUEST),
        ({"leader_recovery_state": 1}, Errors.INVALID_REQUEST),
        (
            {"leader_recovery_state": 1, "new_isr": (1,), "isr_broker_epochs": (-1,)},
            Errors.INVALID_REQUEST,
        ),
        ({"leader_recovery_state": 2}, Errors.INVALID_REQUEST),
        ({"isr_broker_epochs": (-1, 1)}, Errors.INELIGIBLE_REPLICA),
        ({"topic": "u"}, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 1}, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "u", "topic_id": topic_id(8)}, Errors.UNKNOWN_TOPIC_ID),
        ({"topic_id": topic_id(8)}, Errors.INCONSISTENT_TOPIC_ID),
    ],
)
def test_what_is_wrong_with_a_proposal(
    office: Office, fields: dict[str, object], error: Errors
) -> None:
    office.context.add_topic_id("t", topic_id(7))
    assert outcome(office, row(1, 3)._replace(**fields)) is error  # type: ignore[arg-type]


def test_the_right_topic_id_is_accepted(office: Office) -> None:
    office.context.add_topic_id("t", topic_id(7))
    (answer,) = propose(office, row(1, topic_id=topic_id(7)))
    assert answer.error_code is Errors.NONE


def test_who_does_not_lead_is_fenced_even_by_what_is_so_already(office: Office) -> None:
    assert outcome(office, row(1, 2), sender=2) is Errors.FENCED_LEADER_EPOCH
    put(office, T0, -1, (1,), leader_epoch=4)
    assert outcome(office, row(1, partition_epoch=3)) is Errors.FENCED_LEADER_EPOCH


def test_a_partition_in_a_newer_controllers_hands_is_not_ours(office: Office) -> None:
    put(office, T0, 1, (1, 2), leader_epoch=4, controller_epoch=2)
    assert outcome(office, row(1, 2, 3)) is Errors.NOT_CONTROLLER


@pytest.mark.parametrize("trouble", ["gone", "shutting down", "log directory failed"])
def test_who_cannot_be_relied_on_does_not_get_into_the_isr(office: Office, trouble: str) -> None:
    match trouble:
        case "gone":
            office.context.remove_live_broker(3)
        case "shutting down":
            office.context.shutting_down_broker_ids.add(3)
        case _:
            office.context.replicas_on_offline_dirs[3] = {T0}
    assert outcome(office, row(1, 2, 3)) is Errors.INELIGIBLE_REPLICA
    assert propose(office, row(1))[0].error_code is Errors.NONE, "others may leave meanwhile"


def test_a_topic_that_is_being_deleted_is_unknown(office: Office) -> None:
    office.context.queue_topic_deletion(["t"])
    assert outcome(office, row(1)) is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_who_is_refused_hears_what_holds_and_so_does_everybody(office: Office) -> None:
    (answer,) = propose(office, row(1, 3, partition_epoch=1))
    held = AlteredPartition("t", 0, Errors.INVALID_UPDATE_VERSION, 1, 4, (1, 2), 0, 2)
    assert answer == held
    assert metadata_rows(office.effects())[2][T0].isr == (1, 2)


def test_of_what_is_unknown_nobody_hears(office: Office) -> None:
    assert propose(office, row(1, topic="u")) == [
        AlteredPartition("u", 0, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    ]
    assert office.effects() == []


def test_refusals_are_one_line_however_many(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    propose(office, *(row(1, partition=TopicPartition("u", n)) for n in range(5)))
    (line,) = caplog.messages
    assert "5 ISRs proposed by broker 1 were refused, the first: u-0 with UNKNOWN_TOPIC" in line


# --- recovering (KIP-704) -------------------------------------------------------------------------


def test_a_leader_that_has_recovered_says_so(office: Office) -> None:
    put(office, T0, 1, (1,), leader_epoch=4, recovery=RECOVERING)
    (answer,) = propose(office, row(1, partition_epoch=3))
    assert (answer.error_code, answer.leader_recovery_state) == (Errors.NONE, 0)
    stored = office.state(T0)
    assert stored is not None
    assert stored.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERED


def test_while_it_recovers_nobody_joins(office: Office) -> None:
    put(office, T0, 1, (1,), leader_epoch=4, recovery=RECOVERING)
    joined = row(1, 2, partition_epoch=3, leader_recovery_state=1)
    assert outcome(office, joined) is Errors.INVALID_REQUEST
    alone = row(1, partition_epoch=3, leader_recovery_state=1)
    assert outcome(office, alone) is Errors.NONE
    put(office, T0, 1, (1, 2), leader_epoch=4, recovery=RECOVERING)  # as no controller writes it
    assert propose(office, alone._replace(partition_epoch=4))[0].isr == (1,)
    assert propose(office, row(1, 2, partition_epoch=5))[0].isr == (1, 2)


# --- races ----------------------------------------------------------------------------------------


def test_a_conflict_answers_with_what_is_there_and_is_not_tried_again(office: Office) -> None:
    on_write(office, Moment.BEFORE, lambda: office.put_state(T0, 1, (1,), leader_epoch=4))
    response, changed = office.alter_partitions.alter(request(office, row(1, 2, 3)))
    held = AlteredPartition("t", 0, Errors.INVALID_UPDATE_VERSION, 1, 4, (1,), 0, 3)
    assert response.partitions == (held,)
    assert changed == [T0]
    assert office.known(T0) == office.leads(T0) == (1, (1,), 4)
    assert metadata_rows(office.effects())[2][T0].isr == (1,)


def test_a_conflict_with_a_newer_controllers_write_is_not_taken_over(office: Office) -> None:
    def write() -> None:
        office.put_state(T0, 2, (2,), leader_epoch=5, controller_epoch=2)

    on_write(office, Moment.BEFORE, write)
    (answer,) = propose(office, row(1, 2, 3))
    assert (answer.error_code, answer.leader) == (Errors.NOT_CONTROLLER, 1)
    assert office.known(T0) == (1, (1, 2), 4)


def test_a_conflict_with_garbage_fails_alone(office: Office) -> None:
    office.lead(T1, (1, 2), leader=1, isr=(1, 2))
    on_write(office, Moment.BEFORE, lambda: office.server.put(STATE % 0, b"garbage"))
    other = row(1, partition=T1, leader_epoch=0, partition_epoch=0)
    answers = propose(office, row(1, 2, 3), other)
    assert [a.error_code for a in answers] == [Errors.UNKNOWN_SERVER_ERROR, Errors.NONE]
    assert office.leads(T1) == (1, (1,), 0)


def test_a_state_that_may_not_be_written_is_asked_for_again(office: Office) -> None:
    office.server.deny_writing(TopicPartitionStateZNode.path(T0))
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_SERVER_ERROR


def test_a_partition_that_vanishes_is_unknown(office: Office) -> None:
    on_write(office, Moment.BEFORE, lambda: office.delete_topic("t"))
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_a_partition_that_vanishes_after_a_conflict_is_unknown(office: Office) -> None:
    def hook(call: Call) -> None:
        if call == (Moment.BEFORE, "multi_many", call.paths):
            office.put_state(T0, 1, (1,), leader_epoch=4)
        elif call == (Moment.BEFORE, "get_many", call.paths):
            office.delete_topic("t")

    office.zookeeper.hook = hook
    assert propose(office, row(1, 2, 3))[0].error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION


def test_who_was_deposed_writes_nothing(office: Office) -> None:
    on_write(office, Moment.BEFORE, office.elect_another_controller)
    with pytest.raises(ControllerMovedError):
        office.alter_partitions.alter(request(office, row(1, 2, 3)))
    assert office.leads(T0) == (1, (1, 2), 4)


def test_a_deposed_controller_resigns_and_sends_the_leader_elsewhere(
    tree: Tree, ruler: Candidate
) -> None:
    sender = ruler.controller.context.live_broker_epochs[1]
    tree.elect_another_controller()
    proposal = row(1, leader_epoch=0, partition_epoch=0)
    asked = AlterPartitionRequest(1, sender, (proposal,))
    effects = ruler.handle(AlterPartitionReceived(7, asked))
    answers = of_type(effects, Reply)
    assert answers == [Reply(7, AlterPartitionResponse(Errors.NOT_CONTROLLER))]
    assert not ruler.controller.is_active
