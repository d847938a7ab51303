"""Topic deletion across failovers, and topics recreated before the deletion ends."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

import pytest

from regent.core.controller.effects import Effect, ScheduleEvent
from regent.core.controller.events import (
    ControllerEvent,
    TopicDeletion,
    TopicDeletionStopReplicaResponseReceived,
)
from regent.core.controller.responses import response_event
from regent.core.errors import Errors
from regent.core.model import BrokerId
from regent.core.protocol.control import PartitionError, StopReplicaRequest, StopReplicaResponse
from regent.core.replication.control_request_handler import refusal
from regent.zk.client.operations import ConnectionLossError
from tests.support.controller_parts import (
    Candidate,
    leader_and_isr_rows,
    of_type,
    requests,
    stop_replica_rows,
)
from tests.support.fake_zookeeper import Call
from tests.support.world import T0, T1, SimulatedCrashError, World, topic_id

TOPICS = ("t", "u")
DELETE_TOPICS = "/admin/delete_topics"


class Answers:
    """The brokers' answers to StopReplica, which wait here until they are delivered."""

    def __init__(self, active: Candidate) -> None:
        self.active = active
        self.waiting: deque[ControllerEvent] = deque()
        self.effects: list[Effect] = []

    def collect(self, effects: Iterable[Effect]) -> None:
        """Let the brokers carry out the requests."""
        effects = list(effects)
        self.effects += effects
        for sent in requests(effects):
            if isinstance(sent.request, StopReplicaRequest):
                errors = [PartitionError(*tp, Errors.NONE) for tp, _ in sent.request.partitions()]
                response = StopReplicaResponse(Errors.NONE, tuple(errors))
                event = response_event(sent.broker_id, sent.header, sent.request, response)
                if event is not None:
                    self.waiting.append(event)

    def settle(self) -> None:
        """Deliver all events, first those of watches, until there are no more."""
        while self.active.inbox or self.waiting:
            self.step(self.active.inbox or self.waiting)

    def step(self, queue: deque[ControllerEvent]) -> None:
        """Deliver the first event of a queue."""
        self.collect(self.active.handle(queue.popleft()))


@pytest.fixture
def world() -> World:
    return make_tree()


def make_tree() -> World:
    """Brokers 1 and 2 with topics t and u on both."""
    world = World()
    world.zookeeper.put(DELETE_TOPICS)
    for broker_id in (1, 2):
        world.register(broker_id)
    for number, topic in enumerate(TOPICS):
        world.put_topic(topic, {0: (1, 2), 1: (2, 1)}, topic_id(70 + number))
        world.zookeeper.put(f"/config/topics/{topic}", b"{}")
    return world


def start_controller(world: World, broker_id: BrokerId) -> Answers:
    """Start a controller, let it handle all events, and return the brokers' answers."""
    answers = Answers(Candidate(world, broker_id))
    answers.collect(answers.active.start())
    answers.settle()
    assert answers.active.controller.is_active
    answers.effects.clear()
    return answers


def request_deletion(world: World, *topics: str) -> None:
    for topic in topics:
        world.zookeeper.put(f"{DELETE_TOPICS}/{topic}")


def left(world: World) -> list[str]:
    """Return the znodes of topics, their configurations and deletion requests."""
    roots = ("/brokers/topics/", "/config/topics/", f"{DELETE_TOPICS}/")
    return [path for path in world.zookeeper.snapshot() if path.startswith(roots)]


# --- failover -------------------------------------------------------------------------------------


def crash_at(answers: Answers, number: int) -> None:
    """Let the controller crash at its ZooKeeper call moment number ``number`` from now on."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        del call
        if next(moments) == number:
            raise SimulatedCrashError

    answers.active.session.hook = hook


def test_a_deletion_survives_a_crash_at_any_moment() -> None:
    for number in itertools.count():
        world = make_tree()
        first = start_controller(world, 0)
        crash_at(first, number)
        request_deletion(world, *TOPICS)
        try:
            first.settle()
        except SimulatedCrashError:
            world.zookeeper.expire(first.active.session.session_id)
            second = start_controller(world, 9)
            assert not second.active.controller.context.all_topics, number
            assert not second.active.controller.context.topics_to_be_deleted
            assert left(world) == [], number
        else:
            assert left(world) == []
            assert number > 50, "the deletion has many calls"
            return


def lose_write(answers: Answers, number: int) -> None:
    """Lose write number ``number`` from now on, or its response."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        if call.method.startswith("multi") and next(moments) == number:
            raise ConnectionLossError("lost")

    answers.active.session.hook = hook


@pytest.mark.parametrize("number", range(30))
def test_a_deletion_survives_a_lost_write_or_response(world: World, number: int) -> None:
    answers = start_controller(world, 0)
    lose_write(answers, number)
    request_deletion(world, *TOPICS)
    answers.settle()
    assert left(world) == []
    assert not answers.active.controller.context.all_topics


