"""Topic requests of clients are forwarded to the active controller and answered once."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
from pykka import ActorRef

from regent.actors import (
    automatic_creation,
    broker_to_controller_channel,
    forwarding_manager,
)
from regent.actors.broker_to_controller_channel import BrokerToControllerChannel
from regent.actors.forwarding_manager import CreateMissing, ForwardingManager, MetadataChanged
from regent.actors.inbox import MessageWithReply, Reply
from regent.actors.request_channel import ControllersOfKafka, ControllerUnknownError
from regent.actors.runtime import launch, start_actor, stop_actor
from regent.actors.scheduler import monotonic_ms
from regent.actors.topic_request_handler import TopicRequestHandler
from regent.config.closing import Closing
from regent.core.admin.admin_manager import AdminManager
from regent.core.admin.admin_requests import refuse
from regent.core.errors import ApiError, Errors
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.controller import (
    AwaitBrokersRequest,
    AwaitBrokersResponse,
)
from regent.core.protocol.envelope import (
    EnvelopeRequest,
    EnvelopeResponse,
    ForwardedClient,
    Requester,
)
from regent.core.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.partitions import (
    NO_ERROR,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.protocol.messages.topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
    PlacementOptions,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse, results_of
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, Resource
from regent.core.security.authorizer import NOT_NAMED, Asked, Authorizer
from regent.core.security.session import Session
from regent.testing.waits import eventually, scaled
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestFailedError,
    RequestTimeoutError,
)
from regent.transport.control.codec import Response
from regent.zk.stores.topic_store import ZkTopicStore
from regent.zk.znodes import TopicZNode
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.local_placer import LocalPlacer
from tests.support.stage import TIMEOUT_S, Stage, ask
from tests.support.topic_requests import (
    creatable,
    create_partitions,
    create_topics,
    delete_topics,
    errors_of,
    growing,
)
from tests.support.world import TopicIds, World, live_broker, topic_id

KAFKA = 9
LONG_MS = 60_000
ALICE = ForwardedClient("User", "alice", "10.0.0.1")
CREATE_T = create_topics((creatable("t", 2, 1),), LONG_MS)
GROW_T = create_partitions((growing("t", 2),), LONG_MS)
DELETE_T = delete_topics(("t",), LONG_MS)


class OnlyAlice(Authorizer):
    """Lets one client change the settings of the topic ``t``, and nothing else."""

    is_configured = True

    def authorize(
        self,
        session: Session,
        operation: AclOperation,
        resource: Resource,
        asked: Asked = NOT_NAMED,
    ) -> bool:
        del asked
        name = session.principal.name
        return (name, operation, resource.name) == ("alice", AclOperation.ALTER_CONFIGS, "t")


class Kafka:
    """The connection to a controller of Kafka."""

    def __init__(self, cluster: TwoBrokers) -> None:
        self._cluster = cluster

    def request(
        self, body: object, *, timeout_ms: int, closing: Closing | None = None
    ) -> CreateTopicsResponse:
        """Create the topics."""
        del timeout_ms, closing
        assert isinstance(body, CreateTopicsRequest)
        self._cluster.asked_of_kafka.put(body)
        created = (CreatableTopicResult(name=row.name, error_code=0) for row in body.topics)
        return CreateTopicsResponse(topics=tuple(created))

    def close(self) -> None:
        """Nothing to close."""


STARTING = ApiError(Errors.COORDINATOR_LOAD_IN_PROGRESS, "Spark is starting")


class StartingPlacer(LocalPlacer):
    """Places after ``questions`` about its state."""

    questions = 0

    def obstacle(self) -> ApiError | None:
        self.questions -= 1
        return STARTING if self.questions >= 0 else None


class TwoBrokers:
    """Broker 0, which receives client requests, and broker 1, the active controller."""

    def __init__(self, stage: Stage, *, min_patience_ms: int) -> None:
        self.world = World()
        self.world.register(0)
        self.world.register(1)
        self.cache = MetadataCache()
        self.is_active = True
        self.script: list[Callable[[EnvelopeRequest], Response]] = []
        self.requests: queue.Queue[EnvelopeRequest] = queue.Queue()
        self.decided: queue.Queue[EnvelopeRequest] = queue.Queue()
        self._decided_by = MetadataCache()
        self.placer = StartingPlacer()
        self._epoch = 0
        manager = AdminManager(
            self._decided_by,
            ZkTopicStore(FakeZooKeeper(self.world.zookeeper)),
            TopicIds(),
            lambda: self.is_active,
            self.placer,
        )
        self._decisions = start_actor(TopicRequestHandler, 1, manager, self._decided_by)
        self.stopping = threading.Event()
        self.spreads: queue.Queue[AwaitBrokersRequest] = queue.Queue()
        self.spread: Callable[[], Response] = lambda: AwaitBrokersResponse(Errors.NONE)
        self.asked_of_kafka: queue.Queue[object] = queue.Queue()
        self._decisions_here = start_actor(
            TopicRequestHandler, 0, manager, self._decided_by, OnlyAlice()
        )
        self.forwarder = start_actor(
            BrokerToControllerChannel,
            0,
            self.cache,
            self.open,
            of_kafka=ControllersOfKafka("PLAINTEXT", "PLAINTEXT", lambda _: Kafka(self)),
            topics=self._decisions_here,
        )
        self._spreader = start_actor(
            BrokerToControllerChannel, 0, self.cache, self.open, name="spreader"
        )
        forwarding = ForwardingManager(
            0,
            self.cache,
            TopicIds(),
            self.forwarder,
            self._spreader,
            stage.scheduler("forwarding"),
            min_patience_ms=min_patience_ms,
        )
        self.forwarding = forwarding
        self.admin: ActorRef[ForwardingManager] = launch(forwarding)

    def stop(self) -> None:
        actors = self.admin, self.forwarder, self._spreader, self._decisions
        for actor in (*actors, self._decisions_here):
            stop_actor(actor, TIMEOUT_S)

    # --- the channel ---

    def open(self, endpoint: str) -> TwoBrokers:
        assert endpoint == "inproc://broker-1"
        return self

    def request(
        self,
        body: EnvelopeRequest | AwaitBrokersRequest,
        *,
        timeout_ms: int,
        closing: threading.Event | None = None,
    ) -> Response:
        if isinstance(body, AwaitBrokersRequest):
            self.spreads.put(body)
            return self.spread()
        self.requests.put(body)
        return (self.script.pop(0) if self.script else self.decide)(body)

    def decide(self, body: EnvelopeRequest) -> Response:
        answer: Response = ask(self._decisions, body)
        self.decided.put(body)
        return answer

    def close(self) -> None:
        """Nothing to close."""

    def lose_answer(self, body: EnvelopeRequest) -> Response:
        self.decide(body)
        raise PeerDisconnectedError("controller", "the connection broke")

    # --- for tests ---

    def have(self, topic: str, partitions: int = 1) -> None:
        """Create a topic that both brokers know."""
        self.world.put_topic(topic, dict.fromkeys(range(partitions), (1,)))
        self.update_metadata()

    def let_kafka_rule(self) -> None:
        """Broker 9, which has no control port, is the controller; ours are not."""
        self.is_active = False
        self.update_metadata(controller=KAFKA)

    def update_metadata(self, *, controller: int = 1, deleted: tuple[str, ...] = ()) -> None:
        """Send both brokers the metadata of all topics, except ``deleted``."""
        self._update(self.cache, controller, deleted)
        self._update(self._decided_by, controller, deleted)
        self.admin.tell(MetadataChanged())

    def _update(self, cache: MetadataCache, controller: int, deleted: tuple[str, ...]) -> None:
        states = []
        for name in self.world.zookeeper.snapshot():
            topic = name.removeprefix("/brokers/topics/")
            if topic == name or "/" in topic or topic in deleted:
                continue
            stored = self.world.topic(topic)
            rows = tuple(
                UpdateMetadataPartition(n, 1, 1, 0, (1,), 0, a.replicas, ())
                for n, a in stored.partitions.items()
            )
            states.append(UpdateMetadataTopic(topic, stored.topic_id, rows))
        ours = (live_broker(b, 1, control_endpoint=f"inproc://broker-{b}") for b in (0, 1))
        brokers = (*ours, live_broker(KAFKA, port=9092))
        self._epoch += 1
        header = ControlHeader(controller, self._epoch, 1)
        cache.update(header, UpdateMetadataRequest(tuple(states), brokers, is_full=True))

    def ask(
        self, request: TopicsRequest, client: ForwardedClient | None = None
    ) -> queue.Queue[list[tuple[str, Errors]]]:
        """Send a request to broker 0; its one answer arrives in the queue."""
        answers: queue.Queue[list[tuple[str, Errors]]] = queue.Queue()

        def deliver(answer: object) -> None:
            assert isinstance(answer, TopicsResponse)
            answers.put(errors_of(answer))

        envelope = EnvelopeRequest.of(request, client=client)
        self.admin.tell(MessageWithReply(envelope, Reply.of(deliver)))
        return answers

    def await_decisions(self, count: int) -> None:
        for _ in range(count):
            self.decided.get(timeout=TIMEOUT_S)

    def await_topic(self, topic: str, *, partitions: int) -> None:
        """Wait until ZooKeeper has so many partitions, and tell the brokers."""

        def has_them() -> bool:
            known = self.world.zookeeper.snapshot()
            is_there = f"/brokers/topics/{topic}" in known
            return is_there and len(self.world.topic(topic).partitions) == partitions

        eventually(has_them, f"{topic} has {partitions} partitions", scaled(TIMEOUT_S))
        self.update_metadata()

    def answer(self, request: TopicsRequest) -> list[tuple[str, Errors]]:
        return self.ask(request).get(timeout=TIMEOUT_S)

    def want(self, *topics: str) -> Mapping[str, ApiError]:
        """Need topics as a client does; return why they cannot be created."""
        answers: queue.Queue[Mapping[str, ApiError]] = queue.Queue()

        def deliver(answer: object) -> None:
            assert isinstance(answer, Mapping)
            answers.put(answer)

        self.admin.tell(MessageWithReply(CreateMissing(topics), Reply.of(deliver)))
        return answers.get(timeout=TIMEOUT_S)

    def answer_about_partitions(self, request: PartitionsRequest) -> object:
        answers: queue.Queue[object] = queue.Queue()
        envelope = EnvelopeRequest.of(request, client=ALICE)
        self.admin.tell(MessageWithReply(envelope, Reply.of(answers.put)))
        return answers.get(timeout=TIMEOUT_S)


@pytest.fixture
def cluster(stage: Stage) -> Iterator[TwoBrokers]:
    cluster = TwoBrokers(stage, min_patience_ms=10_000)
    cluster.update_metadata()
    yield cluster
    cluster.stop()


@pytest.fixture
def impatient(stage: Stage) -> Iterator[TwoBrokers]:
    """A cluster in which a request is tried once only."""
    cluster = TwoBrokers(stage, min_patience_ms=0)
    yield cluster
    cluster.stop()


# --- until the answer -----------------------------------------------------------------------------


def test_a_created_topic_is_answered_when_this_broker_knows_its_leaders(cluster: TwoBrokers):
    answers = cluster.ask(CREATE_T)
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.admin.tell(MetadataChanged())
    assert answers.empty(), "this broker does not know the topic"
    cluster.update_metadata()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    assert len(cluster.world.topic("t").partitions) == 2


def test_new_partitions_and_deletions_are_answered_when_this_broker_knows_them(cluster: TwoBrokers):
    cluster.have("t")
    growing = cluster.ask(GROW_T)
    cluster.decided.get(timeout=TIMEOUT_S)
    assert growing.empty(), "it has one partition"
    cluster.update_metadata()
    assert growing.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    deleting = cluster.ask(DELETE_T)
    cluster.decided.get(timeout=TIMEOUT_S)
    assert deleting.empty(), "the topic still exists"
    cluster.update_metadata(deleted=("t",))
    assert deleting.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 50])
def test_a_request_that_times_out_has_still_created_its_topic(cluster: TwoBrokers, timeout_ms: int):
    request = create_topics((creatable("t"),), timeout_ms)
    assert cluster.answer(request) == [("t", Errors.REQUEST_TIMED_OUT)]
    assert len(cluster.world.topic("t").partitions) == 1


def test_a_refused_or_validated_request_does_not_wait(cluster: TwoBrokers):
    unknown = delete_topics(("unknown",), LONG_MS)
    assert cluster.answer(unknown) == [("unknown", Errors.UNKNOWN_TOPIC_OR_PARTITION)]
    valid = create_topics((creatable("t"),), LONG_MS, validate_only=True)
    assert cluster.answer(valid) == [("t", Errors.NONE)]


# --- until the controller -------------------------------------------------------------------------


def test_a_sender_that_does_not_wait_is_answered_when_the_decision_is_written(cluster: TwoBrokers):
    request = create_topics([creatable("t")], waits=False)
    assert cluster.answer(request) == [("t", Errors.NONE)]
    assert cluster.answer(delete_topics(["t"], waits=False)) == [("t", Errors.NONE)]


def test_a_client_waits_while_the_placement_service_starts(cluster: TwoBrokers):
    cluster.placer.questions = 2
    answer = cluster.ask(create_topics((creatable("t"),), 60_000))
    cluster.await_decisions(3)
    cluster.update_metadata()
    assert answer.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


def test_a_command_that_awaits_the_placement_service_itself_is_answered_at_once(
    cluster: TwoBrokers,
):
    cluster.placer.questions = 1_000_000
    options = PlacementOptions(awaits_service=True)
    answer = cluster.answer(create_topics((creatable("t"),), 60_000, placement=options))
    assert answer == [("t", Errors.COORDINATOR_LOAD_IN_PROGRESS)]
    cluster.await_decisions(1)
    assert (cluster.requests.qsize(), cluster.forwarding.pending_count) == (1, 0)


@pytest.mark.parametrize("timeout_ms", [-1, 0, 300])
def test_a_creation_goes_on_when_the_time_of_its_client_is_over(
    cluster: TwoBrokers, timeout_ms: int
):
    cluster.placer.questions = 1_000_000
    request = create_topics((creatable("t", 2, 1),), timeout_ms)
    for _ in range(2):  # of a client that repeats it, too, only one goes on
        assert cluster.answer(request) == [("t", Errors.REQUEST_TIMED_OUT)]
    assert cluster.forwarding.pending_count == 1
    cluster.placer.questions = 0
    cluster.await_topic("t", partitions=2)
    assert cluster.answer(request) == [("t", Errors.TOPIC_ALREADY_EXISTS)]


def test_new_partitions_are_added_when_the_time_of_their_client_is_over(cluster: TwoBrokers):
    cluster.have("t")
    cluster.placer.questions = 1_000_000
    assert cluster.answer(create_partitions((growing("t", 2),), 0)) == [
        ("t", Errors.REQUEST_TIMED_OUT)
    ]
    cluster.placer.questions = 0
    cluster.await_topic("t", partitions=2)


def test_a_topic_that_a_client_needs_is_created_when_it_does_not_ask_again(cluster: TwoBrokers):
    cluster.placer.questions = 1_000_000
    assert cluster.want("t")["t"] == STARTING
    assert cluster.want("t")["t"] == STARTING
    cluster.placer.questions = 0
    cluster.await_topic("t", partitions=1)


def test_a_creation_in_the_background_outlives_the_controller(cluster: TwoBrokers):
    cluster.placer.questions = 1_000_000
    assert cluster.answer(create_topics((creatable("t"),), 0)) == [("t", Errors.REQUEST_TIMED_OUT)]
    cluster.is_active = False
    cluster.await_decisions(3)
    cluster.placer.questions, cluster.is_active = 0, True
    cluster.await_topic("t", partitions=1)


def test_the_number_of_creations_in_the_background_is_limited(
    cluster: TwoBrokers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forwarding_manager, "MAX_IN_BACKGROUND", 1)
    cluster.placer.questions = 1_000_000
    assert cluster.answer(create_topics((creatable("t"),), 0)) == [("t", Errors.REQUEST_TIMED_OUT)]
    refused = [("u", Errors.COORDINATOR_LOAD_IN_PROGRESS)]
    assert cluster.answer(create_topics((creatable("u"),), 0)) == refused
    assert cluster.forwarding.pending_count == 1


def test_a_creation_in_the_background_ends_and_its_failure_is_logged(
    cluster: TwoBrokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(forwarding_manager, "BACKGROUND_MS", 300)
    cluster.placer.questions = 1_000_000
    assert cluster.answer(create_topics((creatable("t"),), 0)) == [("t", Errors.REQUEST_TIMED_OUT)]
    eventually(lambda: not cluster.forwarding.pending_count, "it has ended", scaled(TIMEOUT_S))
    assert "t is not created, for a client whose time was over" in caplog.text


def test_an_internal_topic_does_not_wait_for_the_placement_service(cluster: TwoBrokers):
    cluster.placer.questions = 1_000_000
    cluster.admin.tell(CreateMissing(("wanted",)))
    cluster.await_decisions(1)
    cluster.admin.tell(CreateMissing(("__consumer_offsets",)))
    cluster.await_decisions(1)
    cluster.world.topic("__consumer_offsets")


def test_the_client_of_a_request_is_forwarded_with_it(cluster: TwoBrokers):
    requester = Requester("user", "client", is_strict=True)
    cluster.admin.tell(MessageWithReply(EnvelopeRequest.of(CREATE_T, requester), Reply.of(print)))
    envelope = cluster.requests.get(timeout=TIMEOUT_S)
    assert isinstance(envelope, EnvelopeRequest)
    assert envelope.requester == requester


@pytest.mark.parametrize(
    "request_",
    [
        CREATE_T,
        GROW_T,
        DELETE_T,
        DeleteTopicsRequest(
            topics=(DeleteTopicState(name=None, topic_id=topic_id(1)),), timeout_ms=LONG_MS
        ),
        ElectLeadersRequest.of(ElectionType.UNCLEAN),
        AlterPartitionReassignmentsRequest.of({TopicPartition("t", 0): (0,)}),
        ListPartitionReassignmentsRequest.of(),
    ],
    ids=["create", "grow", "delete", "delete by id", "elect", "reassign", "list"],
)
def test_clients_ask_a_controller_of_kafka_themselves(
    cluster: TwoBrokers, request_: TopicsRequest | PartitionsRequest
):
    """It would take a client's request for one of this broker, which may do everything."""
    cluster.let_kafka_rule()
    answers: queue.Queue[object] = queue.Queue()
    envelope = EnvelopeRequest.of(request_, client=ALICE)
    cluster.admin.tell(MessageWithReply(envelope, Reply.of(answers.put)))
    answer = answers.get(timeout=TIMEOUT_S)
    if isinstance(answer, PartitionsResponse):
        assert answer.error_code is Errors.NOT_CONTROLLER
    else:
        assert isinstance(answer, TopicsResponse)
        (row,) = results_of(answer)
        assert (row.error_code, row.error_message) == (
            Errors.NOT_CONTROLLER,
            "the controller is broker 9: ask it",
        )
    assert cluster.asked_of_kafka.empty()


