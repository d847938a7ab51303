"""Reassignments: the sequence of writes, the control requests, the leader epochs."""

from __future__ import annotations

from regent.core.controller.events import ChannelOverflowed, PartitionReassignmentIsrChange
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import (
    LEADER_DURING_DELETE,
    BrokerInfo,
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import ControlHeader
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.stores.znode_store import topic_assignment
from regent.zk.znodes import BrokerIdZNode, DeleteTopicsTopicZNode, ReassignPartitionsZNode
from tests.support.controller_parts import (
    leader_and_isr_requests,
    leader_and_isr_rows,
    metadata_rows,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import Call, Moment
from tests.support.moving_cluster import ADMIN, MovingCluster, cluster, topic_path
from tests.support.world import T0, T1, broker_info, topic_id

T = topic_path("t")
STATE = f"{T}/partitions/0/state"


def kill(moving: MovingCluster, *broker_ids: int) -> None:
    moving.unregister(*broker_ids)
    moving.settle()


def test_a_partition_is_reassigned_to_three_other_brokers() -> None:
    moving = cluster((1, 2, 3))
    assert moving.submit({T0: (4, 5, 6)}) == {T0: Errors.NONE}
    assert moving.replicas(T0) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert moving.leads(T0) == (1, (1, 2, 3), 1)
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5, 6), (), ())
    assert moving.leads(T0) == (4, (4, 5, 6), 5), (
        "one epoch each: start, election, three removed replicas"
    )
    assert moving.topic("t").topic_id == topic_id(77)
    moving.assert_at_rest()


def test_a_reassignment_is_listed_until_it_is_complete() -> None:
    moving = cluster((1, 2), (2, 1))
    assert moving.ongoing() == {}
    moving.submit({T0: (3, 2), T1: (3, 1)})
    of_0 = ReplicaAssignment((3, 2, 1), (3,), (1,))
    of_1 = ReplicaAssignment((3, 1, 2), (3,), (2,))
    assert moving.ongoing() == {T0: of_0, T1: of_1}
    assert moving.ongoing(T1, TopicPartition("other", 0)) == {T1: of_1}
    moving.catch_up()
    assert moving.ongoing() == {}


def test_the_sequence_of_writes_is_that_of_kafka() -> None:
    moving = cluster((1, 2))
    before = len(moving.writes())
    moving.write_znode({T0: (3, 2)})
    moving.catch_up()
    assert moving.writes()[before:] == [
        T,  # replicas: target and origin
        STATE,  # a new leader epoch
        STATE,  # the leader adds 3 to the ISR
        STATE,  # 3 leads
        STATE,  # 1 leaves the ISR
        T,  # replicas: target
        ADMIN,
    ]
    assert moving.leads(T0) == (3, (2, 3), 3)
    moving.assert_at_rest()


def test_added_replicas_get_is_new_and_all_replicas_the_new_leader_epoch() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 2)})
    rows = leader_and_isr_rows(moving.effects)
    assert {b: rows[b][T0].is_new for b in rows} == {1: False, 2: False, 3: True}
    for broker_id in rows:
        row = rows[broker_id][T0]
        assert (row.leader, row.leader_epoch) == (1, 1)
        assert (row.replicas, row.adding_replicas, row.removing_replicas) == ((3, 2, 1), (3,), (1,))
    assert stop_replica_rows(moving.effects) == {}


def test_removed_replicas_are_deleted_after_the_other_replicas_get_a_new_leader_epoch() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 2)})
    moving.effects.clear()
    moving.catch_up()
    rows = leader_and_isr_rows(moving.effects)
    assert sorted(rows) == [2, 3]
    assert rows[2][T0].replicas == (3, 2)
    assert rows[2][T0].isr == (2, 3)
    ((broker_id, stopped),) = stop_replica_rows(moving.effects).items()
    assert (broker_id, stopped[T0].delete_partition) == (1, True)
    context = moving.active.controller.context
    gone = context.replica_state(PartitionAndReplica(T0, 1))
    assert gone is ReplicaState.NON_EXISTENT
    assert context.replica_state(PartitionAndReplica(T0, 3)) is ReplicaState.ONLINE


