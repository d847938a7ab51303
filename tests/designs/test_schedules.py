"""Schedules that break v1 or v2, and the same schedules with a controller (v3).

A schedule is one function: pauses, crashes, sessions that end, links that are cut, always at the
same moments of virtual time. It runs on every design. Brokers 0, 1 and 2 have the replicas of a
partition, and 0 leads first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from tests.designs.controller_world import (
    KEEP_IN_SYNC_MS,
    ControllerWorld,
    World,
    run_until,
    world_of,
)
from tests.designs.design_world import DesignWorld

V1 = ("v1-name", "v1-sequential")
V1_AND_V2 = (*V1, "v2")
ALL = (*V1_AND_V2, "v3")
P = TopicPartition("payments", 0)
REPLICAS = (0, 1, 2)
LONG_MS = KEEP_IN_SYNC_MS + 2_000
BURST = "x" * 5_000


def new_leader(world: World, *former: BrokerId) -> BrokerId:
    """Run until a broker leads that is none of the former leaders; return it."""

    def others() -> list[BrokerId]:
        return [broker_id for broker_id in world.believers(P) if broker_id not in former]

    run_until(world, lambda: bool(others()))
    return others()[0]


def commit(world: World, broker_id: BrokerId, *records: str) -> None:
    """Produce, and run until the records are acknowledged."""
    outcome = world.produce(broker_id, P, *records)
    run_until(world, lambda: bool(outcome))
    assert outcome == [True]


# --- a leader that was paused ---------------------------------------------------------------------


class Paused(NamedTuple):
    """The world after the pause; "late" is the record that waited at the paused leader."""

    world: World
    late: list[bool]  # its outcome
    leader: BrokerId  # the one that was elected meanwhile


def pause_a_leader_with_a_record(design: str) -> Paused:
    """Let another broker lead while the leader with an uncommitted record is paused.

    1. The leader, 0, has a record, "late". The links to its followers are down: they lack it.
    2. 0 is paused, and its session ends.
    3. Another broker is elected. It commits "true".
    4. 0 goes on. It does not know yet that its session has ended. The followers have not fetched
       from it for longer than a replica may be stuck.
    """
    world = world_of(design)
    world.create(P, REPLICAS)
    for follower in (1, 2):
        world.cut(0, follower)
    late = world.produce(0, P, "late")
    world.run_for(5)
    world.pause(0)
    world.end_session(0)
    leader = new_leader(world, 0)
    commit(world, leader, "true")
    world.run_for(LONG_MS)
    assert late == []
    assert set(world.isr(P)) == {1, 2}
    world.resume(0)
    return Paused(world, late, leader)


@pytest.mark.parametrize("design", V1)
def test_in_v1_a_leader_of_the_past_acknowledges_a_record_that_no_other_replica_has(design: str):
    """The former leader finds its followers stuck and writes that it alone is in sync.

    Nothing is compared with what is in ZooKeeper, so the write succeeds: the ISR names the one
    replica that lacks the records of the true leader. The record counts as committed.
    """
    world, late, leader = pause_a_leader_with_a_record(design)
    world.run_for(100)
    assert late == [True]
    assert world.isr(P) == (0,)
    assert world.records(leader, P) == ["true"]


@pytest.mark.parametrize("design", V1)
def test_in_v1_no_consumer_reads_a_committed_record_when_the_true_leader_dies_after_such_a_write(
    design: str,
):
    """The ISR names only the leader of the past, so it leads again, without the true record.

    The other follower keeps its record, because it was committed: the logs differ, too.
    """
    world, _, leader = pause_a_leader_with_a_record(design)
    world.run_for(100)
    world.mend()
    world.crash(leader)
    world.run_for(LONG_MS)
    assert world.believers(P) == [0]
    assert world.records(0, P) == ["late"]
    assert world.records(3 - leader, P) == ["true"]


@pytest.mark.parametrize("design", V1)
def test_in_v1_the_acknowledged_record_is_lost_and_the_logs_stay_different(design: str):
    """The leader of the past follows at last, and keeps its record: it was committed, it thinks.

    It fetches behind its record, so it is in sync soon. Two in-sync replicas then have different
    records at one offset, and readers of the leader never see the acknowledged one.
    """
    world, late, leader = pause_a_leader_with_a_record(design)
    world.run_for(100)
    world.mend()
    run_until(world, lambda: world.believers(P) == [leader])
    commit(world, leader, "next")
    world.run_for(LONG_MS)
    assert late == [True]
    assert world.records(leader, P) == ["true", "next"]
    assert world.records(0, P) == ["late", "next"]
    assert set(world.isr(P)) == set(REPLICAS)


@pytest.mark.parametrize("design", ["v2", "v3"])
def test_in_v2_and_v3_a_leader_of_the_past_cannot_change_the_isr_and_refuses_its_record(
    design: str,
):
    """v2: the version of ``leaderAndISR`` is another one. v3: the controller refuses the proposal.

    The producer learns that its record is not committed. The former leader truncates it.
    """
    world, late, leader = pause_a_leader_with_a_record(design)
    world.run_for(LONG_MS)
    assert late == [False]
    assert 0 not in world.isr(P)
    world.hear(0)
    world.mend()
    run_until(world, lambda: world.records(0, P) == ["true"])
    commit(world, leader, "next")
    world.run_for(LONG_MS)
    assert all(world.records(b, P) == ["true", "next"] for b in REPLICAS)


def test_in_v3_the_controller_refuses_the_isr_of_a_leader_of_the_past():
    """It is not registered any more. Once it is again, its broker epoch is another one."""
    world = pause_a_leader_with_a_record("v3").world
    assert isinstance(world, ControllerWorld)
    world.run_for(LONG_MS)
    assert set(world.refusals) == {Errors.STALE_BROKER_EPOCH}


# --- two leaders at once --------------------------------------------------------------------------


def let_two_brokers_lead(design: str) -> tuple[World, BrokerId]:
    """Pause the leader, end its session, let another broker lead, and let the first one go on."""
    world = world_of(design)
    world.create(P, REPLICAS)
    commit(world, 0, "first")
    world.run_for(100)
    world.pause(0)
    world.end_session(0)
    leader = new_leader(world, 0)
    world.resume(0)
    world.run_for(10)
    return world, leader


@pytest.mark.parametrize("design", ALL)
def test_two_brokers_lead_at_once_and_accept_different_records_at_one_offset(design: str):
    """Nothing prevents this in any design: a process cannot know that it was paused."""
    world, leader = let_two_brokers_lead(design)
    assert sorted(world.believers(P)) == [0, leader]
    world.produce(0, P, "late")
    world.produce(leader, P, "true")
    world.run_for(10)
    assert world.records(0, P) == ["first", "late"]
    assert world.records(leader, P) == ["first", "true"]


@pytest.mark.parametrize(("design", "outcome"), [*((v1, True) for v1 in V1), ("v2", False)])
def test_two_leaders_acknowledge_in_v1_and_one_in_v2(design: str, outcome: bool):
    """In v1 both remove the followers that do not fetch from them. In v2 only one can write."""
    world, leader = let_two_brokers_lead(design)
    late, true = world.produce(0, P, "late"), world.produce(leader, P, "true")
    world.run_for(2 * LONG_MS)
    assert (late, true) == ([outcome], [True])


@pytest.mark.parametrize(("design", "is_kept"), [*((v1, True) for v1 in V1), ("v2", False)])
def test_a_follower_that_learns_late_of_its_new_leader_copies_records_of_the_former_one(
    design: str, is_kept: bool
):
    """Fetches carry no epoch: the leader of the past serves everybody who has not heard.

    1. Follower 2 has lost its connection to ZooKeeper, not its session.
    2. 0 is paused, its session ends, and 1 leads.
    3. 0 goes on, and gets the record "late". 2 still fetches from it, and copies "late".
    4. 0 finds 1 stuck. In v1 it removes it and acknowledges; in v2 it cannot.
    5. 2 hears of 1 and follows it. It keeps what it knows as committed: in v1 that is "late".
    """
    world = world_of(design, seed=2)  # 1 is next in the queue of the sequential lock
    assert isinstance(world, DesignWorld)
    world.create(P, REPLICAS)
    world.disconnect(2)
    world.pause(0)
    world.end_session(0)
    assert new_leader(world, 0) == 1
    world.resume(0)
    late = world.produce(0, P, "late")
    world.run_for(20)
    assert world.records(2, P) == ["late"]
    run_until(world, lambda: bool(late))
    world.run_for(10)
    world.reconnect(2)
    world.run_for(LONG_MS)
    assert late == [is_kept]
    assert world.records(2, P) == (["late"] if is_kept else [])
    commit(world, 1, "true")
    world.run_for(LONG_MS)
    assert world.records(1, P) == ["true"]
    assert world.records(2, P) == (["late"] if is_kept else ["true"])


def test_in_v3_the_leader_epoch_fences_the_leader_of_the_past_and_its_clients():
    """A client that knows the new leader epoch is refused by the leader of the past.

    One that knows the former epoch is refused by the new leader. The leader of the past commits
    nothing: the controller does not take its ISR, and the members of the ISR do not fetch from it.
    """
    world, leader = let_two_brokers_lead("v3")
    assert isinstance(world, ControllerWorld)
    epoch = world.leader_epoch(P)
    assert world.consume(0, P, epoch) is Errors.UNKNOWN_LEADER_EPOCH
    assert world.consume(leader, P, epoch - 1) is Errors.FENCED_LEADER_EPOCH
    assert world.consume(leader, P, epoch) is Errors.NONE
    late, true = world.produce(0, P, "late"), world.produce(leader, P, "true")
    world.run_for(LONG_MS)
    assert (late, true) == ([False], [True])
    world.hear(0)
    run_until(world, lambda: world.records(0, P) == ["first", "true"])


# --- truncation to the high watermark (KIP-101) ---------------------------------------------------


def change_leaders_before_the_high_watermark_is_known(design: str) -> tuple[World, BrokerId]:
    """Let a follower follow another leader, and then lead; return it.

    1. All replicas have "a", "b" and "c", and these are acknowledged. The leader's disk knows that.
    2. The followers have not heard yet that "b" and "c" are: they hear it with the next answer.
    3. The leader dies. One follower leads, the other one begins to follow it.
    4. The link between them is down, so that nothing is copied. Then the second leader dies, too.
    5. The last replica is in sync and leads.
    """
    world = world_of(design)
    world.create(P, REPLICAS)
    commit(world, 0, "a")
    world.run_for(LONG_MS)
    outcome = world.produce(0, P, "b", "c")
    run_until(world, lambda: world.records(1, P) == world.records(2, P) == ["a", "b", "c"])
    for sender, receiver in ((0, 1), (0, 2), (1, 2), (2, 1)):
        world.cut(sender, receiver)
    run_until(world, lambda: outcome == [True])
    world.run_for(LONG_MS)
    world.crash(0)
    second = new_leader(world, 0)
    assert world.records(second, P) == ["a", "b", "c"]
    world.run_for(1_000)
    world.crash(second)
    third = new_leader(world, 0, second)
    world.mend()
    return world, third


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_a_new_follower_truncates_an_acknowledged_record_and_leads_without_it(
    design: str,
):
    """The follower truncates to the high watermark that it knows. It had the record before."""
    world, third = change_leaders_before_the_high_watermark_is_known(design)
    assert world.records(third, P) == ["a"]


def test_in_v3_a_new_follower_keeps_what_the_leader_epochs_do_not_contradict():
    world, third = change_leaders_before_the_high_watermark_is_known("v3")
    assert world.records(third, P) == ["a", "b", "c"]


def restart_a_follower_before_its_leader_dies(design: str) -> list[str]:
    """Restart the follower, and let the leader die before the follower has fetched (KIP-101, 1).

    Then the former leader comes back. Return the log of the leader.
    """
    world = world_of(design, count=2)
    world.create(P, (0, 1))
    commit(world, 0, "a", "b")
    world.run_for(100)
    world.crash(1)
    world.start(1)
    world.run_for(1)
    world.crash(0)
    world.run_for(1_000)
    world.start(0)
    world.run_for(LONG_MS)
    assert set(world.isr(P)) == {0, 1}
    (leader,) = world.believers(P)
    return world.records(leader, P)


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_a_follower_that_restarts_truncates_acknowledged_records(design: str):
    """It truncates to the high watermark on its disk, which is up to 5 seconds old, and leads."""
    assert restart_a_follower_before_its_leader_dies(design) == []


def test_in_v3_a_follower_that_restarts_truncates_nothing_by_itself():
    assert restart_a_follower_before_its_leader_dies("v3") == ["a", "b"]


def commit_before_the_former_leader_comes_back(design: str) -> list[list[str]]:
    """Let the last leader commit "d" alone; then the first one follows. Return both logs."""
    world, third = let_the_former_leader_follow(design)
    return [world.records(broker_id, P) for broker_id in (0, third)]


def let_the_former_leader_follow(design: str) -> tuple[World, BrokerId]:
    """Let the last leader commit "d" alone, and the first one follow; return the leader."""
    world, third = change_leaders_before_the_high_watermark_is_known(design)
    commit(world, third, "d")
    assert world.isr(P) == (third,)
    world.start(0)
    run_until(world, lambda: set(world.isr(P)) == {0, third})
    world.run_for(LONG_MS)
    return world, third


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_in_sync_replicas_have_different_records_at_one_offset(design: str):
    """The former leader knows "b" as committed and keeps it: only the offsets are compared."""
    assert commit_before_the_former_leader_comes_back(design) == [["a", "b", "c"], ["a", "d"]]


def test_in_v3_replicas_that_are_in_sync_have_the_same_records():
    assert commit_before_the_former_leader_comes_back("v3") == [["a", "b", "c", "d"]] * 2


def commit_after_the_former_leader_has_come_back(design: str) -> list[str]:
    """Let the first leader follow; then the last one commits "d" and dies.

    Return the log of the first leader, which leads again.
    """
    world, third = change_leaders_before_the_high_watermark_is_known(design)
    world.start(0)
    world.run_for(2_000)
    commit(world, third, "d")
    assert set(world.isr(P)) == {0, third}
    world.crash(third)
    assert new_leader(world, third) == 0
    return world.records(0, P)


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_a_leader_takes_a_longer_log_of_a_follower_for_its_own_records(design: str):
    """The follower fetches from the offset behind "c", and "d" is at an earlier one.

    So the leader acknowledges "d" at once, for both are in sync, and nobody else ever gets it.
    """
    assert commit_after_the_former_leader_has_come_back(design) == ["a", "b", "c"]


def test_in_v3_a_leader_counts_only_its_own_records():
    assert commit_after_the_former_leader_has_come_back("v3") == ["a", "b", "c", "d"]


def acknowledge_after_such_a_follower_leads(design: str) -> tuple[list[bool], list[bool]]:
    """Let the leader stand still until the follower with the longer log leads; then it goes on.

    Return whether the former and the new leader acknowledge a record then.
    """
    world, former = let_the_former_leader_follow(design)
    world.pause(former)
    world.end_session(former)
    assert new_leader(world, former) == 0
    world.resume(former)
    late, true = world.produce(former, P, "late"), world.produce(0, P, "true")
    world.run_for(LONG_MS)
    return late, true


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v2_too_two_leaders_acknowledge_when_truncation_made_their_logs_different(design: str):
    """The former leader takes its record for one that the follower has, so it asks nobody."""
    assert acknowledge_after_such_a_follower_leads(design) == ([True], [True])


def test_in_v3_only_one_leader_acknowledges_after_truncation():
    assert acknowledge_after_such_a_follower_leads("v3") == ([False], [True])


# --- a bound in bytes -----------------------------------------------------------------------------


def send_a_burst(design: str) -> World:
    """Send one batch of 5,000 bytes, and let the leader die as soon as it is acknowledged."""
    world = world_of(design)
    world.create(P, REPLICAS)
    outcome = world.produce(0, P, BURST)
    run_until(world, lambda: outcome == [True])
    return world


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_a_burst_removes_every_follower_although_none_is_slow(design: str):
    """More than ``max_bytes_lag`` is missing at once (KIP-16): the leader commits it alone."""
    assert send_a_burst(design).isr(P) == (0,)


@pytest.mark.parametrize("design", V1_AND_V2)
def test_in_v1_and_v2_a_burst_waits_for_the_leader_that_committed_it_alone(design: str):
    """What the others have does not count. If that leader's disk is lost, nobody may ever lead."""
    world = send_a_burst(design)
    world.crash(0)
    world.run_for(60_000)
    assert world.believers(P) == []
    world.start(0)
    world.run_for(LONG_MS)
    assert world.believers(P) == [0]
    assert [world.records(broker_id, P) for broker_id in REPLICAS] == [[BURST]] * 3