def test_under_a_controller_of_kafka_this_broker_changes_settings_of_topics_for_clients_that_may(
    cluster: TwoBrokers,
):
    cluster.have("t")
    cluster.have("u")
    cluster.let_kafka_rule()

    def change(topic: str, client: ForwardedClient) -> Errors:
        config = AlterableConfig(name="retention.ms", value="1000")
        row = AlterConfigsResource(resource_type=2, resource_name=topic, configs=(config,))
        answers: queue.Queue[object] = queue.Queue()
        request = IncrementalAlterConfigsRequest(resources=(row,))
        envelope = EnvelopeRequest.of(request, client=client)
        cluster.admin.tell(MessageWithReply(envelope, Reply.of(answers.put)))
        answer = answers.get(timeout=TIMEOUT_S)
        assert isinstance(answer, IncrementalAlterConfigsResponse)
        return Errors(answer.responses[0].error_code)

    assert change("t", ALICE) is Errors.NONE
    assert cluster.world.zookeeper.snapshot()["/config/topics/t"]
    assert change("u", ALICE) is Errors.TOPIC_AUTHORIZATION_FAILED
    assert change("t", ALICE._replace(name="bob")) is Errors.TOPIC_AUTHORIZATION_FAILED
    assert cluster.asked_of_kafka.empty()


