"""Deletions that outlive their controller, and topics created again before they are over."""

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
from tests.support.fake_zookeeper import Call
from tests.support.term import (
    T0,
    T1,
    Candidate,
    Tree,
    leader_and_isr_rows,
    of_type,
    requests,
    stop_replica_rows,
    topic_id,
)

TOPICS = ("t", "u")
WISHES = "/admin/delete_topics"


class SimulatedCrashError(Exception):
    """The controller's process is gone."""


class Answers:
    """What the brokers answer to what deletes replicas; it waits here until it is delivered."""

    def __init__(self, active: Candidate) -> None:
        self.active = active
        self.waiting: deque[ControllerEvent] = deque()
        self.effects: list[Effect] = []

    def hear(self, effects: Iterable[Effect]) -> None:
        """Let the brokers carry out what they are told."""
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
        """Deliver everything, what watches triggered first, until nothing more happens."""
        while self.active.inbox or self.waiting:
            self.step(self.active.inbox or self.waiting)

    def step(self, queue: deque[ControllerEvent]) -> None:
        """Deliver the first event of a queue."""
        self.hear(self.active.handle(queue.popleft()))


@pytest.fixture
def tree() -> Tree:
    return make_tree()


def make_tree() -> Tree:
    """Brokers 1 and 2 with topics t and u on both."""
    tree = Tree()
    tree.server.put(WISHES)
    for broker_id in (1, 2):
        tree.register(broker_id)
    for number, topic in enumerate(TOPICS):
        tree.put_topic(topic, {0: (1, 2), 1: (2, 1)}, topic_id(70 + number))
        tree.server.put(f"/config/topics/{topic}", b"{}")
    return tree


def rule(tree: Tree, broker_id: BrokerId) -> Answers:
    """Return a controller that rules, with nothing left to do, and the brokers' answers."""
    answers = Answers(Candidate(tree, broker_id))
    answers.hear(answers.active.start())
    answers.settle()
    assert answers.active.controller.is_active
    answers.effects.clear()
    return answers


def wish(tree: Tree, *topics: str) -> None:
    for topic in topics:
        tree.server.put(f"{WISHES}/{topic}")


def left(tree: Tree) -> list[str]:
    """Return what is in ZooKeeper of topics, their configurations and wishes."""
    roots = ("/brokers/topics/", "/config/topics/", f"{WISHES}/")
    return [path for path in tree.server.snapshot() if path.startswith(roots)]


# --- failover -------------------------------------------------------------------------------------


def crash_at(answers: Answers, number: int) -> None:
    """Let the controller crash at its moment number ``number`` with ZooKeeper from now on."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        del call
        if next(moments) == number:
            raise SimulatedCrashError

    answers.active.session.hook = hook


def test_a_deletion_survives_a_crash_at_any_moment() -> None:
    for number in itertools.count():
        tree = make_tree()
        first = rule(tree, 0)
        crash_at(first, number)
        wish(tree, *TOPICS)
        try:
            first.settle()
        except SimulatedCrashError:
            tree.server.expire(first.active.session.session_id)
            second = rule(tree, 9)
            assert not second.active.controller.context.all_topics, number
            assert not second.active.controller.context.topics_to_be_deleted
            assert left(tree) == [], number
        else:
            assert left(tree) == []
            assert number > 50, "there is something to crash in"
            return


def lose_write(answers: Answers, number: int) -> None:
    """Lose the write, or its answer, at the controller's write moment ``number`` from now on."""
    moments = itertools.count()

    def hook(call: Call) -> None:
        if call.method.startswith("multi") and next(moments) == number:
            raise ConnectionLossError("lost")

    answers.active.session.hook = hook


@pytest.mark.parametrize("number", range(30))
def test_a_deletion_survives_a_lost_write_or_answer(tree: Tree, number: int) -> None:
    answers = rule(tree, 0)
    lose_write(answers, number)
    wish(tree, *TOPICS)
    answers.settle()
    assert left(tree) == []
    assert not answers.active.controller.context.all_topics


def test_a_new_controller_goes_on_with_what_it_finds(tree: Tree) -> None:
    first = rule(tree, 0)
    wish(tree, "t")
    first.active.catch_up()
    tree.server.expire(first.active.session.session_id)
    second = rule(tree, 9)
    assert list(second.active.controller.context.all_topics) == ["u"]
    assert [path for path in left(tree) if "t" in path.split("/")] == []


