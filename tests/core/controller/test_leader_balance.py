"""Elections people ask for, by a request or through ZooKeeper."""

from __future__ import annotations

import pytest

from regent.core.controller.effects import Reply
from regent.core.controller.events import (
    ReplicaLeaderElection,
)
from regent.core.controller.states import PartitionState
from regent.core.errors import ControllerMovedError, Errors
from regent.core.model import LeaderRecoveryState, TopicPartition
from regent.core.protocol.controller import (
    ElectedPartition,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from regent.zk.client.operations import ConnectionLossError
from regent.zk.codecs.admin_znodes import PreferredReplicaElectionZNode
from tests.support.fake_zookeeper import Call, Moment
from tests.support.term import (
    T0,
    T1,
    Candidate,
    Office,
    Tree,
    leader_and_isr_rows,
    of_type,
)

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN
ZNODE = PreferredReplicaElectionZNode.PATH
U0 = TopicPartition("u", 0)


@pytest.fixture
def office() -> Office:
    return Office(brokers=(1, 2, 3))


def elect(
    office: Office, *partitions: TopicPartition, by: ElectionType = PREFERRED
) -> dict[TopicPartition, tuple[Errors, int]]:
    """Ask for elections; return error and leader of each."""
    response = office.balance.elect(ElectLeadersRequest(by, partitions))
    assert response.error_code is Errors.NONE
    return {
        TopicPartition(a.topic, a.partition): (a.error_code, a.leader) for a in response.partitions
    }


def ask_through_zookeeper(tree: Tree, *partitions: TopicPartition) -> None:
    tree.server.put(ZNODE, PreferredReplicaElectionZNode.encode(partitions))


def move(tree: Tree, active: Candidate, partition: TopicPartition, leader: int) -> None:
    """Let somebody else lead, and the controller know."""
    tree.put_state(partition, leader, (1, 2), leader_epoch=tree.leads(partition)[2] + 1)
    stored = tree.state(partition)
    assert stored is not None
    active.controller.context.put_partition_leadership_info(partition, stored)


# --- preferred, asked for by name -----------------------------------------------------------------


def test_leadership_goes_back_to_the_first_assigned_replica(office: Office) -> None:
    office.lead(T0, (1, 2, 3), leader=2, isr=(2, 1))
    assert elect(office, T0) == {T0: (Errors.NONE, 1)}
    assert office.leads(T0) == (1, (2, 1), 1)
    assert sorted(leader_and_isr_rows(office.effects())) == [1, 2, 3]


def test_each_partition_has_an_answer_of_its_own_in_the_order_asked(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(1, 2))
    office.lead(T1, (1, 2), leader=1, isr=(1, 2))
    office.lead(U0, (3, 1), leader=1, isr=(1,))
    unknown = TopicPartition("t", 9)
    asked = ElectLeadersRequest(PREFERRED, (unknown, U0, T1, T0, T0))
    assert office.balance.elect(asked).partitions == (
        ElectedPartition(
            "t", 9, Errors.UNKNOWN_TOPIC_OR_PARTITION, "t-9: there is no such partition"
        ),
        ElectedPartition(
            "u",
            0,
            Errors.PREFERRED_LEADER_NOT_AVAILABLE,
            "u-0: the first of its replicas [3, 1] is not online, or not in isr [1]",
        ),
        ElectedPartition("t", 1, Errors.ELECTION_NOT_NEEDED, "t-1: broker 1 leads already"),
        ElectedPartition("t", 0, Errors.NONE, leader=1),
    )
    assert office.leads(U0) == (1, (1,), 0)
    assert office.leads(T1) == (1, (1, 2), 0)


def test_el_16_a_preferred_replica_that_is_down_is_not_elected(office: Office) -> None:
    office.lead(T0, (1, 2, 3), leader=2, isr=(1, 2, 3))
    office.context.remove_live_broker(1)
    assert elect(office, T0) == {T0: (Errors.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert office.leads(T0) == (2, (1, 2, 3), 0)


def test_what_is_being_deleted_gets_no_leader(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(1, 2))
    office.context.queue_topic_deletion(["t"])
    assert elect(office, T0) == {T0: (Errors.INVALID_TOPIC_EXCEPTION, -1)}
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.INVALID_TOPIC_EXCEPTION, -1)}
    assert office.leads(T0) == (2, (1, 2), 0)


@pytest.mark.parametrize("by", ElectionType)
def test_a_new_partition_gets_its_first_leader(office: Office, by: ElectionType) -> None:
    office.assign(T0, (2, 9, 3))
    assert elect(office, T0, by=by) == {T0: (Errors.NONE, 2)}
    assert office.leads(T0) == (2, (2, 3), 0)
    assert leader_and_isr_rows(office.effects())[2][T0].is_new


def test_a_first_leader_other_than_the_preferred_replica_is_no_preferred_election(
    office: Office,
) -> None:
    office.assign(T0, (9, 2, 3))
    assert elect(office, T0) == {T0: (Errors.PREFERRED_LEADER_NOT_AVAILABLE, -1)}
    assert office.leads(T0) == (2, (2, 3), 0)


def test_a_partition_without_a_leader_gets_its_preferred_one(office: Office) -> None:
    office.lead(T0, (1, 2), leader=-1, isr=(1,), state=PartitionState.OFFLINE)
    assert elect(office, T0) == {T0: (Errors.NONE, 1)}
    assert office.context.partition_state(T0) is PartitionState.ONLINE


def test_el_02_el_04_who_asks_for_all_hears_only_of_what_was_not_in_order(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(1, 2))
    office.lead(T1, (1, 2), leader=1, isr=(1, 2))
    office.lead(U0, (3, 1), leader=1, isr=(1,))
    everything = ElectLeadersRequest(PREFERRED, None)
    first, again = office.balance.elect(everything), office.balance.elect(everything)
    assert [(a.topic, a.error_code) for a in first.partitions] == [
        ("t", Errors.NONE),
        ("u", Errors.PREFERRED_LEADER_NOT_AVAILABLE),
    ]
    assert [a.topic for a in again.partitions] == ["u"]


def test_many_elections_are_one_read_and_one_write(office: Office) -> None:
    partitions = [TopicPartition("t", n) for n in range(300)]
    for partition in partitions:
        office.lead(partition, (1, 2), leader=2, isr=(1, 2))
    calls: list[str] = []
    office.zookeeper.hook = lambda c: calls.append(c.method) if c.moment is Moment.BEFORE else None
    answers = elect(office, *partitions)
    assert set(answers.values()) == {(Errors.NONE, 1)}
    assert calls == ["get_many", "multi_many"]


# --- unclean --------------------------------------------------------------------------------------


def test_el_09_an_unclean_election_takes_who_is_alive_whatever_the_topic_says(
    office: Office,
) -> None:
    office.lead(T0, (9, 2), leader=-1, isr=(9,), state=PartitionState.OFFLINE)
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.NONE, 2)}
    assert office.leads(T0) == (2, (2,), 1)
    stored = office.state(T0)
    assert stored is not None
    assert stored.leader_and_isr.leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_an_unclean_election_is_clean_where_it_can_be(office: Office) -> None:
    office.lead(T0, (3, 2), leader=-1, isr=(2,), state=PartitionState.OFFLINE)
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.NONE, 2)}
    assert office.context.stats.unclean_leader_elections == 0


