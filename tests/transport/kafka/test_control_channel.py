"""Control requests to a broker of Kafka: what it is sent, and what its answers mean."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest

from regent.core.errors import Errors
from regent.core.model import (
    EPOCH_DURING_DELETE,
    EPOCH_OF_LOST_TOPIC,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    NO_LEADER,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    LiveLeader,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    UpdateMetadataBroker,
    UpdateMetadataEndPoint,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopic,
)
from regent.core.protocol.messages import control
from regent.testing.waits import scaled
from regent.transport.control.client import RequestError, RequestFailedError
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.control_channel import KafkaControlBody, KafkaControlChannel
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import Reader
from tests.support.kafka_versions import KAFKA_3_9

HEADER: Final = ControlHeader(7, 8, 9_000_000_000, sequence=3, event_id=4, broker_id=1)
ID_A, ID_B = "AAAAAAAAAAAAAAAAAAAA_w", "AAAAAAAAAAAAAAAAAAAA_g"
CONTROL_KEYS: Final = {
    4: (KafkaApiKey.LEADER_AND_ISR, control.LeaderAndIsrRequest, control.LeaderAndIsrResponse),
    5: (KafkaApiKey.STOP_REPLICA, control.StopReplicaRequest, control.StopReplicaResponse),
    6: (KafkaApiKey.UPDATE_METADATA, control.UpdateMetadataRequest, control.UpdateMetadataResponse),
}
NEWEST: Final = {4: (0, 7), 5: (0, 4), 6: (0, 8)}
KAFKA_2_4: Final = {4: (0, 4), 5: (0, 2), 6: (0, 6)}
TIMEOUT_MS: Final = round(scaled(10.0) * 1000)


class BrokerOfKafka:
    """Answers ApiVersions, and control requests with what it is given; records them."""

    def __init__(self) -> None:
        self.versions: Mapping[int, tuple[int, int]] = NEWEST
        self.answers: dict[int, Any] = {}
        self.received: list[tuple[int, Any]] = []
        self.asked_versions = 0
        self.drops = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(scaled(10.0))

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection, suppress(EOFError):
                    while True:
                        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        (size,) = struct.unpack(">i", _received(connection, 4))
        frame = memoryview(_received(connection, size))
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        reader = Reader(frame[8:], is_flexible=False)
        reader.nullable_string()
        body = frame[8 + reader.position :]
        if key == KafkaApiKey.API_VERSIONS:
            self.asked_versions += 1
            rows = b"".join(struct.pack(">hhh", k, *v) for k, v in self.versions.items())
            answer = struct.pack(">hi", 0, len(self.versions)) + rows
            _send(connection, struct.pack(">i", correlation_id) + answer)
            return
        if self.drops:
            self.drops -= 1
            raise EOFError
        api, request_type, response_type = CONTROL_KEYS[key]
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[api]
        tags = b"\0" if is_flexible else b""
        read: Any = decoded(request_type, body[len(tags) :], version, is_flexible=is_flexible)
        self.received.append((version, read))
        answer = self.answers.get(key, response_type(error_code=0))
        data = encoded(answer, version, is_flexible=is_flexible)
        _send(connection, struct.pack(">i", correlation_id) + tags + data)


def _received(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(struct.pack(">i", len(data)) + data)


@pytest.fixture
def broker() -> Iterator[BrokerOfKafka]:
    served = BrokerOfKafka()
    yield served
    served.close()


@pytest.fixture
def channel(broker: BrokerOfKafka) -> Iterator[KafkaControlChannel]:
    opened = KafkaControlChannel(broker.endpoint, client_id="controller-7")
    yield opened
    opened.close()


def sent(channel: KafkaControlChannel, *requests: ControlRequest) -> list[Any]:
    """Return the answers to requests, in their order."""
    bodies = [(KafkaControlBody(request), HEADER) for request in requests]
    answers = dict(channel.request_each(bodies, timeout_ms=TIMEOUT_MS))
    return [answers[place] for place in range(len(requests))]


def orders(leader: int = 1, epoch: int = 5) -> LeaderAndIsrPartition:
    return LeaderAndIsrPartition(3, 4, leader, epoch, (1, 2), 6, (1, 2, 9), (9,), (2,), True, 1)


def roles(*topics: tuple[str, str | None], parts: int = 1) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        LeaderAndIsrType.FULL,
        tuple(LeaderAndIsrTopic(name, topic_id, (orders(),)) for name, topic_id in topics),
        (LiveLeader(1, "tcp://[::1]:9092"), LiveLeader(2, None)),
        parts=parts,
    )


def stops(*rows: StopReplicaPartition) -> StopReplicaRequest:
    return StopReplicaRequest((StopReplicaTopic("a", ID_A, rows),))


def row(leader: int, leader_epoch: int, number: int = 3) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(number, 4, leader, leader_epoch, (1,), 6, (1, 2), (2,))


def metadata(*rows: UpdateMetadataPartition) -> UpdateMetadataRequest:
    endpoint = UpdateMetadataEndPoint("INSIDE", "::1", 9092, "SASL_SSL")
    ours = UpdateMetadataBroker(1, 28, (endpoint,), "east", "tcp://h:1", "tcp://h:2", "key")
    return UpdateMetadataRequest((UpdateMetadataTopic("a", ID_A, rows, 50),), (ours,), True)


# --- requests ---


def test_a_leadership_arrives_as_a_controller_in_zookeeper_mode_sends_it(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    sent(channel, roles(("a", ID_A)))
    ((version, read),) = broker.received
    assert version == 7
    assert (read.controller_id, read.controller_epoch, read.broker_epoch) == (7, 8, 9_000_000_000)
    assert (read.is_k_raft_controller, read.type) == (False, 0), "Kafka's FULL is one of KRaft"
    ((topic,), (leader,)) = read.topic_states, read.live_leaders
    assert (topic.topic_name, topic.topic_id) == ("a", ID_A)
    (state,) = topic.partition_states
    assert LeaderAndIsrPartition(*(getattr(state, f) for f in orders()._fields)) == orders()
    assert (leader.broker_id, leader.host_name, leader.port) == (1, "::1", 9092)


def test_metadata_show_the_listeners_of_all_brokers(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    sent(channel, metadata(row(1, 5)))
    ((_, read),) = broker.received
    (live,), (topic,) = read.live_brokers, read.topic_states
    assert (live.id, live.rack) == (1, "east")
    (endpoint,) = live.endpoints
    found = endpoint.listener, endpoint.host, endpoint.port, endpoint.security_protocol
    assert found == ("INSIDE", "::1", 9092, 3)
    (state,) = topic.partition_states
    assert (state.leader, state.leader_epoch, state.zk_version) == (1, 5, 6)
    assert state.offline_replicas == (2,)


def test_a_row_without_a_leader_epoch_does_not_replace_a_good_one(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    """Kafka's brokers take every row; ours keep the newer one."""
    unreadable, deleted = row(NO_LEADER, NO_EPOCH), row(LEADER_DURING_DELETE, NO_EPOCH, 4)
    sent(channel, metadata(unreadable), metadata(unreadable, deleted))
    (_, first), (_, second) = broker.received
    assert first.topic_states == ()
    ((state,),) = (topic.partition_states for topic in second.topic_states)
    assert (state.partition_index, state.leader) == (4, LEADER_DURING_DELETE)