def test_a_controller_of_kafka_creates_topics_that_clients_need(cluster: TwoBrokers):
    cluster.let_kafka_rule()
    assert cluster.want("t") == {}
    asked = cluster.asked_of_kafka.get(timeout=TIMEOUT_S)
    assert isinstance(asked, CreateTopicsRequest)
    assert [topic.name for topic in asked.topics] == ["t"]


def test_the_controller_is_looked_for_until_it_is_known_and_active(cluster: TwoBrokers):
    cluster.update_metadata(controller=-1)
    cluster.is_active = False
    answers = cluster.ask(CREATE_T)
    cluster.update_metadata()
    cluster.decided.get(timeout=TIMEOUT_S)  # it was no longer active
    cluster.is_active = True
    while not cluster.world.zookeeper.snapshot().get(TopicZNode.path("t")):
        cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


def test_a_lost_answer_does_not_create_a_topic_twice(cluster: TwoBrokers):
    cluster.script = [cluster.lose_answer, cluster.lose_answer]
    answers = cluster.ask(CREATE_T)
    for _ in range(3):
        cluster.decided.get(timeout=TIMEOUT_S)
    created = cluster.world.topic("t").created_zxid
    cluster.update_metadata()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]
    assert cluster.world.topic("t").created_zxid == created
    assert cluster.answer(CREATE_T) == [("t", Errors.TOPIC_ALREADY_EXISTS)]


