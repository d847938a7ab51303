"""Reassignments while others write the same znodes, or write unreadable data."""

from __future__ import annotations

import itertools

import pytest

from regent.core.controller.assignments import MAX_ROUNDS
from regent.core.controller.events import PartitionReassignmentIsrChange
from regent.core.controller.services import ControllerSettings
from regent.core.errors import Errors
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.zk.stores.fenced_writes import BYTES_OF_FENCE
from tests.support.fake_zookeeper import Call, Moment, act_once
from tests.support.moving_cluster import MovingCluster, cluster, topic_path
from tests.support.world import T0, T1, topic_id

T = topic_path("t")
STATE = f"{T}/partitions/0/state"


def on_write_of(moving: MovingCluster, path: str, times: int) -> list[int]:
    """Let a tool add a partition before each write of ``path``; return the partition counts."""
    counts: list[int] = []

    def hook(call: Call) -> None:
        is_write = call.moment is Moment.BEFORE and call.method == "multi_many"
        if is_write and path in call.paths and len(counts) < times:
            partitions = moving.topic("t").partitions
            grown = {**partitions, len(partitions): ReplicaAssignment((1, 2))}
            counts.append(len(grown))
            moving.put_topic("t", grown)

    moving.active.session.hook = hook
    return counts


def test_partitions_added_by_a_tool_meanwhile_are_kept() -> None:
    moving = cluster((1, 2))
    counts = on_write_of(moving, T, times=3)
    moving.submit({T0: (3, 4)})
    moving.catch_up()
    assert counts == [2, 3, 4]
    assert moving.replicas(T0) == ((3, 4), (), ())
    assert moving.leads(TopicPartition("t", 3)) == (1, (1, 2), 0)
    assert moving.topic("t").topic_id == topic_id(77), "the controller adds the topic id again"
    moving.assert_at_rest()


def test_a_tool_that_does_not_know_reassignments_does_not_end_them() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    moving.put_topic("t", {0: (3, 4, 1, 2), 1: (5, 6)})
    moving.settle()
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert moving.leads(T1) == (5, (5, 6), 0)
    moving.succeed()
    moving.catch_up()
    assert moving.replicas(T0) == ((3, 4), (), ())
    moving.assert_at_rest()


def test_a_topic_that_changes_in_every_round_is_not_reassigned() -> None:
    moving = cluster((1, 2))
    on_write_of(moving, T, times=MAX_ROUNDS)
    assert moving.submit({T0: (3, 4)}) == {T0: Errors.UNKNOWN_SERVER_ERROR}
    moving.active.session.hook = None
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.ongoing() == {}
    assert moving.hosts(T0) == [1, 2]


def test_a_topic_too_large_to_write_is_not_reassigned() -> None:
    moving = cluster((1, 2))
    moving.zookeeper.max_request_bytes = 200 + BYTES_OF_FENCE
    assert moving.submit({T0: (3, 4)}) == {T0: Errors.UNKNOWN_SERVER_ERROR}
    assert moving.replicas(T0) == ((1, 2), (), ())
    assert moving.ongoing() == {}


def test_a_topic_recreated_meanwhile_is_not_reassigned() -> None:
    moving = cluster((1, 2))

    def recreate() -> None:
        moving.delete_topic("t")
        moving.put_topic("t", {0: (2, 1)}, topic_id(78))

    act_once(moving.active.session, recreate, method="get_many", path=T)
    assert moving.submit({T0: (3, 4)}) == {T0: Errors.UNKNOWN_SERVER_ERROR}
    assert moving.replicas(T0) == ((2, 1), (), ())
    assert moving.leads(T0) == (2, (2, 1), 0)


def test_a_replica_added_to_the_isr_during_cancellation_is_removed_again() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})

    writes = itertools.count(1)

    def add_to_isr(call: Call) -> None:
        is_write = call.moment is Moment.BEFORE and call.method == "multi_many"
        # The first write starts the epoch in which the replicas are deleted.
        if is_write and STATE in call.paths and next(writes) == 2:
            moving.active.session.hook = None
            moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=2)

    moving.active.session.hook = add_to_isr
    moving.submit({T0: None})
    assert moving.leads(T0) == (1, (1, 2), 3)
    moving.submit({T0: (3, 4)})
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2)), "the replicas copy again"
    moving.succeed()
    moving.catch_up()
    moving.assert_at_rest()


def test_a_deleted_replica_in_the_isr_is_not_in_sync() -> None:
    moving = cluster((1, 2))
    moving.put_state(T0, 1, (1, 2, 3), leader_epoch=0)
    moving.submit({T0: (3,)})
    assert moving.replicas(T0) == ((3, 1, 2), (3,), (1, 2))
    assert moving.leads(T0) == (1, (1, 2), 1)


