"""Requests to brokers that come and go, and the metrics of each channel."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator

import pytest

from regent.actors.controller_channel_manager import ControllerChannelManager
from regent.actors.request_send_thread import DeliverySettings
from regent.broker.metrics.controller_metrics import channel_metrics
from regent.broker.metrics.recent import Recent
from regent.core.controller.effects import SendControlRequest
from regent.core.controller.events import (
    BrokerUnusable,
    ControllerEvent,
    UpdateMetadataResponseReceived,
)
from regent.core.errors import Errors
from regent.core.model import BrokerRegistration
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from regent.transport.control.client import (
    PeerDisconnectedError,
    PeerUnreachableError,
    RequestFailedError,
    RequestTimeoutError,
)
from tests.support.stage import TIMEOUT_S, Sent, Stage, accept

HEADER = ControlHeader(9, 5, 1, event_id=12)
STOP = StopReplicaRequest(
    (StopReplicaTopic("t", None, tuple(StopReplicaPartition(n, 0, False) for n in range(3))),)
)
METADATA = UpdateMetadataRequest((), ())


class Channels:
    """The channels of controller 9; what they tell the controller waits in ``told``."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.told: queue.Queue[ControllerEvent] = queue.Queue()
        self.manager = ControllerChannelManager(
            9,
            stage.open_channel,
            self.told.put,
            may_announce=lambda: True,
            settings=DeliverySettings(retry_backoff_ms=1),
        )

    def add(self, broker_id: int, broker_epoch: int = 1) -> None:
        """Let the channel to a broker begin."""
        self.manager.add_broker(BrokerRegistration(self._stage.info(broker_id), broker_epoch))

    def send(self, broker_id: int, *requests: ControlRequest) -> None:
        """Send requests to a broker."""
        self.manager.send([SendControlRequest(broker_id, HEADER, r) for r in requests])

    def metrics(self) -> dict[str, float]:
        """Return the metrics that belong to single brokers."""
        families = channel_metrics(self.manager, Recent())
        samples = {name: value for family in families for name, value in family.values().items()}
        return {name: value for name, value in samples.items() if "broker_id" in name}


@pytest.fixture
def channels(stage: Stage) -> Iterator[Channels]:
    channels = Channels(stage)
    yield channels
    channels.manager.close()


def test_requests_to_a_broker_that_is_gone_are_one_warning(
    channels: Channels, caplog: pytest.LogCaptureFixture
) -> None:
    channels.send(4, STOP, METADATA)
    channels.send(4, STOP)
    assert caplog.messages == [
        "event 5-12: Not sending StopReplica request with 3 partitions to broker 4,"
        " since it is offline"
    ]


