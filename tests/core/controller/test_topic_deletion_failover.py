"""Topic deletion across failovers, and topics recreated before the deletion ends."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import replace
from typing import TypeVar

import pytest

from regent.core.controller.brokers.responses import response_event
from regent.core.controller.effects import ScheduleEvent
from regent.core.controller.events import (
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
)
from regent.core.errors import Errors
from regent.core.protocol.control import PartitionError, StopReplicaRequest, StopReplicaResponse
from regent.core.replication.control_request_handler import refusal
from regent.zk.client.operations import ConnectionLossError
from tests.support.controller_parts import (
    leader_and_isr_rows,
    of_type,
    requests,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import Call
from tests.support.moving_cluster import MovingCluster
from tests.support.world import T0, T1, SimulatedCrashError, topic_id

C = TypeVar("C", bound=MovingCluster)

TOPICS = ("t", "u")
DELETE_TOPICS = "/admin/delete_topics"


@pytest.fixture
def cluster() -> MovingCluster:
    """Brokers 1 and 2 with topics t and u on both; the controller is not started."""
    return fill(MovingCluster((1, 2)))


def fill(cluster: C) -> C:
    cluster.put(DELETE_TOPICS)
    for number, topic in enumerate(TOPICS):
        cluster.put_topic(topic, {0: (1, 2), 1: (2, 1)}, topic_id(70 + number))
        cluster.put(f"/config/topics/{topic}", b"{}")
    return cluster


def request_deletion(cluster: MovingCluster, *topics: str) -> None:
    for topic in topics:
        cluster.zookeeper.put(f"{DELETE_TOPICS}/{topic}")


def left(cluster: MovingCluster) -> list[str]:
    """Return the znodes of topics, their configurations and deletion requests."""
    roots = ("/brokers/topics/", "/config/topics/", f"{DELETE_TOPICS}/")
    return [path for path in cluster.zookeeper.snapshot() if path.startswith(roots)]


# --- failover -------------------------------------------------------------------------------------


def crash_at(cluster: MovingCluster, number: int) -> None:
    """Let the controller crash at its ZooKeeper call moment number ``number`` from now on."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        del call
        if next(moments) == number:
            raise SimulatedCrashError

    cluster.active.session.hook = hook


def test_a_deletion_survives_a_crash_at_any_moment() -> None:
    for number in itertools.count():
        cluster = fill(MovingCluster((1, 2)))
        cluster.start_controller()
        crash_at(cluster, number)
        request_deletion(cluster, *TOPICS)
        try:
            cluster.settle()
        except SimulatedCrashError:
            cluster.succeed()
            assert not cluster.active.controller.context.all_topics, number
            assert not cluster.active.controller.context.topics_to_be_deleted
            assert left(cluster) == [], number
        else:
            assert left(cluster) == []
            assert number > 50, "the deletion has many calls"
            return


