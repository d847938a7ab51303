"""Which broker is told what, in which order, with which epochs."""

from __future__ import annotations

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    BrokerRegistration,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    LiveLeader,
    StopReplicaPartition,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
)
from tests.support.term import (
    broker_info,
    kinds,
    leader_and_isr_rows,
    leadership,
    metadata_rows,
    stop_replica_rows,
    topic_id,
)

FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
BAR0, BAR1 = TopicPartition("bar", 0), TopicPartition("bar", 1)
LED = {FOO0: leadership(1, (1, 2)), FOO1: leadership(2, (2, 3)), BAR1: leadership(3, (1, 3))}
REPLICAS = ReplicaAssignment((1, 2, 3))


@pytest.fixture
def context() -> ControllerContext:
    """Brokers 1 to 3 and the topics foo and bar; nobody leads bar-0."""
    context = ControllerContext()
    context.epoch = 7
    for broker_id in (3, 1, 2):
        registration = BrokerRegistration(broker_info(broker_id), 100 + broker_id)
        context.add_live_broker(registration)
    for number, topic in enumerate(("foo", "bar"), 1):
        context.add_topic_id(topic, topic_id(number))
        for partition in (0, 1):
            context.update_partition_full_replica_assignment(
                TopicPartition(topic, partition), REPLICAS
            )
    for led, known in LED.items():
        context.put_partition_leadership_info(led, known)
    return context


@pytest.fixture
def batch(context: ControllerContext) -> ControlRequestBatch:
    return ControlRequestBatch(1, context)


def add(
    batch: ControlRequestBatch, partition: TopicPartition, *to: int, is_new: bool = False
) -> None:
    batch.add_leader_and_isr(to, partition, is_new=is_new)


def leader_and_isr(effects: list[SendControlRequest], broker_id: int) -> LeaderAndIsrRequest:
    (request,) = (
        sent.request
        for sent in effects
        if sent.broker_id == broker_id and isinstance(sent.request, LeaderAndIsrRequest)
    )
    return request


# --- all three kinds ------------------------------------------------------------------------------


def test_leaderships_come_first_then_metadata_then_stops(batch: ControlRequestBatch) -> None:
    batch.add_stop_replica(3, BAR1, delete=False)
    batch.add_stop_replica(1, BAR1, delete=False)
    add(batch, FOO1, 3, 2)
    add(batch, FOO0, 2, 1)
    assert kinds(batch.effects()) == [
        (1, "LeaderAndIsr"),
        (2, "LeaderAndIsr"),
        (3, "LeaderAndIsr"),
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (3, "UpdateMetadata"),
        (1, "StopReplica"),
        (3, "StopReplica"),
    ]


def test_headers_name_the_controller_and_the_life_of_the_receiver(
    batch: ControlRequestBatch,
) -> None:
    add(batch, FOO0, 2)
    batch.add_stop_replica(2, FOO0, delete=False)
    headers = {(sent.broker_id, sent.header) for sent in batch.effects()}
    assert headers == {(b, ControlHeader(1, 7, 100 + b)) for b in (1, 2, 3)}