def test_a_request_applied_by_an_earlier_attempt_succeeds(cluster: TwoBrokers):
    cluster.have("t")
    cluster.script = [cluster.lose_answer]
    growing = cluster.ask(GROW_T)
    for _ in range(2):
        cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    assert growing.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]

    def delete_at_once(body: EnvelopeRequest) -> Response:
        cluster.decide(body)
        cluster.update_metadata(deleted=("t",))
        raise RequestTimeoutError("controller", "no answer in time")

    cluster.script = [delete_at_once]
    assert cluster.answer(DELETE_T) == [("t", Errors.NONE)]


def test_a_deletion_by_id_that_an_earlier_attempt_has_done_succeeds(cluster: TwoBrokers):
    id_ = topic_id(1)
    cluster.world.put_topic("t", {0: (1,)}, id_)
    cluster.update_metadata()

    def delete_at_once(body: EnvelopeRequest) -> Response:
        cluster.decide(body)
        cluster.update_metadata(deleted=("t",))
        raise RequestTimeoutError("controller", "no answer in time")

    cluster.script = [delete_at_once]
    assert cluster.answer(delete_topics((), LONG_MS, (id_,))) == [(id_, Errors.NONE)]
    unknown = delete_topics((), LONG_MS, (id_,))
    assert cluster.answer(unknown) == [(id_, Errors.UNKNOWN_TOPIC_ID)]