def test_a_reassignment_is_not_complete_before_the_whole_target_is_in_sync() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    before = len(moving.writes())
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert moving.writes()[before:] == []
    assert moving.ongoing() != {}


def test_a_sound_replica_is_not_deleted_while_the_target_has_only_suspect_replicas() -> None:
    moving = cluster((3, 1))
    store = ZkControllerStore(moving.sessions[3])
    store.publish_suspects(broker_info(3), SuspectReplicas({T0: LogEnd(0, 5)}))
    moving.settle()
    moving.submit({T0: (3,)})
    assert moving.replicas(T0) == ((3, 1), (), (1,))
    assert moving.hosts(T0) == [1, 3]
    store.publish_suspects(broker_info(3), SuspectReplicas())
    moving.settle()
    assert moving.leads(T0)[:2] == (3, (3,))
    moving.assert_at_rest()


def test_a_notification_about_suspect_replicas_starts_no_leader_epoch() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.settle()
    copied_in = moving.leads(T0)
    store = ZkControllerStore(moving.sessions[3])
    store.publish_suspects(broker_info(3), SuspectReplicas({T0: LogEnd(0, 5)}))
    moving.settle()
    assert moving.leads(T0) == copied_in


def test_an_isr_change_of_an_idle_partition_reads_nothing() -> None:
    moving = cluster((1, 2))
    calls: list[Call] = []
    moving.active.session.hook = calls.append
    assert moving.handle(PartitionReassignmentIsrChange(T0)) == []
    assert calls == []


def test_a_replica_may_be_added_without_removing_any() -> None:
    moving = cluster((1,))
    moving.submit({T0: (1, 2)})
    moving.catch_up()
    assert moving.leads(T0) == (1, (1, 2), 2)
    moving.assert_at_rest()


def test_a_replica_may_be_removed_without_adding_any() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (2,)})
    assert moving.leads(T0) == (2, (2,), 2)
    moving.assert_at_rest()


def test_a_reordered_assignment_changes_the_preferred_replica_and_not_the_leader() -> None:
    moving = cluster((1, 2, 3))
    moving.write_znode({T0: (3, 1, 2)})
    assert moving.replicas(T0) == ((3, 1, 2), (), ())
    assert moving.leads(T0) == (1, (1, 2, 3), 1)
    assert moving.active.controller.context.preferred_replica_imbalance_count == 1
    moving.assert_at_rest()


def test_a_reassignment_to_the_present_replicas_writes_nothing() -> None:
    moving = cluster((1, 2))
    before = len(moving.writes())
    assert moving.submit({T0: (1, 2)}) == {T0: Errors.NONE}
    assert moving.writes()[before:] == []
    assert moving.leads(T0) == (1, (1, 2), 0)


def test_a_partition_without_a_first_leader_is_created_on_its_target() -> None:
    moving = cluster((8, 9))
    assert moving.state(T0) is None
    moving.submit({T0: (1, 2)})
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.leads(T0) == (1, (1, 2), 1)
    moving.assert_at_rest()


def test_a_reassignment_waits_while_the_partition_has_no_leader() -> None:
    moving = cluster((1, 2))
    kill(moving, 2)
    kill(moving, 1)
    assert moving.leads(T0) == (-1, (1,), 2)
    moving.submit({T0: (3, 4)})
    assert moving.leads(T0) == (-1, (1,), 3)
    moving.register(1, incarnation=2)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


# --- offline targets ------------------------------------------------------------------------------