def test_in_v3_a_burst_removes_no_replica_from_the_isr():
    """Only time counts: ``replica.lag.time.max.ms``."""
    world = send_a_burst("v3")
    assert world.isr(P) == REPLICAS
    world.crash(0)
    assert world.records(new_leader(world, 0), P) == [BURST]


# --- a topic that is deleted and created again while a broker is away -----------------------------


def create_again_while_a_follower_is_away(
    world: World, while_away: Callable[[], None] = lambda: None
) -> None:
    """Let broker 1 come back with the log of a topic that was deleted.

    1. Replicas 0 and 1 have the records "old 1" and "old 2" of a topic.
    2. 1 dies. The topic is deleted, and another one of the same name is created.
    3. 1 starts. It has a log of this name.
    """
    world.create(P, (0, 1))
    commit(world, 0, "old 1", "old 2")
    world.run_for(LONG_MS)
    world.crash(1)
    while_away()
    world.delete(P)
    world.create(P, (0, 1))
    assert world.believers(P) == [0]
    world.start(1)


def lead_after_coming_back(design: str) -> list[str]:
    """Let 0 commit "new" when both are in sync, and die; return the log of 1, which leads."""
    world = world_of(design, count=2)
    create_again_while_a_follower_is_away(world)
    run_until(world, lambda: set(world.isr(P)) == {0, 1})
    commit(world, 0, "new")
    world.crash(0)
    assert new_leader(world, 0) == 1
    return world.records(1, P)


