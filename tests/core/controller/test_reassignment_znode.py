"""``/admin/reassign_partitions``: what tools write, and how the controller changes it."""

from __future__ import annotations

import logging

import pytest

from regent.core.controller.events import PartitionReassignmentIsrChange, ZkPartitionReassignment
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.zk.client.operations import WatchKind
from tests.support.controller_parts import ControllerParts
from tests.support.fake_zookeeper import Moment, act_once
from tests.support.moving_cluster import ADMIN, MovingCluster, topic_path
from tests.support.world import T0, T1, topic_id

STATE = f"{topic_path('t')}/partitions/0/state"


@pytest.fixture
def moving() -> MovingCluster:
    moving = MovingCluster(range(1, 7))
    moving.put_topic("t", {0: (1, 2), 1: (2, 1)}, topic_id(77))
    moving.start_controller()
    return moving


def write(moving: MovingCluster, data: bytes) -> None:
    moving.zookeeper.put(ADMIN, data)
    moving.settle()


# --- contents of the znode ------------------------------------------------------------------------


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
def test_the_formats_of_all_tools_are_accepted(moving: MovingCluster, data: bytes) -> None:
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
def test_an_unreadable_znode_is_logged_and_deleted(
    moving: MovingCluster, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        write(moving, data)
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert ADMIN in caplog.text
    moving.assert_at_rest()
    moving.write_znode({T0: (3, 2)})
    assert moving.ongoing() != {}, "the next znode is read"


def test_an_empty_request_is_deleted(moving: MovingCluster) -> None:
    write(moving, b'{"version":1,"partitions":[]}')
    moving.assert_at_rest()


def test_refused_partitions_are_removed_from_the_znode_and_the_others_are_reassigned(
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


def test_a_topic_queued_for_deletion_is_not_reassigned(moving: MovingCluster) -> None:
    moving.active.controller.context.queue_topic_deletion(["t"])
    moving.write_znode({T0: (3, 2)})
    assert moving.znode() is None
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.submit({T0: (3, 2)}) == {T0: Errors.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_target_equal_to_the_present_replicas_changes_nothing(moving: MovingCluster) -> None:
    moving.write_znode({T0: (1, 2)})
    assert moving.leads(T0) == (1, (1, 2), 0)
    moving.assert_at_rest()


def test_the_znode_exists_until_the_last_partition_is_reassigned(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (9, 2)})
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 2), (), ())
    assert moving.znode() == {T1: (9, 2)}, "tools wait until the znode is gone"
    moving.register(9)
    moving.settle()
    moving.catch_up_with_everything()
    moving.assert_at_rest()


# --- changes of the znode -------------------------------------------------------------------------


def test_the_controllers_own_change_of_the_znode_sends_nothing(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (4, 5)})
    moving.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert ZkPartitionReassignment() in moving.active.inbox
    moving.settle()
    assert moving.leads(T1) == (2, (2, 1), 1)


def test_added_partitions_are_started_and_the_others_continue(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (3, 4), T1: (4, 5)})
    assert moving.leads(T0) == (1, (1, 2), 1)
    assert moving.replicas(T1) == ((4, 5, 2, 1), (4, 5), (2, 1))
    moving.catch_up()
    moving.assert_at_rest()


def test_a_second_target_replaces_the_first(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (4, 5)})
    assert moving.hosts(T0) == [1, 2, 4, 5]
    moving.catch_up()
    assert moving.replicas(T0) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_the_original_replicas_as_target_end_the_reassignment(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.write_znode({T0: (1, 2)})
    assert moving.replicas(T0) == ((1, 2), (), ())
    moving.assert_at_rest()


def test_a_deleted_znode_stops_nothing_and_the_next_znode_is_read(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 4)})
    moving.zookeeper.remove(ADMIN)
    moving.settle()
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    moving.write_znode({T1: (4, 5)})
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 4), (), ())
    assert moving.replicas(T1) == ((4, 5), (), ())
    moving.assert_at_rest()