def test_an_invalid_request_is_refused_at_every_attempt(cluster: TwoBrokers):
    cluster.have("t", partitions=3)
    for request, error in (
        (GROW_T, Errors.INVALID_PARTITIONS),
        (create_partitions((growing("t", 0),), LONG_MS), Errors.INVALID_PARTITIONS),
        (delete_topics(("u",), LONG_MS), Errors.UNKNOWN_TOPIC_OR_PARTITION),
    ):
        cluster.script = [cluster.lose_answer]
        ((_, refusal),) = cluster.answer(request)
        assert refusal is error


def test_without_a_controller_the_client_gets_not_controller(impatient: TwoBrokers):
    request = create_topics((creatable("t"),), 0)
    assert impatient.answer(request) == [("t", Errors.NOT_CONTROLLER)]
    impatient.update_metadata()
    impatient.is_active = False
    assert impatient.answer(request) == [("t", Errors.NOT_CONTROLLER)]


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (PeerUnreachableError("controller", "gone"), Errors.NOT_CONTROLLER),
        (PeerDisconnectedError("controller", "gone"), Errors.REQUEST_TIMED_OUT),
        (RequestTimeoutError("controller", "late"), Errors.REQUEST_TIMED_OUT),
    ],
)
def test_an_unsent_request_gets_not_controller_and_a_sent_one_times_out(
    impatient: TwoBrokers, failure: Exception, error: Errors
):
    def fail(_: EnvelopeRequest) -> Response:
        raise failure

    impatient.update_metadata()
    impatient.script = [fail]
    assert impatient.answer(create_topics((creatable("t"),), 0)) == [("t", error)]


