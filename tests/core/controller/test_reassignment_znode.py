"""``/admin/reassign_partitions`` as an inbox: what tools write into it, and what becomes of it."""

from __future__ import annotations

import logging

import pytest

from regent.core.controller.events import PartitionReassignmentIsrChange, ZkPartitionReassignment
from regent.core.controller.term import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.zk.client.operations import WatchKind
from tests.support.fake_zookeeper import Call, Moment
from tests.support.moving_cluster import ADMIN, MovingCluster, topic_path
from tests.support.term import T0, T1, Office, topic_id

STATE = f"{topic_path('t')}/partitions/0/state"


@pytest.fixture
def moving() -> MovingCluster:
    moving = MovingCluster(range(1, 7))
    moving.put_topic("t", {0: (1, 2), 1: (2, 1)}, topic_id(77))
    moving.start_controller()
    return moving


def write(moving: MovingCluster, data: bytes) -> None:
    moving.server.put(ADMIN, data)
    moving.settle()


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'{"partitions": [{"partition": 0, "replicas": [3, 2], "topic": "t"}], "version": 1}',
        b'{"version":"1","partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2],'
        b'"log_dirs":["any","any"]}]}',
    ],
    ids=["kafka-utils", "bubuku", "kafka"],
)
def test_every_dialect_is_understood(moving: MovingCluster, data: bytes) -> None:
    write(moving, data)
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 2), (), ())
    moving.assert_at_rest()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not JSON",
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[]}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,3]}]}',
        b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[-3]}]}',
    ],
)
def test_what_cannot_be_understood_is_deleted_with_one_line(
    moving: MovingCluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write(moving, data)
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert ADMIN in caplog.text
    moving.assert_at_rest()
    moving.write_znode({T0: (3, 2)})
    assert moving.ongoing() != (), "the next one is seen"


def test_nothing_to_do_is_deleted(moving: MovingCluster) -> None:
    write(moving, b'{"version":1,"partitions":[]}')
    moving.assert_at_rest()


def test_what_cannot_be_done_is_taken_out_and_the_rest_is_done(
    moving: MovingCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        moving.write_znode(
            {T0: (3, 2), TopicPartition("t", 7): (1,), TopicPartition("other", 0): (1,)}
        )
    assert moving.znode() == {T0: (3, 2)}
    assert len(caplog.records) == 1
    assert "2 partitions are not reassigned, the first: t-7 does not exist" in caplog.text
    moving.catch_up()
    moving.assert_at_rest()


def test_a_topic_to_be_deleted_is_not_moved(moving: MovingCluster) -> None:
    moving.active.controller.context.queue_topic_deletion(["t"])
    moving.write_znode({T0: (3, 2)})
    assert moving.znode() is None
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.submit({T0: (3, 2)}) == {T0: Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_where_it_is_already_nothing_moves(moving: MovingCluster) -> None:
    moving.write_znode({T0: (1, 2)})
    assert moving.leads(T0) == (1, (1, 2), 0)
    moving.assert_at_rest()


def test_the_node_stays_until_the_last_partition_has_moved(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (9, 2)})
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 2), (), ())
    assert moving.znode() == {T1: (9, 2)}, "tools refuse to work while it is there"
    moving.register(9)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


# --- what is changed ------------------------------------------------------------------------------


def test_our_own_change_of_the_node_tells_nobody_anything(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (4, 5)})
    moving.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert ZkPartitionReassignment() in moving.active.inbox
    moving.settle()
    assert moving.leads(T1) == (2, (2, 1), 1)


def test_partitions_a_tool_adds_are_started_and_the_others_go_on(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (3, 4), T1: (4, 5)})
    assert moving.leads(T0) == (1, (1, 2), 1)
    assert moving.replicas(T1) == ((4, 5, 2, 1), (4, 5), (2, 1))
    moving.catch_up()
    moving.assert_at_rest()


def test_another_target_supersedes_the_first(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (4, 5)})
    assert moving.hosts(T0) == [1, 2, 4, 5]
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_a_target_back_to_where_it_was_ends_the_move(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (1, 2)})
    assert moving.replicas(T0) == ((1, 2), (), ())
    moving.assert_at_rest()