def test_a_znode_created_during_the_deletion_is_read(moving: MovingCluster) -> None:
    data = b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[4,5]}]}'

    def create() -> None:
        moving.zookeeper.put(ADMIN, data)

    moving.write_znode({T0: (3, 2)})
    act_once(moving.active.session, create, moment=Moment.AFTER, method="multi_many", path=ADMIN)
    moving.catch_up()
    assert moving.replicas(T1) == ((4, 5, 2, 1), (4, 5), (2, 1))


def test_an_entry_changed_while_another_is_removed_is_kept(
    moving: MovingCluster,
) -> None:
    data = b'{"version":1,"partitions":[{"topic":"t","partition":1,"replicas":[4,5]}]}'

    def change() -> None:
        moving.zookeeper.put(ADMIN, data)

    moving.write_znode({T0: (3, 2)})
    act_once(moving.active.session, change, method="multi_many", path=ADMIN)
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 2), (), ())
    assert moving.znode() == {T1: (4, 5)}
    moving.catch_up()
    moving.assert_at_rest()


# --- requests by RPC ------------------------------------------------------------------------------


def test_a_request_by_rpc_removes_its_partitions_from_the_znode(moving: MovingCluster) -> None:
    moving.write_znode({T0: (3, 2), T1: (4, 5)})
    moving.submit({T0: (6, 2)})
    assert moving.znode() == {T1: (4, 5)}
    moving.submit({T1: None})
    assert moving.znode() is None
    moving.catch_up()
    assert moving.replicas(T0) == ((6, 2), (), ())
    assert moving.replicas(T1) == ((2, 1), (), ())
    moving.assert_at_rest()


def test_after_a_failover_the_znode_overrides_the_topic(moving: MovingCluster) -> None:
    moving.submit({T0: (3, 2)})
    moving.active.session.expire()
    moving.zookeeper.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[4,2]}]}'
    )
    moving.succeed()
    assert moving.replicas(T0) == ((4, 2, 1), (4,), (1,))
    moving.catch_up_with_everything()
    moving.assert_at_rest()


def test_after_a_failover_a_reassignment_still_waits_for_an_offline_broker(
    moving: MovingCluster,
) -> None:
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
def parts() -> ControllerParts:
    parts = ControllerParts((1, 2, 3), ControllerSettings(isr_changes_through_zookeeper=True))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.zookeeper.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}'
    )
    return parts


def test_states_are_watched_when_leaders_write_isr_changes(parts: ControllerParts) -> None:
    parts.reassignments.on_zk_reassignment()
    assert STATE in [w.path for w in parts.watches], (
        "the watch also sees the controller's own write"
    )
    parts.reassignments.on_isr_change([T0])
    parts.watches.clear()
    for isr in ((1,), (1, 3)):
        parts.put_state(T0, 1, isr, leader_epoch=1)
        assert [w.kind for w in parts.watches if w.path == STATE] == [WatchKind.CHANGED]
        parts.watches.clear()
        parts.reassignments.on_isr_change([T0])
    assert parts.topic("t").partitions[0].is_being_reassigned
    parts.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    parts.reassignments.on_isr_change([T0])
    assert parts.topic("t").partitions[0] == ReplicaAssignment((3, 2))
    parts.watches.clear()
    parts.put_state(T0, 3, (3,), leader_epoch=4)
    assert [w for w in parts.watches if w.path == STATE] == [], "the reassignment is complete"


def test_states_are_not_watched_when_leaders_use_alter_partition() -> None:
    parts = ControllerParts((1, 2, 3))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.zookeeper.put(
        ADMIN, b'{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[3,2]}]}'
    )
    parts.reassignments.on_zk_reassignment()
    parts.watches.clear()
    parts.put_state(T0, 1, (1, 2), leader_epoch=1)
    assert [w for w in parts.watches if w.path == STATE] == []


def test_reassignments_are_recorded_for_the_journal(parts: ControllerParts) -> None:
    parts.reassignments.on_zk_reassignment()
    assert "t-0: reassigning [1, 2] → [3, 2]" in repr(parts.effects())
    parts.put_state(T0, 1, (1, 2, 3), leader_epoch=1)
    parts.reassignments.on_isr_change([T0])
    assert "t-0: reassigned to [3, 2]" in repr(parts.effects())
