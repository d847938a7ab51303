"""Partition state changes: what they write, remember and send."""

from __future__ import annotations

import pytest

from regent.core.controller.election.election import (
    ControlledShutdownElection,
    OfflineElection,
    PreferredElection,
    ReassignElection,
)
from regent.core.controller.services import ControllerSettings
from regent.core.controller.states import (
    VALID_PREVIOUS_PARTITION_STATES,
    PartitionState,
    ReplicaState,
)
from regent.core.errors import ControllerMovedError, StateChangeFailedError
from regent.core.model import LeaderRecoveryState, ReplicaAssignment, TopicPartition
from regent.zk.znodes import ConfigEntityZNode
from tests.support.controller_parts import (
    ControllerParts,
    kinds,
    leader_and_isr_rows,
    metadata_rows,
)
from tests.support.fake_zookeeper import Moment, act_once, lose_connection
from tests.support.world import T0, T1, leadership, topic_id

NON_EXISTENT, NEW = PartitionState.NON_EXISTENT, PartitionState.NEW
ONLINE, OFFLINE = PartitionState.ONLINE, PartitionState.OFFLINE
STATE = "/brokers/topics/t/partitions/0/state"


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(5, 6, 7))


def allow_unclean(parts: ControllerParts, topic: str, value: str = "true") -> None:
    config = ConfigEntityZNode.encode({"unclean.leader.election.enable": value})
    parts.zookeeper.put(ConfigEntityZNode.path("topics", topic), config)


# --- valid and invalid transitions ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (NON_EXISTENT, NEW),
        (NEW, OFFLINE),
        (ONLINE, OFFLINE),
        (OFFLINE, OFFLINE),
        (OFFLINE, NON_EXISTENT),
    ],
)
def test_transitions_that_only_change_memory(
    parts: ControllerParts, source: PartitionState, target: PartitionState
) -> None:
    parts.assign(T0, (5,), source)
    before = len(parts.zookeeper.transactions)
    assert parts.partitions.handle_state_changes([T0], target) == {}
    assert parts.context.partition_state(T0) is target
    assert parts.effects() == []
    assert len(parts.zookeeper.transactions) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (source, target)
        for target, allowed in VALID_PREVIOUS_PARTITION_STATES.items()
        for source in PartitionState
        if source not in allowed
    ],
)
def test_an_invalid_transition_changes_nothing_and_does_not_stop_the_others(
    parts: ControllerParts, source: PartitionState, target: PartitionState
) -> None:
    parts.assign(T0, (5,), source)
    allowed = VALID_PREVIOUS_PARTITION_STATES[target]
    parts.assign(T1, (5,), next(s for s in (NON_EXISTENT, NEW, OFFLINE) if s in allowed))
    failures = parts.partitions.handle_state_changes([T0, T1], target, OfflineElection())
    assert list(failures) == [T0]
    assert str(failures[T0]) == f"t-0: cannot go from {source.value} to {target.value}"
    assert parts.context.partition_state(T0) is source
    assert parts.state(T0) is None
    assert parts.context.partition_state(T1) is target


# --- the first leader -----------------------------------------------------------------------------


def test_the_first_leader_is_the_first_live_replica_and_the_isr_has_all_live_replicas(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (8, 6, 5))
    assert parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection()) == {}
    assert parts.state(T0) == leadership(6, (6, 5))
    assert parts.context.partition_leadership_info(T0) == parts.state(T0)
    assert parts.context.partition_state(T0) is ONLINE
    effects = parts.effects()
    assert kinds(effects) == [(5, "LeaderAndIsr"), (6, "LeaderAndIsr")] + [
        (b, "UpdateMetadata") for b in (5, 6, 7)
    ]
    row = leader_and_isr_rows(effects)[5][T0]
    assert (row.leader, row.isr, row.replicas, row.is_new) == (6, (6, 5), (8, 6, 5), True)
    assert metadata_rows(effects)[7][T0].offline_replicas == (8,)


def test_without_a_live_replica_a_partition_stays_new_and_nothing_is_written(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (8, 9))
    parts.context.shutting_down_broker_ids.add(5)
    parts.assign(T1, (5,))
    failures = parts.partitions.handle_state_changes([T0, T1], ONLINE, OfflineElection())
    assert sorted(failures) == [T0, T1]
    assert "none of its replicas [8, 9] is alive" in str(failures[T0])
    assert parts.context.partition_state(T0) is NEW
    assert parts.state(T0) is None
    assert parts.effects() == []