@pytest.mark.parametrize("earlier", ["lost", "in part"])
@pytest.mark.parametrize("last", ["inactive", "unreachable", "unknown", "of Kafka", "stopping"])
def test_a_request_that_an_earlier_attempt_may_have_done_times_out(
    cluster: TwoBrokers,
    earlier: str,
    last: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """NOT_CONTROLLER would tell the client that nothing was done."""
    is_over = threading.Event()
    monkeypatch.setattr(
        forwarding_manager, "monotonic_ms", lambda: monotonic_ms() + LONG_MS * is_over.is_set()
    )

    def done_in_part(body: EnvelopeRequest) -> Response:
        answer = cluster.decide(body)
        assert isinstance(answer, EnvelopeResponse)
        created = answer.response_to(body)
        assert isinstance(created, CreateTopicsResponse)
        elsewhere = refuse(create_topics((creatable("u"),)), Errors.NOT_CONTROLLER, "not here")
        assert isinstance(elsewhere, CreateTopicsResponse)
        return EnvelopeResponse.of(CreateTopicsResponse(topics=created.topics + elsewhere.topics))

    def unreachable(_: EnvelopeRequest) -> Response:
        raise PeerUnreachableError("controller", "gone")

    def first(body: EnvelopeRequest) -> Response:
        try:
            return (cluster.lose_answer if earlier == "lost" else done_in_part)(body)
        finally:
            cluster.is_active = False
            if last == "unknown":
                cluster.update_metadata(controller=-1)
            elif last == "of Kafka":
                cluster.let_kafka_rule()

    cluster.script = [first, *([unreachable] * 50 if last == "unreachable" else ())]
    answers = cluster.ask(create_topics((creatable("t"),), 0), ALICE)
    eventually(lambda: "trying again" in caplog.text, "the first failed", scaled(TIMEOUT_S))
    if last == "stopping":
        assert stop_actor(cluster.admin, TIMEOUT_S)
    is_over.set()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.REQUEST_TIMED_OUT)]
    assert cluster.world.topic("t").partitions


# --- until the other brokers know -----------------------------------------------------------------


@pytest.mark.parametrize("request_", [CREATE_T, GROW_T, DELETE_T], ids=["create", "grow", "delete"])
def test_a_change_is_answered_when_the_other_brokers_know_it(
    cluster: TwoBrokers, request_: TopicsRequest
):
    may_answer = threading.Event()

    def answer_later() -> Response:
        assert may_answer.wait(TIMEOUT_S)
        return AwaitBrokersResponse(Errors.NONE)

    if request_ is not CREATE_T:
        cluster.have("t")
    cluster.spread = answer_later
    answers = cluster.ask(request_)
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata(deleted=("t",) if request_ is DELETE_T else ())
    cluster.spreads.get(timeout=TIMEOUT_S)
    assert answers.empty(), "another broker may not know the change"
    may_answer.set()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


@pytest.mark.parametrize(
    "failure",
    [
        RequestTimeoutError("controller", "late"),
        PeerUnreachableError("controller", "gone"),
        RequestFailedError("controller", Errors.UNSUPPORTED_VERSION, "an earlier version"),
    ],
)
def test_a_change_is_answered_although_the_state_of_the_other_brokers_is_unknown(
    cluster: TwoBrokers, failure: Exception
):
    def fail() -> Response:
        raise failure

    cluster.spread = fail
    answers = cluster.ask(CREATE_T)
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


def test_changes_are_awaited_together(cluster: TwoBrokers):
    may_answer: queue.Queue[None] = queue.Queue()

    def answer_later() -> Response:
        may_answer.get(timeout=TIMEOUT_S)
        return AwaitBrokersResponse(Errors.NONE)

    cluster.spread = answer_later
    answers = []
    for topics in ("a", "bcd"):
        requests = [create_topics((creatable(name),), LONG_MS) for name in topics]
        answers += [cluster.ask(request) for request in requests]
        for _ in requests:
            cluster.decided.get(timeout=TIMEOUT_S)
        cluster.update_metadata()
        if topics == "a":
            cluster.spreads.get(timeout=TIMEOUT_S)
    for _ in "12":
        may_answer.put(None)
    for name, answer in zip("abcd", answers, strict=True):
        assert answer.get(timeout=TIMEOUT_S) == [(name, Errors.NONE)]
    cluster.spreads.get(timeout=TIMEOUT_S)
    assert cluster.spreads.empty()


# --- elections and reassignments ------------------------------------------------------------------


def elected(leader: int) -> ElectLeadersResponse:
    t0 = TopicPartition("t", 0)
    return ElectLeadersResponse.of({t0: NO_ERROR}, leaders={t0: leader})


