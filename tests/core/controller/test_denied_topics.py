"""Topics whose znodes may not be read, or not be written, when they need topic ids or moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from regent.core.controller.effects import Effect, ScheduleEvent
from regent.core.controller.events import (
    AlterPartitionReceived,
    ApiPartitionReassignment,
    LookAgain,
    ReadAgain,
    ZkPartitionReassignment,
)
from regent.core.controller.quarantine import FAILURES_TO_QUARANTINE
from regent.core.controller.services import ControllerSettings
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, ReplicaAssignment, TopicPartition
from regent.core.ports import ControllerFailure
from regent.core.protocol.control import StopReplicaRequest
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionRow,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
)
from regent.zk.client.operations import ConnectionLossError
from regent.zk.znodes import (
    ControllerFailuresZNode,
    DeleteTopicsTopicZNode,
    IsrChangeNotificationSequenceZNode,
    ReassignPartitionsZNode,
    TopicPartitionStateZNode,
    TopicPartitionsZNode,
    TopicZNode,
)
from tests.support.controller_parts import Candidate, leader_and_isr_rows, requests
from tests.support.fake_zookeeper import Call, FakeZooKeeperServer, Moment
from tests.support.world import T0, T1, World, delete, topic_id

ISR_CHANGE = IsrChangeNotificationSequenceZNode.encode([T0])
STATE = TopicPartitionStateZNode.path(T0)
TOPIC = TopicZNode.path("t")
NOTED = TopicPartitionsZNode.path("t")


@pytest.fixture
def world() -> World:
    """Brokers 1 and 2 are registered."""
    return World((1, 2))


@pytest.fixture
def candidate(world: World) -> Candidate:
    """Broker 3, which becomes the controller when it starts."""
    return Candidate(world, 3)


def move(partition: TopicPartition, *target: int) -> ApiPartitionReassignment:
    """Return a request to reassign a partition."""
    return ApiPartitionReassignment(1, AlterPartitionReassignmentsRequest.of({partition: target}))


def proposal(candidate: Candidate, *isr: BrokerId) -> AlterPartitionReceived:
    """Return an AlterPartition request of the leader of t-0."""
    context = candidate.controller.context
    state = context.partition_leadership_info(T0)
    assert state is not None
    now = state.leader_and_isr
    unknown = (UNKNOWN_BROKER_EPOCH,) * len(isr)
    row = AlterPartitionRow(*T0, None, now.leader_epoch, isr, unknown, 0, now.partition_epoch)
    broker_epoch = context.live_broker_epochs[now.leader]
    return AlterPartitionReceived(1, AlterPartitionRequest(now.leader, broker_epoch, (row,)))


def stopped(effects: Iterable[Effect]) -> list[BrokerId]:
    """Return the brokers that are sent StopReplica."""
    return [
        sent.broker_id for sent in requests(effects) if isinstance(sent.request, StopReplicaRequest)
    ]


def deleted_in(effects: Iterable[Effect]) -> set[tuple[BrokerId, int]]:
    """Return the brokers that are to delete replicas, with the leader epochs."""
    return {
        (sent.broker_id, row.leader_epoch)
        for sent in requests(effects)
        if isinstance(sent.request, StopReplicaRequest)
        for topic in sent.request.topic_states
        for row in topic.partition_states
        if row.delete_partition
    }


def test_a_topic_gets_its_id_and_leaders_when_it_can_be_written(
    world: World, candidate: Candidate
) -> None:
    candidate.start()
    world.put_topic("t", {0: (1, 2)})
    world.zookeeper.deny_writing(TOPIC)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.catch_up()
    assert candidate.controller.context.bad_topics.keys() == {"t"}
    world.zookeeper.allow(TOPIC)
    effects = candidate.handle(ReadAgain(1))
    assert not candidate.controller.context.bad_topics
    assert world.topic("t").topic_id == candidate.controller.context.topic_id("t") is not None
    assert leader_and_isr_rows(effects)[1][T0].leader == 1


def test_a_topic_rewritten_without_its_id_gets_it_back_when_it_can_be_written(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("t", {0: (1, 2)}, topic_id(7))
    candidate.start()
    world.zookeeper.deny_writing(TOPIC)
    world.put_topic("t", {0: (1, 2), 1: (1, 2)})
    candidate.catch_up()
    assert candidate.controller.context.topic_id("t") == topic_id(7)
    world.zookeeper.allow(TOPIC)
    candidate.handle(ReadAgain(1))
    assert world.topic("t").topic_id == topic_id(7)
    assert world.leads(T1) == (1, (1, 2), 0)


def test_a_topic_gets_no_new_id_while_its_earlier_id_cannot_be_read(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("t", {0: (1, 2)}, topic_id(7))
    world.zookeeper.put(NOTED, TopicPartitionsZNode.encode(topic_id(7)))
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    world.put_topic("t", {0: (1, 2)})
    world.zookeeper.deny(NOTED)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.start()
    assert world.topic("t").topic_id is None
    world.zookeeper.allow(NOTED)
    candidate.handle(ReadAgain(1))
    assert world.topic("t").topic_id == topic_id(7)


@pytest.mark.parametrize(
    "deny", [FakeZooKeeperServer.deny, FakeZooKeeperServer.deny_writing], ids=["read", "write"]
)
def test_a_reassignment_is_finished_when_the_topic_can_be_written(
    world: World, candidate: Candidate, deny: Callable[[FakeZooKeeperServer, str], None]
) -> None:
    world.put_topic("t", {0: ReplicaAssignment((2, 1), (2,), (1,))}, topic_id(7))
    world.put_state(T0, 1, (1,), leader_epoch=5)
    candidate.start()
    deny(world.zookeeper, TOPIC)
    state = world.state(T0)
    assert state is not None
    world.put_state(T0, 1, (1, 2), leader_epoch=state.leader_and_isr.leader_epoch)
    world.zookeeper.put("/isr_change_notification/isr_change_0", ISR_CHANGE)
    assert ScheduleEvent(10_000, ReadAgain(1)) in candidate.catch_up()
    assert world.leads(T0)[:2] == (2, (2,))
    assert world.topic("t").partitions[0].is_being_reassigned
    world.zookeeper.allow(TOPIC)
    candidate.handle(ReadAgain(1))
    assert world.topic("t").partitions == {0: ReplicaAssignment((2,))}


def test_a_reassignment_written_before_its_topic_was_denied_starts_although_the_answer_was_lost(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("t", {0: (1,)}, topic_id(7))
    candidate.start()

    def lose_the_answer(call: Call) -> None:
        if call.moment is Moment.AFTER and TOPIC in call.paths and call.method == "multi_many":
            candidate.session.hook = None
            world.zookeeper.deny_writing(TOPIC)
            raise ConnectionLossError

    candidate.session.hook = lose_the_answer
    effects = candidate.handle(move(T0, 1, 2))
    assert world.topic("t").partitions == {0: ReplicaAssignment((1, 2), (2,))}
    assert 2 in leader_and_isr_rows(effects)


def test_a_reassignment_is_not_finished_while_a_removed_replica_cannot_leave_the_isr(
    world: World, candidate: Candidate
) -> None:
    """The next controller would not know the reassignment and would not delete the log."""
    moving = ReplicaAssignment((2, 1), (2,), (1,))
    world.put_topic("t", {0: moving}, topic_id(7))
    world.put_state(T0, 1, (1, 2), leader_epoch=5)

    def deny_when_another_leads(call: Call) -> None:
        if world.leads(T0)[0] == 2:
            world.zookeeper.deny_writing(STATE)

    candidate.session.hook = deny_when_another_leads
    assert not deleted_in(candidate.start())
    assert (world.leads(T0)[:2], world.topic("t").partitions[0]) == ((2, (1, 2)), moving)
    candidate.session.hook = None
    world.zookeeper.allow(STATE)
    assert 1 in dict(deleted_in(candidate.handle(ReadAgain(1))))
    assert (world.leads(T0)[:2], world.topic("t").partitions[0]) == (
        (2, (2,)),
        ReplicaAssignment((2,)),
    )


def elect_and_deny_the_state(world: World, candidate: Candidate) -> None:
    """Start the controller, then deny writes to the state of t-0, led by 1 in epoch 5."""
    world.put_topic("t", {0: (1, 2)}, topic_id(7))
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    candidate.start()
    world.zookeeper.deny_writing(STATE)


def test_a_reassignment_starts_when_its_first_leader_epoch_can_be_written(
    world: World, candidate: Candidate
) -> None:
    elect_and_deny_the_state(world, candidate)
    candidate.handle(move(T0, 1, 3))
    assert world.leads(T0) == (1, (1, 2), 5)
    world.zookeeper.allow(STATE)
    rows_sent = leader_and_isr_rows(candidate.handle(ReadAgain(1)))
    assert world.leads(T0) == (1, (1, 2), 6)
    assert rows_sent[1][T0].adding_replicas == rows_sent[3][T0].adding_replicas == (3,)


def test_no_replica_joins_the_isr_before_the_first_leader_epoch_of_its_reassignment(
    world: World, candidate: Candidate
) -> None:
    """The leader may have seen an earlier replica, which was deleted since."""
    elect_and_deny_the_state(world, candidate)
    assert 3 not in leader_and_isr_rows(candidate.handle(move(T0, 1, 2, 3)))
    world.zookeeper.allow(STATE)
    candidate.handle(proposal(candidate, 1, 2, 3))
    assert world.leads(T0) == (1, (1, 2), 5)
    rows_sent = leader_and_isr_rows(candidate.handle(ReadAgain(1)))
    assert rows_sent[3][T0].is_new
    candidate.handle(proposal(candidate, 1, 2, 3))
    assert world.leads(T0)[:2] == (1, (1, 2, 3))


def test_a_replica_whose_reassignment_could_not_start_gets_no_other_changes(
    world: World, candidate: Candidate
) -> None:
    """It would stay on its broker when the reassignment is superseded."""
    elect_and_deny_the_state(world, candidate)
    candidate.handle(move(T0, 1, 2, 3))
    world.zookeeper.allow(STATE)
    world.unregister(2)
    rows_sent = leader_and_isr_rows(candidate.catch_up())
    assert world.leads(T0) == (1, (1,), 6)
    assert rows_sent.keys() == {1}
    rows_sent = leader_and_isr_rows(candidate.handle(ReadAgain(1)))
    assert rows_sent[3][T0].is_new


def test_a_replica_that_a_superseded_reassignment_deleted_is_created_again(world: World) -> None:
    """Of the two replicas to be removed, an ACL kept the other one in the ISR."""
    world.register(4)
    candidate = Candidate(world, 3)
    world.put_topic("t", {0: ReplicaAssignment((2, 1, 4), (2,), (1, 4))}, topic_id(7))
    world.put_state(T0, 1, (2, 4), leader_epoch=5)

    def deny_when_another_leads(call: Call) -> None:
        if world.leads(T0)[0] == 2:
            world.zookeeper.deny_writing(STATE)

    candidate.session.hook = deny_when_another_leads
    assert dict(deleted_in(candidate.start())).keys() == {1}
    candidate.session.hook = None
    world.zookeeper.allow(STATE)
    rows_sent = leader_and_isr_rows(candidate.handle(move(T0, 1, 4)))
    assert rows_sent[1][T0].is_new
    candidate.handle(proposal(candidate, 4, 1))
    assert world.leads(T0)[:2] == (4, (4, 1))
    assert not candidate.controller.context.partitions_being_reassigned


def keep_an_unneeded_replica_in_the_isr(world: World, candidate: Candidate) -> None:
    """Supersede a reassignment that added replica 3, while it cannot leave the ISR."""
    world.put_topic("t", {0: ReplicaAssignment((1, 2, 3), (3,), (2,))}, topic_id(7))
    world.put_state(T0, 1, (1, 3), leader_epoch=5)
    world.zookeeper.deny_writing(STATE)
    candidate.start()
    candidate.handle(move(T0, 1, 2))


def test_an_unneeded_replica_is_stopped_when_it_can_leave_the_isr(
    world: World, candidate: Candidate
) -> None:
    keep_an_unneeded_replica_in_the_isr(world, candidate)
    assert world.leads(T0) == (1, (1, 3), 5)
    world.zookeeper.allow(STATE)
    effects = candidate.handle(ReadAgain(1))
    assert world.leads(T0)[:2] == (1, (1,))
    assert 3 in stopped(effects)


def test_a_replica_whose_deletion_has_begun_gets_no_request_when_an_unneeded_replica_leaves(
    world: World, candidate: Candidate
) -> None:
    """Its broker would handle that after the deletion, and create the replica again."""
    keep_an_unneeded_replica_in_the_isr(world, candidate)
    world.zookeeper.put(DeleteTopicsTopicZNode.path("t"))
    assert dict(deleted_in(candidate.catch_up())).keys() == {1, 2}
    world.zookeeper.allow(STATE)
    effects = candidate.handle(ReadAgain(1))
    assert world.leads(T0)[1] == (1,)
    assert leader_and_isr_rows(effects).keys() <= {3}


def test_an_unneeded_replica_in_the_isr_is_not_stopped_when_another_reassignment_starts(
    world: World, candidate: Candidate
) -> None:
    moving = ReplicaAssignment((1, 2, 3), (3,), (2,))
    world.put_topic("t", {0: moving, 1: (1, 2)}, topic_id(7))
    world.put_state(T0, 1, (1, 3), leader_epoch=5)
    world.put_state(T1, 1, (1, 2), leader_epoch=5)
    world.zookeeper.deny_writing(STATE)
    candidate.start()
    candidate.handle(move(T0, 1, 2))
    world.zookeeper.put(ReassignPartitionsZNode.PATH, ReassignPartitionsZNode.encode({T1: (1,)}))
    assert 3 not in stopped(candidate.handle(LookAgain()))
    assert world.leads(T1)[:2] == (1, (1,))


def test_an_unneeded_replica_is_deleted_in_a_later_leader_epoch_than_it_copied_in(
    world: World, candidate: Candidate
) -> None:
    world.put_topic("t", {0: ReplicaAssignment((1, 2, 3), (3,))}, topic_id(7))
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    candidate.start()
    epoch = world.leads(T0)[2]
    world.zookeeper.deny_writing(STATE)
    # The leader may still propose the replica, and another reassignment may need it again.
    assert not stopped(candidate.handle(move(T0, 1, 2)))
    world.zookeeper.allow(STATE)
    assert deleted_in(candidate.handle(ReadAgain(1))) == {(3, epoch + 1)}


def test_a_replica_elected_before_its_reassignment_could_start_gets_its_leader_epoch(
    world: World,
) -> None:
    """An ACL blocked the first epoch of the move, then an unclean election chose the replica."""
    candidate = Candidate(world, 3, ControllerSettings(unclean_leader_election_enable=True))
    world.put_topic("t", {0: (1,)}, topic_id(7))
    world.put_state(T0, 1, (1,), leader_epoch=5)
    candidate.start()
    world.zookeeper.deny_writing(STATE)
    candidate.handle(move(T0, 1, 2))
    world.zookeeper.allow(STATE)
    world.unregister(1)
    candidate.catch_up()
    leader, isr, epoch = world.leads(T0)
    assert (leader, isr) == (2, (2,))
    rows_sent = leader_and_isr_rows(candidate.handle(ReadAgain(1)))
    assert rows_sent[2][T0].leader_epoch == world.leads(T0)[2] == epoch + 1


def test_an_unneeded_replica_is_stopped_although_reassignments_are_quarantined(
    world: World, candidate: Candidate
) -> None:
    """The start of a term and a reassignment continue with the same code; both must remember it."""
    moves = ZkPartitionReassignment.__name__
    record = ControllerFailure(moves, moves, "planted", FAILURES_TO_QUARANTINE, 9, 1)
    world.zookeeper.put(ControllerFailuresZNode.PATH, ControllerFailuresZNode.encode([record]))
    world.put_topic("t", {0: ReplicaAssignment((1, 2, 3), (3,))}, topic_id(7))
    world.put_state(T0, 1, (1, 2), leader_epoch=5)
    candidate.start()
    world.zookeeper.deny_writing(STATE)
    candidate.handle(move(T0, 1, 2))
    delete(world.sessions[1], ControllerFailuresZNode.PATH)
    assert not stopped(candidate.catch_up())
    world.zookeeper.allow(STATE)
    assert 3 in stopped(candidate.handle(ReadAgain(1)))


def test_a_reassignment_whose_replicas_came_in_sync_unseen_completes_when_possible(
    world: World, candidate: Candidate
) -> None:
    """The leader's proposal is written without a read, but whether it completes is read."""
    world.put_topic("t", {0: ReplicaAssignment((2, 1), (2,), (1,))})
    world.put_state(T0, 1, (1,), leader_epoch=5)
    candidate.start()
    world.zookeeper.deny(STATE)
    effects = candidate.handle(proposal(candidate, 1, 2))
    assert world.leads(T0)[:2] == (1, (1, 2))
    assert ScheduleEvent(10_000, ReadAgain(1)) in effects
    world.zookeeper.allow(STATE)
    candidate.handle(ReadAgain(1))
    assert world.leads(T0)[:2] == (2, (2,))
    assert world.topic("t").partitions == {0: ReplicaAssignment((2,))}
