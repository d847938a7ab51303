"""Control requests of controllers that a Broker actor does not know yet."""

from __future__ import annotations

import threading

import pytest
from pykka import ActorRef, Future

from regent.actors.broker import Broker, BrokerCallbacks, Registered
from regent.actors.control_request_check import ControlRequestReceived
from regent.actors.request_router import answer_unread
from regent.core.errors import BadDataError, Errors, RegentError, SessionExpiredError
from regent.core.model import MAX_CONTROLLER_EPOCH, TopicPartition
from regent.core.ports import ControlFacts
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import DescribeMetadataRequest
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrType,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from regent.core.replica_logs import SeenOfCluster
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.testing.waits import eventually
from tests.support.memory_logs import MemoryLogs
from tests.support.stage import TIMEOUT_S, Stage, ask

BROKER = 3
TRUTH = ControlFacts(0, 7, 20)
HEADER = ControlHeader(0, 7, 20, broker_id=BROKER)
METADATA = UpdateMetadataRequest((), ())
HOSTED = TopicPartition("payments", 0)
DELETE = StopReplicaRequest(
    (StopReplicaTopic("payments", "id", (StopReplicaPartition(0, -2, delete_partition=True),)),)
)
NOTHING_HOSTED = LeaderAndIsrRequest(LeaderAndIsrType.FULL, (), ())


class SlowZooKeeper:
    """What ZooKeeper says; a read lasts until ``go_on`` is set."""

    def __init__(self) -> None:
        self.facts: ControlFacts | RegentError = TRUTH
        self.reads = 0
        self.is_read = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.go_on.set()

    def read(self, header: ControlHeader) -> ControlFacts:
        """Read about a sender."""
        del header
        self.reads += 1
        self.is_read.release()
        assert self.go_on.wait(TIMEOUT_S)
        if isinstance(self.facts, RegentError):
            raise self.facts
        return self.facts


@pytest.fixture
def zookeeper() -> SlowZooKeeper:
    return SlowZooKeeper()


@pytest.fixture
def logs() -> MemoryLogs:
    logs = MemoryLogs()
    logs.get_or_create(HOSTED, "id", is_new=True)
    return logs


@pytest.fixture
def broker(stage: Stage, zookeeper: SlowZooKeeper, logs: MemoryLogs) -> ActorRef[Broker]:
    ref = stage.broker(BROKER, logs=logs, callbacks=BrokerCallbacks(lambda _: None, zookeeper.read))
    ref.tell(Registered(20))
    return ref


def send(
    broker: ActorRef[Broker], request: ControlRequest = METADATA, header: ControlHeader = HEADER
) -> Future[object]:
    return broker.ask(ControlRequestReceived(header, request), block=False)


def error_of(answer: Future[object]) -> Errors:
    with pytest.raises(ControlRequestRefusedError) as refused:
        answer.get(timeout=TIMEOUT_S)
    return refused.value.error_code


def test_one_read_serves_all_requests_of_a_failover(
    broker: ActorRef[Broker], zookeeper: SlowZooKeeper
) -> None:
    zookeeper.go_on.clear()
    answers = [send(broker, METADATA, HEADER._replace(sequence=n)) for n in range(1, 6)]
    assert zookeeper.is_read.acquire(timeout=TIMEOUT_S)
    ask(broker, DescribeMetadataRequest())  # the actor goes on meanwhile
    zookeeper.go_on.set()
    answered = [answer.get(timeout=TIMEOUT_S) for answer in answers]
    assert {answer.error_code for answer in answered} == {Errors.NONE}  # type: ignore[attr-defined]
    send(broker).get(timeout=TIMEOUT_S)
    assert zookeeper.reads == 1


def test_one_read_refuses_all_requests_that_waited_for_it(
    broker: ActorRef[Broker], zookeeper: SlowZooKeeper
) -> None:
    zookeeper.go_on.clear()
    forged = HEADER._replace(controller_epoch=MAX_CONTROLLER_EPOCH)
    answers = [send(broker, METADATA, forged) for _ in range(2)]
    assert zookeeper.is_read.acquire(timeout=TIMEOUT_S)
    ask(broker, DescribeMetadataRequest())
    answers += [send(broker, METADATA, forged) for _ in range(20)]
    ask(broker, DescribeMetadataRequest())
    zookeeper.go_on.set()
    assert {error_of(answer) for answer in answers} == {Errors.NOT_CONTROLLER}
    assert zookeeper.reads == 2, "the second one began after all others had come"


@pytest.mark.parametrize("request_", [METADATA, DELETE, NOTHING_HOSTED])
@pytest.mark.parametrize(
    "header",
    [
        HEADER._replace(controller_epoch=MAX_CONTROLLER_EPOCH),
        HEADER._replace(controller_id=99),
        HEADER._replace(broker_epoch=21),
        HEADER._replace(broker_id=66),
        HEADER._replace(broker_id=66, broker_epoch=21),
    ],
)
def test_a_false_order_changes_nothing_and_is_not_answered(
    broker: ActorRef[Broker], logs: MemoryLogs, header: ControlHeader, request_: ControlRequest
) -> None:
    error = error_of(send(broker, request_, header))
    is_for_another = header.broker_id != BROKER
    expected = Errors.BROKER_ID_NOT_REGISTERED if is_for_another else Errors.NOT_CONTROLLER
    assert error is expected
    assert logs.hosted() == {HOSTED: "id"}
    assert logs.seen == SeenOfCluster(zxid=20)
    assert ask(broker, DescribeMetadataRequest()).controller_epoch == 0


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (SessionExpiredError("no session"), Errors.BROKER_NOT_AVAILABLE),
        (BadDataError("/controller: not JSON"), Errors.NOT_CONTROLLER),
    ],
)
def test_without_an_answer_of_zookeeper_the_sender_must_repeat_the_request(
    broker: ActorRef[Broker],
    zookeeper: SlowZooKeeper,
    failure: RegentError,
    error: Errors,
) -> None:
    zookeeper.facts = failure
    assert error_of(send(broker)) is error
    zookeeper.facts = TRUTH
    answer = send(broker).get(timeout=TIMEOUT_S)
    assert answer.error_code is Errors.NONE  # type: ignore[attr-defined]


def test_refusals_are_logged_once_in_ten_seconds(
    broker: ActorRef[Broker], caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in range(50, 80):
        assert error_of(send(broker, METADATA, HEADER._replace(controller_epoch=epoch)))
    lines = [r.message for r in caplog.records if "is not carried out" in r.message]
    assert len(lines) == 1
    assert "controller epoch 50; ZooKeeper has broker 0 with epoch 7" in lines[0]


def test_a_large_request_is_read_only_when_zookeeper_has_confirmed_its_sender(
    broker: ActorRef[Broker], zookeeper: SlowZooKeeper
) -> None:
    actor = broker._actor_weakref()
    assert isinstance(actor, Broker)
    view = actor.view
    forged = HEADER._replace(controller_id=9)
    for header in (HEADER, forged):
        answer = answer_unread(view, ApiKey.UPDATE_METADATA, header)
        assert answer is Errors.BROKER_NOT_AVAILABLE, "the controller repeats it"

    def is_read(header: ControlHeader) -> bool:
        return answer_unread(view, ApiKey.UPDATE_METADATA, header) is None

    eventually(lambda: is_read(HEADER), "the controller is known")
    assert zookeeper.reads
    assert not is_read(forged)
    ask(broker, DescribeMetadataRequest())
    assert is_read(HEADER), "the false one has changed nothing"
    assert view.replica_manager.controller_epoch == 0, "only a request that is read is obeyed"