def test_epochs_and_liveness_are_those_of_the_moment_of_sending(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    add(batch, FOO0, 2, 3)
    context.remove_live_broker(3)
    context.add_live_broker(BrokerRegistration(broker_info(2), 999))
    context.epoch = 8
    effects = batch.effects()
    assert [sent.header for sent in effects if sent.broker_id == 2] == [
        ControlHeader(1, 8, 999),
        ControlHeader(1, 8, 999),
    ]
    assert not [sent for sent in effects if sent.broker_id == 3]


def test_dead_brokers_are_passed_over_and_leaving_ones_are_not(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.shutting_down_broker_ids.add(2)
    context.remove_live_broker(3)
    add(batch, FOO0, -1, 1, 2, 3)
    for broker_id in (2, 3):
        batch.add_stop_replica(broker_id, BAR1, delete=False)
    assert kinds(batch.effects()) == [
        (1, "LeaderAndIsr"),
        (2, "LeaderAndIsr"),
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (2, "StopReplica"),
    ]


def test_an_empty_batch_says_nothing(batch: ControlRequestBatch) -> None:
    assert batch.effects() == []


# --- LeaderAndIsr ---------------------------------------------------------------------------------


def test_a_leadership_travels_with_assignment_topic_id_and_where_leaders_are(
    context: ControllerContext,
) -> None:
    batch = ControlRequestBatch(1, context)
    moving = ReplicaAssignment((3, 1, 2), adding_replicas=(3,), removing_replicas=(2,))
    known = leadership(2, (2,), leader_epoch=4, partition_epoch=6, controller_epoch=5, recovery=1)
    context.update_partition_full_replica_assignment(BAR0, moving)
    context.put_partition_leadership_info(BAR0, known)
    batch.add_leader_and_isr((2,), BAR0, is_new=True)
    request = leader_and_isr(batch.effects(), 2)
    row = LeaderAndIsrPartition(
        partition_index=0,
        controller_epoch=5,
        leader=2,
        leader_epoch=4,
        isr=(2,),
        partition_epoch=6,
        replicas=(3, 1, 2),
        adding_replicas=(3,),
        removing_replicas=(2,),
        is_new=True,
        leader_recovery_state=1,
    )
    assert request == LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL,
        (LeaderAndIsrTopic("bar", topic_id(2), (row,)),),
        (LiveLeader(2, "tcp://host-2:29001"),),
    )


def test_a_broker_gets_one_request_sorted_by_topic_and_partition(
    batch: ControlRequestBatch,
) -> None:
    for partition in (FOO1, BAR1, FOO0):
        add(batch, partition, 2)
    request = leader_and_isr(batch.effects(), 2)
    assert [partition for partition, _ in request.partitions()] == [BAR1, FOO0, FOO1]
    assert [leader.broker_id for leader in request.live_leaders] == [1, 2, 3]


def test_a_leader_that_is_dead_or_missing_is_not_listed_as_live(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.remove_live_broker(1)
    add(batch, FOO0, 2)
    context.put_partition_leadership_info(FOO1, leadership(-1, (3,)))
    batch.add_leader_and_isr((2,), FOO1)
    assert leader_and_isr(batch.effects(), 2).live_leaders == ()


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True)])
def test_once_new_in_a_batch_always_new(
    batch: ControlRequestBatch, order: tuple[bool, bool]
) -> None:
    for is_new in order:
        add(batch, FOO0, 2, is_new=is_new)
    assert leader_and_isr_rows(batch.effects())[2][FOO0].is_new


def test_newness_is_of_one_replica_alone(batch: ControlRequestBatch) -> None:
    add(batch, FOO0, 2, is_new=True)
    add(batch, FOO0, 2, 3)
    rows = leader_and_isr_rows(batch.effects())
    assert (rows[2][FOO0].is_new, rows[3][FOO0].is_new) == (True, False)