def test_a_reassignment_to_an_offline_broker_waits_for_it() -> None:  # CI-13, CI-14
    moving = cluster((1,), brokers=2)
    kill(moving, 2)
    moving.write_znode({T0: (2,)})
    assert moving.leads(T0) == (1, (1,), 1)
    assert moving.znode() == {T0: (2,)}
    moving.register(2, incarnation=2)
    moving.settle()
    assert moving.leads(T0) == (1, (1,), 2)
    moving.catch_up()
    assert moving.leads(T0) == (2, (2,), 4)
    moving.assert_at_rest()


def test_a_reassignment_to_a_live_broker_ends_in_leader_epoch_3() -> None:  # CI-11
    moving = cluster((1,), brokers=2)
    moving.write_znode({T0: (2,)})
    moving.catch_up()
    assert moving.leads(T0) == (2, (2,), 3)
    moving.assert_at_rest()


def test_a_reassignment_continues_when_a_failed_target_broker_returns() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    assert moving.leads(T0)[1] == (1, 2, 3)
    moving.register(4, incarnation=2)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


def test_no_replica_is_removed_while_all_brokers_of_the_target_are_offline() -> None:
    moving = cluster((1, 2))
    kill(moving, 1)
    kill(moving, 2)
    moving.register(1, incarnation=2)
    moving.settle()
    assert moving.leads(T0) == (-1, (2,), 2), "only 2 is in sync"
    moving.submit({T0: (2,)})
    assert moving.leads(T0) == (-1, (2,), 3), "the reassignment waits"
    assert moving.replicas(T0) == ((2, 1), (), (1,))
    assert moving.hosts(T0) == [1]
    moving.register(2, incarnation=2)
    moving.settle()
    assert moving.leads(T0)[:2] == (2, (2,))
    moving.assert_at_rest()


def test_an_offline_leader_in_the_target_is_replaced_by_another_target_replica() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (1, 3)})
    kill(moving, 1)
    assert moving.leads(T0)[0] == 2
    moving.catch_up()
    assert moving.ongoing() != {}, "1 is not in sync"
    moving.register(1, incarnation=2)
    moving.settle()
    moving.catch_up_with_everything()
    assert moving.leads(T0)[0] in (1, 3)
    moving.assert_at_rest()


# --- superseding and cancelling -------------------------------------------------------------------


def test_a_cancelled_reassignment_leaves_no_added_replica() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 2)})
    assert moving.hosts(T0) == [1, 2, 3]
    assert moving.submit({T0: None}) == {T0: Errors.NONE}
    assert moving.replicas(T0) == ((2, 1), (), ()), (
        "a cancelled move does not restore the sequence of replicas"
    )
    assert moving.leads(T0) == (1, (1, 2), 3)
    moving.assert_at_rest()
    assert moving.submit({T0: None}) == {T0: Errors.NO_REASSIGNMENT_IN_PROGRESS}


def test_an_added_replica_in_sync_leaves_the_isr_when_the_reassignment_is_cancelled() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    assert moving.leads(T0)[:2] == (1, (1, 2, 3))
    moving.submit({T0: None})
    assert moving.leads(T0)[:2] == (1, (1, 2))
    moving.assert_at_rest()


def test_a_second_target_replaces_the_first() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.submit({T0: (4, 5)})
    assert moving.replicas(T0) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert moving.hosts(T0) == [1, 2, 4, 5]
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_a_repeated_reassignment_request_sends_the_control_requests_again() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.effects.clear()
    assert moving.submit({T0: (3, 4)}) == {T0: Errors.NONE}
    assert moving.leads(T0) == (1, (1, 2), 2)
    rows = leader_and_isr_rows(moving.effects)
    assert {b: rows[b][T0].is_new for b in rows} == {1: False, 2: False, 3: True, 4: True}
    moving.catch_up()
    moving.assert_at_rest()