def test_a_partition_of_a_removed_topic_stays_new(parts: ControllerParts) -> None:
    parts.assign(T0, (5,))
    parts.delete_topic("t")
    failures = parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection())
    assert "its topic is gone" in str(failures[T0])
    assert parts.context.partition_state(T0) is NEW
    assert parts.context.partition_leadership_info(T0) is None


def test_a_state_created_by_an_attempt_with_a_lost_response_is_accepted(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (5, 6))
    act_once(parts.session, lose_connection, moment=Moment.AFTER, path=STATE)
    assert parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection()) == {}
    assert parts.state(T0) == leadership(5, (5, 6))
    assert leader_and_isr_rows(parts.effects())[6][T0].is_new


def test_a_new_partition_that_has_a_state_is_elected_from_that_state(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (5, 6))
    parts.put_replica_state(T0, 5, ReplicaState.NEW)
    parts.put_state(T0, 8, (8, 6), leader_epoch=4, controller_epoch=0)
    assert parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection()) == {}
    assert parts.leads(T0) == (6, (6,), 5)
    assert not leader_and_isr_rows(parts.effects())[5][T0].is_new


def test_a_new_partition_does_not_overwrite_an_unreadable_state(parts: ControllerParts) -> None:
    parts.assign(T0, (5, 6))
    parts.zookeeper.put(STATE, b"not JSON")
    failures = parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection())
    assert "not JSON" in str(failures[T0])
    assert parts.context.partition_state(T0) is NEW
    assert parts.zookeeper.snapshot()[STATE].data == b"not JSON"


def test_many_partitions_are_created_in_a_few_transactions(parts: ControllerParts) -> None:
    partitions = [TopicPartition("t", number) for number in range(900)]
    parts.put_topic("t", {p.partition: (5, 6) for p in partitions}, topic_id(1))
    for partition in partitions:
        parts.context.update_partition_full_replica_assignment(partition, ReplicaAssignment((5, 6)))
        parts.context.put_partition_state(partition, NEW)
    before = len(parts.zookeeper.transactions)
    assert parts.partitions.handle_state_changes(partitions, ONLINE, OfflineElection()) == {}
    assert len(parts.zookeeper.transactions) - before == 3, "one for parents, two for states"
    effects = parts.effects()
    assert len(leader_and_isr_rows(effects)[5]) == 900
    assert len(kinds(effects)) == 5


# --- elections ------------------------------------------------------------------------------------


def test_an_offline_leader_is_replaced_according_to_zookeeper_and_not_memory(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (8, 5, 6), leader=8, isr=(8, 5, 6), state=OFFLINE)
    parts.put_state(T0, 8, (8, 6), leader_epoch=3)
    assert parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection()) == {}
    assert parts.leads(T0) == (6, (6,), 4)
    assert parts.known(T0) == (6, (6,), 4)
    rows = leader_and_isr_rows(parts.effects())
    assert list(rows) == [5, 6], "all live replicas, also outside the ISR"
    stored = parts.state(T0)
    assert stored is not None
    assert rows[5][T0].partition_epoch == stored.leader_and_isr.partition_epoch
    assert not rows[5][T0].is_new


def test_without_a_live_isr_member_a_partition_stays_offline_and_unchanged(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (8, 5), leader=8, isr=(8,), state=OFFLINE)
    before = parts.state(T0)
    failures = parts.partitions.handle_state_changes([T0], ONLINE, OfflineElection())
    assert str(failures[T0]) == "t-0: no replica in isr [8] is online"
    assert parts.context.partition_state(T0) is OFFLINE
    assert parts.state(T0) == before
    assert parts.sent() == []


def test_an_unclean_election_allowed_by_the_caller_does_not_read_the_topic_setting(
    parts: ControllerParts,
) -> None:
    reads: list[str] = []
    parts.session.hook = lambda call: reads.extend(call.paths)
    parts.lead(T0, (6, 5), leader=8, isr=(8,), state=OFFLINE)
    strategy = OfflineElection(allow_unclean=True)
    assert parts.partitions.handle_state_changes([T0], ONLINE, strategy) == {}
    assert parts.leads(T0) == (6, (6,), 1)
    stored = parts.state(T0)
    assert stored is not None
    assert stored.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING
    assert parts.context.stats.unclean_leader_elections == 1
    assert not [path for path in reads if path.startswith("/config")]
    assert leader_and_isr_rows(parts.effects())[6][T0].leader_recovery_state == 1