def test_a_new_controller_continues_the_deletion(world: World) -> None:
    first = start_controller(world, 0)
    request_deletion(world, "t")
    first.active.catch_up()
    world.zookeeper.expire(first.active.session.session_id)
    second = start_controller(world, 9)
    assert list(second.active.controller.context.all_topics) == ["u"]
    assert [path for path in left(world) if "t" in path.split("/")] == []


def test_answers_to_an_earlier_controller_are_ignored(world: World) -> None:
    first = start_controller(world, 0)
    request_deletion(world, "t")
    while first.active.inbox:
        first.step(first.active.inbox)
    early = [*first.waiting]
    first.active.expire()
    world.register(7)
    effects = first.active.start()
    assert first.active.controller.is_active
    for event in early:
        first.active.handle(event)
    assert "t" in first.active.controller.context.topics_to_be_deleted
    assert set(stop_replica_rows(effects)) == {1, 2}, "all brokers are asked again"
    first.waiting.clear()
    first.collect(effects)
    first.settle()
    assert "t" not in first.active.controller.context.all_topics


def test_a_failed_deletion_is_also_tried_again_in_the_next_term(world: World) -> None:
    answers = start_controller(world, 0)
    request_deletion(world, "t")
    for _ in range(2):
        while answers.active.inbox:
            answers.step(answers.active.inbox)
        retries = []
        for event in answers.waiting:
            assert isinstance(event, TopicDeletionStopReplicaResponseReceived)
            failed = refusal(event.request, Errors.KAFKA_STORAGE_ERROR)
            assert isinstance(failed, StopReplicaResponse)
            effects = answers.active.handle(replace(event, response=failed))
            retries += [e.event for e in of_type(effects, ScheduleEvent)]
        assert retries == [TopicDeletion()]
        answers.waiting.clear()
        answers.active.expire()
        answers.collect(answers.active.start())


def test_del_05_partitions_added_before_a_failover_are_deleted_too(world: World) -> None:
    first = start_controller(world, 0)
    world.unregister(2)
    request_deletion(world, "t")
    first.settle()
    assert first.active.controller.context.topics_ineligible_for_deletion == {"t"}
    world.zookeeper.expire(first.active.session.session_id)
    world.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (1, 2)}, topic_id(70))
    second = start_controller(world, 9)
    assert second.active.controller.context.topics_to_be_deleted == {"t"}
    world.register(2, incarnation=2)
    second.settle()
    assert [path for path in left(world) if "t" in path.split("/")] == []


def test_an_unreadable_topic_is_deleted_before_brokers_get_full_requests(world: World) -> None:
    world.zookeeper.put("/brokers/topics/u", b"not JSON")
    request_deletion(world, "u")
    answers = Answers(Candidate(world, 0))
    effects = answers.active.start()
    assert answers.active.controller.context.bad_topics == {}
    assert set(leader_and_isr_rows(effects)[1]) == {T0, T1}
    assert [path for path in left(world) if "u" in path.split("/")] == []


# --- recreated topics -----------------------------------------------------------------------------


def recreate(world: World) -> None:
    """Create another topic t, on other replicas."""
    world.put_topic("t", {0: (2,)}, topic_id(99))


def assert_recreated(world: World, answers: Answers) -> None:
    """Check that the recreated topic has a leader and is not queued for deletion."""
    context = answers.active.controller.context
    assert context.topic_id("t") == world.topic("t").topic_id == topic_id(99)
    assert context.partitions_of("t") == [T0]
    assert world.leads(T0) == (2, (2,), 0)
    assert world.state(T1) is None
    assert context.topics_to_be_deleted == set()
    assert f"{DELETE_TOPICS}/t" not in left(world)
    last = leader_and_isr_rows(answers.effects)[2][T0]
    assert (last.leader, last.replicas, last.is_new) == (2, (2,), True)


def wait_until_gone(world: World, answers: Answers) -> None:
    """Deliver events until t is deleted in ZooKeeper, and no more."""
    while "/brokers/topics/t" in left(world):
        answers.step(answers.active.inbox or answers.waiting)


def test_del_08_a_recreated_topic_is_a_new_topic(world: World) -> None:
    answers = start_controller(world, 0)
    request_deletion(world, "t")
    answers.settle()
    recreate(world)
    answers.settle()
    assert_recreated(world, answers)


@pytest.mark.parametrize("sequence", [*itertools.permutations(range(3))])
def test_a_topic_may_be_recreated_before_the_watches_of_its_deletion_are_handled(
    world: World, sequence: tuple[int, ...]
) -> None:
    answers = start_controller(world, 0)
    request_deletion(world, "t")
    wait_until_gone(world, answers)
    recreate(world)
    pending = [*answers.active.inbox]
    assert len(pending) == 3, pending
    answers.active.inbox = deque(pending[n] for n in sequence)
    answers.settle()
    assert_recreated(world, answers)