def test_answers_to_an_earlier_controller_count_for_nothing(tree: Tree) -> None:
    first = rule(tree, 0)
    wish(tree, "t")
    while first.active.inbox:
        first.step(first.active.inbox)
    early = [*first.waiting]
    first.active.expire()
    tree.register(7)
    effects = first.active.start()
    assert first.active.controller.is_active
    for event in early:
        first.active.handle(event)
    assert "t" in first.active.controller.context.topics_to_be_deleted
    assert set(stop_replica_rows(effects)) == {1, 2}, "everybody is asked again"
    first.waiting.clear()
    first.hear(effects)
    first.settle()
    assert "t" not in first.active.controller.context.all_topics


def test_what_failed_in_one_term_is_tried_again_in_the_next_as_well(tree: Tree) -> None:
    answers = rule(tree, 0)
    wish(tree, "t")
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
        answers.hear(answers.active.start())


def test_del_05_a_topic_that_grew_before_a_failover_goes_whole(tree: Tree) -> None:
    first = rule(tree, 0)
    tree.unregister(2)
    wish(tree, "t")
    first.settle()
    assert first.active.controller.context.topics_ineligible_for_deletion == {"t"}
    tree.server.expire(first.active.session.session_id)
    tree.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (1, 2)}, topic_id(70))
    second = rule(tree, 9)
    assert second.active.controller.context.topics_to_be_deleted == {"t"}
    tree.register(2, incarnation=2)
    second.settle()
    assert [path for path in left(tree) if "t" in path.split("/")] == []


def test_an_unreadable_topic_is_gone_before_brokers_are_told_all_they_host(tree: Tree) -> None:
    tree.server.put("/brokers/topics/u", b"not JSON")
    wish(tree, "u")
    answers = Answers(Candidate(tree, 0))
    effects = answers.active.start()
    assert answers.active.controller.context.bad_topics == {}
    assert set(leader_and_isr_rows(effects)[1]) == {T0, T1}
    assert [path for path in left(tree) if "u" in path.split("/")] == []


# --- created again --------------------------------------------------------------------------------


def create_again(tree: Tree) -> None:
    """Create another topic t, on other replicas."""
    tree.put_topic("t", {0: (2,)}, topic_id(99))


def assert_is_the_new_one(tree: Tree, answers: Answers) -> None:
    """Check that the topic created again is led, known, and not to be deleted."""
    context = answers.active.controller.context
    assert context.topic_id("t") == tree.topic("t").topic_id == topic_id(99)
    assert context.partitions_of("t") == [T0]
    assert tree.leads(T0) == (2, (2,), 0)
    assert tree.state(T1) is None
    assert context.topics_to_be_deleted == set()
    assert f"{WISHES}/t" not in left(tree)
    last = leader_and_isr_rows(answers.effects)[2][T0]
    assert (last.leader, last.replicas, last.is_new) == (2, (2,), True)


def wait_until_gone(tree: Tree, answers: Answers) -> None:
    """Step on until t is gone in ZooKeeper, and no further."""
    while "/brokers/topics/t" in left(tree):
        answers.step(answers.active.inbox or answers.waiting)


def test_del_08_a_topic_created_again_is_another(tree: Tree) -> None:
    answers = rule(tree, 0)
    wish(tree, "t")
    answers.settle()
    create_again(tree)
    answers.settle()
    assert_is_the_new_one(tree, answers)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_it_may_be_created_before_the_watches_of_its_deletion_are_looked_into(
    tree: Tree, order: tuple[int, ...]
) -> None:
    answers = rule(tree, 0)
    wish(tree, "t")
    wait_until_gone(tree, answers)
    create_again(tree)
    pending = [*answers.active.inbox]
    assert len(pending) == 3, pending
    answers.active.inbox = deque(pending[n] for n in order)
    answers.settle()
    assert_is_the_new_one(tree, answers)


def test_it_may_be_created_inside_the_call_that_deleted_it(tree: Tree) -> None:
    def hook(call: Call) -> None:
        del call
        if "/brokers/topics/t" not in tree.server.snapshot():
            answers.active.session.hook = None
            create_again(tree)

    answers = rule(tree, 0)
    wish(tree, "t")
    answers.active.session.hook = hook
    answers.settle()
    assert_is_the_new_one(tree, answers)


def test_it_may_be_deleted_again_at_once(tree: Tree) -> None:
    answers = rule(tree, 0)
    wish(tree, "t")
    wait_until_gone(tree, answers)
    create_again(tree)
    wish(tree, "t")
    answers.settle()
    assert [path for path in left(tree) if "t" in path.split("/")] == []
    assert "t" not in answers.active.controller.context.all_topics