@pytest.mark.parametrize(
    ("broker_default", "topic_value", "is_elected"),
    [
        (False, None, False),
        (False, "true", True),
        (False, "TRUE", True),
        (True, None, True),
        (True, "false", False),
        (False, "nonsense", False),
        (True, "nonsense", True),  # it is ignored, as DescribeConfigs shows
    ],
)
def test_the_topic_setting_overrides_the_broker_setting_of_unclean_elections(
    broker_default: bool, topic_value: str | None, is_elected: bool
) -> None:
    parts = ControllerParts(
        (5, 6), ControllerSettings(unclean_leader_election_enable=broker_default)
    )
    parts.lead(T0, (8, 5), leader=8, isr=(8,), state=OFFLINE)
    if topic_value is not None:
        allow_unclean(parts, "t", topic_value)
    failures = parts.partitions.trigger_online_partition_state_change()
    assert (failures == {}) == is_elected


def test_the_topic_setting_is_read_only_without_a_live_isr_member(parts: ControllerParts) -> None:
    reads: list[str] = []
    parts.session.hook = lambda call: reads.extend(call.paths)
    u0 = TopicPartition("u", 0)
    parts.lead(T0, (8, 5, 6), leader=8, isr=(8, 5, 6), state=OFFLINE)
    parts.lead(u0, (8, 5), leader=8, isr=(8,), state=OFFLINE)
    allow_unclean(parts, "t")
    assert list(parts.partitions.trigger_online_partition_state_change()) == [u0]
    assert "/config/topics/u" in reads
    assert "/config/topics/t" not in reads


def test_the_setting_of_one_topic_does_not_apply_to_others(parts: ControllerParts) -> None:
    u0 = TopicPartition("u", 0)
    for partition in (T0, u0):
        parts.lead(partition, (8, 5), leader=8, isr=(8,), state=OFFLINE)
    allow_unclean(parts, "t")
    assert list(parts.partitions.trigger_online_partition_state_change()) == [u0]
    assert parts.leads(T0) == (5, (5,), 1)
    assert parts.leads(u0) == (8, (8,), 0)
    assert parts.context.stats.unclean_leader_elections == 1


def test_an_unreadable_topic_setting_leaves_only_that_topic_offline(parts: ControllerParts) -> None:
    u0 = TopicPartition("u", 0)
    for partition in (T0, u0):
        parts.lead(partition, (8, 5), leader=8, isr=(8,), state=OFFLINE)
    allow_unclean(parts, "t")
    parts.zookeeper.put("/config/topics/u", b"{")
    failures = parts.partitions.trigger_online_partition_state_change()
    assert list(failures) == [u0]
    assert "JSON" in str(failures[u0])
    assert parts.leads(T0) == (5, (5,), 1)


def test_a_preferred_election_writes_an_unchanged_leadership(parts: ControllerParts) -> None:
    parts.lead(T0, (5,), leader=5, isr=(5,))
    assert parts.partitions.handle_state_changes([T0], ONLINE, PreferredElection()) == {}
    assert parts.leads(T0) == (5, (5,), 1)
    assert leader_and_isr_rows(parts.effects())[5][T0].leader_epoch == 1


def test_a_leader_that_is_shutting_down_is_replaced_and_notified(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=5, isr=(5, 6))
    parts.context.shutting_down_broker_ids.add(5)
    strategy = ControlledShutdownElection()
    assert parts.partitions.handle_state_changes([T0], ONLINE, strategy) == {}
    assert parts.leads(T0) == (6, (6,), 1)
    rows = leader_and_isr_rows(parts.effects())
    assert list(rows) == [5, 6]
    assert (rows[5][T0].leader, rows[5][T0].isr, rows[5][T0].is_new) == (6, (6,), False)


def test_a_reassignment_elects_a_target_replica(parts: ControllerParts) -> None:
    moving = ReplicaAssignment((6, 7, 5), adding_replicas=(6, 7), removing_replicas=(5,))
    parts.lead(T0, moving, leader=5, isr=(5, 7))
    assert parts.partitions.handle_state_changes([T0], ONLINE, ReassignElection()) == {}
    assert parts.leads(T0) == (7, (5, 7), 1)
    assert list(leader_and_isr_rows(parts.effects())) == [6, 7]


def test_a_failed_election_leaves_an_online_partition_online(parts: ControllerParts) -> None:
    parts.lead(T0, (5, 6), leader=6, isr=(6,))
    failures = parts.partitions.handle_state_changes([T0], ONLINE, PreferredElection())
    assert isinstance(failures[T0], StateChangeFailedError)
    assert parts.context.partition_state(T0) is ONLINE
    assert parts.known(T0) == (6, (6,), 0)