def test_a_topic_may_be_recreated_during_the_call_that_deletes_it(world: World) -> None:
    def hook(call: Call) -> None:
        del call
        if "/brokers/topics/t" not in world.zookeeper.snapshot():
            answers.active.session.hook = None
            recreate(world)

    answers = start_controller(world, 0)
    request_deletion(world, "t")
    answers.active.session.hook = hook
    answers.settle()
    assert_recreated(world, answers)


def test_a_recreated_topic_may_be_deleted_at_once(world: World) -> None:
    answers = start_controller(world, 0)
    request_deletion(world, "t")
    wait_until_gone(world, answers)
    recreate(world)
    request_deletion(world, "t")
    answers.settle()
    assert [path for path in left(world) if "t" in path.split("/")] == []
    assert "t" not in answers.active.controller.context.all_topics


def test_an_old_deletion_request_does_not_delete_the_next_topic_of_the_same_name(
    world: World,
) -> None:
    world.delete_topic("t")
    request_deletion(world, "t")
    recreate(world)
    answers = Answers(Candidate(world, 0))
    answers.collect(answers.active.start())
    answers.settle()
    assert_recreated(world, answers)


# --- topics removed by tools ----------------------------------------------------------------------


def test_a_topic_removed_while_its_deletion_waits_leaves_no_request(world: World) -> None:
    answers = start_controller(world, 0)
    world.unregister(2)
    request_deletion(world, "t")
    answers.settle()
    world.delete_topic("t")
    answers.settle()
    context = answers.active.controller.context
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert f"{DELETE_TOPICS}/t" not in left(world)
    world.register(2, incarnation=2)
    answers.settle()
    assert list(context.all_topics) == ["u"]


class RandomCluster:
    """Random deletions, removals, creations and extensions of t, restarts and failovers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = make_tree()
        self.answers = start_controller(self.world, 0)
        self.is_wanted = True
        self._incarnations = itertools.count(2)
        self._next_id = itertools.count(9)

    def is_there(self, path: str) -> bool:
        return path in self.world.zookeeper.snapshot()

    def step(self) -> None:
        """Run one random step that is possible now."""
        is_there, is_requested = (
            self.is_there("/brokers/topics/t"),
            self.is_there(f"{DELETE_TOPICS}/t"),
        )
        match self.random.randrange(12):
            case 0 if is_there and not is_requested:
                request_deletion(self.world, "t")
                self.is_wanted = False
            case 1 if is_there:
                self.world.delete_topic("t")
                self.is_wanted = False
            case 2 | 3 if not is_there:
                recreate(self.world)
                self.is_wanted = True
            case 4 if is_there:
                topic = self.world.topic("t")
                self.world.put_topic("t", {**topic.partitions, 5: (1,)}, topic.topic_id)
            case 5:
                self.restart()
            case 6:
                self.fail_over()
            case 7 | 8 | 9 if self.answers.active.inbox:
                self.answers.step(self.answers.active.inbox)
            case 10 | 11 if self.answers.waiting:
                self.answers.step(self.answers.waiting)
            case _:
                pass

    def restart(self) -> None:
        if 2 in self.world.sessions:
            self.world.unregister(2)
        else:
            self.world.register(2, incarnation=next(self._incarnations))

    def fail_over(self) -> None:
        self.world.zookeeper.expire(self.answers.active.session.session_id)
        self.answers = Answers(Candidate(self.world, next(self._next_id)))
        self.answers.collect(self.answers.active.start())


@pytest.mark.parametrize("seed", range(100))
def test_the_last_request_holds_whatever_the_controller_saw_meanwhile(seed: int) -> None:
    cluster = RandomCluster(seed)
    for _ in range(60):
        cluster.step()
    if 2 not in cluster.world.sessions:
        cluster.restart()
    cluster.answers.settle()
    context, world = cluster.answers.active.controller.context, cluster.world
    assert not cluster.is_there(f"{DELETE_TOPICS}/t")
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert cluster.is_there("/brokers/topics/t") == ("t" in context.all_topics) == cluster.is_wanted
    if cluster.is_wanted:
        topic = world.topic("t")
        assert context.topic_id("t") == topic.topic_id
        assert [tp.partition for tp in sorted(context.partitions_of("t"))] == [*topic.partitions]
        assert all(world.state(tp) is not None for tp in context.partitions_of("t"))


@pytest.mark.parametrize("of_another", ["topic", "leader epoch"])
def test_an_answer_about_another_topic_or_epoch_deletes_no_topic(
    world: World, of_another: str
) -> None:
    answers = start_controller(world, 0)
    request_deletion(world, "t")
    answers.active.catch_up()
    answers.waiting.clear()
    answers.collect(answers.active.handle(TopicDeletion()))
    for sent in requests(answers.effects):
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
            answers.active.handle(event)
    assert "t" in answers.active.controller.context.topics_to_be_deleted
