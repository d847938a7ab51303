"""Control requests of this project's controller to a broker of Kafka, in Kafka's protocol.

They say what those to our own brokers say, as a controller of Kafka in ZooKeeper mode would. Kafka
has no place for the following: ``event_id`` and ``sequence``; the parts of a FULL request (Kafka's
brokers take ``type`` only from a KRaft controller, so it stays 0, and each part is a request);
``is_full`` of UpdateMetadata (a topic that vanished between two controllers stays in their caches,
as under Kafka's controller); a metadata row without a leader epoch, which would replace a good one.

Mirrors ``kafka.controller.AbstractControllerBrokerRequestBatch`` and ``RequestSendThread``.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from regent.config.addresses import host_of, port_of
from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import EPOCH_OF_LOST_TOPIC, KAFKA_SOFTWARE, LEADER_DURING_DELETE, NO_EPOCH
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.core.protocol.messages import control
from regent.core.security.session import SecurityProtocol
from regent.transport.control.client import RequestFailedError
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.kafka_releases import OLDEST_RELEASE, release_of
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity

T = TypeVar("T")
Messages: TypeAlias = Sequence[
    control.LeaderAndIsrRequest | control.StopReplicaRequest | control.UpdateMetadataRequest
]

KEYS: Final[Mapping[type[ControlRequest], KafkaApiKey]] = {
    LeaderAndIsrRequest: KafkaApiKey.LEADER_AND_ISR,
    StopReplicaRequest: KafkaApiKey.STOP_REPLICA,
    UpdateMetadataRequest: KafkaApiKey.UPDATE_METADATA,
}
_RANGES: Final = {
    KafkaApiKey.LEADER_AND_ISR: control.LeaderAndIsrRequest,
    KafkaApiKey.STOP_REPLICA: control.StopReplicaRequest,
    KafkaApiKey.UPDATE_METADATA: control.UpdateMetadataRequest,
}
_LAST_WITHOUT_TOPIC_IDS: Final = 4  # of LeaderAndIsr: its answer names topics by name
_FIRST_WITH_EACH_DELETION: Final = 3  # of StopReplica: before, a request deletes all or none
_PROTOCOLS: Final = {protocol.value: number for number, protocol in enumerate(SecurityProtocol)}
_EPOCHS: Final = struct.Struct(">iq")  # of the controller, of the broker
_ID: Final = struct.Struct(">i")  # of the controller
_BY_NOBODY: Final[Mapping[str, Any]] = {"controller_id": 0, "controller_epoch": 0}


class KafkaControlBody:
    """A control request in Kafka's protocol; it is encoded once for each version. Thread-safe."""

    __slots__ = ("_lock", "_rests", "request")

    def __init__(self, request: ControlRequest) -> None:
        self.request = request
        self._lock = threading.Lock()
        self._rests: dict[int, tuple[bytes, ...]] = {}

    def bodies(self, version: int, header: ControlHeader) -> Iterator[bytes]:
        """Yield the bodies for one broker: one, or two for a StopReplica of version 2."""
        with self._lock:
            rests = self._rests.get(version)
            if rests is None:
                rests = self._rests[version] = tuple(_encoded_rests(self.request, version))
        head = _ID.pack(header.controller_id) + _is_k_raft(KEYS[type(self.request)], version)
        head += _EPOCHS.pack(header.controller_epoch, header.broker_epoch)
        for rest in rests:
            yield head + rest


def _is_k_raft(key: KafkaApiKey, version: int) -> bytes:
    """Return the field after the controller id: no controller of KRaft. Old versions lack it."""
    return b"\0" if version >= control.LAST_VERSIONS[_RANGES[key]] else b""


def _encoded_rests(request: ControlRequest, version: int) -> Iterator[bytes]:
    """Yield what follows the broker epoch, which is the last field that differs by broker."""
    key = KEYS[type(request)]
    start = _ID.size + len(_is_k_raft(key, version)) + _EPOCHS.size
    for message in messages_of(request, version):
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
        yield encoded(message, version, is_flexible=is_flexible)[start:]


# --- requests ---


def messages_of(request: ControlRequest, version: int) -> Messages:
    """Return a request as Kafka's messages, of no controller and to no broker yet."""
    match request:
        case LeaderAndIsrRequest():
            return [_leader_and_isr(request)]
        case StopReplicaRequest():
            return _stop_replica(request, version)
        case UpdateMetadataRequest():
            return [_update_metadata(request)]