def test_the_replica_of_a_lost_topic_is_stopped_and_its_log_kept(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    lost = StopReplicaPartition(1, EPOCH_OF_LOST_TOPIC, delete_partition=True)
    deleted = StopReplicaPartition(2, EPOCH_DURING_DELETE, delete_partition=True)
    sent(channel, stops(lost, deleted))
    ((_, read),) = broker.received
    states = [
        (state.partition_index, state.leader_epoch, state.delete_partition)
        for topic in read.topic_states
        for state in topic.partition_states
    ]
    assert states == [(1, NO_EPOCH, False), (2, EPOCH_DURING_DELETE, True)]


def test_a_request_is_encoded_once_for_each_version():
    body = KafkaControlBody(roles(("a", ID_A)))
    other = replace_epoch(HEADER, 77)
    ((first,), (second,)) = body.bodies(7, HEADER), body.bodies(7, other)
    assert len(body._rests) == 1
    whole = decoded(control.LeaderAndIsrRequest, memoryview(second), 7, is_flexible=True)
    assert whole.broker_epoch == 77
    assert first[17:] == second[17:]
    assert list(body.bodies(4, HEADER)) != [first]
    assert len(body._rests) == 2


def replace_epoch(header: ControlHeader, broker_epoch: int) -> ControlHeader:
    return header._replace(broker_epoch=broker_epoch)


# --- versions ---


def test_versions_are_asked_once_on_a_connection(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    sent(channel, metadata(), metadata())
    sent(channel, roles())
    assert broker.asked_versions == 1


def test_after_a_broken_connection_versions_are_asked_again(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    sent(channel, metadata())
    broker.drops, broker.versions = 1, KAFKA_2_4
    with pytest.raises(RequestError):
        sent(channel, metadata())
    sent(channel, metadata())
    assert [version for version, _ in broker.received] == [8, 6]


def test_an_old_broker_gets_the_versions_that_it_knows(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    broker.versions = KAFKA_2_4
    kept = StopReplicaPartition(1, 5, delete_partition=False)
    deleted = StopReplicaPartition(2, EPOCH_DURING_DELETE, delete_partition=True)
    sent(channel, roles(("a", ID_A)), metadata(row(1, 5)), stops(kept, deleted), stops(deleted))
    assert [version for version, _ in broker.received] == [4, 6, 2, 2, 2]
    stopped = [(read.delete_partitions, read.topics) for _, read in broker.received[2:]]
    assert [(d, [t.partition_indexes for t in topics]) for d, topics in stopped] == [
        (False, [(1,)]),
        (True, [(2,)]),
        (True, [(2,)]),
    ]
    assert channel.software == "kafka 2.4"


@pytest.mark.parametrize(
    "versions", [{4: (0, 3), 5: (0, 1), 6: (0, 5)}, {4: (8, 9), 5: (0, 4), 6: (0, 8)}, {18: (0, 4)}]
)
def test_a_broker_without_a_common_version_is_refused_in_one_line(
    broker: BrokerOfKafka, channel: KafkaControlChannel, versions: Mapping[int, tuple[int, int]]
):
    broker.versions = versions
    with pytest.raises(RequestFailedError, match=r"Kafka 2\.4 or later") as failed:
        sent(channel, roles())
    assert failed.value.error_code is Errors.UNSUPPORTED_VERSION
    assert "\n" not in str(failed.value)
    assert not broker.received


def test_the_software_is_what_the_versions_tell(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    assert channel.software == "kafka"
    broker.versions = {**KAFKA_3_9, **NEWEST}
    sent(channel, metadata())
    assert channel.software == "kafka 3.9"


# --- answers ---


@pytest.mark.parametrize("versions", [NEWEST, KAFKA_2_4])
def test_errors_of_single_partitions_have_the_names_of_topics(
    broker: BrokerOfKafka, channel: KafkaControlChannel, versions: Mapping[int, tuple[int, int]]
):
    broker.versions = versions
    by_name = control.LeaderAndIsrPartitionError(
        topic_name="b", partition_index=3, error_code=Errors.KAFKA_STORAGE_ERROR
    )
    by_id = control.LeaderAndIsrTopicError(topic_id=ID_B, partition_errors=(by_name,))
    gone = replace(by_id, topic_id="AAAAAAAAAAAAAAAAAAAA_Q")
    broker.answers[4] = control.LeaderAndIsrResponse(
        error_code=0, partition_errors=(by_name,), topics=(by_id, gone)
    )
    broker.answers[5] = control.StopReplicaResponse(
        error_code=0,
        partition_errors=(
            control.StopReplicaPartitionError(topic_name="a", partition_index=3, error_code=74),
        ),
    )
    stop = stops(StopReplicaPartition(3, 5, delete_partition=False))
    answers = sent(channel, roles(("a", ID_A), ("b", ID_B)), stop)
    failed = PartitionError("b", 3, Errors.KAFKA_STORAGE_ERROR)
    fenced = PartitionError("a", 3, Errors.FENCED_LEADER_EPOCH)
    assert answers == [
        LeaderAndIsrResponse(Errors.NONE, (failed,)),
        StopReplicaResponse(Errors.NONE, (fenced,)),
    ]


def test_topics_without_ids_are_told_apart_in_the_answer(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    broker.answers[4] = control.LeaderAndIsrResponse(
        error_code=0,
        partition_errors=tuple(
            control.LeaderAndIsrPartitionError(topic_name=n, partition_index=3, error_code=code)
            for n, code in (("a", 0), ("b", 56))
        ),
    )
    (answer,) = sent(channel, roles(("a", None), ("b", None)))
    assert broker.received[0][0] == 4
    assert [error.error_code for error in answer.partition_errors] == [
        Errors.NONE,
        Errors.KAFKA_STORAGE_ERROR,
    ]


@pytest.mark.parametrize("code", [Errors.STALE_CONTROLLER_EPOCH, Errors.STALE_BROKER_EPOCH])
def test_an_error_of_the_whole_request_is_the_answer(
    broker: BrokerOfKafka, channel: KafkaControlChannel, code: Errors
):
    broker.answers = {
        4: control.LeaderAndIsrResponse(error_code=code),
        5: control.StopReplicaResponse(error_code=code),
        6: control.UpdateMetadataResponse(error_code=code),
    }
    stop = stops(StopReplicaPartition(3, 5, delete_partition=False))
    assert sent(channel, roles(("a", ID_A)), stop, metadata()) == [
        LeaderAndIsrResponse(code),
        StopReplicaResponse(code),
        UpdateMetadataResponse(code),
    ]


def test_an_error_that_only_a_newer_kafka_knows_is_an_unknown_one(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    broker.answers[6] = control.UpdateMetadataResponse(error_code=999)
    assert sent(channel, metadata()) == [UpdateMetadataResponse(Errors.UNKNOWN_SERVER_ERROR)]


def test_a_broker_that_does_not_allow_this_user_is_asked_again(
    broker: BrokerOfKafka, channel: KafkaControlChannel
):
    denied = Errors.CLUSTER_AUTHORIZATION_FAILED
    broker.answers[6] = control.UpdateMetadataResponse(error_code=denied)
    (refused,) = sent(channel, metadata())
    assert isinstance(refused, RequestFailedError)
    assert refused.error_code is denied
