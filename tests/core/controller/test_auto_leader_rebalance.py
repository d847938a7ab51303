"""Automatic preferred leader elections, started by a timer."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import CancelScheduledEvents, ScheduleEvent
from regent.core.controller.events import AutoPreferredReplicaLeaderElection
from regent.core.controller.services import ControllerSettings
from regent.core.model import ReplicaAssignment, TopicPartition
from tests.support.controller_parts import Candidate, ControllerParts, kinds, of_type
from tests.support.fake_zookeeper import Call
from tests.support.world import T0, World

U0 = TopicPartition("u", 0)


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(1, 2, 3))


def lead_many(
    parts: ControllerParts, broker_id: int, *, led: int, lost: int
) -> list[TopicPartition]:
    """Let a broker lead ``led`` of the partitions it is preferred for; return the others."""
    partitions = [TopicPartition(f"of-{broker_id}", n) for n in range(led + lost)]
    other = 3 if broker_id != 3 else 1
    for number, partition in enumerate(partitions):
        leader = broker_id if number < led else other
        parts.lead(partition, (broker_id, other), leader, isr=(other, broker_id))
    return partitions[led:]


def let_2_lead(world: World, active: Candidate) -> None:
    """Let broker 2 lead t-0, whose preferred replica is 1, in ZooKeeper and in memory."""
    world.put_state(T0, 2, (1, 2), leader_epoch=world.leads(T0)[2] + 1)
    stored = world.state(T0)
    assert stored is not None
    active.controller.context.put_partition_leadership_info(T0, stored)


def leaders(parts: ControllerParts, partitions: list[TopicPartition]) -> set[int]:
    return {parts.leads(partition)[0] for partition in partitions}


def test_a_broker_over_the_imbalance_percentage_gets_its_preferred_leaderships(
    parts: ControllerParts,
) -> None:
    just_allowed = lead_many(parts, 1, led=9, lost=1)
    too_many = lead_many(parts, 2, led=8, lost=1)
    parts.elections.rebalance()
    assert leaders(parts, just_allowed) == {3}
    assert leaders(parts, too_many) == {2}


@pytest.mark.parametrize(
    ("obstacle", "leader"),
    [("none", 1), ("dead", 2), ("shutting down", 2), ("out of sync", 2), ("being deleted", 2)],
)
def test_an_election_that_cannot_succeed_is_not_tried(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture, obstacle: str, leader: int
) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(2,) if obstacle == "out of sync" else (1, 2))
    parts.lead(U0, (3, 2), leader=2, isr=(3, 2))
    match obstacle:
        case "dead":
            parts.context.remove_live_broker(1)
        case "shutting down":
            parts.context.shutting_down_broker_ids.add(1)
        case "being deleted":
            parts.context.queue_topic_deletion(["t"])
        case _:
            pass
    parts.elections.rebalance()
    assert parts.leads(T0)[0] == leader
    assert parts.leads(U0)[0] == 3
    assert caplog.messages == [], "nothing failed"


def test_a_reassigned_partition_is_rebalanced_unless_its_preferred_replica_is_being_added(
    parts: ControllerParts,
) -> None:
    moving = ReplicaAssignment((1, 3, 2), adding_replicas=(3,), removing_replicas=(2,))
    arriving = ReplicaAssignment((3, 1), adding_replicas=(3,))
    parts.lead(T0, moving, leader=2, isr=(1, 2))
    parts.lead(U0, arriving, leader=1, isr=(1, 3))
    parts.context.partitions_being_reassigned.update((T0, U0))
    parts.elections.rebalance()
    assert parts.leads(T0)[0] == 1
    assert parts.leads(U0)[0] == 1


def test_a_partition_without_a_first_leader_is_not_imbalanced(parts: ControllerParts) -> None:
    parts.assign(T0, (1, 2))
    parts.elections.rebalance()
    assert parts.state(T0) is None


def test_a_balanced_cluster_is_not_read_or_written(parts: ControllerParts) -> None:
    lead_many(parts, 1, led=3, lost=0)
    calls: list[Call] = []
    parts.session.hook = calls.append
    parts.elections.rebalance()
    assert calls == []
    assert kinds(parts.effects()) == []


def test_the_timer_starts_after_the_initial_delay_and_repeats_at_the_interval() -> None:
    settings = ControllerSettings(
        first_leader_imbalance_check_ms=5, leader_imbalance_check_interval_seconds=300
    )
    parts = ControllerParts((1, 2), settings)
    again = AutoPreferredReplicaLeaderElection(parts.context.epoch)
    parts.elections.begin_checks()
    assert of_type(parts.effects(), ScheduleEvent) == [ScheduleEvent(5, again)]
    for _ in range(2):
        parts.elections.rebalance()
        assert of_type(parts.effects(), ScheduleEvent) == [ScheduleEvent(300_000, again)]


def test_no_timer_starts_when_auto_leader_rebalance_is_disabled() -> None:
    parts = ControllerParts((1, 2), ControllerSettings(auto_leader_rebalance_enable=False))
    parts.elections.begin_checks()
    assert parts.effects() == []


def test_a_timer_of_an_earlier_term_does_nothing(world: World, active: Candidate) -> None:
    let_2_lead(world, active)
    epoch = active.controller.context.epoch
    assert active.handle(AutoPreferredReplicaLeaderElection(epoch - 1)) == []
    active.handle(AutoPreferredReplicaLeaderElection(epoch))
    assert world.leads(T0)[0] == 1


def test_the_timer_is_cancelled_when_the_rebalance_finds_another_active_controller(
    world: World, active: Candidate
) -> None:
    let_2_lead(world, active)
    world.elect_another_controller()
    effects = active.handle(AutoPreferredReplicaLeaderElection(active.controller.context.epoch))
    assert not active.controller.is_active
    timers = [type(e) for e in effects if isinstance(e, ScheduleEvent | CancelScheduledEvents)]
    assert timers == [ScheduleEvent, CancelScheduledEvents, ScheduleEvent], (
        "the last one is for Reelect"
    )
