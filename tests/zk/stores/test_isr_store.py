"""ISRs that leaders write themselves: conditions, lost answers, notifications."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import (
    UNKNOWN_BROKER_EPOCH,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.stores.isr_store import MAX_PARTITIONS, ZkIsrStore
from regent.zk.znodes import (
    BrokerIdZNode,
    IsrChangeNotificationSequenceZNode,
    IsrChangeNotificationZNode,
    TopicPartitionStateZNode,
)
from tests.support.fake_zookeeper import (
    FakeZooKeeper,
    FakeZooKeeperServer,
    Moment,
    lose_connection,
    once,
)

P0, P1 = TopicPartition("payments", 0), TopicPartition("payments", 1)
LEADER, CONTROLLER_EPOCH = 1, 7
EPOCHS = {P0: CONTROLLER_EPOCH, P1: CONTROLLER_EPOCH}
STORED = LeaderAndIsr(LEADER, (1, 2, 3), 5)


@pytest.fixture
def server() -> FakeZooKeeperServer:
    server = FakeZooKeeperServer()
    put(server, P0, STORED)
    put(server, P1, STORED)
    server.put(IsrChangeNotificationZNode.PATH)
    server.transactions.clear()
    return server


def put(
    server: FakeZooKeeperServer,
    partition: TopicPartition,
    leadership: LeaderAndIsr,
    controller_epoch: int = CONTROLLER_EPOCH,
) -> None:
    """Write a state, without conditions."""
    state = LeaderIsrAndControllerEpoch(leadership, controller_epoch)
    server.put(TopicPartitionStateZNode.path(partition), TopicPartitionStateZNode.encode(state))


def stored(server: FakeZooKeeperServer, partition: TopicPartition) -> LeaderIsrAndControllerEpoch:
    node = server.snapshot()[TopicPartitionStateZNode.path(partition)]
    return TopicPartitionStateZNode.decode(node.data, node.stat.version)


def proposal(
    partition: TopicPartition, isr: tuple[int, ...] = (1, 2), partition_epoch: int = 0
) -> AlterPartitionRow:
    return AlterPartitionRow(*partition, None, 5, isr, (-1,) * len(isr), 0, partition_epoch)


def alter(zookeeper: FakeZooKeeper, *rows: AlterPartitionRow) -> tuple[AlteredPartition, ...]:
    request = AlterPartitionRequest(LEADER, 100, rows)
    response = ZkIsrStore(zookeeper).alter_partitions(request, EPOCHS)
    assert response.error_code is Errors.NONE
    return response.partitions


def test_accepted_isrs_are_stored_with_the_controller_epoch(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    answers = alter(zookeeper, proposal(P0), proposal(P1, (1,)))
    assert answers == (
        AlteredPartition(*P0, Errors.NONE, LEADER, 5, (1, 2), 0, 1),
        AlteredPartition(*P1, Errors.NONE, LEADER, 5, (1,), 0, 1),
    )
    for partition, isr in ((P0, (1, 2)), (P1, (1,))):
        assert stored(server, partition) == LeaderIsrAndControllerEpoch(
            LeaderAndIsr(LEADER, isr, 5, 1), CONTROLLER_EPOCH
        )
    assert len(server.transactions) == 1


def test_a_recovered_leader_clears_the_recovery_state(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    recovering = LeaderAndIsr(LEADER, (1,), 5, 0, LeaderRecoveryState.RECOVERING)
    put(server, P0, recovering)
    (answer,) = alter(zookeeper, proposal(P0, (1,), partition_epoch=1))
    assert answer.leader_recovery_state == LeaderRecoveryState.RECOVERED
    state = stored(server, P0).leader_and_isr
    assert state.leader_recovery_state is LeaderRecoveryState.RECOVERED


def test_an_old_proposal_changes_nothing_and_returns_the_stored_state(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    put(server, P0, STORED._replace(isr=(1, 3)))
    refused, accepted = alter(zookeeper, proposal(P0), proposal(P1))
    assert refused == AlteredPartition(*P0, Errors.INVALID_UPDATE_VERSION, LEADER, 5, (1, 3), 0, 1)
    assert accepted.error_code is Errors.NONE
    assert stored(server, P0).leader_and_isr.isr == (1, 3)


def test_a_deposed_leader_gets_an_error(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper):
    put(server, P0, LeaderAndIsr(2, (2, 3), 6))
    (answer,) = alter(zookeeper, proposal(P0))
    assert answer == AlteredPartition(*P0, Errors.FENCED_LEADER_EPOCH, 2, 6, (2, 3), 0, 1)


def test_a_proposal_that_was_stored_before_is_accepted_again(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    first = alter(zookeeper, proposal(P0))
    assert alter(zookeeper, proposal(P0)) == first
    assert stored(server, P0).leader_and_isr.partition_epoch == 1


def test_the_same_isr_with_another_controller_epoch_is_not_our_write(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    put(server, P0, STORED._replace(isr=(1, 2)), controller_epoch=8)
    (answer,) = alter(zookeeper, proposal(P0))
    assert answer.error_code is Errors.INVALID_UPDATE_VERSION


@pytest.mark.parametrize("moment", [Moment.BEFORE, Moment.AFTER])
def test_a_lost_request_or_answer_is_retried(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper, moment: Moment
):
    zookeeper.hook = once(moment, lose_connection)
    answers = alter(zookeeper, proposal(P0), proposal(P1))
    assert [answer.error_code for answer in answers] == [Errors.NONE, Errors.NONE]
    assert stored(server, P0).leader_and_isr.partition_epoch == 1


def test_a_deleted_partition_is_unknown(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper):
    gone = TopicPartition("gone", 0)
    request = AlterPartitionRequest(LEADER, 100, (proposal(gone),))
    answer = ZkIsrStore(zookeeper).alter_partitions(request, {gone: 1})
    unknown = AlteredPartition(*gone, Errors.UNKNOWN_TOPIC_OR_PARTITION)
    assert answer == AlterPartitionResponse(Errors.NONE, (unknown,))


def test_a_partition_that_this_broker_stopped_is_not_written(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    request = AlterPartitionRequest(LEADER, 100, (proposal(P0),))
    (answer,) = ZkIsrStore(zookeeper).alter_partitions(request, {}).partitions
    assert answer.error_code is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert server.transactions == []


def register(server: FakeZooKeeperServer, broker_id: int) -> int:
    """Register a broker, again if it was registered before; return its broker epoch."""
    path = BrokerIdZNode.path(broker_id)
    server.remove(path)
    server.put(path, b"{}")
    return server.snapshot()[path].stat.czxid


def with_broker_epochs(
    partition: TopicPartition, broker_epochs: dict[int, int]
) -> AlterPartitionRow:
    """Propose these members with their broker epochs, beside the leader."""
    isr, epochs = (LEADER, *broker_epochs), (UNKNOWN_BROKER_EPOCH, *broker_epochs.values())
    return AlterPartitionRow(*partition, None, 5, isr, epochs, 0, 0)


def test_a_member_that_restarted_since_its_fetch_does_not_join(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    """It may have lost the fetched records."""
    former, other = register(server, 2), register(server, 3)
    present = register(server, 2)
    assert former != present
    refused, accepted = alter(
        zookeeper,
        with_broker_epochs(P0, {2: former, 3: other}),
        with_broker_epochs(P1, {2: present, 3: other}),
    )
    assert refused == AlteredPartition(*P0, Errors.INELIGIBLE_REPLICA)
    assert stored(server, P0).leader_and_isr.partition_epoch == 0
    assert (accepted.error_code, accepted.isr) == (Errors.NONE, (LEADER, 2, 3))


def test_a_proposal_that_was_stored_before_a_member_restarted_is_accepted_again(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    """The first answer was lost with its session: ZooKeeper's ISR has the member."""
    server.put(BrokerIdZNode.path(2))
    former = server.snapshot()[BrokerIdZNode.path(2)].stat.czxid
    rows = [proposal(p)._replace(isr_broker_epochs=(-1, former)) for p in (P0, P1)]
    (first,) = alter(zookeeper, rows[0])
    assert first.error_code is Errors.NONE
    server.remove(BrokerIdZNode.path(2))
    server.put(BrokerIdZNode.path(2))
    again, other = alter(FakeZooKeeper(server), *rows)
    assert again == first
    assert other.error_code is Errors.INELIGIBLE_REPLICA