@pytest.mark.parametrize("damage", ["missing", "unreadable", "newer controller"])
def test_a_damaged_partition_does_not_stop_the_others(parts: ControllerParts, damage: str) -> None:
    parts.lead(T0, (8, 5), leader=8, isr=(8, 5), state=OFFLINE)
    parts.lead(T1, (8, 5), leader=8, isr=(8, 5), state=OFFLINE)
    if damage == "missing":
        parts.delete_topic("t")
        parts.put_state(T1, 8, (8, 5))
    elif damage == "unreadable":
        parts.zookeeper.put(STATE, b"[]")
    else:
        parts.put_state(T0, 8, (8, 5), controller_epoch=2)
    failures = parts.partitions.trigger_online_partition_state_change()
    assert list(failures) == [T0]
    assert parts.context.partition_state(T0) is OFFLINE
    assert parts.leads(T1) == (5, (5,), 1)
    assert list(leader_and_isr_rows(parts.effects())[5]) == [T1]


def test_a_deposed_controller_writes_and_sends_nothing(parts: ControllerParts) -> None:
    parts.lead(T0, (8, 5), leader=8, isr=(8, 5), state=OFFLINE)
    parts.assign(T1, (5,))
    before = parts.state(T0)
    parts.elect_another_controller()
    for partition in (T0, T1):
        with pytest.raises(ControllerMovedError):
            parts.partitions.handle_state_changes([partition], ONLINE, OfflineElection())
    assert parts.state(T0) == before
    assert parts.state(T1) is None
    assert parts.known(T0) == (8, (8, 5), 0)
    assert parts.sent() == []


# --- startup and the trigger of elections ---------------------------------------------------------


def test_at_startup_partitions_get_their_state_and_then_a_leader(parts: ControllerParts) -> None:
    partitions = [TopicPartition("t", number) for number in range(5)]
    for partition in partitions[:4]:
        parts.lead(partition, (8, 5), leader=5, isr=(8, 5), state=NON_EXISTENT)
    parts.put_state(partitions[1], 8, (8, 5))
    parts.put_state(partitions[2], -1, (8,))
    for partition in partitions[1:3]:
        stored = parts.state(partition)
        assert stored is not None
        parts.context.put_partition_leadership_info(partition, stored)
    parts.context.shutting_down_broker_ids.add(6)
    parts.lead(partitions[3], (6, 5), leader=6, isr=(6, 5), state=NON_EXISTENT)
    parts.assign(partitions[4], (7,), NON_EXISTENT)
    parts.partitions.startup()
    states = [parts.context.partition_state(p) for p in partitions]
    assert states == [ONLINE, ONLINE, OFFLINE, ONLINE, NEW]
    parts.partitions.create_leaderships()
    assert parts.context.partition_state(partitions[4]) is ONLINE
    led = [parts.known(p) for p in partitions]
    assert led == [(5, (8, 5), 0), (5, (5,), 2), (-1, (8,), 0), (5, (5,), 2), (7, (7,), 0)]
    assert parts.context.offline_partition_count == 1


def test_the_trigger_ignores_topics_queued_for_deletion(parts: ControllerParts) -> None:
    u0 = TopicPartition("u", 0)
    for partition in (T0, u0):
        parts.lead(partition, (8, 5), leader=8, isr=(8, 5), state=OFFLINE)
    parts.context.queue_topic_deletion(["u"])
    assert parts.partitions.trigger_online_partition_state_change() == {}
    assert parts.context.partition_state(T0) is ONLINE
    assert parts.context.partition_state(u0) is OFFLINE


def test_the_trigger_elects_leaders_of_queued_partitions_that_are_being_reassigned(
    parts: ControllerParts,
) -> None:
    moving = ReplicaAssignment((8, 5, 6), adding_replicas=(6,))
    parts.lead(T0, moving, leader=8, isr=(8, 5), state=OFFLINE)
    parts.context.partitions_being_reassigned.add(T0)
    parts.context.queue_topic_deletion(["t"])
    assert parts.partitions.trigger_online_partition_state_change() == {}
    assert parts.leads(T0) == (5, (5,), 1)


def test_the_trigger_can_be_limited_to_one_topic(parts: ControllerParts) -> None:
    u0 = TopicPartition("u", 0)
    for partition in (T0, u0):
        parts.lead(partition, (8, 5), leader=8, isr=(8, 5), state=OFFLINE)
    parts.partitions.trigger_online_partition_state_change("u")
    assert parts.context.partition_state(T0) is OFFLINE
    assert parts.context.partition_state(u0) is ONLINE


def test_partitions_are_not_counted_offline_after_their_deletion_started(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (5,), NON_EXISTENT)
    parts.context.queue_topic_deletion(["t"])
    parts.context.topics_with_deletion_started.add("t")
    parts.partitions.handle_state_changes([T0], NEW)
    parts.partitions.handle_state_changes([T0], OFFLINE)
    assert parts.context.offline_partition_count == 0