def test_an_added_replica_that_restarts_as_the_last_isr_member_is_not_new() -> None:
    moving = led_by_a_new_replica()
    kill(moving, 2)
    kill(moving, 3)
    moving.effects.clear()
    moving.register(3)
    moving.settle()
    sent = leader_and_isr_requests(moving.effects, 3)
    is_new = [row.is_new for _, request in sent for _, row in request.partitions()]
    assert is_new
    assert not any(is_new), "is_new would make a lost log count as a new replica"


def led_by_a_new_replica() -> MovingCluster:
    """Replica 3, which is being added, leads; replica 4 is not in sync."""
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    kill(moving, 1)
    assert moving.leads(T0)[:2] == (3, (2, 3))
    return moving


def test_a_leader_that_is_to_be_removed_is_replaced_first() -> None:  # KAFKA-14808
    moving = led_by_a_new_replica()
    before = len(moving.writes())
    assert moving.submit({T0: None}) == {T0: Errors.NONE}
    assert moving.writes()[before : before + 2] == [STATE, T]
    assert moving.leads(T0)[:2] == (2, (2,))
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.hosts(T0) == [2]
    moving.assert_sound()


def test_a_reassignment_that_would_remove_the_only_possible_leader_is_refused() -> None:
    moving = led_by_a_new_replica()
    kill(moving, 2)
    before = len(moving.writes())
    assert moving.submit({T0: None}) == {T0: Errors.INVALID_REPLICA_ASSIGNMENT}
    assert moving.submit({T0: (5, 6)}) == {T0: Errors.INVALID_REPLICA_ASSIGNMENT}
    assert moving.writes()[before:] == []
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    kill(moving, 3)
    assert moving.leads(T0)[:2] == (-1, (3,))
    refused = moving.submit({T0: None})
    assert refused == {T0: Errors.INVALID_REPLICA_ASSIGNMENT}, "3 is the last member of the ISR"


def test_a_refused_partition_does_not_delay_the_other_partitions() -> None:
    moving = cluster((1, 2), (2, 1))
    answer = moving.submit({T0: (9, 1), T1: (3, 4), TopicPartition("t", 7): (1,)})
    assert answer == {
        T0: Errors.INVALID_REPLICA_ASSIGNMENT,
        T1: Errors.NONE,
        TopicPartition("t", 7): Errors.UNKNOWN_TOPIC_OR_PARTITION,
    }
    moving.catch_up()
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.replicas(T1) == ((3, 4), (), ())
    moving.assert_at_rest()


# --- many partitions ------------------------------------------------------------------------------


def test_five_hundred_partitions_are_reassigned_in_a_few_bulk_calls() -> None:
    topics = [f"topic-{n:02d}" for n in range(50)]
    partitions = [TopicPartition(topic, p) for topic in topics for p in range(10)]
    moving = MovingCluster(range(1, 6))
    for number, topic in enumerate(topics):
        moving.put_topic(topic, dict.fromkeys(range(10), (1, 2, 3)), topic_id(number + 1))
    moving.start_controller()
    calls: list[str] = []

    def count(call: Call) -> None:
        if call.moment is Moment.BEFORE:
            calls.append(call.method)

    moving.zookeeper.put(
        ADMIN, ReassignPartitionsZNode.encode(dict.fromkeys(partitions, (4, 5, 3)))
    )
    moving.active.session.hook = count
    moving.handle(moving.active.inbox.popleft())
    assert calls == [
        "get",  # /admin/reassign_partitions
        *("get_many", "multi_many"),  # topics
        "get_many",  # partition states
        "multi_many",  # leader epochs
    ]
    moving.active.session.hook = None
    moving.settle()
    for partition in partitions:
        moving.put_state(partition, 1, (1, 2, 3, 4, 5), leader_epoch=1)
        state = moving.state(partition)
        assert state is not None
        moving.active.controller.context.put_partition_leadership_info(partition, state)
    calls.clear()
    moving.active.session.hook = count
    moving.active.controller._reassignments.on_isr_change(partitions)
    assert calls == [
        "get_many",  # partition states
        "multi_many",  # new leaders
        *("multi_many", "multi_many"),  # brokers 1 and 2 leave the ISRs
        *("get_many", "multi_many"),  # topics
        *("get", "multi_many"),  # /admin/reassign_partitions
    ]
    znodes = moving.zookeeper.snapshot()
    assert ADMIN not in znodes
    for topic in topics:
        read = topic_assignment(topic, znodes[topic_path(topic)])
        assert set(read.partitions.values()) == {ReplicaAssignment((4, 5, 3))}


