"""What reaches the brokers too late, or too many of them: commands (v2), and the death of a broker.

With a controller (v3) the same happens to requests; every one of them carries the epochs of the
decision, and one request has all that was decided for a broker.
"""

from __future__ import annotations

from collections import Counter

import pytest

from regent.core.controller.events import BrokerChange
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import LeaderAndIsrRequest
from regent.designs import v2
from regent.designs.v2 import ADMIN_EPOCH, StateChange, StateChangeCommand, StateChangeQueue
from regent.designs.watched_zookeeper import Counts, WatchedZooKeeper
from regent.designs.znodes import state_path
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import HEADER, T0, stop_replica
from tests.designs.controller_world import CONTROLLER, ControllerWorld, World, run_until
from tests.designs.design_world import DesignWorld
from tests.support.fake_zookeeper import FakeZooKeeper, Moment, once

P = TopicPartition("payments", 0)
Q = TopicPartition("orders", 0)
COUNT = 20
OTHERS = [TopicPartition("other", partition) for partition in range(COUNT)]


def commit(world: World, broker_id: BrokerId, record: str) -> None:
    """Produce, and run until the record is on all in-sync replicas."""
    outcome = world.produce(broker_id, P, record)
    run_until(world, lambda: outcome == [True])
    world.run_for(1_000)


# --- a late command to stop a replica -------------------------------------------------------------


def stop_a_replica_that_came_back() -> DesignWorld:
    """Let a leader of the past stop a replica that is in sync again (v2).

    1. Leader 0 moves the partition from replicas 0 and 1 to 0 and 2. It has decided that 1 stops,
       and is paused before it writes the command into the queue of 1.
    2. Its session ends, and 2 leads. An administrator moves the partition to 1 and 2. A record is
       committed: 1 and 2 have it, and nobody else.
    3. 0 goes on: its ZooKeeper client begins another session and writes the command.
    """
    world = DesignWorld("v2", seed=1)
    world.create(P, (0, 1))
    commit(world, 0, "a")

    def while_paused() -> None:
        world.pause(0)
        world.end_session(0)
        run_until(world, lambda: 2 in world.believers(P))
        world.move(P, (1, 2))
        run_until(world, lambda: set(world.isr(P)) == {1, 2})
        commit(world, 2, "b")
        assert world.records(1, P) == world.records(2, P) == ["a", "b"]
        world.resume(0)

    before_the_command = once(Moment.BEFORE, while_paused, path=f"{state_path(1)}/command-")
    world.interrupt(0, before_the_command)
    world.move(P, (0, 2))
    world.run_for(100)
    return world


def test_in_v2_a_leader_of_the_past_deletes_a_replica_that_is_in_sync():
    """A command to stop is obeyed in any epoch, so that a topic is deleted from every broker.

    1 stops and deletes its log. ZooKeeper names it in the ISR still.
    """
    world = stop_a_replica_that_came_back()
    assert not world.is_hosted(1, P)
    assert world.records(1, P) == []
    assert (set(world.isr(P)), world.assigned(P)) == ({1, 2}, (1, 2))


def test_in_v2_no_replica_leads_after_the_death_of_that_leader_although_one_is_in_the_isr():
    world = stop_a_replica_that_came_back()
    world.crash(2)
    world.run_for(60_000)
    assert world.believers(P) == []


def test_in_v2_a_restart_makes_the_deleted_replica_lead_and_all_committed_records_are_gone():
    """The ISR names it, and its log is empty. The leader before follows it, and truncates."""
    world = stop_a_replica_that_came_back()
    world.crash(2)
    world.crash(1)
    world.start(1)
    world.run_for(5_000)
    assert world.believers(P) == [1]
    world.start(2)
    world.run_for(5_000)
    assert "b" not in world.records(1, P) + world.records(2, P)


