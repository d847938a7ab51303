"""What clients ask of topics reaches the broker that rules, and is answered once, in time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest
from pykka import ActorRef

from regent.actors import forwarding_manager
from regent.actors.broker_to_controller_channel import BrokerToControllerChannel
from regent.actors.forwarding_manager import CreateMissing, ForwardingManager, MetadataChanged
from regent.actors.inbox import MessageWithReply, Reply
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.topic_request_handler import TopicRequestHandler
from regent.core.admin.admin_manager import AdminManager
from regent.core.errors import Errors
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.transport.client import PeerDisconnectedError, PeerUnreachableError, RequestTimeoutError
from regent.transport.codec import Response
from regent.zk.codecs.znodes import TopicZNode
from regent.zk.stores.topic_store import ZkTopicStore
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.local_placer import LocalPlacer
from tests.support.stage import TIMEOUT_S, FixedTopicIds, Stage, ask
from tests.support.term import Tree

LONG_MS = 60_000
CREATE_T = CreateTopicsRequest((CreatableTopic("t", 2, 1),), LONG_MS)
GROW_T = CreatePartitionsRequest((GrowingTopic("t", 2),), LONG_MS)
DELETE_T = DeleteTopicsRequest(("t",), LONG_MS)


class Town:
    """Broker 0, which clients ask, and broker 1, which rules if anybody does.

    Is itself the channel from one to the other: ``script`` says what befalls the next requests.
    """

    def __init__(self, stage: Stage, *, min_patience_ms: int) -> None:
        self.tree = Tree()
        self.tree.register(0)
        self.tree.register(1)
        self.cache = MetadataCache()
        self.rules = True
        self.script: list[Callable[[TopicsRequest], Response]] = []
        self.requests: queue.Queue[TopicsRequest] = queue.Queue()
        self.decided: queue.Queue[TopicsRequest] = queue.Queue()
        self._decided_by = MetadataCache()
        self._epoch = 0
        manager = AdminManager(
            self._decided_by,
            ZkTopicStore(FakeZooKeeper(self.tree.server)),
            FixedTopicIds(),
            lambda: self.rules,
            LocalPlacer(),
        )
        self._decisions = start_actor(TopicRequestHandler, TIMEOUT_S, 1, manager)
        self._forwarder = start_actor(
            BrokerToControllerChannel, TIMEOUT_S, 0, self.cache, self.open
        )
        self.admin: ActorRef[ForwardingManager] = start_actor(
            ForwardingManager,
            TIMEOUT_S,
            0,
            self.cache,
            FixedTopicIds(),
            self._forwarder,
            stage.scheduler("town"),
            min_patience_ms=min_patience_ms,
        )

    def close(self) -> None:
        for actor in (self.admin, self._forwarder, self._decisions):
            stop_actor(actor, TIMEOUT_S)

    # --- the channel ---

    def open(self, endpoint: str) -> Town:
        assert endpoint == "inproc://broker-1"
        return self

    def request(
        self, body: TopicsRequest, *, timeout_ms: int, closing: threading.Event | None = None
    ) -> Response:
        self.requests.put(body)
        return (self.script.pop(0) if self.script else self.decide)(body)

    def decide(self, body: TopicsRequest) -> TopicsResponse:
        answer: TopicsResponse = ask(self._decisions, body)
        self.decided.put(body)
        return answer

    def lose_answer(self, body: TopicsRequest) -> Response:
        self.decide(body)
        raise PeerDisconnectedError("controller", "the connection broke")

    # --- what tests do ---

    def have(self, topic: str, partitions: int = 1) -> None:
        """Have a topic that everybody knows."""
        self.tree.put_topic(topic, dict.fromkeys(range(partitions), (1,)))
        self.tell()

    def tell(self, *, controller: int = 1, deleted: tuple[str, ...] = ()) -> None:
        """Let both brokers know the topics there are, each led, but those that are deleted."""
        self._update(self.cache, controller, deleted)
        self._update(self._decided_by, controller, deleted)
        self.admin.tell(MetadataChanged())

    def _update(self, cache: MetadataCache, controller: int, deleted: tuple[str, ...]) -> None:
        states = []
        for name in self.tree.server.snapshot():
            topic = name.removeprefix("/brokers/topics/")
            if topic == name or "/" in topic or topic in deleted:
                continue
            stored = self.tree.topic(topic)
            rows = tuple(
                UpdateMetadataPartition(n, 1, 1, 0, (1,), 0, a.replicas, ())
                for n, a in stored.partitions.items()
            )
            states.append(UpdateMetadataTopic(topic, stored.topic_id, rows))
        brokers = tuple(
            UpdateMetadataBroker(b, 1, (), None, f"inproc://broker-{b}", None) for b in (0, 1)
        )
        self._epoch += 1
        header = ControlHeader(controller, self._epoch, 1)
        cache.update(header, UpdateMetadataRequest(tuple(states), brokers, is_full=True))

    def ask(self, request: TopicsRequest) -> queue.Queue[list[tuple[str, Errors]]]:
        """Ask broker 0; its answers, of which there must be one, arrive in the queue."""
        answers: queue.Queue[list[tuple[str, Errors]]] = queue.Queue()

        def deliver(answer: object) -> None:
            assert isinstance(answer, TopicsResponse)
            answers.put([(outcome.topic, outcome.error_code) for outcome in answer.outcomes])

        self.admin.tell(MessageWithReply(request, Reply.of(deliver)))
        return answers

    def answer(self, request: TopicsRequest) -> list[tuple[str, Errors]]:
        return self.ask(request).get(timeout=TIMEOUT_S)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as stage:
        yield stage


@pytest.fixture
def town(stage: Stage) -> Iterator[Town]:
    town = Town(stage, min_patience_ms=10_000)
    town.tell()
    yield town
    town.close()


@pytest.fixture
def hasty_town(stage: Stage) -> Iterator[Town]:
    """A town where a decision is tried for once only."""
    town = Town(stage, min_patience_ms=0)
    yield town
    town.close()


# --- to the answer ---


def test_a_topic_is_created_when_this_broker_knows_its_leaders(town: Town):
    answers = town.ask(CREATE_T)
    town.decided.get(timeout=TIMEOUT_S)
    town.admin.tell(MetadataChanged())
    assert answers.empty(), "nobody knows the topic"
    town.tell()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    assert len(town.tree.topic("t").partitions) == 2


def test_topics_grow_and_go_when_this_broker_knows_it(town: Town):
    town.have("t")
    growing = town.ask(GROW_T)
    town.decided.get(timeout=TIMEOUT_S)
    assert growing.empty(), "it has one partition"
    town.tell()
    assert growing.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    deleting = town.ask(DELETE_T)
    town.decided.get(timeout=TIMEOUT_S)
    assert deleting.empty(), "it is still there"
    town.tell(deleted=("t",))
    assert deleting.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 50])
def test_whose_patience_is_over_is_told_so_and_has_his_topic(town: Town, timeout_ms: int):
    request = CreateTopicsRequest((CreatableTopic("t"),), timeout_ms)
    assert town.answer(request) == [("t", Errors.REQUEST_TIMED_OUT)]
    assert len(town.tree.topic("t").partitions) == 1


def test_what_is_refused_or_only_validated_waits_for_nothing(town: Town):
    nobody = DeleteTopicsRequest(("nobody",), LONG_MS)
    assert town.answer(nobody) == [("nobody", Errors.UNKNOWN_TOPIC_OR_PARTITION)]
    valid = CreateTopicsRequest((CreatableTopic("t"),), LONG_MS, validate_only=True)
    assert town.answer(valid) == [("t", Errors.NONE)]


# --- to the controller ---


def test_the_controller_is_looked_for_until_it_is_known_and_rules(town: Town):
    town.tell(controller=-1)
    town.rules = False
    answers = town.ask(CREATE_T)
    town.tell()
    town.decided.get(timeout=TIMEOUT_S)  # it ruled no more
    town.rules = True
    while not town.tree.server.snapshot().get(TopicZNode.path("t")):
        town.decided.get(timeout=TIMEOUT_S)
    town.tell()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


def test_a_lost_answer_creates_no_topic_twice(town: Town):
    town.script = [town.lose_answer, town.lose_answer]
    answers = town.ask(CREATE_T)
    for _ in range(3):
        town.decided.get(timeout=TIMEOUT_S)
    created = town.tree.topic("t").created_zxid
    town.tell()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    assert town.tree.topic("t").created_zxid == created
    assert town.answer(CREATE_T) == [("t", Errors.TOPIC_ALREADY_EXISTS)]


def test_what_an_earlier_attempt_has_done_is_done(town: Town):
    town.have("t")
    town.script = [town.lose_answer]
    growing = town.ask(GROW_T)
    for _ in range(2):
        town.decided.get(timeout=TIMEOUT_S)
    town.tell()
    assert growing.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]

    def delete_at_once(body: TopicsRequest) -> Response:
        town.decide(body)
        town.tell(deleted=("t",))
        raise RequestTimeoutError("controller", "no answer in time")

    town.script = [delete_at_once]
    assert town.answer(DELETE_T) == [("t", Errors.NONE)]


def test_what_cannot_be_is_refused_at_every_attempt(town: Town):
    town.have("t", partitions=3)
    for request, error in (
        (GROW_T, Errors.INVALID_PARTITIONS),
        (CreatePartitionsRequest((GrowingTopic("t", 0),), LONG_MS), Errors.INVALID_PARTITIONS),
        (DeleteTopicsRequest(("u",), LONG_MS), Errors.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        town.script = [town.lose_answer]
        ((_, refusal),) = town.answer(request)
        assert refusal is error


def test_without_a_controller_the_client_is_sent_on(hasty_town: Town):
    request = CreateTopicsRequest((CreatableTopic("t"),), 0)
    assert hasty_town.answer(request) == [("t", Errors.NOT_CONTROLLER)]
    hasty_town.tell()
    hasty_town.rules = False
    assert hasty_town.answer(request) == [("t", Errors.NOT_CONTROLLER)]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (PeerUnreachableError("controller", "gone"), Errors.NOT_CONTROLLER),
        (PeerDisconnectedError("controller", "gone"), Errors.REQUEST_TIMED_OUT),
        (RequestTimeoutError("controller", "late"), Errors.REQUEST_TIMED_OUT),
    ],
)
def test_whether_it_was_sent_makes_a_difference(
    hasty_town: Town, failure: Exception, error: Errors
):
    def fail(_: TopicsRequest) -> Response:
        raise failure

    hasty_town.tell()
    hasty_town.script = [fail]
    assert hasty_town.answer(CreateTopicsRequest((CreatableTopic("t"),), 0)) == [("t", error)]


# --- limits ---


def test_too_many_waiting_requests_are_refused_and_the_others_answered_once(
    town: Town, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forwarding_manager, "MAX_PENDING", 2)
    requests = [CreateTopicsRequest((CreatableTopic(name),), LONG_MS) for name in "abc"]
    first, second, third = (town.ask(request) for request in requests)
    assert third.get(timeout=TIMEOUT_S) == [("c", Errors.REQUEST_TIMED_OUT)]
    for _ in range(2):
        town.decided.get(timeout=TIMEOUT_S)
    town.tell()
    town.tell()
    assert first.get(timeout=TIMEOUT_S) == [("a", Errors.NONE)]
    assert second.get(timeout=TIMEOUT_S) == [("b", Errors.NONE)]
    town.have("d")
    assert (first.empty(), second.empty(), third.empty()) == (True, True, True)


def test_whoever_waits_is_sent_on_when_the_broker_ends(town: Town):
    answers = town.ask(CREATE_T)
    town.decided.get(timeout=TIMEOUT_S)
    assert stop_actor(town.admin, TIMEOUT_S)
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NOT_CONTROLLER)]


# --- topics somebody asked about ---


def test_topics_that_many_ask_about_are_created_once_and_together(town: Town):
    town.have("there")
    begun, may_go_on = threading.Event(), threading.Event()

    def decide_later(body: TopicsRequest) -> Response:
        begun.set()
        assert may_go_on.wait(TIMEOUT_S)
        return town.decide(body)

    town.script = [decide_later]
    town.admin.tell(CreateMissing(("t", "there")))
    assert begun.wait(TIMEOUT_S)
    for topics in (("t", "u"), ("u", "there"), ("v",)):
        town.admin.tell(CreateMissing(topics))
    may_go_on.set()
    town.decided.get(timeout=TIMEOUT_S)
    town.tell()
    town.decided.get(timeout=TIMEOUT_S)
    created = [town.requests.get(timeout=TIMEOUT_S) for _ in range(2)]
    names = [[row.topic for row in r.topics] for r in created if isinstance(r, CreateTopicsRequest)]
    assert names == [["t"], ["u", "v"]]
    assert all(len(town.tree.topic(name).partitions) == 1 for name in "tuv")


def test_a_topic_that_could_not_be_created_is_tried_again(stage: Stage, town: Town):
    def is_decided() -> bool:
        town.admin.tell(CreateMissing(("no spaces",)))
        return not town.decided.empty()

    for _ in range(2):
        stage.wait_for(is_decided)
        town.decided.get(timeout=TIMEOUT_S)
