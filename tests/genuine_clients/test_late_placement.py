"""A client that does not wait for the start of the placement service gets its topic afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from regent.config.settings import Settings
from regent.config.tables.broker import BrokerConfig
from regent.core.errors import Errors
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import (
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.testing.waits import eventually
from regent.transport.control.server import ControlServer, IncomingRequest
from tests.genuine_clients.librdkafka import TIMEOUT_S, code_of
from tests.support.keys import EVERYBODY_OPERATES, KEYS
from tests.support.memory_logs import MemoryLogs
from tests.support.served_endpoint import ServedEndpoint


class SlowService:
    """A broker whose placement service starts until ``is_ready``."""

    def __init__(self, stack: ExitStack) -> None:
        self.is_ready = False
        server = ControlServer(
            KEYS, EVERYBODY_OPERATES, "tcp://127.0.0.1:0", self._answer, name="placement"
        )
        stack.callback(server.stop)
        server.start()
        settings = Settings(broker=BrokerConfig(placement_service=server.endpoint))
        self.served = ServedEndpoint(stack, MemoryLogs(), settings)
        self.address: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{self.served.port}",
            "log_level": 0,
        }

    def _answer(self, incoming: IncomingRequest) -> None:
        if isinstance(incoming.body, PlacementStatusRequest):
            state = "ready" if self.is_ready else "starting"
            incoming.reply(PlacementStatusResponse(Errors.NONE, state))
        else:
            assert isinstance(incoming.body, PlaceTopicsRequest)
            placed = tuple(place(incoming.body))
            incoming.reply(PlaceTopicsResponse(Errors.NONE, partitions=placed))

    def await_topic(self, name: str) -> None:
        znodes = self.served.world.zookeeper
        eventually(lambda: f"/brokers/topics/{name}" in znodes.snapshot(), f"{name} exists")


@pytest.fixture
def slow() -> Iterator[SlowService]:
    with ExitStack() as stack:
        yield SlowService(stack)


def test_an_admin_client_is_told_of_the_timeout_and_its_topic_is_created(slow: SlowService):
    admin = AdminClient(slow.address)

    def create() -> int:
        answer = admin.create_topics([NewTopic("late", 3, 1)], operation_timeout=1)["late"]
        error = answer.exception(TIMEOUT_S)
        assert isinstance(error, KafkaException)
        return code_of(error)

    assert create() == KafkaError.REQUEST_TIMED_OUT
    slow.is_ready = True
    slow.await_topic("late")
    assert create() == KafkaError.TOPIC_ALREADY_EXISTS


def test_a_topic_is_created_for_a_producer_that_asks_for_it_once(slow: SlowService):
    Producer(slow.address).list_topics("wanted", timeout=TIMEOUT_S)
    slow.is_ready = True
    slow.await_topic("wanted")