def test_a_deleted_node_stops_nothing_and_the_next_is_seen(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.server.remove(ADMIN)
    moving.settle()
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    moving.write_znode({T1: (4, 5)})
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 4), (), ())
    assert moving.replicas(T1) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_a_node_created_while_the_last_one_is_deleted_is_seen(moving: MovingCluster) -> None:
    data = b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[4,5]}]}'

    def create(call: Call) -> None:
        if call.moment is Moment.AFTER and call.method == "multi_many" and ADMIN in call.paths:
            moving.active.session.hook = None
            moving.server.put(ADMIN, data)

    moving.write_znode({T0: (3, 2)})
    moving.active.session.hook = create
    moving.catch_up()
    assert moving.replicas(T1) == ((4, 5, 2, 1), (4, 5), (2, 1))


def test_an_entry_a_tool_changes_while_we_take_out_another_is_not_lost(
    moving: MovingCluster,
) -> None:
    data = b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[4,5]}]}'

    def change(call: Call) -> None:
        if call.moment is Moment.BEFORE and call.method == "multi_many" and ADMIN in call.paths:
            moving.active.session.hook = None
            moving.server.put(ADMIN, data)

    moving.write_znode({T0: (3, 2)})
    moving.active.session.hook = change
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 2), (), ())
    assert moving.znode() == {T1: (4, 5)}
    moving.catch_up()
    moving.assert_at_rest()


# --- beside the RPC -------------------------------------------------------------------------------


def test_the_rpc_takes_its_partitions_out_of_the_node(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (4, 5)})
    moving.submit({T0: (6, 2)})
    assert moving.znode() == {T1: (4, 5)}
    moving.submit({T1: None})
    assert moving.znode() is None
    moving.catch_up()
    assert moving.replicas(T0) == ((6, 2), (), ())
    assert moving.replicas(T1) == ((2, 1), (), ())
    moving.assert_at_rest()


def test_after_a_failover_the_node_supersedes_what_the_topic_says(moving: MovingCluster) -> None:
    moving.submit({T0: (3, 2)})
    moving.active.session.expire()
    moving.server.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[4,2]}]}'
    )
    moving.succeed()
    assert moving.replicas(T0) == ((4, 2, 1), (4,), (1,))
    moving.catch_up_with_everything()
    moving.assert_at_rest()


def test_after_a_failover_what_waited_for_a_dead_broker_waits_on(moving: MovingCluster) -> None:
    moving.write_znode({T0: (9, 2)})
    moving.succeed()
    assert moving.znode() == {T0: (9, 2)}
    assert moving.leads(T0) == (1, (1, 2), 2)
    moving.register(9)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


# --- ISR changes through ZooKeeper ----------------------------------------------------------------


@pytest.fixture
def office() -> Office:
    office = Office((1, 2, 3), ControllerSettings(isr_changes_through_zookeeper=True))
    office.lead(T0, (1, 2), leader=1, isr=(1, 2))
    office.server.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}'
    )
    return office


def test_states_are_watched_while_leaders_write_them(office: Office) -> None:
    office.reassignments.on_zk_reassignment()
    assert STATE in [w.path for w in office.watches], "our own change of the epoch is told, too"
    office.reassignments.on_isr_change([T0])
    office.watches.clear()
    for isr in ((1,), (1, 3)):
        office.put_state(T0, 1, isr, leader_epoch=1)
        assert [w.kind for w in office.watches if w.path == STATE] == [WatchKind.CHANGED]
        office.watches.clear()
        office.reassignments.on_isr_change([T0])
    assert office.topic("t").partitions[0].is_being_reassigned
    office.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    office.reassignments.on_isr_change([T0])
    assert office.topic("t").partitions[0] == ReplicaAssignment((3, 2))
    office.watches.clear()
    office.put_state(T0, 3, (3,), leader_epoch=4)
    assert [w for w in office.watches if w.path == STATE] == [], "it has moved"


def test_states_are_not_watched_when_leaders_ask_the_controller() -> None:
    office = Office((1, 2, 3))
    office.lead(T0, (1, 2), leader=1, isr=(1, 2))
    office.server.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}'
    )
    office.reassignments.on_zk_reassignment()
    office.watches.clear()
    office.put_state(T0, 1, (1, 2), leader_epoch=1)
    assert [w for w in office.watches if w.path == STATE] == []


def test_what_moves_is_in_the_journal(office: Office) -> None:
    office.reassignments.on_zk_reassignment()
    assert "t-0: moving [1, 2] → [3, 2]" in repr(office.effects())
    office.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    office.reassignments.on_isr_change([T0])
    assert "t-0: moved to [3, 2]" in repr(office.effects())