def test_in_v3_a_broker_refuses_to_stop_a_replica_for_a_controller_of_the_past():
    """The same moves; the controller is paused when its request to stop replica 1 is on its way.

    The request arrives after another controller has moved the partition back to 1.
    """
    world = ControllerWorld()
    world.create(P, (0, 1))
    commit(world, 0, "a")
    world.hold_stop_replica(times=1)
    world.move(P, (0, 2))
    run_until(world, lambda: bool(world.held))
    world.pause(CONTROLLER)
    world.end_session(CONTROLLER)
    run_until(world, lambda: len(world.cluster.active_controllers) == 2)
    world.run_for(1_000)
    world.move(P, (1, 2))
    run_until(world, lambda: world.isr(P) == (2, 1))
    commit(world, world.leader(P), "b")
    assert world.release() == [Errors.STALE_CONTROLLER_EPOCH]
    world.run_for(1_000)
    assert world.records(1, P) == world.records(2, P) == ["a", "b"]


def test_in_v3_a_broker_refuses_to_stop_a_replica_in_a_leader_epoch_of_the_past():
    """Also the present controller may be late with a request: KIP-570."""
    broker = RecordBroker(1)
    broker.apply(1, 5)
    stop = stop_replica(T0, 4, delete=True)
    answer = broker.manager.handle(HEADER, stop, broker.now_ms)
    assert [e.error_code for e in answer.partition_errors] == [Errors.FENCED_LEADER_EPOCH]  # type: ignore[union-attr]
    assert broker.hosted().leader_epoch == 5


# --- commands that wait behind one another --------------------------------------------------------


def test_in_v2_a_replica_whose_command_waits_is_not_in_sync_while_leaders_change_twice():
    """A change of leaders does not wait in the queue: it has a watch of its own.

    1. Broker 3 works through its queue. The command to start its replica of ``P`` is behind others.
    2. Leader 0 dies. Broker 3 leads ``Q`` at once, and ``P`` has another leader.
    3. That one dies, too. The last of the former replicas leads. 3 has not even begun.
    4. The commands of the former leaders are void: their epochs have passed. The last leader sent
       its own, which waits behind them.
    """
    seen: list[tuple[int, bool]] = []
    world = DesignWorld("v2", seed=1, count=4)
    world.create(P, (0, 1, 2))
    world.create(Q, (0, 3))
    for topic_partition in OTHERS:
        world.create(topic_partition, (0, 1))

    def kill_leader() -> None:
        world.crash(world.leader(P))

    def look() -> None:
        seen.append((world.leader(P), world.is_hosted(3, P)))
        assert world.leader(Q) == 3

    world.slow_down_commands(3)
    for topic_partition in OTHERS:
        world.move(topic_partition, (0, 1, 3))
    world.time.later(10, lambda: world.move(P, (0, 1, 2, 3)))
    for at_ms, act in ((100, kill_leader), (900, look), (1_000, kill_leader), (1_800, look)):
        world.time.later(at_ms, act)
    world.run_for(10_000)
    (second, is_second_hosted), (third, is_third_hosted) = seen
    assert sorted((second, third)) == [1, 2]
    assert not is_second_hosted
    assert not is_third_hosted
    assert world.is_hosted(3, P)
    assert set(world.isr(P)) >= {third, 3}


def test_in_v2_a_leader_tries_again_and_again_while_the_queue_of_a_broker_is_full(
    monkeypatch: pytest.MonkeyPatch,
):
    """Broker 3 stands still. Each attempt costs ZooKeeper a list of the whole queue."""
    monkeypatch.setattr(v2, "MAX_QUEUED", COUNT)
    world = DesignWorld("v2", seed=1, count=4)
    world.create(P, (0, 1))
    for topic_partition in OTHERS:
        world.create(topic_partition, (1, 2))
    world.pause(3)
    for topic_partition in OTHERS:
        world.move(topic_partition, (1, 2, 3))
    world.run_for(100)
    world.move(P, (0, 1, 3))
    reads = world.counts(0).reads
    world.run_for(10_000)
    assert len(world.server.children_of(state_path(3))) == COUNT
    assert world.counts(0).reads - reads >= 100
    world.resume(3)
    world.run_for(1_000)
    assert set(world.isr(P)) == {0, 1, 3}


