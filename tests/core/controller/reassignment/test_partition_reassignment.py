"""Partitions that move: what is written and told, in which order and in which epochs."""

from __future__ import annotations

from regent.core.controller.events import PartitionReassignmentIsrChange
from regent.core.controller.states import ReplicaState
from regent.core.errors import Errors
from regent.core.model import (
    LogEnd,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import LeaderAndIsrRequest
from regent.zk.codecs.admin_znodes import ReassignPartitionsZNode
from regent.zk.stores.controller_store import ZkControllerStore, topic_assignment
from tests.support.fake_zookeeper import Call, Moment
from tests.support.moving_cluster import ADMIN, MovingCluster, cluster, topic_path
from tests.support.term import (
    T0,
    T1,
    broker_info,
    leader_and_isr_rows,
    requests,
    stop_replica_rows,
    topic_id,
)

T = topic_path("t")
STATE = f"{T}/partitions/0/state"


def kill(moving: MovingCluster, *broker_ids: int) -> None:
    moving.unregister(*broker_ids)
    moving.settle()


def test_the_classic_example() -> None:
    moving = cluster((1, 2, 3))
    assert moving.submit({T0: (4, 5, 6)}) == {T0: Errors.NONE}
    assert moving.replicas(T0) == ((4, 5, 6, 1, 2, 3), (4, 5, 6), (1, 2, 3))
    assert moving.leads(T0) == (1, (1, 2, 3), 1)
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5, 6), (), ())
    assert moving.leads(T0) == (4, (4, 5, 6), 5), "one to wait, one to lead, one a removed replica"
    assert moving.topic("t").topic_id == topic_id(77)
    moving.assert_at_rest()


def test_what_is_moved_is_listed_until_it_has_moved() -> None:
    moving = cluster((1, 2), (2, 1))
    assert moving.ongoing() == ()
    moving.submit({T0: (3, 2), T1: (3, 1)})
    of_0 = ("t", 0, (3, 2, 1), (3,), (1,))
    of_1 = ("t", 1, (3, 1, 2), (3,), (2,))
    assert moving.ongoing() == (of_0, of_1)
    assert moving.ongoing(T1, TopicPartition("other", 0)) == (of_1,)
    moving.catch_up()
    assert moving.ongoing() == ()


def test_the_order_of_writes_is_kafkas() -> None:
    moving = cluster((1, 2))
    before = len(moving.writes())
    moving.write_znode({T0: (3, 2)})
    moving.catch_up()
    assert moving.writes()[before:] == [
        T,  # the union
        STATE,  # the epoch grows
        STATE,  # the leader lets 3 into the ISR
        STATE,  # 3 leads
        STATE,  # 1 leaves the ISR
        T,  # the target
        ADMIN,
    ]
    assert moving.leads(T0) == (3, (2, 3), 3)
    moving.assert_at_rest()


def test_new_replicas_are_told_as_new_and_old_ones_of_the_epoch() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 2)})
    rows = leader_and_isr_rows(moving.effects)
    assert {b: rows[b][T0].is_new for b in rows} == {1: False, 2: False, 3: True}
    for broker_id in rows:
        row = rows[broker_id][T0]
        assert (row.leader, row.leader_epoch) == (1, 1)
        assert (row.replicas, row.adding_replicas, row.removing_replicas) == ((3, 2, 1), (3,), (1,))
    assert stop_replica_rows(moving.effects) == {}


def test_removed_replicas_are_deleted_after_the_rest_has_a_new_epoch() -> None:
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
    context = moving.ruler.controller.context
    gone = context.replica_state(PartitionAndReplica(T0, 1))
    assert gone is ReplicaState.NON_EXISTENT
    assert context.replica_state(PartitionAndReplica(T0, 3)) is ReplicaState.ONLINE


def test_some_of_the_target_in_sync_is_not_enough() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    before = len(moving.writes())
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert moving.writes()[before:] == []
    assert moving.ongoing() != ()


def test_who_has_everything_is_not_deleted_while_only_suspect_replicas_would_be_left() -> None:
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


def test_news_of_suspect_replicas_begin_no_leader_epoch() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.settle()
    copied_in = moving.leads(T0)
    store = ZkControllerStore(moving.sessions[3])
    store.publish_suspects(broker_info(3), SuspectReplicas({T0: LogEnd(0, 5)}))
    moving.settle()
    assert moving.leads(T0) == copied_in


