"""Deleted topics that come back: what is remembered of them, and when they may."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from regent.core.controller.effects import SendResponse
from regent.core.controller.events import UndeleteTopic
from regent.core.controller.topics.deleted_topics import restored_states
from regent.core.errors import Errors
from regent.core.model import MAX_LEADER_EPOCH, NO_LEADER
from regent.core.ports import DeletedPartition, DeletedTopic
from regent.core.protocol.controller import HeldLogs, UndeleteTopicRequest, UndeleteTopicResponse
from regent.zk.client.operations import ConnectionLossError
from regent.zk.stores.deleted_topic_store import read_deleted_topics
from regent.zk.znodes import DeletedTopicsZNode, DeletedTopicZNode, TopicPartitionStateZNode
from tests.support.controller_parts import of_type
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Hook
from tests.support.moving_cluster import MovingCluster
from tests.support.world import T0, T1, SimulatedCrashError, topic_id

ID = topic_id(70)
BOTH = {1: (0, 1), 2: (0, 1)}
PATH = DeletedTopicZNode.path(ID)


def two_brokers() -> MovingCluster:
    """Brokers 1 and 2 with a topic on both; the controller is not started."""
    cluster = MovingCluster((1, 2))
    cluster.put("/admin/delete_topics")
    cluster.put_topic("t", {0: (1, 2), 1: (2, 1)}, ID)
    cluster.put("/config/topics/t", b'{"version":1,"config":{"retention.ms":"-1"}}')
    return cluster


@pytest.fixture
def cluster() -> MovingCluster:
    """The controller has started."""
    cluster = two_brokers()
    cluster.start_controller()
    return cluster


def delete(cluster: MovingCluster) -> None:
    cluster.zookeeper.put("/admin/delete_topics/t")
    cluster.settle()


def remembered(cluster: MovingCluster) -> DeletedTopic:
    (deleted,) = read_deleted_topics(FakeZooKeeper(cluster.zookeeper)).values()
    assert isinstance(deleted, DeletedTopic)
    return deleted


def held_now(cluster: MovingCluster, held: Mapping[int, tuple[int, ...]]) -> tuple[HeldLogs, ...]:
    """Return answers of brokers in their present broker epochs."""
    epochs = cluster.active.controller.context.live_broker_epochs
    return tuple(HeldLogs(b, epochs.get(b, -1), partitions) for b, partitions in held.items())


def undelete(
    cluster: MovingCluster,
    zxid: int,
    held: Mapping[int, tuple[int, ...]] = BOTH,
    answers: tuple[HeldLogs, ...] = (),
) -> UndeleteTopicResponse:
    request = UndeleteTopicRequest("t", ID, zxid, answers or held_now(cluster, held))
    (reply,) = of_type(cluster.handle(UndeleteTopic(7, request)), SendResponse)
    assert isinstance(reply.response, UndeleteTopicResponse)
    cluster.settle()
    return reply.response


def nodes_of_topic(cluster: MovingCluster) -> dict[str, bytes]:
    roots = ("/brokers/topics/t", "/config/topics/t")
    found = cluster.zookeeper.snapshot().items()
    return {path: node.data for path, node in found if path.startswith(roots)}


def test_a_topic_comes_back_as_it_was_with_higher_leader_epochs(cluster: MovingCluster) -> None:
    before, epochs = nodes_of_topic(cluster), {}
    for partition in (T0, T1):
        epochs[partition] = cluster.leads(partition)
    delete(cluster)
    assert nodes_of_topic(cluster) == {}

    assert undelete(cluster, remembered(cluster).zxid) == UndeleteTopicResponse(Errors.NONE)

    after = nodes_of_topic(cluster)
    assert after.keys() == before.keys()
    assert {p: d for p, d in after.items() if not p.endswith("state")} == {
        p: d for p, d in before.items() if not p.endswith("state")
    }
    for partition, (leader, isr, epoch) in epochs.items():
        now = cluster.leads(partition)
        assert now[:2] == (leader, isr)
        assert now[2] > epoch
        for broker_id in (1, 2):
            row = cluster.hosted[broker_id][partition]
            assert (row.leader_epoch, row.is_new) == (now[2], False)
    assert PATH not in cluster.zookeeper.snapshot()
    told = [n.data for p, n in cluster.zookeeper.snapshot().items() if "/config_change_" in p]
    assert told == [b'{"version":2,"entity_path":"topics/t"}'], "brokers read its settings again"


@pytest.mark.parametrize(
    ("last", "first"), [(5, 6), (MAX_LEADER_EPOCH, MAX_LEADER_EPOCH)], ids=["usual", "highest"]
)
def test_a_topic_comes_back_in_a_leader_epoch_that_no_broker_knows(last: int, first: int) -> None:
    """Its partition epochs begin again at 0; in the last leader epoch brokers know higher ones."""
    deleted = DeletedTopic("t", ID, 0, 0, {0: DeletedPartition((1, 2), (1,), last)}, {})
    states = restored_states(deleted, [HeldLogs(1, 7, (0,))], controller_epoch=3)
    assert not isinstance(states, str)
    now = states[T0].leader_and_isr
    assert (now.leader, now.isr, now.leader_epoch) == (NO_LEADER, (1,), first)


def test_only_replicas_that_are_held_are_in_sync(cluster: MovingCluster) -> None:
    delete(cluster)
    held = {2: (0, 1), 1: (1,)}
    assert not undelete(cluster, remembered(cluster).zxid, held).problem
    assert cluster.leads(T0)[:2] == (2, (2,))
    assert cluster.leads(T1)[:2] == (2, (2, 1))


def test_a_partition_needs_a_replica_that_was_in_sync(cluster: MovingCluster) -> None:
    delete(cluster)
    deleted = remembered(cluster)
    answer = undelete(cluster, deleted.zxid, {1: (0,), 3: (0, 1)})
    assert answer.problem.endswith(
        "partition 1 any more, or it does not answer; in sync were: 2, 1"
    )
    assert nodes_of_topic(cluster) == {}
    assert remembered(cluster) == deleted, "another attempt may have more replicas"


def test_what_a_broker_said_before_it_registered_again_does_not_count(
    cluster: MovingCluster,
) -> None:
    delete(cluster)
    deleted = remembered(cluster)
    before = held_now(cluster, BOTH)
    for broker_id in (1, 2):
        cluster.restart(broker_id)
    cluster.settle()
    assert "no broker that was in sync" in undelete(cluster, deleted.zxid, answers=before).problem
    assert nodes_of_topic(cluster) == {}
    assert not undelete(cluster, deleted.zxid).problem


def test_what_brokers_said_before_the_deletion_was_complete_does_not_count(
    cluster: MovingCluster,
) -> None:
    begin_deletion(cluster)
    begun = remembered(cluster).zxid
    went_on = "the deletion of topic t went on meanwhile, or never ended"
    assert undelete(cluster, begun).problem == went_on
    assert undelete(cluster, begun).problem == went_on, "now it is complete"
    assert not undelete(cluster, remembered(cluster).zxid).problem


def test_a_topic_whose_last_leader_epochs_could_not_be_read_does_not_come_back(
    cluster: MovingCluster,
) -> None:
    """Brokers may know higher ones than those that were remembered when its deletion began."""
    begin_deletion(cluster)
    zxid = remembered(cluster).zxid
    cluster.zookeeper.deny(TopicPartitionStateZNode.path(T0))
    cluster.settle()
    assert undelete(cluster, zxid).problem == "topic t cannot come back: its deletion is forgotten"
    assert nodes_of_topic(cluster) == {}


def test_a_repeated_request_is_answered_like_the_first(cluster: MovingCluster) -> None:
    delete(cluster)
    zxid = remembered(cluster).zxid
    for _ in range(2):
        assert undelete(cluster, zxid) == UndeleteTopicResponse(Errors.NONE)
    assert cluster.leads(T0)[:2] == (1, (1, 2))


def test_a_late_request_does_not_bring_a_topic_back_that_was_deleted_again(
    cluster: MovingCluster,
) -> None:
    delete(cluster)
    first = remembered(cluster).zxid
    undelete(cluster, first)
    delete(cluster)
    answer = undelete(cluster, first)
    assert answer.problem == "the deletion of topic t went on meanwhile, or never ended"
    assert not undelete(cluster, remembered(cluster).zxid).problem
    assert cluster.leads(T0)[:2] == (1, (1, 2))


def test_a_topic_of_that_name_is_left_alone(cluster: MovingCluster) -> None:
    delete(cluster)
    zxid = remembered(cluster).zxid
    cluster.put_topic("t", {0: (2,)}, topic_id(71))
    cluster.settle()
    answer = undelete(cluster, zxid)
    assert answer.problem == "a topic t exists: delete it before the deleted one can come back"
    assert cluster.leads(T0) == (2, (2,), 0)


def test_each_of_several_deleted_topics_of_a_name_can_come_back(cluster: MovingCluster) -> None:
    delete(cluster)
    zxid = remembered(cluster).zxid
    cluster.put_topic("t", {0: (2,)}, topic_id(71))  # a client has created it again
    cluster.settle()
    delete(cluster)
    assert not undelete(cluster, zxid).problem
    assert cluster.leads(T1)[:2] == (2, (2, 1))
    second = remembered(cluster)
    assert second.topic_id == topic_id(71)
    assert second.partitions == {0: DeletedPartition((2,), (2,), 1)}


def begin_deletion(cluster: MovingCluster) -> None:
    """Let the controller ask brokers to delete replicas; their answers wait."""
    cluster.zookeeper.put("/admin/delete_topics/t")
    while cluster.active.inbox:
        cluster.handle_first(cluster.active.inbox)


def test_a_replica_that_a_move_removed_is_not_remembered_as_in_sync(cluster: MovingCluster) -> None:
    """It stays in the ISR while the others are suspect; the topic comes back without it."""
    cluster.put_state(T0, 2, (2, 3), leader_epoch=5)  # 3 is not assigned
    begin_deletion(cluster)
    assert remembered(cluster).partitions[0] == DeletedPartition((1, 2), (2,), 5)


def test_a_topic_is_remembered_before_its_replicas_are_stopped(cluster: MovingCluster) -> None:
    begin_deletion(cluster)
    assert cluster.leads(T0)[1] != (1, 2), "replicas that are stopped leave the ISR"
    assert remembered(cluster).partitions == {
        0: DeletedPartition((1, 2), (1, 2), 0),
        1: DeletedPartition((2, 1), (2, 1), 0),
    }
    epoch = cluster.leads(T0)[2]
    cluster.settle()
    assert remembered(cluster).partitions[0] == DeletedPartition((1, 2), (1, 2), epoch)


def test_the_next_controller_trusts_only_who_is_in_sync_now(cluster: MovingCluster) -> None:
    begin_deletion(cluster)
    first = remembered(cluster)
    cluster.put_state(
        T0, 2, (2, 3), leader_epoch=5
    )  # 2 was told that it is alone, and 3 has followed it
    cluster.succeed()
    last = remembered(cluster)
    assert last.deleted_ms == first.deleted_ms
    assert last.partitions[0].isr == (2,)
    assert last.partitions[0].leader_epoch >= 5


def test_a_deletion_is_forgotten_after_twice_the_delay(cluster: MovingCluster) -> None:
    delete(cluster)
    until_ms = remembered(cluster).until_ms
    cluster.active.now_ms = until_ms + 59_000
    cluster.succeed()
    assert PATH in cluster.zookeeper.snapshot()
    cluster.active.now_ms = until_ms + 61_000
    cluster.zookeeper.put("/admin/delete_topics/nothing")
    cluster.settle()
    assert PATH not in cluster.zookeeper.snapshot()


def test_a_topic_whose_deletion_was_withdrawn_is_forgotten(cluster: MovingCluster) -> None:
    begin_deletion(cluster)
    cluster.zookeeper.remove("/admin/delete_topics/t")
    cluster.answers.clear()
    cluster.succeed()
    assert cluster.leads(T0)[0] != NO_LEADER
    assert PATH not in cluster.zookeeper.snapshot()


def test_a_topic_whose_states_are_gone_is_not_remembered(cluster: MovingCluster) -> None:
    for path in (f"/brokers/topics/t/partitions/0{end}" for end in ("/state", "")):
        cluster.zookeeper.remove(path)
    delete(cluster)
    assert PATH not in cluster.zookeeper.snapshot()


def fail_at(number: int, error: type[BaseException]) -> Hook:
    """Return a hook that raises at one moment of calls; a lost connection only in writes."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        is_counted = call.method.startswith("multi") or error is SimulatedCrashError
        if is_counted and next(moments) == number:
            raise error("lost")

    return hook