def test_a_leftover_wish_does_not_delete_the_next_topic_of_that_name(tree: Tree) -> None:
    tree.delete_topic("t")
    wish(tree, "t")
    create_again(tree)
    answers = Answers(Candidate(tree, 0))
    answers.hear(answers.active.start())
    answers.settle()
    assert_is_the_new_one(tree, answers)


# --- behind our back ------------------------------------------------------------------------------


def test_a_topic_removed_while_it_waits_is_forgotten_with_its_wish(tree: Tree) -> None:
    answers = rule(tree, 0)
    tree.unregister(2)
    wish(tree, "t")
    answers.settle()
    tree.delete_topic("t")
    answers.settle()
    context = answers.active.controller.context
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert f"{WISHES}/t" not in left(tree)
    tree.register(2, incarnation=2)
    answers.settle()
    assert list(context.all_topics) == ["u"]


class Chaos:
    """Tools that delete, remove, create and grow t, a broker that comes and goes, failovers."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.tree = make_tree()
        self.answers = rule(self.tree, 0)
        self.is_wanted = True
        self._life = itertools.count(2)
        self._next_id = itertools.count(9)

    def is_there(self, path: str) -> bool:
        return path in self.tree.server.snapshot()

    def step(self) -> None:
        """Let one thing happen that may happen now."""
        is_there, is_wished = self.is_there("/brokers/topics/t"), self.is_there(f"{WISHES}/t")
        match self.dice.randrange(12):
            case 0 if is_there and not is_wished:
                wish(self.tree, "t")
                self.is_wanted = False
            case 1 if is_there:
                self.tree.delete_topic("t")
                self.is_wanted = False
            case 2 | 3 if not is_there:
                create_again(self.tree)
                self.is_wanted = True
            case 4 if is_there:
                topic = self.tree.topic("t")
                self.tree.put_topic("t", {**topic.partitions, 5: (1,)}, topic.topic_id)
            case 5:
                self.bounce()
            case 6:
                self.fail_over()
            case 7 | 8 | 9 if self.answers.active.inbox:
                self.answers.step(self.answers.active.inbox)
            case 10 | 11 if self.answers.waiting:
                self.answers.step(self.answers.waiting)
            case _:
                pass

    def bounce(self) -> None:
        if 2 in self.tree.sessions:
            self.tree.unregister(2)
        else:
            self.tree.register(2, incarnation=next(self._life))

    def fail_over(self) -> None:
        self.tree.server.expire(self.answers.active.session.session_id)
        self.answers = Answers(Candidate(self.tree, next(self._next_id)))
        self.answers.hear(self.answers.active.start())


@pytest.mark.parametrize("seed", range(100))
def test_the_last_word_holds_whatever_was_seen_in_between(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(60):
        chaos.step()
    if 2 not in chaos.tree.sessions:
        chaos.bounce()
    chaos.answers.settle()
    context, tree = chaos.answers.active.controller.context, chaos.tree
    assert not chaos.is_there(f"{WISHES}/t")
    assert context.topics_to_be_deleted == context.topics_ineligible_for_deletion == set()
    assert chaos.is_there("/brokers/topics/t") == ("t" in context.all_topics) == chaos.is_wanted
    if chaos.is_wanted:
        topic = tree.topic("t")
        assert context.topic_id("t") == topic.topic_id
        assert [tp.partition for tp in sorted(context.partitions_of("t"))] == [*topic.partitions]
        assert all(tree.state(tp) is not None for tp in context.partitions_of("t"))


@pytest.mark.parametrize("of_another", ["topic", "order"])
def test_the_answer_to_something_else_deletes_no_topic(tree: Tree, of_another: str) -> None:
    answers = rule(tree, 0)
    wish(tree, "t")
    answers.active.catch_up()
    answers.waiting.clear()
    answers.hear(answers.active.handle(TopicDeletion()))
    for sent in requests(answers.effects):
        if not isinstance(sent.request, StopReplicaRequest):
            continue
        (asked,) = sent.request.topic_states
        other = (
            replace(asked, topic_id=topic_id(999))
            if of_another == "topic"  # of the same name, deleted before
            else replace(
                asked,
                partition_states=tuple(
                    stop._replace(leader_epoch=4) for stop in asked.partition_states
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
