"""Leaderships that go back to preferred replicas when the clock says so."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import CancelScheduledEvents, ScheduleEvent
from regent.core.controller.events import AutoPreferredReplicaLeaderElection
from regent.core.controller.term import ControllerSettings
from regent.core.model import ReplicaAssignment, TopicPartition
from tests.support.fake_zookeeper import Call
from tests.support.term import T0, Candidate, Office, Tree, kinds, of_type

U0 = TopicPartition("u", 0)


@pytest.fixture
def office() -> Office:
    return Office(brokers=(1, 2, 3))


def lead_many(office: Office, broker_id: int, *, led: int, lost: int) -> list[TopicPartition]:
    """Let a broker lead so many of those it should; return those it does not."""
    partitions = [TopicPartition(f"of-{broker_id}", n) for n in range(led + lost)]
    other = 3 if broker_id != 3 else 1
    for number, partition in enumerate(partitions):
        leader = broker_id if number < led else other
        office.lead(partition, (broker_id, other), leader, isr=(other, broker_id))
    return partitions[led:]


def let_2_lead(tree: Tree, ruler: Candidate) -> None:
    """Let 2 lead t-0, which 1 should, and the controller know."""
    tree.put_state(T0, 2, (1, 2), leader_epoch=tree.leads(T0)[2] + 1)
    stored = tree.state(T0)
    assert stored is not None
    ruler.controller.context.put_partition_leadership_info(T0, stored)


def leaders(office: Office, partitions: list[TopicPartition]) -> set[int]:
    return {office.leads(partition)[0] for partition in partitions}


def test_more_than_the_percentage_is_given_back_a_broker_at_a_time(office: Office) -> None:
    just_allowed = lead_many(office, 1, led=9, lost=1)
    too_many = lead_many(office, 2, led=8, lost=1)
    office.balance.rebalance()
    assert leaders(office, just_allowed) == {3}
    assert leaders(office, too_many) == {2}


@pytest.mark.parametrize(
    ("obstacle", "leader"),
    [("none", 1), ("dead", 2), ("shutting down", 2), ("out of sync", 2), ("being deleted", 2)],
)
def test_only_what_would_succeed_is_tried(
    office: Office, caplog: pytest.LogCaptureFixture, obstacle: str, leader: int
) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(2,) if obstacle == "out of sync" else (1, 2))
    office.lead(U0, (3, 2), leader=2, isr=(3, 2))
    match obstacle:
        case "dead":
            office.context.remove_live_broker(1)
        case "shutting down":
            office.context.shutting_down_broker_ids.add(1)
        case "being deleted":
            office.context.queue_topic_deletion(["t"])
        case _:
            pass
    office.balance.rebalance()
    assert office.leads(T0)[0] == leader
    assert office.leads(U0)[0] == 3
    assert caplog.messages == [], "nothing failed"


def test_moves_elsewhere_are_no_obstacle_but_who_is_being_added_waits(office: Office) -> None:
    in_order = ReplicaAssignment((1, 3, 2), adding_replicas=(3,), removing_replicas=(2,))
    arriving = ReplicaAssignment((3, 1), adding_replicas=(3,))
    office.lead(T0, in_order, leader=2, isr=(1, 2))
    office.lead(U0, arriving, leader=1, isr=(1, 3))
    office.context.partitions_being_reassigned.update((T0, U0))
    office.balance.rebalance()
    assert office.leads(T0)[0] == 1
    assert office.leads(U0)[0] == 1


def test_what_nobody_ever_led_is_not_imbalanced(office: Office) -> None:
    office.assign(T0, (1, 2))
    office.balance.rebalance()
    assert office.state(T0) is None


def test_everything_in_order_costs_nothing(office: Office) -> None:
    lead_many(office, 1, led=3, lost=0)
    calls: list[Call] = []
    office.zookeeper.hook = calls.append
    office.balance.rebalance()
    assert calls == []
    assert kinds(office.effects()) == []


def test_the_timer_is_armed_for_this_term_first_soon_and_then_again_and_again() -> None:
    settings = ControllerSettings(
        first_leader_imbalance_check_ms=5, leader_imbalance_check_interval_seconds=300
    )
    office = Office((1, 2), settings)
    again = AutoPreferredReplicaLeaderElection(office.context.epoch)
    office.balance.begin_checks()
    assert of_type(office.effects(), ScheduleEvent) == [ScheduleEvent(5, again)]
    for _ in range(2):
        office.balance.rebalance()
        assert of_type(office.effects(), ScheduleEvent) == [ScheduleEvent(300_000, again)]


def test_without_automatic_rebalancing_no_timer_is_armed() -> None:
    office = Office((1, 2), ControllerSettings(auto_leader_rebalance_enable=False))
    office.balance.begin_checks()
    assert office.effects() == []


def test_the_timer_of_a_former_term_does_nothing(tree: Tree, ruler: Candidate) -> None:
    let_2_lead(tree, ruler)
    epoch = ruler.controller.context.epoch
    assert ruler.handle(AutoPreferredReplicaLeaderElection(epoch - 1)) == []
    ruler.handle(AutoPreferredReplicaLeaderElection(epoch))
    assert tree.leads(T0)[0] == 1


def test_the_timer_is_void_when_the_rebalancing_shows_that_another_rules(
    tree: Tree, ruler: Candidate
) -> None:
    let_2_lead(tree, ruler)
    tree.elect_another_controller()
    effects = ruler.handle(AutoPreferredReplicaLeaderElection(ruler.controller.context.epoch))
    assert not ruler.controller.is_active
    timers = [type(e) for e in effects if isinstance(e, ScheduleEvent | CancelScheduledEvents)]
    assert timers == [ScheduleEvent, CancelScheduledEvents, ScheduleEvent], "the last: Reelect"