def test_the_end_of_a_reassignment_is_written_when_possible() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    on_write_of(moving, T, times=MAX_ROUNDS)
    moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=1)
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    assert moving.active.controller.context.partitions_being_reassigned == {T0}
    moving.active.session.hook = None
    moving.settle()
    moving.assert_at_rest()


def test_a_reassignment_ends_when_its_topic_can_be_read_again() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    readable = moving.zookeeper.snapshot()[T].data
    moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=1)
    moving.zookeeper.put(T, b"not JSON")
    moving.handle(PartitionReassignmentIsrChange(T0))
    moving.zookeeper.put(T, readable)
    assert moving.replicas(T0) == ((3, 4, 1, 2), (3, 4), (1, 2))
    moving.settle()
    moving.assert_at_rest()


def test_an_end_that_cannot_be_written_does_not_trigger_itself() -> None:
    moving = MovingCluster(range(1, 5), ControllerSettings(isr_changes_through_zookeeper=True))
    moving.put_topic("t", {0: (1, 2)}, topic_id(77))
    moving.start_controller()
    moving.submit({T0: (3, 4)})
    readable = moving.zookeeper.snapshot()[T].data
    moving.zookeeper.put(T, b"not JSON")
    moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=1)
    inbox = moving.active.inbox
    handled = 0
    while inbox and handled < 100:
        moving.handle(inbox.popleft())
        handled += 1
    assert handled < 10
    moving.zookeeper.put(T, readable)
    moving.settle()
    moving.assert_at_rest()


def test_a_new_controller_continues_a_reassignment_when_its_topic_can_be_read() -> None:
    moving = cluster((1, 2))
    moving.submit({T0: (3, 4)})
    readable = moving.zookeeper.snapshot()[T].data
    moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=1)
    moving.zookeeper.put(T, b"not JSON")
    moving.succeed()
    moving.zookeeper.put(T, readable)
    moving.settle()
    moving.assert_at_rest()


def test_no_replica_is_removed_while_the_state_cannot_be_read() -> None:
    moving = cluster((1, 2))
    moving.zookeeper.put(STATE, b"not JSON")
    moving.submit({T0: (2,)})
    assert moving.replicas(T0) == ((2, 1), (), (1,))
    assert moving.hosts(T0) == [1, 2]
    moving.put_state(T0, 1, (1, 2), leader_epoch=3)
    moving.handle(PartitionReassignmentIsrChange(T0))
    assert moving.replicas(T0) == ((2,), (), ())
    assert moving.leads(T0)[:2] == (2, (2,))


@pytest.mark.parametrize("reads_before", [1, 2])
def test_the_assignment_does_not_change_when_the_isr_cannot_be_changed(reads_before: int) -> None:
    moving = cluster((1, 2, 3))
    moving.submit({T0: (3, 4)})
    moving.put_state(T0, 1, (1, 2, 3, 4), leader_epoch=1)
    good = moving.zookeeper.snapshot()[STATE].data
    reads = 0

    def spoil(call: Call) -> None:
        nonlocal reads
        if call.moment is Moment.BEFORE and call.method == "get_many" and STATE in call.paths:
            reads += 1
            if reads == reads_before + 1:
                moving.zookeeper.put(STATE, b"not JSON")

    moving.active.session.hook = spoil
    moving.handle(PartitionReassignmentIsrChange(T0))
    moving.active.session.hook = None
    assert moving.replicas(T0) == ((3, 4, 1, 2), (4,), (1, 2)), "unchanged in ZooKeeper"
    context = moving.active.controller.context
    assert context.partition_replica_assignment(T0) == (3, 4, 1, 2), "unchanged in memory"
    moving.zookeeper.put(STATE, good)
    moving.handle(PartitionReassignmentIsrChange(T0))
    moving.settle()
    moving.catch_up_with_everything()
    assert moving.replicas(T0) == ((3, 4), (), ())
    assert moving.hosts(T0) == [3, 4]


def test_a_topic_is_deleted_when_its_partitions_are_reassigned() -> None:
    moving = cluster((1, 2), (2, 1))
    moving.submit({T0: (3, 2), T1: (3, 1)})
    moving.zookeeper.put("/admin/delete_topics/t")
    moving.settle()
    assert moving.partitions() == [T0, T1]
    moving.catch_up()
    moving.settle()
    assert moving.partitions() == []
    assert [moving.hosts(p) for p in (T0, T1)] == [[], []]
