"""The settings of transactions in a broker, its topic, and brokers that ask each other."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from regent.actors.inter_broker_senders import InterBrokerSenders
from regent.broker.internal_topics import creatable_topic
from regent.broker.kafka_endpoint import apis_of_other_brokers
from regent.broker.machine_settings import dynamic_values, filled
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.coordinator.transaction.transaction_state_manager import TransactionLogSettings
from regent.core.errors import Errors
from regent.core.protocol.transactions import (
    InitProducerId,
    PartitionOutcome,
    TransactionToVerify,
    TxnMarker,
    TxnMarkerResult,
    TxnRequest,
    TxnResponse,
    VerifyPartitionsRequest,
    VerifyPartitionsResponse,
    WriteMarkersRequest,
    WriteMarkersResponse,
)
from regent.core.topic_validation import TRANSACTION_STATE_TOPIC
from regent.testing.waits import eventually
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.transaction_channel import TransactionChannel
from tests.support.led_groups import ORDERS_0
from tests.support.led_transactions import LedTransactions
from tests.support.stage import TIMEOUT_S


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize(
    ("settings", "error"),
    [({}, Errors.INVALID_TRANSACTION_TIMEOUT), ({"transaction_max_timeout_ms": 1_000_000}, 0)],
)
def test_a_transaction_may_take_so_long(settings: dict[str, Any], error: Errors, undo: ExitStack):
    led = LedTransactions(undo, **settings)
    led.init()
    given = led.ask(InitProducerId("x", 1_000_000))
    assert given.error_code == error


def test_a_transaction_that_takes_too_long_is_aborted(undo: ExitStack):
    led = LedTransactions(undo, transaction_abort_timed_out_transaction_cleanup_interval_ms=5)
    producer = led.init(timeout_ms=1)
    led.begin(producer)
    led.wait_for("CompleteAbort")
    assert led.end(producer, is_commit=True) is Errors.PRODUCER_FENCED


def test_transactional_ids_that_are_not_used_are_forgotten(undo: ExitStack):
    led = LedTransactions(
        undo,
        transactional_id_expiration_ms=1,
        transaction_remove_expired_transaction_cleanup_interval_ms=5,
    )
    led.init()
    gone = Errors.TRANSACTIONAL_ID_NOT_FOUND
    eventually(lambda: led.describe().error_code is gone, "the id is forgotten", TIMEOUT_S)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_brokers_ask_about_partitions_unless_this_is_disabled(is_enabled: bool, undo: ExitStack):
    led = LedTransactions(undo, transaction_partition_verification_enable=is_enabled)
    assert led.service.verifies is is_enabled


def test_whether_brokers_ask_follows_the_setting_in_zookeeper(undo: ExitStack):
    led = LedTransactions(undo)
    unknown = TransactionToVerify("nobody", 1, 0, (ORDERS_0,))
    told: queue.Queue[Errors] = queue.Queue()

    def verified() -> Errors:
        led.service.verify(unknown, lambda errors: told.put(errors[ORDERS_0]))
        return told.get(timeout=TIMEOUT_S)

    assert verified() is not Errors.NONE
    started = dynamic_values(Settings())
    changed = {**started, "transaction.partition.verification.enable": False}
    led.service.reconfigure(started, changed)
    assert (led.service.verifies, verified()) == (False, Errors.NONE)
    led.service.reconfigure(changed, started)
    assert led.service.verifies
    assert verified() is not Errors.NONE


def test_partitions_are_read_in_pieces_of_a_size():
    settings = load_settings(None, {"transactions": {"transaction_state_log_load_buffer_size": 7}})
    assert filled(TransactionLogSettings, settings).transaction_state_log_load_buffer_size == 7


def test_the_topic_of_transactions_has_the_settings_of_the_broker():
    given = {
        "transaction_state_log_num_partitions": 7,
        "transaction_state_log_replication_factor": 2,
        "transaction_state_log_min_isr": 1,
        "transaction_state_log_segment_bytes": 1_000_000,
    }
    settings = load_settings(None, {"transactions": given})
    topic = creatable_topic(settings, TRANSACTION_STATE_TOPIC)
    assert (topic.num_partitions, topic.replication_factor) == (7, 2)
    assert {row.name: row.value for row in topic.configs} == {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "1000000",
        "unclean.leader.election.enable": "false",
    }


# --- between brokers ------------------------------------------------------------------------------


class Peer:
    """A broker with a coordinator and a replication port, and another one that sends to it."""

    def __init__(self, undo: ExitStack, *, oldest: bool = False) -> None:
        """``oldest``: it knows the first versions only."""
        self.led = LedTransactions(undo)
        apis = apis_of_other_brokers(self.led.service, self.led.groups.partitions)
        if oldest:
            apis = [replace(api, min_version=0, max_version=0) for api in apis]
        listener = KafkaListener("127.0.0.1", 0, apis)
        undo.callback(listener.close, 0.1)
        listener.start()
        self.senders = InterBrokerSenders(
            "test",
            {1: f"tcp://127.0.0.1:{listener.port}"}.get,
            lambda endpoint: TransactionChannel(endpoint, client_id="test"),
            timeout_ms=5_000,
        )
        undo.callback(self.senders.close)

    def ask(self, request: TxnRequest, broker_id: int = 1) -> TxnResponse | None:
        answers: queue.Queue[TxnResponse | None] = queue.Queue()
        self.senders.send(broker_id, request, answers.put)
        return answers.get(timeout=TIMEOUT_S)


@pytest.mark.parametrize("oldest", [False, True])
def test_markers_reach_another_broker_and_are_answered(undo: ExitStack, *, oldest: bool):
    """Kafka before 2.8 knows the first version of WriteTxnMarkers only."""
    peer = Peer(undo, oldest=oldest)
    marker = TxnMarker(7, 3, False, 11, (ORDERS_0,))
    written = TxnMarkerResult(7, (PartitionOutcome(*ORDERS_0, Errors.NONE),))
    answer = peer.ask(WriteMarkersRequest((marker,)))
    assert answer == WriteMarkersResponse(Errors.NONE, (written,))
    assert peer.led.target.written.get_nowait() == marker


def test_a_coordinator_on_another_broker_verifies_the_partitions_of_a_transaction(undo: ExitStack):
    peer = Peer(undo)
    producer = peer.led.init()
    peer.led.begin(producer)
    other = ORDERS_0._replace(partition=1)
    answer = peer.ask(
        VerifyPartitionsRequest(TransactionToVerify("x", *producer, (ORDERS_0, other)))
    )
    assert answer == VerifyPartitionsResponse(
        Errors.NONE,
        (
            PartitionOutcome(*ORDERS_0, Errors.NONE),
            PartitionOutcome(*other, Errors.TRANSACTION_ABORTABLE),
        ),
    )


def test_a_coordinator_that_cannot_verify_lets_the_records_in(undo: ExitStack):
    """It is a broker of Kafka before 3.5."""
    listener = KafkaListener("127.0.0.1", 0, [])
    undo.callback(listener.close, 0.1)
    listener.start()
    channel = TransactionChannel(f"tcp://127.0.0.1:{listener.port}", client_id="test")
    undo.callback(channel.close)
    request = VerifyPartitionsRequest(TransactionToVerify("x", 7, 3, (ORDERS_0,)))
    answer = channel.request(request, timeout_ms=5_000)
    outcome = PartitionOutcome(*ORDERS_0, Errors.NONE)
    assert answer == VerifyPartitionsResponse(Errors.NONE, (outcome,))


def test_a_request_to_a_broker_that_has_gone_ends_before_its_timeout(undo: ExitStack):
    listening = undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    listening.settimeout(TIMEOUT_S)
    senders = InterBrokerSenders(
        "test",
        {1: f"tcp://127.0.0.1:{listening.getsockname()[1]}"}.get,
        lambda endpoint: TransactionChannel(endpoint, client_id="test"),
        timeout_ms=600_000,
    )
    undo.callback(senders.close)
    answers: queue.Queue[TxnResponse | None] = queue.Queue()
    senders.send(1, WriteMarkersRequest(()), answers.put)
    asked, _ = listening.accept()
    undo.callback(asked.close)
    assert asked.recv(1)  # it does not answer, as a process that is stopped
    senders.keep_only({1, 2})
    assert answers.empty()
    senders.keep_only({2})
    assert answers.get(timeout=TIMEOUT_S) is None


def test_a_request_for_which_no_thread_can_be_started_has_no_answer_and_later_ones_do(
    undo: ExitStack, monkeypatch: pytest.MonkeyPatch
):
    peer = Peer(undo)

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        assert peer.ask(WriteMarkersRequest(())) is None
    assert peer.ask(WriteMarkersRequest(())) == WriteMarkersResponse(Errors.NONE, ())


def test_a_broker_that_is_not_there_does_not_answer(undo: ExitStack):
    peer = Peer(undo)
    assert peer.ask(WriteMarkersRequest(()), broker_id=2) is None
    peer.senders.close()
    assert peer.ask(WriteMarkersRequest(())) is None
