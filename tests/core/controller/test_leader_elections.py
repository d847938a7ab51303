"""Elections by request or through the preferred election znode."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import RecordChanges, SendResponse
from regent.core.controller.events import ElectionTrigger, ReplicaLeaderElection
from regent.core.controller.states import PartitionState
from regent.core.errors import ApiError, ControllerMovedError, Errors
from regent.core.model import NO_LEADER, LeaderRecoveryState, TopicPartition
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.zk.znodes import PreferredReplicaElectionZNode
from tests.support.controller_parts import Candidate, ControllerParts, leader_and_isr_rows, of_type
from tests.support.fake_zookeeper import Call, Moment, act_once, lose_connection
from tests.support.world import T0, T1, World

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN
ZNODE = PreferredReplicaElectionZNode.PATH
U0 = TopicPartition("u", 0)


@pytest.fixture
def parts() -> ControllerParts:
    return ControllerParts(brokers=(1, 2, 3))


def elect(
    parts: ControllerParts, *partitions: TopicPartition, by: ElectionType = PREFERRED
) -> dict[TopicPartition, tuple[Errors, int]]:
    """Request elections; return error and leader of each partition."""
    response = parts.elections.elect(ElectLeadersRequest.of(by, partitions))
    assert response.error_code == Errors.NONE
    leaders = response.leaders
    return {p: (r.error_code, leaders.get(p, NO_LEADER)) for p, r in response.results.items()}


def write_znode(world: World, *partitions: TopicPartition) -> None:
    world.zookeeper.put(ZNODE, PreferredReplicaElectionZNode.encode(partitions))


def move(world: World, active: Candidate, partition: TopicPartition, leader: int) -> None:
    """Change the leader in ZooKeeper and in the controller's memory."""
    world.put_state(partition, leader, (1, 2), leader_epoch=world.leads(partition)[2] + 1)
    stored = world.state(partition)
    assert stored is not None
    active.controller.context.put_partition_leadership_info(partition, stored)


# --- preferred elections by request ---------------------------------------------------------------


def test_a_preferred_election_elects_the_first_assigned_replica(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2, 3), leader=2, isr=(2, 1))
    assert elect(parts, T0) == {T0: (Errors.NONE, 1)}
    assert parts.leads(T0) == (1, (2, 1), 1)
    assert sorted(leader_and_isr_rows(parts.effects())) == [1, 2, 3]


