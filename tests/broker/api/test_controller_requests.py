"""What brokers of Kafka ask the controller, and what it answers them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from regent.broker.api.controller_requests import ControllerAccess, controller_apis
from regent.broker.api.fetch import TopicNamesById
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import TopicPartition
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    ControllerRequest,
)
from regent.core.protocol.messages import controller as kafka
from regent.core.security.session import KafkaPrincipal, Session
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.message_codec import decoded, encoded
from tests.broker.api.canned_replicas import EXECUTOR, cached
from tests.transport.kafka.wire import SESSION, request_of, whole

BROKER, EPOCH = 2, 5  # the only broker that is registered
ORDERS, PAYMENTS, OTHER = ("AAAAAAAAAAAAAAAAAAAAA" + letter for letter in "Qgw")
KEYS = {
    kafka.AlterPartitionRequestData: (
        KafkaApiKey.ALTER_PARTITION,
        kafka.AlterPartitionResponseData,
    ),
    kafka.ControlledShutdownRequestData: (
        KafkaApiKey.CONTROLLED_SHUTDOWN,
        kafka.ControlledShutdownResponseData,
    ),
    kafka.AllocateProducerIdsRequestData: (
        KafkaApiKey.ALLOCATE_PRODUCER_IDS,
        kafka.AllocateProducerIdsResponseData,
    ),
}


class Controller:
    """Notes the requests, and answers each with ``answer``."""

    def __init__(
        self, answer: object = None, *, is_active: bool = True, control_endpoint: str | None = None
    ) -> None:
        self.requests: list[ControllerRequest] = []
        self.blocks: list[int] = []
        self._answer = answer
        self._is_active = is_active
        self._control_endpoint = control_endpoint  # of the broker

    def ask(self, message: Any, version: int, session: Session = SESSION) -> Any:
        """Return the answer to a message of a broker."""
        key, response = KEYS[type(message)]
        access = ControllerAccess(
            lambda: self._is_active, self._respond, self._take_block, EXECUTOR
        )
        cache = cached({"orders": ORDERS, "payments": PAYMENTS})
        broker = replace(cache.snapshot.brokers[BROKER], control_endpoint=self._control_endpoint)
        cache.snapshot = replace(cache.snapshot, brokers={BROKER: broker})
        apis = controller_apis(access, TopicNamesById(cache), RegisteredFollowers(cache))
        (api,) = [api for api in apis if api.key == key]
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]

        async def handled() -> bytes:
            body = encoded(message, version, is_flexible=is_flexible)
            return whole(await api.handle(request_of(key, version, body, session=session)))

        body = memoryview(asyncio.run(handled()))
        return decoded(response, body, version, is_flexible=is_flexible)

    def _respond(self, request: ControllerRequest, respond: Callable[[object], None]) -> None:
        self.requests.append(request)
        respond(self._answer)

    def _take_block(self, broker_id: int) -> range:
        self.blocks.append(broker_id)
        if isinstance(self._answer, Exception):
            raise self._answer
        return range(4_000, 5_000)


def topic(name: str, topic_id: str, *partitions: int) -> kafka.TopicData:
    """Return proposals for partitions that broker 2 leads with broker 3 in sync."""
    rows = tuple(
        kafka.PartitionData(
            partition_index=number,
            leader_epoch=4,
            new_isr=(2, 3),
            new_isr_with_epochs=(
                kafka.IsrMember(broker_id=2, broker_epoch=EPOCH),
                kafka.IsrMember(broker_id=3, broker_epoch=9),
            ),
            leader_recovery_state=1,
            partition_epoch=7,
        )
        for number in partitions
    )
    return kafka.TopicData(topic_name=name, topic_id=topic_id, partitions=rows)


def alter(*topics: kafka.TopicData, epoch: int = EPOCH) -> kafka.AlterPartitionRequestData:
    return kafka.AlterPartitionRequestData(broker_id=BROKER, broker_epoch=epoch, topics=topics)


SHUTDOWN = kafka.ControlledShutdownRequestData(broker_id=BROKER, broker_epoch=EPOCH)
ALLOCATE = kafka.AllocateProducerIdsRequestData(broker_id=BROKER, broker_epoch=EPOCH)
ASKED = [(SHUTDOWN, 3), (alter(topic("orders", ORDERS, 0)), 3), (ALLOCATE, 0)]


@pytest.mark.parametrize("version", range(4))
def test_a_proposal_becomes_the_one_that_our_own_brokers_send(version: int):
    controller = Controller(AlterPartitionResponse(Errors.NONE))
    controller.ask(alter(topic("orders", ORDERS, 1)), version)
    epochs = (EPOCH, 9) if version >= 3 else (-1, -1)
    recovery, topic_id = int(version >= 1), ORDERS if version >= 2 else None
    row = AlterPartitionRow("orders", 1, topic_id, 4, (2, 3), epochs, recovery, 7)
    assert controller.requests == [AlterPartitionRequest(BROKER, EPOCH, (row,))]


@pytest.mark.parametrize("version", range(4))
def test_the_present_state_is_answered_by_topics_as_they_were_named(version: int):
    given = (
        AlteredPartition("orders", 0, Errors.NONE, 2, 4, (2, 3), 0, 8),
        AlteredPartition("orders", 1, Errors.INVALID_UPDATE_VERSION, 2, 4, (2,), 0, 9),
        AlteredPartition("payments", 0, Errors.FENCED_LEADER_EPOCH),
    )
    controller = Controller(AlterPartitionResponse(Errors.NONE, given))
    answer = controller.ask(
        alter(topic("orders", ORDERS, 0, 1), topic("payments", PAYMENTS, 0)), version
    )
    assert answer.error_code == Errors.NONE
    names = [(row.topic_name, row.topic_id) for row in answer.topics]
    assert names == (
        [("", ORDERS), ("", PAYMENTS)] if version >= 2 else [("orders", None), ("payments", None)]
    )
    first, second = answer.topics[0].partitions
    assert (first.leader_id, first.leader_epoch, first.isr, first.partition_epoch) == (
        2,
        4,
        (2, 3),
        8,
    )
    # As Kafka's controller: a refused leader learns no state.
    assert second == kafka.AlteredPartitionData(
        partition_index=1, error_code=Errors.INVALID_UPDATE_VERSION
    )


def test_the_controller_gets_a_topic_id_that_this_broker_does_not_know():
    """No topic has the name that stands for it, so two of them are never taken for one."""
    given = (
        AlteredPartition("orders", 0, Errors.NONE, 2, 4, (2,), 0, 8),
        AlteredPartition("new", 0, Errors.NONE, 2, 4, (2,), 0, 8),
    )
    controller = Controller(AlterPartitionResponse(Errors.NONE, given))
    answer = controller.ask(alter(topic("", ORDERS, 0), topic("", OTHER, 0)), 2)
    (request,) = controller.requests
    assert isinstance(request, AlterPartitionRequest)
    known, unknown = request.partitions
    assert (known.topic, unknown.topic_id) == ("orders", OTHER)
    assert unknown.topic.startswith(":")
    assert [row.topic_id for row in answer.topics] == [ORDERS, OTHER]


@pytest.mark.parametrize("error", [Errors.INELIGIBLE_REPLICA, Errors.NEW_LEADER_ELECTED])
def test_brokers_that_do_not_know_an_error_get_an_older_one(error: Errors):
    given = (AlteredPartition("orders", 0, error),)
    for version in range(4):
        controller = Controller(AlterPartitionResponse(Errors.NONE, given))
        answer = controller.ask(alter(topic("orders", ORDERS, 0)), version)
        expected = error if version >= 2 else Errors.OPERATION_NOT_ATTEMPTED
        assert answer.topics[0].partitions[0].error_code == expected


@pytest.mark.parametrize("version", [2, 3])
def test_a_controlled_shutdown_names_what_the_broker_still_leads(version: int):
    remaining = (TopicPartition("orders", 3), TopicPartition("payments", 0))
    controller = Controller(ControlledShutdownResponse(Errors.NONE, remaining))
    answer = controller.ask(SHUTDOWN, version)
    assert controller.requests == [ControlledShutdownRequest(BROKER, EPOCH)]
    assert [(r.topic_name, r.partition_index) for r in answer.remaining_partitions] == [
        ("orders", 3),
        ("payments", 0),
    ]


@pytest.mark.parametrize("version", [0, 1])
def test_a_controlled_shutdown_without_an_epoch_is_refused(version: int):
    """Anybody could ask for it who reaches the listener."""
    controller = Controller(ControlledShutdownResponse(Errors.NONE))
    answer = controller.ask(SHUTDOWN, version)
    assert answer.error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert not controller.requests


def test_a_broker_gets_a_block_of_producer_ids_of_its_own():
    controller = Controller()
    answer = controller.ask(ALLOCATE, 0)
    assert (answer.error_code, answer.producer_id_start, answer.producer_id_len) == (
        0,
        4_000,
        1_000,
    )
    assert controller.blocks == [BROKER]


@pytest.mark.parametrize(("asked", "version"), ASKED)
def test_a_broker_that_is_not_the_controller_says_so(asked: Any, version: int):
    controller = Controller(is_active=False)
    assert controller.ask(asked, version).error_code == Errors.NOT_CONTROLLER
    assert not controller.requests
    assert not controller.blocks


@pytest.mark.parametrize(("asked", "version"), ASKED)
@pytest.mark.parametrize(
    ("sender", "epoch", "expected"),
    [
        (BROKER, EPOCH - 1, Errors.STALE_BROKER_EPOCH),
        (BROKER, EPOCH + 1, Errors.STALE_BROKER_EPOCH),
        (BROKER, -1, Errors.CLUSTER_AUTHORIZATION_FAILED),
        (BROKER + 1, EPOCH, Errors.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_only_a_registered_broker_with_its_current_epoch_is_answered(
    asked: Any, version: int, sender: int, epoch: int, expected: Errors
):
    fields = {name: getattr(asked, name) for name in asked.__slots__}
    controller = Controller()
    changed = type(asked)(**{**fields, "broker_id": sender, "broker_epoch": epoch})
    assert controller.ask(changed, version).error_code == expected
    assert not controller.requests
    assert not controller.blocks


@pytest.mark.parametrize(("asked", "version"), ASKED)
def test_a_client_does_not_speak_for_a_broker_of_this_project(asked: Any, version: int):
    """Those ask at the control port. The broker epoch is no secret: ZooKeeper shows it to all."""
    controller = Controller(control_endpoint="tcp://broker:1")
    assert controller.ask(asked, version).error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert not controller.requests
    assert not controller.blocks


@pytest.mark.parametrize(("asked", "version"), ASKED)
def test_the_user_of_another_broker_is_refused(
    asked: Any, version: int, caplog: pytest.LogCaptureFixture
):
    controller = Controller()
    host = f"{type(asked).__name__} {version}"  # each line comes once in ten seconds
    other = Session(host, KafkaPrincipal("User", "broker-9"))
    refused = controller.ask(asked, version, other).error_code
    assert refused == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert f"from {host} is refused: the user is User:broker-9, and it acts as" in caplog.text
    assert not controller.requests


@pytest.mark.parametrize(("asked", "version"), ASKED)
def test_what_the_controller_cannot_answer_is_asked_again(asked: Any, version: int):
    controller = Controller(SessionExpiredError("gone"))
    assert controller.ask(asked, version).error_code == Errors.UNKNOWN_SERVER_ERROR