def lose_write(cluster: MovingCluster, number: int) -> None:
    """Lose write number ``number`` from now on, or its response."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        if call.method.startswith("multi") and next(moments) == number:
            raise ConnectionLossError("lost")

    cluster.active.session.hook = hook


@pytest.mark.parametrize("number", range(30))
def test_a_deletion_survives_a_lost_write_or_response(cluster: MovingCluster, number: int) -> None:
    cluster.start_controller()
    lose_write(cluster, number)
    request_deletion(cluster, *TOPICS)
    cluster.settle()
    assert left(cluster) == []
    assert not cluster.active.controller.context.all_topics


def test_a_new_controller_continues_the_deletion(cluster: MovingCluster) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    cluster.active.catch_up()
    cluster.succeed()
    assert list(cluster.active.controller.context.all_topics) == ["u"]
    assert [path for path in left(cluster) if "t" in path.split("/")] == []


def test_answers_to_an_earlier_controller_are_ignored(cluster: MovingCluster) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    while cluster.active.inbox:
        cluster.handle_first(cluster.active.inbox)
    early = [*cluster.answers]
    cluster.active.expire()
    cluster.register(7)
    effects = cluster.active.start()
    assert cluster.active.controller.is_active
    for event in early:
        cluster.active.handle(event)
    assert "t" in cluster.active.controller.context.topics_to_be_deleted
    assert set(stop_replica_rows(effects)) == {1, 2}, "all brokers are asked again"
    cluster.answers.clear()
    cluster.carry_out(effects)
    cluster.settle()
    assert "t" not in cluster.active.controller.context.all_topics


def test_a_failed_deletion_is_also_tried_again_in_the_next_term(cluster: MovingCluster) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    for _ in range(2):
        while cluster.active.inbox:
            cluster.handle_first(cluster.active.inbox)
        retries = []
        for event in cluster.answers:
            assert isinstance(event, TopicDeletionStopReplicaResponseReceived)
            failed = refusal(event.request, Errors.KAFKA_STORAGE_ERROR)
            assert isinstance(failed, StopReplicaResponse)
            effects = cluster.active.handle(replace(event, response=failed))
            retries += [e.event for e in of_type(effects, ScheduleEvent)]
        assert retries == [TopicDeletion()]
        cluster.answers.clear()
        cluster.active.expire()
        cluster.carry_out(cluster.active.start())


def test_del_05_partitions_added_before_a_failover_are_deleted_too(cluster: MovingCluster) -> None:
    cluster.start_controller()
    cluster.unregister(2)
    request_deletion(cluster, "t")
    cluster.settle()
    assert cluster.active.controller.context.topics_ineligible_for_deletion == {"t"}
    cluster.active.session.expire()
    cluster.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (1, 2)}, topic_id(70))
    cluster.succeed()
    assert cluster.active.controller.context.topics_to_be_deleted == {"t"}
    cluster.register(2, incarnation=2)
    cluster.settle()
    assert [path for path in left(cluster) if "t" in path.split("/")] == []


def test_an_unreadable_topic_is_deleted_before_brokers_get_full_requests(
    cluster: MovingCluster,
) -> None:
    cluster.zookeeper.put("/brokers/topics/u", b"not JSON")
    request_deletion(cluster, "u")
    effects = cluster.active.start()
    assert cluster.active.controller.context.bad_topics == {}
    assert set(leader_and_isr_rows(effects)[1]) == {T0, T1}
    assert [path for path in left(cluster) if "u" in path.split("/")] == []


# --- recreated topics -----------------------------------------------------------------------------


def recreate(cluster: MovingCluster) -> None:
    """Create another topic t, on other replicas."""
    cluster.put_topic("t", {0: (2,)}, topic_id(99))


def assert_recreated(cluster: MovingCluster) -> None:
    """Check that the recreated topic has a leader and is not queued for deletion."""
    context = cluster.active.controller.context
    assert context.topic_id("t") == cluster.topic("t").topic_id == topic_id(99)
    assert context.partitions_of("t") == [T0]
    assert cluster.leads(T0) == (2, (2,), 0)
    assert cluster.state(T1) is None
    assert context.topics_to_be_deleted == set()
    assert f"{DELETE_TOPICS}/t" not in left(cluster)
    last = leader_and_isr_rows(cluster.effects)[2][T0]
    assert (last.leader, last.replicas, last.is_new) == (2, (2,), True)


def wait_until_gone(cluster: MovingCluster) -> None:
    """Deliver events until t is deleted in ZooKeeper, and no more."""
    while "/brokers/topics/t" in left(cluster):
        cluster.handle_first(cluster.active.inbox or cluster.answers)


def test_del_08_a_recreated_topic_is_a_new_topic(cluster: MovingCluster) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    cluster.settle()
    recreate(cluster)
    cluster.settle()
    assert_recreated(cluster)


@pytest.mark.parametrize("sequence", [*itertools.permutations(range(3))])
def test_a_topic_may_be_recreated_before_the_watches_of_its_deletion_are_handled(
    cluster: MovingCluster, sequence: tuple[int, ...]
) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    wait_until_gone(cluster)
    recreate(cluster)
    pending = [*cluster.active.inbox]
    assert len(pending) == 3, pending
    cluster.active.inbox = deque(pending[n] for n in sequence)
    cluster.settle()
    assert_recreated(cluster)


def test_a_topic_may_be_recreated_during_the_call_that_deletes_it(cluster: MovingCluster) -> None:
    def hook(call: Call) -> None:
        del call
        if "/brokers/topics/t" not in cluster.zookeeper.snapshot():
            cluster.active.session.hook = None
            recreate(cluster)

    cluster.start_controller()
    request_deletion(cluster, "t")
    cluster.active.session.hook = hook
    cluster.settle()
    assert_recreated(cluster)


def test_a_recreated_topic_may_be_deleted_at_once(cluster: MovingCluster) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    wait_until_gone(cluster)
    recreate(cluster)
    request_deletion(cluster, "t")
    cluster.settle()
    assert [path for path in left(cluster) if "t" in path.split("/")] == []
    assert "t" not in cluster.active.controller.context.all_topics


def test_an_old_deletion_request_does_not_delete_the_next_topic_of_the_same_name(
    cluster: MovingCluster,
) -> None:
    cluster.delete_topic("t")
    request_deletion(cluster, "t")
    recreate(cluster)
    cluster.start_controller()
    assert_recreated(cluster)


# --- topics removed by tools ----------------------------------------------------------------------


def test_a_topic_removed_while_its_deletion_waits_leaves_no_request(cluster: MovingCluster) -> None:
    cluster.start_controller()
    cluster.unregister(2)
    request_deletion(cluster, "t")
    cluster.settle()
    cluster.delete_topic("t")
    cluster.settle()
    context = cluster.active.controller.context
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert f"{DELETE_TOPICS}/t" not in left(cluster)
    cluster.register(2, incarnation=2)
    cluster.settle()
    assert list(context.all_topics) == ["u"]


class RandomCluster(MovingCluster):
    """Random deletions, removals, creations and extensions of t, restarts and failovers."""

    def __init__(self, seed: int) -> None:
        super().__init__((1, 2))
        fill(self).start_controller()
        self.random = random.Random(seed)
        self.is_wanted = True
        self._incarnations = itertools.count(2)

    def is_there(self, path: str) -> bool:
        return self.node(path) is not None

    def step(self) -> None:
        """Run one random step that is possible now."""
        is_there, is_requested = (
            self.is_there("/brokers/topics/t"),
            self.is_there(f"{DELETE_TOPICS}/t"),
        )
        match self.random.randrange(12):
            case 0 if is_there and not is_requested:
                request_deletion(self, "t")
                self.is_wanted = False
            case 1 if is_there:
                self.delete_topic("t")
                self.is_wanted = False
            case 2 | 3 if not is_there:
                recreate(self)
                self.is_wanted = True
            case 4 if is_there:
                topic = self.topic("t")
                self.put_topic("t", {**topic.partitions, 5: (1,)}, topic.topic_id)
            case 5:
                self.restart_2()
            case 6:
                self.fail_over()
            case 7 | 8 | 9 if self.active.inbox:
                self.handle_first(self.active.inbox)
            case 10 | 11 if self.answers:
                self.handle_first(self.answers)
            case _:
                pass

    def restart_2(self) -> None:
        if 2 in self.sessions:
            self.unregister(2)
        else:
            self.register(2, incarnation=next(self._incarnations))

    def fail_over(self) -> None:
        """Start the next controller, which handles no event yet."""
        self.replace_controller()
        self.carry_out(self.active.start())


@pytest.mark.parametrize("seed", range(100))
def test_the_last_request_decides_in_every_random_history(seed: int) -> None:
    cluster = RandomCluster(seed)
    for _ in range(60):
        cluster.step()
    if 2 not in cluster.sessions:
        cluster.restart_2()
    cluster.settle()
    context = cluster.active.controller.context
    assert not cluster.is_there(f"{DELETE_TOPICS}/t")
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert cluster.is_there("/brokers/topics/t") == ("t" in context.all_topics) == cluster.is_wanted
    if cluster.is_wanted:
        topic = cluster.topic("t")
        assert context.topic_id("t") == topic.topic_id
        assert [tp.partition for tp in sorted(context.partitions_of("t"))] == [*topic.partitions]
        assert all(cluster.state(tp) is not None for tp in context.partitions_of("t"))


@pytest.mark.parametrize("of_another", ["topic", "leader epoch"])
def test_an_answer_about_another_topic_or_epoch_deletes_no_topic(
    cluster: MovingCluster, of_another: str
) -> None:
    cluster.start_controller()
    request_deletion(cluster, "t")
    cluster.active.catch_up()
    cluster.answers.clear()
    cluster.handle(TopicDeletion())
    for sent in requests(cluster.effects):
        if not isinstance(sent.request, StopReplicaRequest):
            continue
        (topic,) = sent.request.topic_states
        other = (
            replace(topic, topic_id=topic_id(999))
            if of_another == "topic"  # an earlier topic of the same name
            else replace(
                topic,
                partition_states=tuple(
                    stop._replace(leader_epoch=4) for stop in topic.partition_states
                ),
            )
        )
        request = StopReplicaRequest((other,))
        done = StopReplicaResponse(
            Errors.NONE, tuple(PartitionError(*tp, Errors.NONE) for tp, _ in request.partitions())
        )
        event = response_event(sent.broker_id, sent.header, request, done)
        if event is not None:
            cluster.active.handle(event)
    assert "t" in cluster.active.controller.context.topics_to_be_deleted