def test_a_proposal_with_a_restarted_member_learns_of_a_later_state(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    row = proposal(P0)._replace(isr_broker_epochs=(-1, 77))
    put(server, P0, STORED._replace(isr=(1, 3)))
    (answer,) = alter(zookeeper, row)
    assert answer == AlteredPartition(*P0, Errors.INVALID_UPDATE_VERSION, LEADER, 5, (1, 3), 0, 1)
    put(server, P0, LeaderAndIsr(3, (1, 3), 6))
    (answer,) = alter(zookeeper, row)
    assert answer.error_code is Errors.FENCED_LEADER_EPOCH


def test_a_member_that_is_not_registered_does_not_join(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    former = register(server, 2)
    server.remove(BrokerIdZNode.path(2))
    (answer,) = alter(zookeeper, with_broker_epochs(P0, {2: former}))
    assert answer.error_code is Errors.INELIGIBLE_REPLICA


def test_broker_epochs_are_read_after_a_sync():
    server = FakeZooKeeperServer()
    put(server, P0, STORED)
    former = register(server, 2)
    behind = server.add_follower(lag=100)
    server.connect_to = lambda: behind
    zookeeper = FakeZooKeeper(server)
    register(server, 2)
    (answer,) = alter(zookeeper, with_broker_epochs(P0, {2: former}))
    assert answer.error_code is Errors.INELIGIBLE_REPLICA


def test_a_member_with_an_unreadable_registration_joins_with_the_leaders_epoch(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    seen = register(server, 2)
    server.deny(BrokerIdZNode.path(2))
    (answer,) = alter(zookeeper, with_broker_epochs(P0, {2: seen}))
    assert answer.error_code is Errors.NONE


def test_a_damaged_state_is_not_overwritten(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper):
    server.put(TopicPartitionStateZNode.path(P0), b"garbage")
    (answer,) = alter(zookeeper, proposal(P0))
    assert answer.error_code is Errors.UNKNOWN_SERVER_ERROR


def test_after_the_session_no_isr_is_written(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper):
    server.expire(zookeeper.session_id)
    with pytest.raises(SessionExpiredError):
        alter(zookeeper, proposal(P0))


def announced(server: FakeZooKeeperServer) -> list[tuple[TopicPartition, ...]]:
    prefix = IsrChangeNotificationSequenceZNode.PATH_PREFIX
    nodes = sorted((p, n) for p, n in server.snapshot().items() if p.startswith(prefix))
    return [IsrChangeNotificationSequenceZNode.decode(node.data) for _, node in nodes]


def test_changes_are_notified_by_one_node(server: FakeZooKeeperServer, zookeeper: FakeZooKeeper):
    ZkIsrStore(zookeeper).announce([P0, P1])
    assert announced(server) == [(P0, P1)]


def test_more_changes_than_a_znode_holds_take_several(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    changed = [TopicPartition("t" * 249, n) for n in range(2 * MAX_PARTITIONS + 1)]
    ZkIsrStore(zookeeper).announce(changed)
    assert [len(each) for each in announced(server)] == [MAX_PARTITIONS, MAX_PARTITIONS, 1]
    assert sum(announced(server), ()) == tuple(changed)


def test_a_notification_without_the_parent_is_an_error(zookeeper: FakeZooKeeper):
    with pytest.raises(RequestRefusedError, match="isr_change_"):
        ZkIsrStore(FakeZooKeeper(FakeZooKeeperServer())).announce([P0])


def test_an_unwritable_state_is_retried_later(
    server: FakeZooKeeperServer, zookeeper: FakeZooKeeper
):
    server.deny_writing(TopicPartitionStateZNode.path(P0))
    answers = alter(zookeeper, proposal(P0), proposal(P1))
    assert [a.error_code for a in answers] == [Errors.UNKNOWN_SERVER_ERROR, Errors.NONE]
