"""Control requests of one event: receivers, sequence and epochs."""

from __future__ import annotations

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.election.election import PartitionChange
from regent.core.controller.request_batch import ControlRequestBatch
from regent.core.controller.states import ReplicaState
from regent.core.model import (
    EPOCH_DURING_DELETE,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    BrokerRegistration,
    PartitionAndReplica,
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
from tests.support.controller_parts import (
    kinds,
    leader_and_isr_rows,
    metadata_rows,
    stop_replica_rows,
)
from tests.support.world import broker_info, leadership, topic_id

FOO0, FOO1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
BAR0, BAR1 = TopicPartition("bar", 0), TopicPartition("bar", 1)
LED = {FOO0: leadership(1, (1, 2)), FOO1: leadership(2, (2, 3)), BAR1: leadership(3, (1, 3))}
REPLICAS = ReplicaAssignment((1, 2, 3))


@pytest.fixture
def context() -> ControllerContext:
    """Brokers 1 to 3 and topics foo and bar; bar-0 has no leader."""
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
    batch.add_leader_and_isr(to, [partition], is_new=is_new)


def leader_and_isr(effects: list[SendControlRequest], broker_id: int) -> LeaderAndIsrRequest:
    (request,) = (
        sent.request
        for sent in effects
        if sent.broker_id == broker_id and isinstance(sent.request, LeaderAndIsrRequest)
    )
    return request


# --- all three kinds ------------------------------------------------------------------------------


def test_leader_and_isr_comes_first_then_update_metadata_then_stop_replica(
    batch: ControlRequestBatch,
) -> None:
    batch.add_stop_replica(3, [BAR1], delete=False)
    batch.add_stop_replica(1, [BAR1], delete=False)
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


def test_headers_have_the_controller_epoch_and_name_the_receiver(
    batch: ControlRequestBatch,
) -> None:
    add(batch, FOO0, 2)
    batch.add_stop_replica(2, [FOO0], delete=False)
    headers = {(sent.broker_id, sent.header) for sent in batch.effects()}
    assert headers == {(b, ControlHeader(1, 7, 100 + b, broker_id=b)) for b in (1, 2, 3)}


def test_epochs_and_live_brokers_are_those_at_the_time_of_sending(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    add(batch, FOO0, 2, 3)
    context.remove_live_broker(3)
    context.add_live_broker(BrokerRegistration(broker_info(2), 999))
    context.epoch = 8
    effects = batch.effects()
    assert [sent.header for sent in effects if sent.broker_id == 2] == [
        ControlHeader(1, 8, 999, broker_id=2),
        ControlHeader(1, 8, 999, broker_id=2),
    ]
    assert not [sent for sent in effects if sent.broker_id == 3]


def test_brokers_that_are_shutting_down_get_requests_and_offline_ones_do_not(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.shutting_down_broker_ids.add(2)
    context.remove_live_broker(3)
    add(batch, FOO0, -1, 1, 2, 3)
    for broker_id in (2, 3):
        batch.add_stop_replica(broker_id, [BAR1], delete=False)
    assert kinds(batch.effects()) == [
        (1, "LeaderAndIsr"),
        (2, "LeaderAndIsr"),
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (2, "StopReplica"),
    ]


def test_an_empty_batch_sends_nothing(batch: ControlRequestBatch) -> None:
    assert batch.effects() == []


# --- LeaderAndIsr ---------------------------------------------------------------------------------


def test_a_leader_and_isr_row_has_assignment_topic_id_and_leader_address(
    context: ControllerContext,
) -> None:
    batch = ControlRequestBatch(1, context)
    moving = ReplicaAssignment((3, 1, 2), adding_replicas=(3,), removing_replicas=(2,))
    known = leadership(2, (2,), leader_epoch=4, partition_epoch=6, controller_epoch=5, recovery=1)
    context.update_partition_full_replica_assignment(BAR0, moving)
    context.put_partition_leadership_info(BAR0, known)
    batch.add_leader_and_isr((2,), [BAR0], is_new=True)
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


def test_a_leader_is_told_while_replicas_outside_the_isr_may_be_elected(
    context: ControllerContext,
) -> None:
    batch = ControlRequestBatch(1, context)
    known = leadership(2, (2,))
    eligible = known.leader_and_isr._replace(eligible_leader_replicas=(1,))
    for state, told in ((known, ()), (known._replace(leader_and_isr=eligible), (0,))):
        context.put_partition_leadership_info(BAR0, state)
        batch.add_leader_and_isr((2,), [BAR0], is_new=False)
        (topic,) = leader_and_isr(batch.effects(), 2).topic_states
        assert topic.with_eligible_replicas == told


def test_a_broker_gets_one_request_sorted_by_topic_and_partition(
    batch: ControlRequestBatch,
) -> None:
    for partition in (FOO1, BAR1, FOO0):
        add(batch, partition, 2)
    request = leader_and_isr(batch.effects(), 2)
    assert [partition for partition, _ in request.partitions()] == [BAR1, FOO0, FOO1]
    assert [leader.broker_id for leader in request.live_leaders] == [1, 2, 3]


def test_an_offline_or_missing_leader_is_not_in_live_leaders(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.remove_live_broker(1)
    add(batch, FOO0, 2)
    context.put_partition_leadership_info(FOO1, leadership(-1, (3,)))
    batch.add_leader_and_isr((2,), [FOO1])
    assert leader_and_isr(batch.effects(), 2).live_leaders == ()


@pytest.mark.parametrize(
    "state",
    [
        ReplicaState.NON_EXISTENT,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_SUCCESSFUL,
    ],
)
def test_a_change_is_not_sent_to_a_replica_that_its_broker_does_not_keep(
    context: ControllerContext, batch: ControlRequestBatch, state: ReplicaState
) -> None:
    """Broker 3 would create it, and nothing would stop it when no reassignment needs it."""
    for replica in (1, 2):
        context.put_replica_state(PartitionAndReplica(FOO0, replica), ReplicaState.ONLINE)
    context.put_replica_state(PartitionAndReplica(FOO0, 3), state)
    batch.add_changes({FOO0: PartitionChange(LED[FOO0].leader_and_isr, recipients=(1, 2, 3))})
    assert leader_and_isr_rows(batch.effects()).keys() == {1, 2}


@pytest.mark.parametrize("values", [(True, False), (False, True), (True, True)])
def test_is_new_stays_set_for_the_whole_batch(
    batch: ControlRequestBatch, values: tuple[bool, bool]
) -> None:
    for is_new in values:
        add(batch, FOO0, 2, is_new=is_new)
    assert leader_and_isr_rows(batch.effects())[2][FOO0].is_new


def test_is_new_is_set_for_one_replica_only(batch: ControlRequestBatch) -> None:
    add(batch, FOO0, 2, is_new=True)
    add(batch, FOO0, 2, 3)
    rows = leader_and_isr_rows(batch.effects())
    assert (rows[2][FOO0].is_new, rows[3][FOO0].is_new) == (True, False)


def test_a_later_leadership_replaces_the_earlier_one(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    add(batch, FOO0, 2)
    context.put_partition_leadership_info(FOO0, leadership(3, (3,)))
    add(batch, FOO0, 2)
    assert leader_and_isr_rows(batch.effects())[2][FOO0].leader == 3


def test_a_leadership_is_sent_as_metadata_to_all_brokers(
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


def test_full_requests_are_sent_even_if_empty(batch: ControlRequestBatch) -> None:
    batch.make_full((1, 2, 9))
    add(batch, FOO0, 2, 3)
    effects = batch.effects()
    assert leader_and_isr(effects, 1) == LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())
    assert leader_and_isr(effects, 2).type is LeaderAndIsrType.FULL
    assert leader_and_isr(effects, 3).type is LeaderAndIsrType.INCREMENTAL
    assert not [sent for sent in effects if sent.broker_id == 9]


# --- UpdateMetadata -------------------------------------------------------------------------------


def test_all_brokers_share_one_update_metadata_request(batch: ControlRequestBatch) -> None:
    add(batch, FOO0, 2)
    batch.add_update_metadata((BAR1,), (1,))
    shared = [s.request for s in batch.effects() if isinstance(s.request, UpdateMetadataRequest)]
    assert len(shared) == 3
    assert shared[0] is shared[1] is shared[2]
    assert [partition for partition, _ in shared[0].partitions()] == [BAR1, FOO0]


def test_update_metadata_lists_every_registered_broker_with_its_addresses(
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


def test_an_update_metadata_row_lists_the_offline_replicas(
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


def test_partitions_without_a_first_leader_have_no_row_but_the_request_is_sent(
    batch: ControlRequestBatch,
) -> None:
    batch.add_update_metadata((BAR0, TopicPartition("unknown", 0)), (2,))
    assert metadata_rows(batch.effects()) == {2: {}}


def test_partitions_of_a_topic_queued_for_deletion_get_the_leader_of_deletion(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    known = leadership(1, (1, 2), leader_epoch=4, partition_epoch=6)
    context.put_partition_leadership_info(FOO0, known)
    context.queue_topic_deletion(["foo"])
    batch.add_update_metadata((FOO0, BAR1), (2,))
    rows = metadata_rows(batch.effects())[2]
    queued = rows[FOO0]
    assert queued.leader == LEADER_DURING_DELETE
    assert (queued.leader_epoch, queued.partition_epoch) == (0, 0)
    assert queued.isr == (1, 2)
    assert rows[BAR1].leader == 3


# --- StopReplica ----------------------------------------------------------------------------------


def test_a_stop_replica_row_has_the_leader_epoch_at_the_time_it_was_added(
    context: ControllerContext, batch: ControlRequestBatch
) -> None:
    context.queue_topic_deletion(["bar"])
    context.put_partition_leadership_info(FOO0, leadership(1, (1,), leader_epoch=4))
    batch.add_stop_replica(2, [FOO0], delete=False)
    batch.add_stop_replica(2, [BAR1], delete=True)
    context.put_partition_leadership_info(FOO0, leadership(1, (1,), leader_epoch=5))
    assert stop_replica_rows(batch.effects())[2] == {
        FOO0: StopReplicaPartition(0, 4, False),
        BAR1: StopReplicaPartition(1, EPOCH_DURING_DELETE, True),
    }


def test_a_stop_replica_row_without_a_leader_has_no_leader_epoch(
    batch: ControlRequestBatch,
) -> None:
    batch.add_stop_replica(2, [BAR0], delete=False)
    assert stop_replica_rows(batch.effects()) == {
        2: {BAR0: StopReplicaPartition(0, NO_EPOCH, False)}
    }


@pytest.mark.parametrize("values", [(True, False), (False, True)])
def test_delete_partition_stays_set_for_the_whole_batch(
    batch: ControlRequestBatch, values: tuple[bool, bool]
) -> None:
    for delete in values:
        batch.add_stop_replica(2, [FOO0], delete=delete)
    assert stop_replica_rows(batch.effects())[2][FOO0].delete_partition


def test_rows_with_and_without_deletion_are_in_one_request(
    batch: ControlRequestBatch,
) -> None:
    for partition in (FOO0, FOO1):
        batch.add_stop_replica(2, [partition], delete=True)
    for partition in (BAR0, BAR1):
        batch.add_stop_replica(2, [partition], delete=False)
    effects = batch.effects()
    assert kinds(effects) == [(2, "StopReplica")]
    deletes = {p: row.delete_partition for p, row in stop_replica_rows(effects)[2].items()}
    assert deletes == {BAR0: False, BAR1: False, FOO0: True, FOO1: True}


def test_every_online_replica_gets_its_leadership(
    batch: ControlRequestBatch, context: ControllerContext
) -> None:
    """One on a broker that is gone, or in a failed directory, is not."""
    context.remove_live_broker(3)
    context.replicas_on_offline_dirs[2] = {FOO1}
    batch.add_every_leader_and_isr()
    rows = leader_and_isr_rows(batch.effects())
    assert {broker_id: sorted(of_broker) for broker_id, of_broker in rows.items()} == {
        1: [BAR1, FOO0, FOO1],
        2: [BAR1, FOO0],
    }
    assert all(not row.is_new for of_broker in rows.values() for row in of_broker.values())