def test_in_v2_a_command_takes_eight_operations_in_zookeeper():
    """Two of the sender, six of the receiver: its watch fires again when it deletes the command."""

    def operations(counts: Counts) -> int:
        return counts.reads + counts.writes + counts.watches_fired

    world = DesignWorld("v2", seed=1)
    world.run_for(100)
    before = operations(world.counts(2))
    session = FakeZooKeeper(world.server)
    sender = WatchedZooKeeper(world.time, lambda *_: session)
    command = StateChange(StateChangeCommand.STOP_REPLICA, P, ADMIN_EPOCH)
    assert StateChangeQueue(sender, 2).put(command)
    world.run_for(100)
    assert (operations(sender.counts), operations(world.counts(2)) - before) == (2, 6)


def test_in_v3_one_request_has_the_whole_decision_for_a_broker():
    """A broker dies that leads 20 partitions. Each other one gets their leaders in one request."""
    world = ControllerWorld()
    world.create_many("other", COUNT, (0, 1, 2))
    world.sent.clear()
    world.crash(0)
    world.run_for(1_000)
    sizes = [
        (broker_id, len(list(request.partitions())))
        for broker_id, request in world.sent
        if isinstance(request, LeaderAndIsrRequest)
    ]
    assert sizes == [(1, COUNT), (2, COUNT)]
    assert all(world.believers(topic_partition) == [1] for topic_partition in OTHERS)


# --- all partitions of a dead broker --------------------------------------------------------------


def listeners_called_when_a_broker_dies(design: str, replicas: tuple[BrokerId, ...]) -> list[int]:
    """Return how many listeners brokers 1 and 2 call when 0 dies, with 20 partitions."""
    world = DesignWorld(design, seed=1)
    for topic_partition in OTHERS:
        world.create(topic_partition, replicas)
    before = [world.counts(broker_id).listeners_called for broker_id in (1, 2)]
    world.crash(0)
    world.run_for(3_000)
    assert all(world.leader(topic_partition) in (1, 2) for topic_partition in OTHERS)
    after = [world.counts(broker_id).listeners_called for broker_id in (1, 2)]
    return [now - earlier for earlier, now in zip(before, after, strict=True)]


def test_in_v1_with_the_name_lock_every_replica_wakes_three_times_when_a_leader_dies():
    """For the broker that is gone, for the lock that is free, and for the lock that is taken."""
    assert listeners_called_when_a_broker_dies("v1-name", (0, 1, 2)) == [3 * COUNT, 3 * COUNT]


def test_in_v1_with_the_sequential_lock_each_lock_wakes_one_and_the_broker_wakes_all():
    """One replica of each partition hears of the lock; every replica hears of the broker."""
    called = listeners_called_when_a_broker_dies("v1-sequential", (0, 1, 2))
    assert sum(called) == 2 * COUNT + COUNT


@pytest.mark.parametrize("design", ["v1-name", "v1-sequential"])
def test_in_v1_every_replica_wakes_also_when_a_broker_dies_that_leads_nothing(design: str):
    assert min(listeners_called_when_a_broker_dies(design, (1, 2, 0))) >= COUNT


def test_in_v2_the_listeners_are_two_calls_for_each_led_partition_and_one_for_each_broker():
    """Every replica watches its lock: a dead leader wakes them all, but nothing else does."""
    assert listeners_called_when_a_broker_dies("v2", (0, 1, 2)) == [2 * COUNT + 1] * 2
    assert listeners_called_when_a_broker_dies("v2", (1, 2, 0)) == [1, 1]


def test_in_v3_the_death_of_a_broker_is_one_event_of_the_controller():
    """However many partitions it led. No other broker hears anything from ZooKeeper."""
    world = ControllerWorld()
    world.create_many("other", COUNT, (0, 1, 2))
    world.handled.clear()
    world.crash(0)
    world.run_for(1_000)
    events = Counter((broker_id, type(event)) for broker_id, event in world.handled)
    assert events[CONTROLLER, BrokerChange] == 1
    assert {broker_id for broker_id, _ in events} == {CONTROLLER}