def test_news_of_what_is_not_moved_cost_nothing() -> None:
    moving = cluster((1, 2))
    calls: list[Call] = []
    moving.ruler.session.hook = calls.append
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


def test_another_order_changes_who_is_preferred_and_not_who_leads() -> None:
    moving = cluster((1, 2, 3))
    moving.write_znode({T0: (3, 1, 2)})
    assert moving.replicas(T0) == ((3, 1, 2), (), ())
    assert moving.leads(T0) == (1, (1, 2, 3), 1)
    assert moving.ruler.controller.context.preferred_replica_imbalance_count == 1
    moving.assert_at_rest()


def test_where_it_is_already_nothing_moves() -> None:
    moving = cluster((1, 2))
    before = len(moving.writes())
    assert moving.submit({T0: (1, 2)}) == {T0: Errors.NONE}
    assert moving.writes()[before:] == []
    assert moving.leads(T0) == (1, (1, 2), 0)


def test_a_partition_nobody_could_lead_yet_is_created_where_it_moves_to() -> None:
    moving = cluster((8, 9))
    assert moving.state(T0) is None
    moving.submit({T0: (1, 2)})
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.leads(T0) == (1, (1, 2), 1)
    moving.assert_at_rest()


def test_a_partition_nobody_can_lead_waits() -> None:
    moving = cluster((1, 2))
    kill(moving, 2)
    kill(moving, 1)
    assert moving.leads(T0) == (-1, (1,), 2)
    moving.submit({T0: (3, 4)})
    assert moving.leads(T0) == (-1, (1,), 3)
    moving.register(1, life=2)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


# --- targets that are dead ------------------------------------------------------------------------


def test_a_move_to_a_dead_broker_waits_for_it() -> None:  # CI-13, CI-14
    moving = cluster((1,), brokers=2)
    kill(moving, 2)
    moving.write_znode({T0: (2,)})
    assert moving.leads(T0) == (1, (1,), 1)
    assert moving.znode() == {T0: (2,)}
    moving.register(2, life=2)
    moving.settle()
    assert moving.leads(T0) == (1, (1,), 2)
    moving.catch_up()
    assert moving.leads(T0) == (2, (2,), 4)
    moving.assert_at_rest()


def test_a_live_target_ends_in_the_third_epoch() -> None:  # CI-11
    moving = cluster((1,), brokers=2)
    moving.write_znode({T0: (2,)})
    moving.catch_up()
    assert moving.leads(T0) == (2, (2,), 3)
    moving.assert_at_rest()


def test_a_target_that_dies_on_the_way_goes_on_when_it_returns() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    assert moving.leads(T0)[1] == (1, 2, 3)
    moving.register(4, life=2)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


def test_nothing_is_removed_while_nobody_of_the_target_is_alive() -> None:
    moving = cluster((1, 2))
    kill(moving, 1)
    kill(moving, 2)
    moving.register(1, life=2)
    moving.settle()
    assert moving.leads(T0) == (-1, (2,), 2), "only 2 has everything"
    moving.submit({T0: (2,)})
    assert moving.leads(T0) == (-1, (2,), 3), "it waits"
    assert moving.replicas(T0) == ((2, 1), (), (1,))
    assert moving.hosts(T0) == [1]
    moving.register(2, life=2)
    moving.settle()
    assert moving.leads(T0)[:2] == (2, (2,))
    moving.assert_at_rest()


def test_a_leader_that_is_in_the_target_but_dead_is_replaced_by_another_of_it() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (1, 3)})
    kill(moving, 1)
    assert moving.leads(T0)[0] == 2
    moving.catch_up()
    assert moving.ongoing() != (), "1 is not in sync"
    moving.register(1, life=2)
    moving.settle()
    moving.catch_up_with_everything()
    assert moving.leads(T0)[0] in (1, 3)
    moving.assert_at_rest()


# --- superseding and cancelling -------------------------------------------------------------------


def test_a_cancelled_move_leaves_nothing_behind() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 2)})
    assert moving.hosts(T0) == [1, 2, 3]
    assert moving.submit({T0: None}) == {T0: Errors.NONE}
    assert moving.replicas(T0) == ((2, 1), (), ()), "the origin's order is lost where it overlaps"
    assert moving.leads(T0) == (1, (1, 2), 3)
    moving.assert_at_rest()
    assert moving.submit({T0: None}) == {T0: Errors.NO_REASSIGNMENT_IN_PROGRESS}