def test_the_later_leadership_of_a_partition_replaces_the_earlier(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    add(batch, FOO0, 2)
    context.put_partition_leadership_info(FOO0, leadership(3, (3,)))
    add(batch, FOO0, 2)
    assert leader_and_isr_rows(batch.effects())[2][FOO0].leader == 3


def test_a_leadership_is_metadata_for_everybody(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.shutting_down_broker_ids.add(3)
    add(batch, FOO0, 2)
    assert {b: list(rows) for b, rows in metadata_rows(batch.effects()).items()} == {
        1: [FOO0],
        2: [FOO0],
        3: [FOO0],
    }


# --- FULL -----------------------------------------------------------------------------------------


def test_full_requests_go_to_those_asked_for_even_if_empty(batch: ControlRequestBatch) -> None:
    batch.make_full((1, 2, 9))
    add(batch, FOO0, 2, 3)
    effects = batch.effects()
    assert leader_and_isr(effects, 1) == LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())
    assert leader_and_isr(effects, 2).type is LeaderAndIsrType.FULL
    assert leader_and_isr(effects, 3).type is LeaderAndIsrType.INCREMENTAL
    assert not [sent for sent in effects if sent.broker_id == 9]


def test_nothing_is_full_while_a_topic_is_unreadable(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.bad_topics["baz"] = "not JSON"
    batch.make_full((1, 2))
    add(batch, FOO0, 2)
    effects = batch.effects()
    assert leader_and_isr(effects, 2).type is LeaderAndIsrType.INCREMENTAL
    assert 1 not in leader_and_isr_rows(effects)


def test_nothing_is_full_while_the_leader_of_a_partition_cannot_be_read(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.unreadable_partitions.add(BAR0)
    batch.make_full((1, 2))
    add(batch, FOO0, 2)
    assert leader_and_isr(batch.effects(), 2).type is LeaderAndIsrType.INCREMENTAL


# --- UpdateMetadata -------------------------------------------------------------------------------


def test_all_brokers_share_one_metadata_request(batch: ControlRequestBatch) -> None:
    add(batch, FOO0, 2)
    batch.add_update_metadata((BAR1,), (1,))
    shared = [s.request for s in batch.effects() if isinstance(s.request, UpdateMetadataRequest)]
    assert len(shared) == 3
    assert shared[0] is shared[1] is shared[2]
    assert [partition for partition, _ in shared[0].partitions()] == [BAR1, FOO0]


def test_metadata_lists_every_registered_broker_and_its_addresses(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.shutting_down_broker_ids.add(3)
    batch.add_update_metadata((), (2,))
    (sent,) = batch.effects()
    assert isinstance(sent.request, UpdateMetadataRequest)
    assert [broker.broker_id for broker in sent.request.live_brokers] == [1, 2, 3]
    second = sent.request.live_brokers[1]
    assert second.broker_epoch == 102
    assert second.endpoints == (("PLAINTEXT", "host-2", 9092, "PLAINTEXT"),)
    assert second.control_endpoint == "tcp://host-2:19001"
    assert second.replication_endpoint == "tcp://host-2:29001"


def test_a_metadata_row_says_which_replicas_are_offline(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.remove_live_broker(3)
    context.replicas_on_offline_dirs[2] = {FOO0}
    batch.add_update_metadata((FOO0,), (1,))
    assert metadata_rows(batch.effects())[1][FOO0] == UpdateMetadataPartition(
        partition_index=0,
        controller_epoch=1,
        leader=1,
        leader_epoch=0,
        isr=(1, 2),
        partition_epoch=0,
        replicas=(1, 2, 3),
        offline_replicas=(2, 3),
    )


def test_partitions_nobody_ever_led_have_no_row_but_the_request_goes_out(
    batch: ControlRequestBatch,
) -> None:
    batch.add_update_metadata((BAR0, TopicPartition("unknown", 0)), (2,))
    assert metadata_rows(batch.effects()) == {2: {}}


def test_partitions_of_a_topic_to_be_deleted_are_marked_to_be_forgotten(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    known = leadership(1, (1, 2), leader_epoch=4, partition_epoch=6)
    context.put_partition_leadership_info(FOO0, known)
    context.queue_topic_deletion(["foo"])
    batch.add_update_metadata((FOO0, BAR1), (2,))
    rows = metadata_rows(batch.effects())[2]
    forgotten = rows[FOO0]
    assert forgotten.leader == LEADER_DURING_DELETE
    assert (forgotten.leader_epoch, forgotten.partition_epoch) == (0, 0)
    assert forgotten.isr == (1, 2)
    assert rows[BAR1].leader == 3


# --- StopReplica ----------------------------------------------------------------------------------


def test_a_stop_carries_the_leader_epoch_known_when_it_was_added(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.queue_topic_deletion(["bar"])
    context.put_partition_leadership_info(FOO0, leadership(1, (1,), leader_epoch=4))
    batch.add_stop_replica(2, FOO0, delete=False)
    batch.add_stop_replica(2, BAR1, delete=True)
    context.put_partition_leadership_info(FOO0, leadership(1, (1,), leader_epoch=5))
    assert stop_replica_rows(batch.effects())[2] == {
        FOO0: StopReplicaPartition(0, 4, False),
        BAR1: StopReplicaPartition(1, EPOCH_DURING_DELETE, True),
    }


def test_a_stop_of_a_partition_nobody_ever_led_is_not_checked_by_epoch(
    batch: ControlRequestBatch,
) -> None:
    batch.add_stop_replica(2, BAR0, delete=False)
    assert stop_replica_rows(batch.effects()) == {
        2: {BAR0: StopReplicaPartition(0, NO_EPOCH, False)}
    }


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_once_to_be_deleted_in_a_batch_always_to_be_deleted(
    batch: ControlRequestBatch, order: tuple[bool, bool]
) -> None:
    for delete in order:
        batch.add_stop_replica(2, FOO0, delete=delete)
    assert stop_replica_rows(batch.effects())[2][FOO0].delete_partition


def test_stops_with_and_without_deletion_travel_in_one_request(
    batch: ControlRequestBatch,
) -> None:
    for partition in (FOO0, FOO1):
        batch.add_stop_replica(2, partition, delete=True)
    for partition in (BAR0, BAR1):
        batch.add_stop_replica(2, partition, delete=False)
    effects = batch.effects()
    assert kinds(effects) == [(2, "StopReplica")]
    deletes = {p: row.delete_partition for p, row in stop_replica_rows(effects)[2].items()}
    assert deletes == {BAR0: False, BAR1: False, FOO0: True, FOO1: True}