def become_kafkas(moving: MovingCluster, broker_id: int) -> None:
    """Let a broker register as one of Kafka: it sets no stray replicas aside."""
    info = BrokerInfo(broker_id, broker_info(broker_id).endpoints)
    moving.zookeeper.put(BrokerIdZNode.path(broker_id), BrokerIdZNode.encode(info))
    moving.settle()


def overflow(moving: MovingCluster, broker_id: int) -> dict[TopicPartition, bool]:
    """Drop what is queued for a broker; return what it deletes then."""
    context = moving.active.controller.context
    broker_epoch = context.live_broker_epochs[broker_id]
    header = ControlHeader(100, context.epoch, broker_epoch)
    stopped = stop_replica_rows(moving.active.handle(ChannelOverflowed(broker_id, header)))
    return {p: row.delete_partition for p, row in stopped.get(broker_id, {}).items()}


def test_a_broker_of_kafka_deletes_a_removed_replica_although_its_channel_overflowed() -> None:
    moving = cluster((1, 2, 3), (1, 2, 3))
    become_kafkas(moving, 1)
    moving.submit({T0: (2, 3)})
    assert overflow(moving, 1) == {T0: True}, "it keeps what a FULL request does not list"
    assert overflow(moving, 1) == {T0: True}, "this request may be dropped, too"


def test_a_broker_of_kafka_keeps_a_replica_that_was_assigned_to_it_again() -> None:
    moving = cluster((1, 2, 3))
    become_kafkas(moving, 1)
    moving.submit({T0: (2, 3)})
    moving.submit({T0: (2, 3, 1)})
    assert overflow(moving, 1) == {}
    moving.catch_up()
    assert overflow(moving, 1) == {}


def test_a_broker_of_kafka_deletes_what_was_removed_while_it_was_down() -> None:
    moving = cluster((1, 2, 3))
    kill(moving, 1)
    moving.submit({T0: (2, 3)})
    moving.effects.clear()
    moving.register_as(BrokerInfo(1, broker_info(1).endpoints))
    moving.settle()
    assert stop_replica_rows(moving.effects)[1][T0].delete_partition


def test_a_broker_of_this_project_sets_removed_replicas_aside_by_itself() -> None:
    moving = cluster((1, 2, 3))
    moving.submit({T0: (2, 3)})
    assert overflow(moving, 1) == {}


def test_a_broker_of_kafka_forgets_a_deleted_topic_although_its_channel_overflowed() -> None:
    moving = cluster((1, 2), (2, 3))
    become_kafkas(moving, 4)
    moving.zookeeper.put(DeleteTopicsTopicZNode.path("t"))
    moving.settle()
    assert moving.node(topic_path("t")) is None
    context = moving.active.controller.context
    header = ControlHeader(100, context.epoch, context.live_broker_epochs[4])
    rows = metadata_rows(moving.active.handle(ChannelOverflowed(4, header)))
    assert {p: row.leader for p, row in rows[4].items()} == {
        T0: LEADER_DURING_DELETE,
        T1: LEADER_DURING_DELETE,
    }, "its cache keeps what a complete list lacks"
    moving.put_topic("t", {0: (5, 6)}, topic_id(78))
    moving.settle()
    rows = metadata_rows(moving.active.handle(ChannelOverflowed(4, header)))
    assert {p: row.leader for p, row in rows[4].items()} == {T0: 5, T1: LEADER_DURING_DELETE}