def test_a_replica_that_was_in_sync_leaves_the_isr_when_the_move_is_cancelled() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    assert moving.leads(T0)[:2] == (1, (1, 2, 3))
    moving.submit({T0: None})
    assert moving.leads(T0)[:2] == (1, (1, 2))
    moving.assert_at_rest()


def test_a_later_target_supersedes_an_earlier_one() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.submit({T0: (4, 5)})
    assert moving.replicas(T0) == ((4, 5, 1, 2), (4, 5), (1, 2))
    assert moving.hosts(T0) == [1, 2, 4, 5]
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_asking_again_for_the_same_tells_the_replicas_again() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.effects.clear()
    assert moving.submit({T0: (3, 4)}) == {T0: Errors.NONE}
    assert moving.leads(T0) == (1, (1, 2), 2)
    rows = leader_and_isr_rows(moving.effects)
    assert {b: rows[b][T0].is_new for b in rows} == {1: False, 2: False, 3: True, 4: True}
    moving.catch_up()
    moving.assert_at_rest()


def test_a_replica_being_added_that_comes_back_as_the_last_in_sync_is_not_new() -> None:
    moving = led_by_a_new_replica()
    kill(moving, 2)
    kill(moving, 3)
    moving.effects.clear()
    moving.register(3)
    moving.settle()
    told = [
        row.is_new
        for sent in requests(moving.effects)
        if sent.broker_id == 3 and isinstance(sent.request, LeaderAndIsrRequest)
        for _, row in sent.request.partitions()
    ]
    assert told
    assert not any(told), "a log that is gone would count as one that never was"


def led_by_a_new_replica() -> MovingCluster:
    """3, which is being added, leads; 4 is not in sync."""
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    kill(moving, 4)
    moving.catch_up()
    kill(moving, 1)
    assert moving.leads(T0)[:2] == (3, (2, 3))
    return moving


def test_a_leader_that_would_be_stopped_is_replaced_first() -> None:  # KAFKA-14808
    moving = led_by_a_new_replica()
    before = len(moving.writes())
    assert moving.submit({T0: None}) == {T0: Errors.NONE}
    assert moving.writes()[before : before + 2] == [STATE, T]
    assert moving.leads(T0)[:2] == (2, (2,))
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.hosts(T0) == [2]
    moving.assert_sound()


def test_a_move_that_would_stop_the_only_leader_there_can_be_is_refused() -> None:
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
    assert refused == {T0: Errors.INVALID_REPLICA_ASSIGNMENT}, "3 has what nobody else has"


def test_a_refused_partition_does_not_hold_up_the_others() -> None:
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


# --- many -----------------------------------------------------------------------------------------


def test_five_hundred_partitions_move_in_a_few_bulk_calls() -> None:
    topics = [f"topic-{n:02d}" for n in range(50)]
    partitions = [TopicPartition(topic, p) for topic in topics for p in range(10)]
    moving = MovingCluster(range(1, 6))
    for number, topic in enumerate(topics):
        moving.put_topic(topic, dict.fromkeys(range(10), (1, 2, 3)), topic_id(number + 1))
    moving.rule()
    calls: list[str] = []

    def count(call: Call) -> None:
        if call.moment is Moment.BEFORE:
            calls.append(call.method)

    moving.server.put(ADMIN, ReassignPartitionsZNode.encode(dict.fromkeys(partitions, (4, 5, 3))))
    moving.ruler.session.hook = count
    moving.handle(moving.ruler.inbox.popleft())
    assert calls == [
        "get",  # what is wanted
        *("get_many", "multi_many"),  # topics
        "get_many",  # who is in sync
        *("get_many", "multi_many"),  # epochs
    ]
    moving.ruler.session.hook = None
    moving.settle()
    for partition in partitions:
        moving.put_state(partition, 1, (1, 2, 3, 4, 5), leader_epoch=1)
    calls.clear()
    moving.ruler.session.hook = count
    moving.ruler.controller._reassignments.on_isr_change(partitions)
    assert calls == [
        "get_many",  # who is in sync
        *("get_many", "multi_many"),  # new leaders
        *("get_many", "multi_many") * 2,  # brokers 1 and 2 leave ISRs
        *("get_many", "multi_many"),  # topics
        *("get", "multi_many"),  # what was wanted
    ]
    znodes = moving.server.snapshot()
    assert ADMIN not in znodes
    for topic in topics:
        read = topic_assignment(znodes[topic_path(topic)], topic)
        assert isinstance(read, TopicAssignment)
        assert set(read.partitions.values()) == {ReplicaAssignment((4, 5, 3))}
