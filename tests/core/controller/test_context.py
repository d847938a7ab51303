"""ControllerContext: its indexes give the same answers as a scan of all entries."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from regent.core.controller.context import ControllerContext
from regent.core.controller.partition_entries import IllegalStateError
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.model import (
    NO_ASSIGNMENT,
    NO_LOG_END,
    BrokerRegistration,
    LeaderIsrAndControllerEpoch,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from tests.support.world import T0, T1, broker_info, leadership, topic_id

A0, A1, B0 = TopicPartition("A", 0), TopicPartition("A", 1), TopicPartition("B", 0)


@pytest.fixture
def context() -> ControllerContext:
    return ControllerContext()


def assign(context: ControllerContext, partition: TopicPartition, *replicas: int) -> None:
    context.update_partition_full_replica_assignment(partition, ReplicaAssignment(replicas))


def lead(context: ControllerContext, partition: TopicPartition, leader: int, *isr: int) -> None:
    context.put_partition_leadership_info(partition, leadership(leader, isr or (leader,)))


def register(context: ControllerContext, *broker_ids: int, epoch: int = 1) -> None:
    for broker_id in broker_ids:
        context.add_live_broker(BrokerRegistration(broker_info(broker_id), epoch))


# --- assignments ----------------------------------------------------------------------------------


def test_unknown_partitions_have_empty_defaults(context: ControllerContext) -> None:
    assign(context, A0, 1, 2, 3)
    for unknown in (TopicPartition("A", 100), TopicPartition("nothing", 0)):
        assert context.partition_replica_assignment(unknown) == ()
        assert context.partition_full_replica_assignment(unknown) == NO_ASSIGNMENT
        assert context.partition_leadership_info(unknown) is None
        assert context.partition_state(unknown) is PartitionState.NON_EXISTENT
        replica = PartitionAndReplica(unknown, 1)
        assert context.replica_state(replica) is ReplicaState.NON_EXISTENT
    assert context.partition_assignments("nothing") == {}
    assert list(context.all_topics) == ["A"], "a read does not add a topic"


def test_a_new_assignment_replaces_the_old_one(context: ControllerContext) -> None:
    assign(context, A0, 4)
    assert context.partition_full_replica_assignment(A0) == ReplicaAssignment((4,))
    moving = ReplicaAssignment((3,), adding_replicas=(1,), removing_replicas=(2,))
    context.update_partition_full_replica_assignment(A0, moving)
    assert context.partition_full_replica_assignment(A0) == moving


def test_a_topic_has_only_its_own_assignments(context: ControllerContext) -> None:
    assign(context, A0, 1, 2, 3)
    assign(context, A1, 2, 3, 1)
    assign(context, B0, 3, 1, 2)
    assert context.partition_assignments("A") == {
        A0: ReplicaAssignment((1, 2, 3)),
        A1: ReplicaAssignment((2, 3, 1)),
    }
    assert context.partitions_of("A") == [A0, A1]
    assert list(context.all_partitions()) == [A0, A1, B0]


def test_replicas_are_found_by_broker(context: ControllerContext) -> None:
    assign(context, A0, 1, 2)
    assign(context, B0, 2, 3)
    assert context.partitions_on_broker(2) == [A0, B0]
    assert context.replicas_on_brokers([3, 1]) == [(B0, 3), (A0, 1)]
    assert context.replicas_of([B0]) == [(B0, 2), (B0, 3)]
    assign(context, A0, 4)
    assert context.partitions_on_broker(1) == []
    assert context.partitions_on_broker(4) == [A0]


def test_replicas_keep_their_states_when_the_assignment_changes(context: ControllerContext) -> None:
    def states() -> dict[int, ReplicaState]:
        known = {b: context.replica_state(PartitionAndReplica(A0, b)) for b in range(1, 5)}
        return {b: state for b, state in known.items() if state is not ReplicaState.NON_EXISTENT}

    assign(context, A0, 1, 2)
    for broker_id, state in ((1, ReplicaState.ONLINE), (2, ReplicaState.OFFLINE)):
        context.put_replica_state(PartitionAndReplica(A0, broker_id), state)
    context.put_replica_state(PartitionAndReplica(A0, 3), ReplicaState.NEW)
    before = states()
    assert before == {1: ReplicaState.ONLINE, 2: ReplicaState.OFFLINE, 3: ReplicaState.NEW}
    for replicas in ((3, 2, 4), (4,), (2, 1)):
        assign(context, A0, *replicas)
        assert states() == before
        told = [r.replica for r in context.replicas_ever_told([A0])]
        assert sorted(told) == sorted({*replicas, *before})
    for broker_id in before:
        context.put_replica_state(PartitionAndReplica(A0, broker_id), ReplicaState.NON_EXISTENT)
    assert states() == {}
    assert [r.replica for r in context.replicas_ever_told([A0])] == [2, 1]


# --- topics ---------------------------------------------------------------------------------------


def test_a_topic_has_one_id_that_no_other_topic_has(context: ControllerContext) -> None:
    context.add_topic_id("A", topic_id(1))
    context.add_topic_id("A", topic_id(1))
    assert (context.topic_id("A"), context.topic_name(topic_id(1))) == (topic_id(1), "A")
    with pytest.raises(IllegalStateError, match="topic A"):
        context.add_topic_id("A", topic_id(2))
    with pytest.raises(IllegalStateError, match="topic B"):
        context.add_topic_id("B", topic_id(1))
    assert context.topic_id("B") is None


def test_a_removed_topic_leaves_no_entry(context: ControllerContext) -> None:
    pristine = vars(ControllerContext()).keys()
    register(context, 1, 2)
    assign(context, A0, 1, 2)
    lead(context, A0, 2)
    context.put_partition_state(A0, PartitionState.OFFLINE)
    context.put_replica_state(PartitionAndReplica(A0, 1), ReplicaState.ONLINE)
    context.add_topic_id("A", topic_id(1))
    context.topic_created_zxids["A"] = 5
    context.bad_topics["A"] = "unreadable"
    context.unreadable_partitions.add(A0)
    context.partitions_being_reassigned.add(A0)
    context.replicas_on_offline_dirs[1] = {A0}
    context.queue_topic_deletion(["A"])
    context.topics_ineligible_for_deletion.add("A")
    context.remove_topic("A")
    assert list(context.all_topics) == []
    assert context.topic_name(topic_id(1)) is None
    assert context.partitions_on_broker(1) == []
    assert context.partition_count == 0
    assert context.partitions_in_state(PartitionState.OFFLINE) == []
    assert context.offline_partition_count == 0
    assert context.preferred_replica_imbalance_count == 0
    assert "'A'" not in repr({name: getattr(context, name) for name in pristine})


def test_a_reset_clears_everything_except_the_statistics(context: ControllerContext) -> None:
    register(context, 1)
    context.epoch, context.epoch_zk_version = 7, 8
    context.shutting_down_broker_ids.add(1)
    assign(context, A0, 1)
    lead(context, A0, 1)
    context.stats.unclean_leader_elections = 3
    context.reset()
    fresh = ControllerContext()
    fresh.stats = context.stats
    assert vars(context) == vars(fresh)
    assert context.stats.unclean_leader_elections == 3


# --- brokers --------------------------------------------------------------------------------------


def test_a_broker_that_is_shutting_down_is_registered_but_not_live(
    context: ControllerContext,
) -> None:
    register(context, 3, 1, 2)
    context.shutting_down_broker_ids.add(2)
    assert context.live_or_shutting_down_broker_ids == [1, 2, 3]
    assert context.live_broker_ids == [1, 3]
    assert context.live_broker_epochs == {1: 1, 2: 1, 3: 1}
    assert context.is_replica_online(1, T0)
    assert not context.is_replica_online(2, T0)
    assert context.is_replica_online(2, T0, include_shutting_down=True)
    assert not context.is_replica_online(9, T0, include_shutting_down=True)


def test_a_new_registration_replaces_the_earlier_one(context: ControllerContext) -> None:
    register(context, 1, epoch=5)
    register(context, 1, epoch=9)
    assert context.live_broker_epochs == {1: 9}
    context.remove_live_broker(1)
    context.remove_live_broker(1)
    assert context.registrations == {}


def test_a_replica_in_a_failed_log_directory_is_offline(context: ControllerContext) -> None:
    register(context, 1)
    context.replicas_on_offline_dirs[1] = {T0}
    assert not context.is_replica_online(1, T0, include_shutting_down=True)
    assert context.is_replica_online(1, T1)


def test_a_leader_is_offline_when_its_broker_or_log_directory_is_not_available(
    context: ControllerContext,
) -> None:
    register(context, 1, 2, 3)
    partitions = [TopicPartition("t", p) for p in range(6)]
    for partition, leader in zip(partitions, (1, 2, 3, 4, -1, 1), strict=True):
        assign(context, partition, 1, 2)
        lead(context, partition, leader, 1)
    assert context.partitions_with_offline_leader() == [partitions[3], partitions[4]]
    context.shutting_down_broker_ids.add(2)
    context.replicas_on_offline_dirs[3] = {partitions[2], partitions[5]}
    assert context.partitions_with_offline_leader() == partitions[1:5]
    context.replicas_on_offline_dirs[2] = {partitions[1]}
    assert context.partitions_with_offline_leader() == partitions[1:5], "each is listed once"
    context.queue_topic_deletion(["t"])
    assert context.partitions_with_offline_leader() == []


def test_leaders_on_a_broker_are_listed_only_for_partitions_with_other_replicas(
    context: ControllerContext,
) -> None:
    for partition, replicas in ((A1, (1, 2)), (A0, (1,)), (B0, (1, 2))):
        assign(context, partition, *replicas)
        lead(context, partition, 1)
    assert context.partition_leaders_on_broker(1) == [A1, B0]
    context.queue_topic_deletion(["B"])
    assert context.partition_leaders_on_broker(1) == [A1]
    assert context.partition_leaders_on_broker(2) == []


# --- counters -------------------------------------------------------------------------------------


def test_the_imbalance_count_follows_leaders_assignments_and_deletions(
    context: ControllerContext,
) -> None:
    def imbalance() -> int:
        return context.preferred_replica_imbalance_count

    for partition in (A0, A1, B0):
        assign(context, partition, 1, 2, 3)
    assert imbalance() == 0, "there are no leaders"
    lead(context, A0, 1)
    lead(context, A1, 2)
    lead(context, B0, 3)
    assert imbalance() == 2
    assign(context, A0, 2, 3, 1)
    assign(context, A1, 2, 3, 1)
    assert imbalance() == 2, "one stopped being balanced, one started"
    context.queue_topic_deletion(["B"])
    context.queue_topic_deletion(["B"])
    assert imbalance() == 1, "subtracted once (KAFKA-13572)"
    lead(context, B0, 1)
    assert imbalance() == 1
    context.remove_topic("A")
    context.remove_topic("B")
    assert imbalance() == 0


def test_an_added_preferred_replica_counts_as_imbalanced_when_it_is_in_sync(
    context: ControllerContext,
) -> None:
    moving = ReplicaAssignment((3, 1), adding_replicas=(3,), removing_replicas=(1,))
    context.update_partition_full_replica_assignment(A0, moving)
    lead(context, A0, 1, 1)
    assert context.preferred_replica_imbalance_count == 0
    lead(context, A0, 1, 1, 3)
    assert context.preferred_replica_imbalance_count == 1


def test_offline_partitions_are_counted_until_deletion_starts(context: ControllerContext) -> None:
    for state in (PartitionState.NEW, PartitionState.OFFLINE, PartitionState.OFFLINE):
        context.put_partition_state(A0, state)
    context.put_partition_state(A1, PartitionState.OFFLINE)
    assert context.offline_partition_count == 2
    context.put_partition_state(A1, PartitionState.ONLINE)
    assert context.offline_partition_count == 1
    context.topics_with_deletion_started.add("B")
    context.put_partition_state(B0, PartitionState.OFFLINE)
    assert context.offline_partition_count == 1


# --- comparison with a full scan ------------------------------------------------------------------


@dataclass
class Model:
    """The same memory without indexes."""

    assignments: dict[TopicPartition, ReplicaAssignment] = field(default_factory=dict)
    leaderships: dict[TopicPartition, LeaderIsrAndControllerEpoch] = field(default_factory=dict)
    states: dict[TopicPartition, PartitionState] = field(default_factory=dict)
    queued: set[str] = field(default_factory=set)
    live: set[int] = field(default_factory=set)

    def remove_topic(self, topic: str) -> None:
        for table in (self.assignments, self.leaderships, self.states):
            for partition in [p for p in table if p.topic == topic]:
                table.pop(partition)
        self.queued.discard(topic)

    def is_imbalanced(self, partition: TopicPartition) -> bool:
        leadership = self.leaderships.get(partition)
        assignment = self.assignments.get(partition, NO_ASSIGNMENT)
        if partition.topic in self.queued or leadership is None or not assignment.replicas:
            return False
        head, now = assignment.replicas[0], leadership.leader_and_isr
        return head in now.isr if head in assignment.adding_replicas else now.leader != head

    def leads(self, leader: int) -> list[TopicPartition]:
        return sorted(
            p for p, known in self.leaderships.items() if known.leader_and_isr.leader == leader
        )


def random_step(rng: random.Random, context: ControllerContext, model: Model) -> None:
    partition = TopicPartition(rng.choice("ABC"), rng.randrange(4))
    kind = rng.choice(("assign", "assign", "lead", "lead", "state", "queue", "remove", "broker"))
    match kind:
        case "assign":
            replicas = tuple(rng.sample(range(5), rng.randint(1, 3)))
            adding = replicas[:1] if rng.random() < 0.3 else ()
            assignment = ReplicaAssignment(replicas, adding)
            context.update_partition_full_replica_assignment(partition, assignment)
            model.assignments[partition] = assignment
        case "lead":
            known = leadership(rng.randrange(-1, 5), tuple(rng.sample(range(5), 2)))
            context.put_partition_leadership_info(partition, known)
            model.leaderships[partition] = known
        case "state":
            state = rng.choice(list(PartitionState))
            context.put_partition_state(partition, state)
            model.states[partition] = state
        case "queue":
            context.queue_topic_deletion([partition.topic])
            model.queued.add(partition.topic)
        case "remove":
            context.remove_topic(partition.topic)
            model.remove_topic(partition.topic)
        case _:
            broker_id = rng.randrange(5)
            if broker_id in model.live:
                context.remove_live_broker(broker_id)
            else:
                register(context, broker_id)
            model.live ^= {broker_id}


def assert_same(context: ControllerContext, model: Model) -> None:
    for broker_id in range(-1, 5):
        assert sorted(context.partitions_on_broker(broker_id)) == sorted(
            p for p, a in model.assignments.items() if broker_id in a.replicas
        )
        assert context.partition_leaders_on_broker(broker_id) == [
            p
            for p in model.leads(broker_id)
            if p.topic not in model.queued
            and len(model.assignments.get(p, NO_ASSIGNMENT).replicas) > 1
        ]
    for state in (PartitionState.NEW, PartitionState.OFFLINE):
        assert context.partitions_in_state(state) == sorted(
            p for p, known in model.states.items() if known is state
        )
    led = [p for p in context.all_partitions() if context.partition_leadership_info(p)]
    assert sorted(led) == sorted(model.leaderships)
    assert context.partition_count == len(led)
    assert context.partitions_with_offline_leader() == sorted(
        p
        for leader in range(-1, 5)
        if leader not in model.live
        for p in model.leads(leader)
        if p.topic not in model.queued
    )
    offline = [p for p, known in model.states.items() if known is PartitionState.OFFLINE]
    assert context.offline_partition_count == len(offline)
    imbalanced = sum(map(model.is_imbalanced, model.leaderships))
    assert context.preferred_replica_imbalance_count == imbalanced


@pytest.mark.parametrize("seed", range(20))
def test_indexes_and_counters_equal_a_full_scan(seed: int) -> None:
    rng, context, model = random.Random(seed), ControllerContext(), Model()
    for _ in range(150):
        random_step(rng, context, model)
        assert_same(context, model)
    for topic in "ABC":
        context.remove_topic(topic)
    assert context.offline_partition_count == context.preferred_replica_imbalance_count == 0


# --- validation -----------------------------------------------------------------------------------


def test_validate_finds_a_partition_that_is_missing_among_those_that_wait(
    context: ControllerContext,
) -> None:
    assign(context, A0, 1, 2)
    context.put_partition_state(A0, PartitionState.OFFLINE)
    context.validate()

    context._waiting[PartitionState.OFFLINE].clear()

    with pytest.raises(IllegalStateError, match=r"^partitions in state OfflinePartition: "):
        context.validate()


@pytest.mark.parametrize(
    "count", ["offline_partition_count", "preferred_replica_imbalance_count", "partition_count"]
)
def test_validate_finds_a_wrong_counter(context: ControllerContext, count: str) -> None:
    setattr(context, count, 1)

    with pytest.raises(IllegalStateError, match="has 1 instead of 0"):
        context.validate()


# --- suspect replicas -----------------------------------------------------------------------------


def test_a_replica_that_rejoined_the_isr_is_not_suspect_until_it_leaves_it_again(
    context: ControllerContext,
) -> None:
    assign(context, A0, 1, 2)
    suspects = SuspectReplicas({A0: NO_LOG_END})
    context.add_live_broker(BrokerRegistration(broker_info(2), 1, suspects))
    lead(context, A0, 1)
    assert context.suspect_end(2, A0) == NO_LOG_END
    lead(context, A0, 1, 1, 2)
    context.note_rejoined(2, A0)
    assert context.suspect_end(2, A0) is None
    lead(context, A0, 1, 1, 2)
    assert context.suspect_end(2, A0) is None, "it is still in the ISR"
    lead(context, A0, 1)
    assert context.suspect_end(2, A0) == NO_LOG_END, "its log may have been replaced since"
