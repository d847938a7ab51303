"""Fetches of followers over a real listener: waits, errors, topic ids, and records in files."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

import regent.broker.api.fetch
from regent.broker.api.fetch import fetch_apis
from regent.broker.api.offsets import offset_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from regent.core.protocol.client import ACKS_LEADER
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataRequest,
)
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.log_manager import LogManager
from regent.testing.waits import eventually, scaled
from regent.transport.kafka.api import Answering, KafkaHandler, KafkaRequest
from regent.transport.kafka.client_security import ClientSecurity
from regent.transport.kafka.follower_fetch import (
    LAST_VERSION,
    FetchChannel,
    decode_request,
    seems_of_follower,
)
from regent.transport.kafka.listener import KafkaListener
from regent.transport.kafka.primitives import uuid_text
from regent.transport.kafka.sasl_client import ClientSasl
from regent.transport.kafka.sasl_server import SaslListener
from tests.support.led_partitions import lead, now_ms
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch, values_of
from tests.support.sasl_users import PASSWORD, sasl_for_test
from tests.support.world import live_broker

LEADER, FOLLOWER = 1, 2
LONG_MS = 60_000
TIMEOUT_S = scaled(5.0)
PARTITION = TopicPartition("payments", 0)
ID, GONE = (uuid_text(bytes([number]) * 16) for number in (1, 9))


class Leader:
    """Broker 1, which leads ``payments-0``; broker 2 is in sync."""

    def __init__(
        self,
        undo: ExitStack,
        logs: ReplicaLogs,
        metadata: MetadataCache | None = None,
        sasl: SaslListener | None = None,
        *,
        newest_fetch: int = LAST_VERSION,
        leader_epoch: int = 0,
    ) -> None:
        """It knows Fetch up to ``newest_fetch``."""
        self._undo = undo
        self.positions: list[tuple[int, int]] = []  # of all fetches: partition, offset
        cache = MetadataCache()
        self.manager = ReplicaManager(LEADER, logs, cache, lock=threading.RLock())
        reader = undo.enter_context(ThreadPoolExecutor(1))
        self.listener = KafkaListener(
            "127.0.0.1",
            0,
            [
                *(
                    replace(api, max_version=newest_fetch, handle=self._noting(api.handle))
                    for api in fetch_apis(self.manager, metadata or cache, reader)
                ),
                *offset_apis(self.manager, reader),
            ],
            sasl=sasl,
        )
        self.listener.start()
        undo.callback(self.listener.close, 0.1)
        own, other = (live_broker(broker) for broker in (LEADER, FOLLOWER))
        topics = {"payments": 2}
        isr = LEADER, FOLLOWER
        lead(self.manager, own, topics, isr, topic_id=ID, leader_epoch=leader_epoch)
        header = ControlHeader(LEADER, 1, -1)
        self.manager.handle(header, UpdateMetadataRequest((), (own, other)), now_ms())

    def _noting(self, handle: KafkaHandler) -> KafkaHandler:
        def noting(request: KafkaRequest) -> Answering:
            if seems_of_follower(request):
                asked = decode_request(request, {ID: "payments"}).request
                self.positions += [
                    (row.partition_index, row.fetch_offset) for _, row in asked.partitions()
                ]
            return handle(request)

        return noting

    @property
    def waiting(self) -> int:
        """How many fetches wait for records."""
        return sum(self.manager.delayed_counts.values())

    def connect(self, security: ClientSecurity | None = None) -> FetchChannel:
        """Return a connection of a follower."""
        endpoint = f"tcp://127.0.0.1:{self.listener.port}"
        channel = FetchChannel(endpoint, client_id="follower", security=security)
        self._undo.callback(channel.close)
        return channel

    def fetch(self, request: FetchRequest, channel: FetchChannel | None = None) -> FetchResponse:
        """Fetch, and wait for the answer."""
        return (channel or self.connect()).request(request, timeout_ms=5_000)

    def fetch_later(self, request: FetchRequest) -> queue.Queue[FetchResponse]:
        """Fetch on another thread; return when the leader has the fetch."""
        answers: queue.Queue[FetchResponse] = queue.Queue()
        before, channel = self.waiting, self.connect()
        thread = threading.Thread(
            target=lambda: answers.put(channel.request(request, timeout_ms=LONG_MS))
        )
        thread.start()
        self._undo.callback(thread.join, TIMEOUT_S)
        eventually(lambda: self.waiting > before, "the leader has the fetch")
        return answers

    def produce(self, data: bytes | bytearray) -> None:
        """Append a batch."""
        self.manager.produce(ACKS_LEADER, {PARTITION: data}, 0, lambda _: None)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def leader(undo: ExitStack) -> Leader:
    return Leader(undo, MemoryLogs())


def fetch(
    *,
    max_wait_ms: int = 0,
    leader_epoch: int = 0,
    offset: int = 0,
    id_: str | None = ID,
    **more: Any,
) -> FetchRequest:
    row = FetchPartition(0, leader_epoch, offset, -1, 0)
    request = FetchRequest(FOLLOWER, -1, max_wait_ms, (FetchTopic("payments", id_, (row,)),))
    return replace(request, **more)


def only_row(response: FetchResponse) -> FetchedPartition:
    ((topic_partition, row),) = response.partitions()
    assert topic_partition == PARTITION
    return row


@pytest.mark.parametrize("names_topics", [False, True])
def test_a_fetch_without_max_wait_is_answered_at_once(leader: Leader, names_topics: bool):
    row = only_row(leader.fetch(fetch(names_topics=names_topics)))
    assert (row.error_code, row.high_watermark, row.log_start_offset) == (Errors.NONE, 0, 0)


def test_a_follower_at_the_log_end_waits_for_its_max_wait(leader: Leader):
    started = monotonic()
    assert only_row(leader.fetch(fetch(max_wait_ms=50))).error_code is Errors.NONE
    assert monotonic() - started >= 0.05


def test_an_error_is_answered_at_once(leader: Leader):
    row = only_row(leader.fetch(fetch(max_wait_ms=LONG_MS, leader_epoch=7)))
    assert row.error_code is Errors.UNKNOWN_LEADER_EPOCH


def test_a_waiting_fetch_is_answered_by_the_append(leader: Leader):
    answer = leader.fetch_later(fetch(max_wait_ms=LONG_MS))
    assert answer.empty()
    records = batch(b"hello")
    leader.produce(records)
    row = only_row(answer.get(timeout=TIMEOUT_S))
    assert bytes(row.records.read()) == bytes(records)
    assert sum(leader.manager.delayed_counts.values()) == 0


def test_the_wait_of_a_fetch_is_limited(leader: Leader, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(regent.broker.api.fetch, "MAX_WAIT_MS", 20)
    assert only_row(leader.fetch(fetch(max_wait_ms=2**31 - 1))).error_code is Errors.NONE


def test_fetches_that_have_waited_for_long_end_together(leader: Leader):
    answer = leader.fetch_later(fetch(max_wait_ms=LONG_MS))
    leader.fetch_later(fetch(max_wait_ms=150))
    leader.fetch(fetch(max_wait_ms=100))
    assert sum(leader.manager.delayed_counts.values()) == 1
    leader.produce(batch(b"hello"))
    answer.get(timeout=TIMEOUT_S)


def test_a_waiting_fetch_ends_when_its_follower_is_in_a_hurry(leader: Leader, undo: ExitStack):
    channel = leader.connect()
    asked = undo.enter_context(ThreadPoolExecutor(1)).submit
    waiting = asked(channel.request, fetch(max_wait_ms=LONG_MS), timeout_ms=LONG_MS)
    eventually(lambda: leader.waiting > 0, "the leader has the fetch")
    channel.hurry()
    assert only_row(waiting.result(TIMEOUT_S)).error_code is Errors.NONE
    channel.hurry()
    for _ in range(2):  # the one that is in a hurry, and one that is not
        assert only_row(leader.fetch(fetch(max_wait_ms=50), channel)).error_code is Errors.NONE


def test_a_follower_that_left_does_not_wait(leader: Leader, undo: ExitStack):
    channel = leader.connect()
    answered = undo.enter_context(ThreadPoolExecutor(1)).submit(
        channel.request, fetch(max_wait_ms=LONG_MS), timeout_ms=round(scaled(50))
    )
    eventually(lambda: leader.waiting > 0, "the leader has the fetch")
    assert answered.exception(TIMEOUT_S) is not None  # it has closed the connection
    eventually(lambda: not leader.waiting, "it has left")


def test_a_topic_id_is_known_from_the_replica_before_the_metadata_have_it(undo: ExitStack):
    leader = Leader(undo, MemoryLogs(), metadata=MetadataCache())
    assert only_row(leader.fetch(fetch())).error_code is Errors.NONE


def test_an_unknown_topic_id_is_refused_and_the_known_ones_are_answered(leader: Leader):
    known = fetch(max_wait_ms=LONG_MS)
    unknown = FetchTopic("gone", GONE, known.topics[0].partitions)
    response = leader.fetch(fetch(max_wait_ms=LONG_MS, topics=(*known.topics, unknown)))
    errors = {topic_partition: row.error_code for topic_partition, row in response.partitions()}
    assert errors == {
        PARTITION: Errors.NONE,
        TopicPartition("gone", 0): Errors.UNKNOWN_TOPIC_ID,
    }


def test_an_unknown_topic_can_be_forgotten(leader: Leader):
    forgotten = (ForgottenTopic("gone", (0, 1), GONE),)
    assert only_row(leader.fetch(fetch(forgotten_topics=forgotten))).error_code is Errors.NONE


def test_a_follower_out_of_range_gets_the_start_and_the_end_of_its_leaders_log(leader: Leader):
    leader.produce(batch(b"a", b"b"))
    row = only_row(leader.fetch(fetch(offset=7)))
    assert row.error_code is Errors.OFFSET_OUT_OF_RANGE
    assert (row.log_start_offset, row.log_end_offset) == (0, 2)


OLDEST = 11  # the newest Fetch of Kafka 2.4 to 2.6: it does not see that logs differ


@pytest.mark.parametrize("newest_fetch", [OLDEST, 12, LAST_VERSION])
@pytest.mark.parametrize(
    ("last_epoch", "offset", "expected"),
    [
        (3, 2, (Errors.NONE, -1, -1)),
        (3, 5, (Errors.NONE, 3, 2)),
        (4, 2, (Errors.OFFSET_OUT_OF_RANGE, -1, -1)),
        (1, 1, (Errors.NONE, 1, 0)),
    ],
)
def test_a_follower_learns_where_its_log_and_the_leaders_part(
    undo: ExitStack,
    newest_fetch: int,
    last_epoch: int,
    offset: int,
    expected: tuple[Errors, int, int],
):
    leader = Leader(undo, MemoryLogs(), newest_fetch=newest_fetch, leader_epoch=3)
    leader.produce(batch(b"a", b"b"))
    row = FetchPartition(0, 3, offset, last_epoch, 0)
    answer = only_row(leader.fetch(fetch(topics=(FetchTopic("payments", ID, (row,)),))))
    assert (answer.error_code, answer.diverging_epoch, answer.diverging_end_offset) == expected
    assert not answer.records.size
    if answer.error_code is not Errors.NONE:
        assert (answer.log_start_offset, answer.log_end_offset) == (0, 2)


def test_the_oldest_leaders_do_not_hear_of_a_position_that_is_not_in_their_logs(undo: ExitStack):
    """They would count its records as replicated. The other partitions are fetched at once."""
    leader = Leader(undo, MemoryLogs(), newest_fetch=OLDEST, leader_epoch=3)
    leader.produce(batch(b"a", b"b"))
    channel = leader.connect()
    rows = FetchPartition(0, 3, 5, 3, 0), FetchPartition(1, 3, 0, -1, 0)
    topics = (FetchTopic("payments", ID, rows),)
    response = leader.fetch(fetch(topics=topics, max_wait_ms=LONG_MS, session_epoch=0), channel)
    assert {name.partition: row.diverging_epoch for name, row in response.partitions()} == {
        0: 3,
        1: -1,
    }
    assert response.session_id == 0  # the next fetch lists all partitions
    assert leader.positions == [(1, 0)]
    equal = (FetchTopic("payments", ID, (rows[0]._replace(fetch_offset=2), rows[1])),)
    assert leader.fetch(fetch(topics=equal, session_epoch=0), channel).session_id > 0
    assert leader.positions == [(1, 0), (0, 2), (1, 0)]


def test_the_oldest_leaders_are_asked_once_in_a_leader_epoch(undo: ExitStack):
    leader = Leader(undo, MemoryLogs(), newest_fetch=OLDEST, leader_epoch=3)
    leader.produce(batch(b"a", b"b"))
    channel = leader.connect()

    def answer(offset: int, session: FetchResponse | None, epoch: int = 3) -> FetchResponse:
        topics = (FetchTopic("payments", ID, (FetchPartition(0, epoch, offset, 3, 0),)),)
        count = 0 if session is None else len(leader.positions)
        id_ = 0 if session is None else session.session_id
        return leader.fetch(fetch(topics=topics, session_id=id_, session_epoch=count), channel)

    begun = answer(1, None)
    # Nothing was compared: the leader itself refuses a position behind its log.
    assert only_row(answer(9, begun)).error_code is Errors.OFFSET_OUT_OF_RANGE
    assert leader.positions == [(0, 1), (0, 9)]
    # In another epoch, and at an earlier offset, it is compared again.
    assert only_row(answer(9, begun, epoch=4)).error_code is Errors.UNKNOWN_LEADER_EPOCH
    assert only_row(answer(0, begun, epoch=2)).error_code is Errors.FENCED_LEADER_EPOCH
    assert leader.positions == [(0, 1), (0, 9)]


def test_a_session_lists_only_changes(leader: Leader):
    channel = leader.connect()
    begun = leader.fetch(fetch(session_epoch=0), channel)
    assert begun.session_id > 0
    again = leader.fetch(fetch(topics=(), session_id=begun.session_id, session_epoch=1), channel)
    assert (again.error_code, list(again.partitions())) == (Errors.NONE, [])


def test_records_come_from_files_as_they_are_there(undo: ExitStack, tmp_path: Path):
    logs = LogManager([tmp_path], LEADER)
    logs.open()
    undo.callback(logs.close, is_clean=False)
    leader = Leader(undo, logs)
    values = [bytes([number]) * 90_000 for number in range(4)]
    for value in values:
        leader.produce(batch(value))
    channel, found = leader.connect(), list[bytes | None]()
    while len(found) < len(values):  # each fetch commits the records before its offset
        row = only_row(leader.fetch(fetch(offset=len(found)), channel))
        found += values_of(row.records.read())
    assert found == values
    committed = only_row(leader.fetch(fetch(offset=4), channel)).high_watermark
    assert committed == 4
    row = only_row(leader.fetch(fetch(), channel))
    assert values_of(row.records.read()) == values


def test_only_committed_records_stay_in_their_file_until_they_are_sent(
    undo: ExitStack, tmp_path: Path
):
    """Others might be replaced meanwhile: a leader that becomes a follower truncates its log."""
    logs = LogManager([tmp_path], LEADER)
    logs.open()
    undo.callback(logs.close, is_clean=False)
    leader = Leader(undo, logs)
    for value in (bytes(90_000), bytes(90_000), b"small"):
        leader.produce(batch(value))
    responses = queue.Queue[FetchResponse]()
    stays = []
    for offset in (0, 1, 0, 2, 3, 1):  # what a fetch says is committed for the next one
        leader.manager.fetch(fetch(offset=offset), 0, responses.put)
        stays.append(only_row(responses.get_nowait()).records.file_range is not None)
    assert stays == [False, False, True, False, False, True]


def test_garbage_does_not_affect_other_followers(leader: Leader):
    channel = leader.connect()
    leader.fetch(fetch(), channel)
    address = ("127.0.0.1", leader.listener.port)
    with socket.create_connection(address, timeout=TIMEOUT_S) as stranger:
        stranger.sendall(b"\xff" * 4096)
        assert stranger.recv(1) == b""
    assert only_row(leader.fetch(fetch(), channel)).error_code is Errors.NONE


@pytest.mark.parametrize("names_topics", [False, True])
def test_a_broker_that_logs_in_fetches_as_itself_only(
    undo: ExitStack, tmp_path: Path, names_topics: bool
):
    names = (f"broker-{FOLLOWER}", "broker-99", "mirror")
    leader = Leader(undo, MemoryLogs(), sasl=sasl_for_test(tmp_path, names))
    leader.produce(batch(b"a"))
    outcomes = {}
    for name in names:
        sasl = ClientSasl("SCRAM-SHA-256", name, lambda: PASSWORD)
        channel = leader.connect(ClientSecurity(sasl=sasl))
        row = only_row(leader.fetch(fetch(offset=1, names_topics=names_topics), channel))
        outcomes[name] = row.error_code
    assert outcomes == {
        f"broker-{FOLLOWER}": Errors.NONE,
        "broker-99": Errors.CLUSTER_AUTHORIZATION_FAILED,
        "mirror": Errors.NONE,  # what other users may do is the authorizer's
    }