def test_each_partition_has_its_own_result_in_the_sequence_of_its_topic(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    parts.lead(T1, (1, 2), leader=1, isr=(1, 2))
    parts.lead(U0, (3, 1), leader=1, isr=(1,))
    unknown = TopicPartition("t", 9)
    asked = ElectLeadersRequest.of(PREFERRED, (unknown, U0, T1, T0, T0))
    elected = parts.elections.elect(asked)
    assert list(elected.results.items()) == [
        (unknown, (Errors.UNKNOWN_TOPIC_OR_PARTITION, "t-9: there is no such partition")),
        (T1, (Errors.ELECTION_NOT_NEEDED, "t-1: broker 1 leads already")),
        (T0, NO_ERROR),
        (
            U0,
            (
                Errors.PREFERRED_LEADER_NOT_AVAILABLE,
                "u-0: the first of its replicas [3, 1] is not online, or not in isr [1]",
            ),
        ),
    ]
    assert elected.leaders == {T0: 1}
    assert parts.leads(U0) == (1, (1,), 0)
    assert parts.leads(T1) == (1, (1, 2), 0)


def test_el_16_an_offline_preferred_replica_is_not_elected(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2, 3), leader=2, isr=(1, 2, 3))
    parts.context.remove_live_broker(1)
    assert elect(parts, T0) == {T0: (Errors.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert parts.leads(T0) == (2, (1, 2, 3), 0)


def test_a_topic_queued_for_deletion_gets_no_leader(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    parts.context.queue_topic_deletion(["t"])
    assert elect(parts, T0) == {T0: (Errors.INVALID_TOPIC_EXCEPTION, -1)}
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.INVALID_TOPIC_EXCEPTION, -1)}
    assert parts.leads(T0) == (2, (1, 2), 0)


@pytest.mark.parametrize("by", ElectionType)
def test_a_new_partition_gets_its_first_leader(parts: ControllerParts, by: ElectionType) -> None:
    parts.assign(T0, (2, 9, 3))
    assert elect(parts, T0, by=by) == {T0: (Errors.NONE, 2)}
    assert parts.leads(T0) == (2, (2, 3), 0)
    assert leader_and_isr_rows(parts.effects())[2][T0].is_new


def test_a_first_leader_that_is_not_the_preferred_replica_is_reported_as_an_error(
    parts: ControllerParts,
) -> None:
    parts.assign(T0, (9, 2, 3))
    assert elect(parts, T0) == {T0: (Errors.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert parts.leads(T0) == (2, (2, 3), 0)


def test_a_partition_without_a_leader_gets_its_preferred_leader(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=-1, isr=(1,), state=PartitionState.OFFLINE)
    assert elect(parts, T0) == {T0: (Errors.NONE, 1)}
    assert parts.context.partition_state(T0) is PartitionState.ONLINE


def test_el_02_el_04_a_request_for_all_partitions_returns_only_imbalanced_ones(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    parts.lead(T1, (1, 2), leader=1, isr=(1, 2))
    parts.lead(U0, (3, 1), leader=1, isr=(1,))
    all_partitions = ElectLeadersRequest.of(PREFERRED, None)
    first, again = parts.elections.elect(all_partitions), parts.elections.elect(all_partitions)
    assert {p: result.error_code for p, result in first.results.items()} == {
        T0: Errors.NONE,
        U0: Errors.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert list(again.results) == [U0]


def test_a_type_of_elections_that_does_not_exist_is_refused(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    refused = parts.elections.elect(ElectLeadersRequest.of(2, [T0]))
    assert refused == ElectLeadersResponse.of({}, ApiError(Errors.INVALID_REQUEST))
    assert parts.leads(T0)[0] == 2


def test_many_elections_are_one_write_without_a_read(parts: ControllerParts) -> None:
    partitions = [TopicPartition("t", n) for n in range(300)]
    for partition in partitions:
        parts.lead(partition, (1, 2), leader=2, isr=(1, 2))
    calls: list[str] = []
    parts.session.hook = lambda c: calls.append(c.method) if c.moment is Moment.BEFORE else None
    answers = elect(parts, *partitions)
    assert set(answers.values()) == {(Errors.NONE, 1)}
    assert calls == ["multi_many"]


# --- unclean elections by request -----------------------------------------------------------------


def test_el_09_a_requested_unclean_election_ignores_the_setting_of_the_topic(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (9, 2), leader=-1, isr=(9,), state=PartitionState.OFFLINE)
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.NONE, 2)}
    assert parts.leads(T0) == (2, (2,), 1)
    stored = parts.state(T0)
    assert stored is not None
    assert stored.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_an_unclean_election_is_clean_when_possible(parts: ControllerParts) -> None:
    parts.lead(T0, (3, 2), leader=-1, isr=(2,), state=PartitionState.OFFLINE)
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.NONE, 2)}
    assert parts.context.stats.unclean_leader_elections == 0


def test_el_13_an_election_without_live_replicas_fails(parts: ControllerParts) -> None:
    parts.lead(T0, (8, 9), leader=-1, isr=(9,), state=PartitionState.OFFLINE)
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1)}


def test_el_14_an_online_leader_keeps_leadership(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(2,))
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.ELECTION_NOT_NEEDED, -1)}
    parts.context.shutting_down_broker_ids.add(2)
    assert elect(parts, T0, by=UNCLEAN) == {T0: (Errors.NONE, 1)}