def _leader_and_isr(request: LeaderAndIsrRequest) -> control.LeaderAndIsrRequest:
    return control.LeaderAndIsrRequest(
        **_BY_NOBODY,
        topic_states=tuple(
            control.LeaderAndIsrTopicState(
                topic_name=topic.topic_name,
                topic_id=topic.topic_id,
                partition_states=tuple(
                    control.LeaderAndIsrPartitionState(**row._asdict())
                    for row in topic.partition_states
                ),
            )
            for topic in request.topic_states
        ),
        live_leaders=tuple(
            control.LeaderAndIsrLiveLeader(
                broker_id=leader.broker_id,
                host_name=host_of(leader.replication_endpoint),
                port=port_of(leader.replication_endpoint),
            )
            for leader in request.live_leaders  # Kafka's brokers look into their metadata instead
            if leader.replication_endpoint is not None
        ),
    )


def _stop_replica(request: StopReplicaRequest, version: int) -> Messages:
    if version >= _FIRST_WITH_EACH_DELETION:
        states = tuple(
            control.StopReplicaTopicState(
                topic_name=topic.topic_name,
                partition_states=tuple(map(_stop, topic.partition_states)),
            )
            for topic in request.topic_states
        )
        return [control.StopReplicaRequest(**_BY_NOBODY, topic_states=states)]
    return [
        control.StopReplicaRequest(**_BY_NOBODY, delete_partitions=deletes, topics=topics)
        for deletes in (False, True)
        if (topics := tuple(_stopped_topics(request, deletes=deletes)))
    ]


def _stopped_topics(
    request: StopReplicaRequest, *, deletes: bool
) -> Iterator[control.StopReplicaTopicV1]:
    for topic in request.topic_states:
        stops = map(_stop, topic.partition_states)
        numbers = tuple(row.partition_index for row in stops if row.delete_partition == deletes)
        if numbers:
            yield control.StopReplicaTopicV1(name=topic.topic_name, partition_indexes=numbers)


def _stop(row: StopReplicaPartition) -> control.StopReplicaPartitionState:
    """Return a row as Kafka has it.

    Its brokers cannot rename the log of a lost topic on request: they stop it and keep its log.
    """
    if row.leader_epoch == EPOCH_OF_LOST_TOPIC:
        row = StopReplicaPartition(row.partition_index, NO_EPOCH, delete_partition=False)
    return control.StopReplicaPartitionState(**row._asdict())


def _update_metadata(request: UpdateMetadataRequest) -> control.UpdateMetadataRequest:
    topics = []
    for topic in request.topic_states:
        rows = tuple(
            control.UpdateMetadataPartitionState(
                partition_index=row.partition_index,
                controller_epoch=row.controller_epoch,
                leader=row.leader,
                leader_epoch=row.leader_epoch,
                isr=row.isr,
                zk_version=row.partition_epoch,
                replicas=row.replicas,
                offline_replicas=row.offline_replicas,
            )
            for row in topic.partition_states
            if row.leader_epoch != NO_EPOCH or row.leader == LEADER_DURING_DELETE
        )
        if rows:
            state = control.UpdateMetadataTopicState(
                topic_name=topic.topic_name, topic_id=topic.topic_id, partition_states=rows
            )
            topics.append(state)
    return control.UpdateMetadataRequest(
        **_BY_NOBODY,
        topic_states=tuple(topics),
        live_brokers=tuple(map(_live_broker, request.live_brokers)),
    )


def _live_broker(broker: UpdateMetadataBroker) -> control.UpdateMetadataBroker:
    return control.UpdateMetadataBroker(
        id=broker.broker_id,
        endpoints=tuple(
            control.UpdateMetadataEndpoint(
                port=endpoint.port,
                host=endpoint.host,
                listener=endpoint.listener,
                security_protocol=_PROTOCOLS[endpoint.security_protocol],
            )
            for endpoint in broker.endpoints
            if endpoint.security_protocol in _PROTOCOLS
        ),
        rack=broker.rack,
    )


# --- answers ---


def answer_of(
    request: ControlRequest, bodies: Iterable[memoryview], version: int
) -> ControlResponse:
    """Return the answer to a request in the bodies of Kafka's answers.

    Raises ``MalformedRequestError``.
    """
    match request:
        case LeaderAndIsrRequest():
            (body,) = bodies
            return _leader_and_isr_answer(request, body, version)
        case StopReplicaRequest():
            is_flexible = version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey.STOP_REPLICA]
            answers = [
                decoded(control.StopReplicaResponse, body, version, is_flexible=is_flexible)
                for body in bodies
            ]
            failed = (answer.error_code for answer in answers if answer.error_code)
            return StopReplicaResponse(
                Errors(next(failed, Errors.NONE)),
                tuple(
                    PartitionError(row.topic_name, row.partition_index, Errors(row.error_code))
                    for answer in answers
                    for row in answer.partition_errors
                ),
            )
        case UpdateMetadataRequest():
            (body,) = bodies
            is_flexible = version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey.UPDATE_METADATA]
            updated = decoded(
                control.UpdateMetadataResponse, body, version, is_flexible=is_flexible
            )
            return UpdateMetadataResponse(Errors(updated.error_code))