def test_an_election_is_answered_when_this_broker_knows_the_leader_or_times_out(
    cluster: TwoBrokers,
):
    cluster.have("t")
    named = (TopicPartition("t", 0),)
    cluster.script = [
        lambda _: EnvelopeResponse.of(elected(leader=1)),
        lambda _: EnvelopeResponse.of(elected(leader=0)),
    ]
    request = ElectLeadersRequest.of(ElectionType.PREFERRED, named, LONG_MS)
    assert cluster.answer_about_partitions(request) == elected(leader=1)
    assert cluster.requests.get(timeout=TIMEOUT_S) == EnvelopeRequest.of(
        ElectLeadersRequest.of(ElectionType.PREFERRED, named), client=ALICE
    )
    late = cluster.answer_about_partitions(
        ElectLeadersRequest.of(ElectionType.PREFERRED, named, 10)
    )
    assert isinstance(late, ElectLeadersResponse)
    (result,) = late.results.values()
    assert result.error_code is Errors.REQUEST_TIMED_OUT


def test_a_reassignment_is_forwarded_until_the_controller_has_stored_it(cluster: TwoBrokers):
    def is_inactive(_: EnvelopeRequest) -> Response:
        elsewhere = ApiError(Errors.NOT_CONTROLLER)
        return EnvelopeResponse.of(AlterPartitionReassignmentsResponse.of({}, elsewhere))

    def disconnects(_: EnvelopeRequest) -> Response:
        raise PeerDisconnectedError("controller", "the connection broke")

    t0 = TopicPartition("t", 0)
    stored = AlterPartitionReassignmentsResponse.of({t0: NO_ERROR})
    cluster.script = [is_inactive, disconnects, lambda _: EnvelopeResponse.of(stored)]
    request = AlterPartitionReassignmentsRequest.of({t0: (0,)}, LONG_MS)
    assert cluster.answer_about_partitions(request) == stored


def test_what_the_controller_refuses_to_the_client_is_not_asked_again(cluster: TwoBrokers):
    denied = ApiError(Errors.CLUSTER_AUTHORIZATION_FAILED, "not for alice")
    refused = AlterPartitionReassignmentsResponse.of({TopicPartition("t", 0): denied}, denied)
    cluster.script = [lambda _: EnvelopeResponse.of(refused)]
    request = AlterPartitionReassignmentsRequest.of({TopicPartition("t", 0): (0,)}, LONG_MS)
    assert cluster.answer_about_partitions(request) == refused
    cluster.requests.get(timeout=TIMEOUT_S)
    assert cluster.requests.empty()


def test_an_answer_to_another_request_is_refused(cluster: TwoBrokers):
    cluster.script = [lambda _: EnvelopeResponse.of(elected(leader=1))]
    answer = cluster.answer_about_partitions(ListPartitionReassignmentsRequest.of())
    assert isinstance(answer, ListPartitionReassignmentsResponse)
    why = "ElectLeadersResponse is no answer to ListPartitionReassignmentsRequest"
    assert (answer.error_code, answer.error_message) == (Errors.INVALID_REQUEST, why)


def test_partition_requests_without_a_controller_get_not_controller(impatient: TwoBrokers):
    t0 = TopicPartition("t", 0)
    for request in (
        ElectLeadersRequest.of(ElectionType.PREFERRED, [t0]),
        AlterPartitionReassignmentsRequest.of({t0: None}),
        ListPartitionReassignmentsRequest.of(),
    ):
        answer = impatient.answer_about_partitions(request)
        assert isinstance(answer, PartitionsResponse)
        assert answer.error_code == Errors.NOT_CONTROLLER
        assert "no controller is known" in str(answer)


def test_a_request_that_could_not_be_sent_in_time_says_who_is_slow(
    cluster: TwoBrokers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(broker_to_controller_channel, "DECISION_TIMEOUT_MS", 0)
    answers: queue.Queue[object] = queue.Queue()

    def why() -> str:
        request = MessageWithReply(EnvelopeRequest.of(CREATE_T), Reply.of(answers.put))
        cluster.forwarder.tell(request)
        error = answers.get(timeout=TIMEOUT_S)
        assert isinstance(error, ControllerUnknownError)
        return str(error)

    slow = r"broker 1, the controller, was not asked: .* earlier requests to it took \d+ ms"
    assert re.fullmatch(slow, why())
    cluster.update_metadata(controller=-1)
    assert why() == "no controller is known"
    assert cluster.requests.empty()


# --- limits ---


def test_too_many_waiting_requests_are_refused_and_the_others_answered_once(
    cluster: TwoBrokers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(forwarding_manager, "MAX_PENDING", 2)
    requests = [create_topics((creatable(name),), LONG_MS) for name in "abc"]
    first, second, third = (cluster.ask(request) for request in requests)
    assert third.get(timeout=TIMEOUT_S) == [("c", Errors.REQUEST_TIMED_OUT)]
    for _ in range(2):
        cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    cluster.update_metadata()
    assert first.get(timeout=TIMEOUT_S) == [("a", Errors.NONE)]
    assert second.get(timeout=TIMEOUT_S) == [("b", Errors.NONE)]
    cluster.have("d")
    assert (first.empty(), second.empty(), third.empty()) == (True, True, True)


def test_what_was_not_sent_gets_not_controller_when_the_broker_stops(cluster: TwoBrokers):
    assert stop_actor(cluster.forwarder, TIMEOUT_S)
    answers = cluster.ask(CREATE_T)
    eventually(lambda: cluster.forwarding.pending_count == 1, "it waits", scaled(TIMEOUT_S))
    assert stop_actor(cluster.admin, TIMEOUT_S)
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NOT_CONTROLLER)]