def test_el_12_unknown_partitions_get_an_error(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(2,))
    answers = elect(parts, T1, U0, by=UNCLEAN)
    unknown = (Errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert answers == {T1: unknown, U0: unknown}
    assert parts.context.all_topics == {"t"}, "a request does not add a topic"


# --- elections through ZooKeeper ------------------------------------------------------------------


def test_the_elections_in_the_znode_are_run_and_the_znode_is_deleted(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    parts.lead(T1, (3, 2), leader=2, isr=(2,))
    write_znode(parts, T0, T1, TopicPartition("nothing", 0))
    parts.elections.on_preferred_replica_election()
    assert parts.leads(T0) == (1, (1, 2), 1)
    assert parts.leads(T1) == (2, (2,), 0)
    assert ZNODE not in parts.zookeeper.snapshot()


def test_failed_elections_are_one_log_line(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    write_znode(parts, T0, T1)
    parts.elections.on_preferred_replica_election()
    (line,) = caplog.messages
    assert "2 of 2 replica leader elections (PREFERRED) triggered by ZkTriggered failed" in line
    assert "t-0: there is no such partition" in line


def test_failures_of_a_request_are_answered_and_not_logged_again(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    elect(parts, T0, T1)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("trigger", "of"),
    [
        (ElectionTrigger.AUTO_TRIGGERED, 1),
        (ElectionTrigger.ZK_TRIGGERED, 2),
        (ElectionTrigger.ADMIN_CLIENT_TRIGGERED, 2),
    ],
)
def test_the_log_and_the_journal_name_the_cause_of_an_election(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture, trigger: ElectionTrigger, of: int
) -> None:
    caplog.set_level("INFO", logger="regent.core.controller.election.leader_elections")
    parts.lead(T0, (1, 2), leader=2, isr=(1, 2))
    match trigger:
        case ElectionTrigger.AUTO_TRIGGERED:
            parts.elections.rebalance()
        case ElectionTrigger.ZK_TRIGGERED:
            write_znode(parts, T0, T1)
            parts.elections.on_preferred_replica_election()
        case ElectionTrigger.ADMIN_CLIENT_TRIGGERED:
            elect(parts, T0, T1)
    assert parts.leads(T0)[0] == 1
    told = f"replica leader election (PREFERRED) for 1 of {of} partitions triggered by {trigger}"
    assert caplog.messages[0] == f"[Controller id=0 epoch=1] {told}"
    assert of_type(parts.effects(), RecordChanges)[0].changes[0] == told


def test_an_unreadable_znode_is_logged_and_deleted(
    parts: ControllerParts, caplog: pytest.LogCaptureFixture
) -> None:
    parts.zookeeper.put(ZNODE, b"{")
    parts.elections.on_preferred_replica_election()
    (line,) = caplog.messages
    assert ZNODE in line
    assert ZNODE not in parts.zookeeper.snapshot()


def test_without_the_znode_nothing_is_written(parts: ControllerParts) -> None:
    before = len(parts.zookeeper.transactions)
    parts.elections.on_preferred_replica_election()
    assert len(parts.zookeeper.transactions) == before
    write_znode(parts, T0)
    assert parts.watches[-1].path == ZNODE, "the znode is watched"


@pytest.mark.parametrize(
    ("method", "moment"),
    [("multi_many", Moment.AFTER), ("get", Moment.BEFORE), ("get", Moment.AFTER)],
)
def test_a_znode_created_right_after_the_deletion_is_read(
    world: World, active: Candidate, method: str, moment: Moment
) -> None:
    def hook(call: Call) -> None:
        is_now = (call.method, call.moment) == (method, moment) and ZNODE in call.paths
        if is_now and asked and ZNODE not in world.zookeeper.snapshot():
            write_znode(world, asked.pop())

    move(world, active, T0, leader=2)
    move(world, active, T1, leader=1)
    asked = [T1, T0]
    active.session.hook = hook
    write_znode(world, asked.pop())
    active.catch_up()
    assert (world.leads(T0)[0], world.leads(T1)[0]) == (1, 2)
    assert ZNODE not in world.zookeeper.snapshot()
    active.session.hook = None
    move(world, active, T0, leader=2)
    write_znode(world, T0)
    active.catch_up()
    assert world.leads(T0)[0] == 1, "the znode is still watched"


def test_a_lost_response_to_the_deletion_changes_nothing(world: World, active: Candidate) -> None:
    move(world, active, T0, leader=2)
    act_once(active.session, lose_connection, moment=Moment.AFTER, method="multi_many", path=ZNODE)
    write_znode(world, T0)
    active.catch_up()
    assert world.leads(T0)[0] == 1
    assert ZNODE not in world.zookeeper.snapshot()


def test_a_deposed_controller_does_not_delete_the_znode(parts: ControllerParts) -> None:
    write_znode(parts, T0)
    parts.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        parts.elections.on_preferred_replica_election()
    assert ZNODE in parts.zookeeper.snapshot()


def test_ci_25_a_deposed_controller_resigns(world: World, active: Candidate) -> None:
    world.elect_another_controller()
    write_znode(world, T0)
    active.catch_up()
    assert not active.controller.is_active


def test_a_new_controller_runs_the_elections_of_the_znode(world: World) -> None:
    world.put_state(T0, 2, (1, 2), leader_epoch=5, controller_epoch=0)
    write_znode(world, T0, T1)
    Candidate(world, 0).start()
    assert world.leads(T0) == (1, (1, 2), 6)
    assert world.leads(T1) == (2, (2, 1), 0), "a new partition is led by its preferred replica"
    assert ZNODE not in world.zookeeper.snapshot()


def test_a_request_gets_one_response(world: World, active: Candidate) -> None:
    move(world, active, T0, leader=2)
    asked = ReplicaLeaderElection(7, ElectLeadersRequest.of(PREFERRED, (T0,)))
    elected = ElectLeadersResponse.of({T0: NO_ERROR}, leaders={T0: 1})
    answers = of_type(active.handle(asked), SendResponse)
    assert answers == [SendResponse(7, elected)]
    move(world, active, T0, leader=2)
    world.elect_another_controller()
    answers = of_type(active.handle(asked), SendResponse)
    assert answers == [
        SendResponse(7, ElectLeadersResponse.of({}, ApiError(Errors.NOT_CONTROLLER)))
    ]