def _leader_and_isr_answer(
    request: LeaderAndIsrRequest, body: memoryview, version: int
) -> LeaderAndIsrResponse:
    """Return an answer with the names of topics.

    A refused request of some versions has the error for all partitions, of others for none; the
    error of the whole request is what counts then.
    """
    answer = decoded(control.LeaderAndIsrResponse, body, version, is_flexible=True)
    rows = [
        PartitionError(row.topic_name, row.partition_index, Errors(row.error_code))
        for row in answer.partition_errors
    ]
    names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
    rows += [
        PartitionError(names[topic.topic_id], row.partition_index, Errors(row.error_code))
        for topic in answer.topics
        if topic.topic_id in names
        for row in topic.partition_errors
    ]
    return LeaderAndIsrResponse(Errors(answer.error_code), tuple(rows))


# --- the channel ---


class KafkaControlChannel:
    """The connection to one broker of Kafka; one thread uses and closes it.

    ``software`` is what the broker is, for example "kafka 3.9", as far as its versions tell.
    """

    def __init__(
        self, endpoint: str, *, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self._connection = BrokerConnection(endpoint, client_id=client_id, security=security)
        self.software = KAFKA_SOFTWARE

    def request_each(
        self,
        requests: Sequence[tuple[KafkaControlBody, ControlHeader]],
        *,
        timeout_ms: int,
        closing: Closing | None = None,
    ) -> Iterator[tuple[int, ControlResponse | RequestFailedError]]:
        """Send one after the other, and yield each answer with its place.

        Raises ``RequestError``, ``RequestFailedError`` if the broker can be asked nothing.
        """
        for place, (body, header) in enumerate(requests):
            yield place, self._request(body, header, timeout_ms, closing)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _request(
        self,
        body: KafkaControlBody,
        header: ControlHeader,
        timeout_ms: int,
        closing: Closing | None,
    ) -> ControlResponse | RequestFailedError:
        key = KEYS[type(body.request)]
        version = self._version(key, body.request, timeout_ms, closing)
        answers = []
        for sent in body.bodies(version, header):
            view = self._connection.exchange(
                key, version, sent, timeout_ms=timeout_ms, closing=closing
            )
            answers.append(memoryview(bytes(view)))  # the next one overwrites it
        try:
            answer = answer_of(body.request, answers, version)
        except MalformedRequestError as error:
            raise self._connection.failed(error) from error
        if answer.error_code is Errors.CLUSTER_AUTHORIZATION_FAILED:
            reason = "it refuses control requests of this broker's user: see its super.users"
            return RequestFailedError(self._connection.endpoint, answer.error_code, reason)
        return answer

    def _version(
        self, key: KafkaApiKey, request: ControlRequest, timeout_ms: int, closing: Closing | None
    ) -> int:
        """Return the newest version of a request that both know. Raises ``RequestError``."""
        versions = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        self.software = f"{KAFKA_SOFTWARE} {release_of(versions)}".rstrip()
        kind = _RANGES[key]
        oldest, newest = versions.get(key, (0, -1))
        version = min(newest, control.LAST_VERSIONS[kind])
        if version < control.FIRST_VERSIONS[kind] or oldest > version:
            reason = (
                f"a broker that this controller cannot rule: it knows {kind.__name__} in the"
                f" versions {oldest} to {newest}, and Kafka {OLDEST_RELEASE} or later in ZooKeeper"
                " mode is needed"
            )
            raise RequestFailedError(self._connection.endpoint, Errors.UNSUPPORTED_VERSION, reason)
        if isinstance(request, LeaderAndIsrRequest) and _lacks_topic_id(request):
            return max(oldest, min(version, _LAST_WITHOUT_TOPIC_IDS))
        return version


def _lacks_topic_id(request: LeaderAndIsrRequest) -> bool:
    """Whether a topic has no id: several of them could not be told apart in an answer by ids."""
    return any(topic.topic_id is None for topic in request.topic_states)