def test_each_broker_and_each_end_of_its_channel_has_its_own_warning(
    channels: Channels, caplog: pytest.LogCaptureFixture
) -> None:
    channels.send(4, STOP)
    channels.send(5, STOP)
    channels.add(4)
    channels.manager.remove_broker(4)
    channels.send(4, METADATA)
    channels.send(5, METADATA)
    warned = [record.args for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == [
        ("5-12", "StopReplica", 3, 4),
        ("5-12", "StopReplica", 3, 5),
        ("5-12", "UpdateMetadata", 0, 4),
    ]


def test_a_channel_has_metrics_until_it_is_removed(stage: Stage, channels: Channels) -> None:
    endpoint = "inproc://broker-4"
    outcomes = iter(
        [
            PeerUnreachableError(endpoint, "not there"),
            RequestFailedError(endpoint, Errors.BROKER_NOT_AVAILABLE, "overloaded"),
            RequestTimeoutError(endpoint, "too slow"),
        ]
    )
    connections: list[float] = []
    is_in_flight, may_answer = threading.Event(), threading.Event()
    kafka = "kafka_server_controller_channel_metrics_"

    def answer(sent: Sent) -> ControlResponse:
        connections.append(channels.metrics()[kafka + 'connection_count{broker_id="4"}'])
        for error in outcomes:
            raise error
        is_in_flight.set()
        assert may_answer.wait(TIMEOUT_S)
        return accept(sent)

    stage.answer = answer
    channels.add(4)
    channels.send(4, STOP)
    channels.send(4, METADATA)
    assert is_in_flight.wait(TIMEOUT_S)
    waiting = channels.metrics()
    may_answer.set()
    channels.told.get(timeout=TIMEOUT_S)  # the answer to UpdateMetadata, the last one
    done = channels.metrics()
    manager = "kafka_controller_controllerchannelmanager_"
    assert waiting[manager + 'queuesize{broker_id="4"}'] == 1
    assert waiting['regent_control_requests_in_flight{broker_id="4"}'] == 1
    assert connections == [0, 0, 1, 0, 1], "after a timeout the connection is closed"
    assert done[kafka + 'request_total{broker_id="4"}'] == 4, "one of five was not sent"
    assert done[kafka + 'request_rate{broker_id="4"}'] > 0
    assert done['regent_failed_control_requests_total{broker_id="4"}'] == 3
    assert done['regent_control_request_latency_ms_count{broker_id="4"}'] == 2
    assert done[manager + 'requestrateandqueuetimems_count{broker_id="4"}'] == 2
    channels.manager.remove_broker(4)
    assert channels.metrics() == {}


def test_the_answers_of_another_broker_are_shown_at_once_and_delay_no_other_answer(
    stage: Stage, channels: Channels
) -> None:
    reason = "broker 5 answers at the address of broker 4"

    def answer(sent: Sent) -> ControlResponse:
        if sent.broker_id == 4:
            error = Errors.BROKER_ID_NOT_REGISTERED
            raise RequestFailedError("inproc://broker-4", error, reason)
        return accept(sent)

    stage.answer = answer
    for broker_id in (4, 5):
        channels.add(broker_id)
        channels.send(broker_id, METADATA)
    told = [channels.told.get(timeout=TIMEOUT_S) for _ in range(2)]
    assert {(type(event), getattr(event, "broker_id", None)) for event in told} == {
        (BrokerUnusable, 4),
        (UpdateMetadataResponseReceived, 5),
    }
    stage.wait_for(lambda: any(channels.manager.unanswered()))
    (shown,) = channels.manager.unanswered()
    assert (shown.broker_id, shown.request) == (4, "UpdateMetadata")
    assert reason in shown.reason
    assert channels.told.empty()


def test_what_keeps_a_broker_from_answering_is_shown(
    stage: Stage, channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be neither a broker of this project nor one of Kafka."""
    monkeypatch.setattr("regent.actors.controller_channel_manager.UNANSWERED_WARNING_S", 0.0)

    def answer(_: Sent) -> ControlResponse:
        raise PeerDisconnectedError("inproc://broker-4", "the connection broke")

    stage.answer = answer
    channels.add(4)
    channels.send(4, METADATA)
    stage.wait_for(lambda: any(row.reason for row in channels.manager.unanswered()))
    (shown,) = channels.manager.unanswered()
    assert shown.reason == "inproc://broker-4: the connection broke"


def test_a_broker_that_left_and_came_back_is_counted_for_an_hour(
    channels: Channels, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000_000
    monkeypatch.setattr("regent.actors.controller_channel_manager._now_ms", lambda: now_ms)
    channels.add(4)
    channels.add(5)
    for epoch in (2, 3):
        now_ms += 60_000
        channels.manager.remove_broker(4)
        now_ms += 12_000
        channels.add(4, epoch)
    assert list(channels.manager.returned()) == [(4, 2, 1_144_000, 12_000)]
    now_ms += 3_600_000
    assert list(channels.manager.returned()) == [(4, 1, 1_144_000, 12_000)]
    now_ms += 1
    assert list(channels.manager.returned()) == []


def test_another_channel_to_the_same_broker_is_no_return(channels: Channels) -> None:
    channels.add(4)
    channels.manager.remove_broker(4)
    channels.add(4)
    assert list(channels.manager.returned()) == []
    channels.add(4, broker_epoch=2)
    assert [row.times for row in channels.manager.returned()] == [1], "it was away for a moment"