@pytest.mark.parametrize("error", [SimulatedCrashError, ConnectionLossError])
@pytest.mark.parametrize("number", range(40))
def test_a_crash_or_a_lost_answer_never_leaves_half_a_topic(
    cluster: MovingCluster, number: int, error: type[BaseException]
) -> None:
    delete(cluster)
    zxid = remembered(cluster).zxid
    cluster.active.session.hook = fail_at(number, error)
    try:
        answer = undelete(cluster, zxid)
    except SimulatedCrashError:
        cluster.succeed()
        answer = undelete(cluster, zxid)
    assert not answer.problem
    assert cluster.leads(T0)[:2] == (1, (1, 2))


def test_a_controller_starts_when_an_acl_hides_deleted_topics(cluster: MovingCluster) -> None:
    delete(cluster)
    cluster.zookeeper.deny(DeletedTopicsZNode.PATH)
    cluster.succeed()
    assert cluster.active.controller.is_active


@pytest.mark.parametrize(
    ("delay_ms", "kept_days"), [(24 * 3_600_000, 1), (2**63 - 1, 3_650)], ids=["a day", "for ever"]
)
def test_the_time_follows_the_setting_of_the_broker(
    cluster: MovingCluster, delay_ms: int, kept_days: int
) -> None:
    cluster.active.controller.keep_deleted_topics_for(delay_ms)
    delete(cluster)
    deleted = remembered(cluster)
    assert deleted.until_ms - deleted.deleted_ms == kept_days * 24 * 3_600_000