def test_el_13_nobody_alive_is_nobody_eligible(office: Office) -> None:
    office.lead(T0, (8, 9), leader=-1, isr=(9,), state=PartitionState.OFFLINE)
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, -1)}


def test_el_14_a_leader_that_lives_stays(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(2,))
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.ELECTION_NOT_NEEDED, -1)}
    office.context.shutting_down_broker_ids.add(2)
    assert elect(office, T0, by=UNCLEAN) == {T0: (Errors.NONE, 1)}


def test_el_12_what_is_unknown_is_said_to_be(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(2,))
    answers = elect(office, T1, U0, by=UNCLEAN)
    unknown = (Errors.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert answers == {T1: unknown, U0: unknown}
    assert office.context.all_topics == {"t"}, "asking does not make it known"


# --- asked for through ZooKeeper ------------------------------------------------------------------


def test_the_node_is_obeyed_once_and_deleted(office: Office) -> None:
    office.lead(T0, (1, 2), leader=2, isr=(1, 2))
    office.lead(T1, (3, 2), leader=2, isr=(2,))
    ask_through_zookeeper(office, T0, T1, TopicPartition("nothing", 0))
    office.balance.on_preferred_replica_election()
    assert office.leads(T0) == (1, (1, 2), 1)
    assert office.leads(T1) == (2, (2,), 0)
    assert ZNODE not in office.server.snapshot()


def test_failures_are_one_line(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    ask_through_zookeeper(office, T0, T1)
    office.balance.on_preferred_replica_election()
    (line,) = caplog.messages
    assert "2 of 2 preferred elections" in line
    assert "t-0: there is no such partition" in line


def test_garbage_is_named_and_deleted(office: Office, caplog: pytest.LogCaptureFixture) -> None:
    office.server.put(ZNODE, b"{")
    office.balance.on_preferred_replica_election()
    (line,) = caplog.messages
    assert ZNODE in line
    assert ZNODE not in office.server.snapshot()


def test_without_the_node_nothing_is_written(office: Office) -> None:
    before = len(office.server.transactions)
    office.balance.on_preferred_replica_election()
    assert len(office.server.transactions) == before
    ask_through_zookeeper(office, T0)
    assert office.watches[-1].path == ZNODE, "it is watched all the same"


@pytest.mark.parametrize(
    ("method", "moment"),
    [("multi_many", Moment.AFTER), ("get", Moment.BEFORE), ("get", Moment.AFTER)],
)
def test_a_node_written_right_after_the_deletion_is_not_missed(
    tree: Tree, active: Candidate, method: str, moment: Moment
) -> None:
    def hook(call: Call) -> None:
        is_now = (call.method, call.moment) == (method, moment) and ZNODE in call.paths
        if is_now and asked and ZNODE not in tree.server.snapshot():
            ask_through_zookeeper(tree, asked.pop())

    move(tree, active, T0, leader=2)
    move(tree, active, T1, leader=1)
    asked = [T1, T0]
    active.session.hook = hook
    ask_through_zookeeper(tree, asked.pop())
    active.catch_up()
    assert (tree.leads(T0)[0], tree.leads(T1)[0]) == (1, 2)
    assert ZNODE not in tree.server.snapshot()
    active.session.hook = None
    move(tree, active, T0, leader=2)
    ask_through_zookeeper(tree, T0)
    active.catch_up()
    assert tree.leads(T0)[0] == 1, "and it is still watched"


def test_a_lost_answer_to_the_deletion_changes_nothing(tree: Tree, active: Candidate) -> None:
    def hook(call: Call) -> None:
        if call.moment is Moment.AFTER and ZNODE in call.paths and call.method == "multi_many":
            active.session.hook = None
            raise ConnectionLossError("lost")

    move(tree, active, T0, leader=2)
    active.session.hook = hook
    ask_through_zookeeper(tree, T0)
    active.catch_up()
    assert tree.leads(T0)[0] == 1
    assert ZNODE not in tree.server.snapshot()


def test_who_was_deposed_leaves_the_node_to_the_next(office: Office) -> None:
    ask_through_zookeeper(office, T0)
    office.elect_another_controller()
    with pytest.raises(ControllerMovedError):
        office.balance.on_preferred_replica_election()
    assert ZNODE in office.server.snapshot()


def test_ci_25_a_deposed_controller_resigns(tree: Tree, active: Candidate) -> None:
    tree.elect_another_controller()
    ask_through_zookeeper(tree, T0)
    active.catch_up()
    assert not active.controller.is_active


def test_a_new_controller_does_what_its_predecessor_left(tree: Tree) -> None:
    tree.put_state(T0, 2, (1, 2), leader_epoch=5, controller_epoch=0)
    ask_through_zookeeper(tree, T0, T1)
    Candidate(tree, 0).start()
    assert tree.leads(T0) == (1, (1, 2), 6)
    assert tree.leads(T1) == (2, (2, 1), 0), "just created, its preferred replica leads"
    assert ZNODE not in tree.server.snapshot()


def test_a_request_is_answered_once(tree: Tree, active: Candidate) -> None:
    move(tree, active, T0, leader=2)
    asked = ReplicaLeaderElection(7, ElectLeadersRequest(PREFERRED, (T0,)))
    elected = ElectedPartition("t", 0, Errors.NONE, leader=1)
    answers = of_type(active.handle(asked), Reply)
    assert answers == [Reply(7, ElectLeadersResponse(Errors.NONE, (elected,)))]
    move(tree, active, T0, leader=2)
    tree.elect_another_controller()
    answers = of_type(active.handle(asked), Reply)
    assert answers == [Reply(7, ElectLeadersResponse(Errors.NOT_CONTROLLER))]