@pytest.mark.parametrize("design", V1)
def test_in_v1_a_broker_that_was_away_leads_with_the_records_of_a_deleted_topic(design: str):
    """Only names are compared. Its log is longer than that of the leader, so it is in sync."""
    assert lead_after_coming_back(design) == ["old 1", "old 2"]


def test_in_v2_a_broker_leads_with_the_records_of_a_deleted_topic_while_commands_wait():
    """The command to stop the replica of the deleted topic is in its queue, behind others.

    When it is obeyed, it stops the replica of the next topic, which leads.
    """
    world = world_of("v2", count=2)
    assert isinstance(world, DesignWorld)
    others = [TopicPartition("other", partition) for partition in range(20)]
    for topic_partition in others:
        world.create(topic_partition, (0,))

    def move_others() -> None:
        for topic_partition in others:
            world.move(topic_partition, (0, 1))
        world.run_for(100)

    create_again_while_a_follower_is_away(world, move_others)
    world.slow_down_commands(1)
    new: list[list[bool]] = []
    seen: list[tuple[list[BrokerId], list[str]]] = []
    for at_ms, act in (
        (20, lambda: new.append(world.produce(0, P, "new"))),
        (40, lambda: world.crash(0)),
        (1_000, lambda: seen.append((world.believers(P), world.records(1, P)))),
    ):
        world.time.later(at_ms, act)
    world.run_for(10_000)
    assert new == [[True]]
    assert seen == [([1], ["old 1", "old 2"])]
    assert world.records(1, P) == []


def test_in_v3_a_broker_that_was_away_sets_the_log_of_a_deleted_topic_aside():
    """LeaderAndIsr has the topic id, and the log has the id of the former topic."""
    assert lead_after_coming_back("v3") == ["new"]