def test_a_change_that_is_known_here_succeeds_although_the_broker_stops(cluster: TwoBrokers):
    def never() -> Response:
        assert cluster.stopping.wait(TIMEOUT_S)
        return AwaitBrokersResponse(Errors.NONE)

    cluster.spread = never
    answers = cluster.ask(CREATE_T)
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    cluster.spreads.get(timeout=TIMEOUT_S)
    assert stop_actor(cluster.admin, TIMEOUT_S)
    cluster.stopping.set()
    assert answers.get(timeout=TIMEOUT_S) == [("t", Errors.NONE)]


# --- topics created automatically -----------------------------------------------------------------


def test_missing_topics_are_created_once_and_together(cluster: TwoBrokers):
    cluster.have("there")
    begun, may_go_on = threading.Event(), threading.Event()

    def decide_later(body: EnvelopeRequest) -> Response:
        begun.set()
        assert may_go_on.wait(TIMEOUT_S)
        return cluster.decide(body)

    cluster.script = [decide_later]
    cluster.admin.tell(CreateMissing(("t", "there")))
    assert begun.wait(TIMEOUT_S)
    for topics in (("t", "u"), ("u", "there"), ("v",)):
        cluster.admin.tell(CreateMissing(topics))
    may_go_on.set()
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.update_metadata()
    cluster.decided.get(timeout=TIMEOUT_S)
    created = [cluster.requests.get(timeout=TIMEOUT_S) for _ in range(2)]
    names = [
        [row.name for row in envelope.create_topics.topics]
        for envelope in created
        if envelope.create_topics is not None
    ]
    assert names == [["t"], ["u", "v"]]
    assert all(len(cluster.world.topic(name).partitions) == 1 for name in "tuv")


def test_the_client_gets_the_reason_why_its_topic_cannot_be_created(cluster: TwoBrokers):
    cluster.have("a_b")
    for _ in range(3):
        refused = cluster.want("a.b", "a_b")
        assert {t: error.error_code for t, error in refused.items()} == {
            "a.b": Errors.INVALID_TOPIC_EXCEPTION
        }
        assert "collides with topic a_b" in refused["a.b"].message


def test_the_client_gets_the_reason_without_a_wait_for_its_other_topics(cluster: TwoBrokers):
    cluster.have("a_b")
    assert set(cluster.want("a.b")) == {"a.b"}
    begun = cluster.want("fine")  # no update of the metadata: it is not known in time
    assert begun == {}
    assert cluster.world.topic("fine").partitions


def test_the_next_client_that_asks_gets_a_late_decision(cluster: TwoBrokers):
    cluster.have("a_b")
    may_go_on = threading.Event()

    def decide_later(body: EnvelopeRequest) -> Response:
        assert may_go_on.wait(TIMEOUT_S)
        return cluster.decide(body)

    cluster.script = [decide_later]
    assert cluster.want("a.b") == {}, "a client does not wait long"
    assert cluster.want("a.b") == {}, "nor for a creation that has taken long already"
    may_go_on.set()
    cluster.decided.get(timeout=TIMEOUT_S)
    cluster.script = [decide_later]
    may_go_on.clear()
    assert set(cluster.want("a.b")) == {"a.b"}
    may_go_on.set()


def test_a_client_gets_an_error_when_no_controller_is_known(cluster: TwoBrokers):
    cluster.update_metadata(controller=-1)
    refused = cluster.want("t")
    assert refused == {"t": ApiError(Errors.NOT_CONTROLLER, "no controller is known")}


def test_refusals_are_logged_once_and_their_number_is_limited(
    cluster: TwoBrokers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(automatic_creation, "MAX_REFUSALS", 2)
    cluster.have("a_b")
    for _ in range(3):
        assert set(cluster.want("a.b")) == {"a.b"}
    for number in range(3):
        cluster.have(f"x_{number}")
        assert set(cluster.want(f"x.{number}")) == {f"x.{number}"}
    assert set(cluster.forwarding.refusals) == {"x.1", "x.2"}
    logged = [message for message in caplog.messages if "cannot create" in message]
    assert len([message for message in logged if "a.b" in message]) == 1


def test_a_topic_that_could_not_be_created_is_tried_again(stage: Stage, cluster: TwoBrokers):
    def is_decided() -> bool:
        cluster.admin.tell(CreateMissing(("no spaces",)))
        return not cluster.decided.empty()

    for _ in range(2):
        stage.wait_for(is_decided)
        cluster.decided.get(timeout=TIMEOUT_S)
