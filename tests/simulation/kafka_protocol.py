"""Requests between a broker of Kafka and any other, as bytes; the product's own code makes them.

A ``KafkaCall`` stands for a request on a TCP connection. ``request`` says what it means, for the
history and for the checks: its receiver reads only the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from regent.broker.api import control_requests, controller_requests
from regent.broker.api.fetch import TopicNamesById
from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerInfo, TopicPartition
from regent.core.protocol.client import EpochEnd, EpochQuery
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataBroker,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from regent.core.protocol.messages import control, controller
from regent.transport.kafka import controller_channel
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.control_channel import KEYS, KafkaControlBody, answer_of
from regent.transport.kafka.message_codec import decoded, encoded


@dataclass(frozen=True, slots=True)
class KafkaRelease:
    """What a release of Kafka knows, with its ``inter.broker.protocol.version``.

    ``alter_partition`` None: its leaders write ISRs to ZooKeeper (before 2.7). ``sends_epoch``: a
    fetch names the broker epoch of the follower (KIP-903). ``truncates_by_fetch``: a follower
    learns from the answer to a fetch where its log must end, not from OffsetsForLeaderEpoch.
    ``commits_alone``: a leader commits although fewer than ``min.insync.replicas`` are in sync
    (before 3.7, KAFKA-15583).
    """

    name: str
    leader_and_isr: int
    stop_replica: int
    update_metadata: int
    alter_partition: int | None
    sends_epoch: bool = False
    truncates_by_fetch: bool = True
    commits_alone: bool = True

    def version(self, request: ControlRequest) -> int:
        """Return the version in which it gets a control request."""
        match request:
            case LeaderAndIsrRequest():
                return self.leader_and_isr
            case StopReplicaRequest():
                return self.stop_replica
            case UpdateMetadataRequest():
                return self.update_metadata


RELEASES: Final = (
    KafkaRelease("2.8 with protocol 2.6", 5, 2, 6, None, truncates_by_fetch=False),
    KafkaRelease("2.8", 5, 3, 7, 0),
    KafkaRelease("3.2", 6, 3, 7, 1),
    KafkaRelease("3.3", 6, 3, 7, 2),
    KafkaRelease("3.9", 7, 4, 8, 3, sends_epoch=True, commits_alone=False),
)
OUR_RELEASE: Final = KafkaRelease("regent", 7, 4, 8, 3, sends_epoch=True, commits_alone=False)
"""What a controller of Kafka may send to a broker of this project, and may be asked by it."""

Meaning: TypeAlias = ControlRequest | AlterPartitionRequest | ControlledShutdownRequest
_MESSAGES: Final = {
    KafkaApiKey.LEADER_AND_ISR: (control.LeaderAndIsrRequest, control_requests.leader_and_isr),
    KafkaApiKey.STOP_REPLICA: (control.StopReplicaRequest, control_requests.stop_replica),
    KafkaApiKey.UPDATE_METADATA: (control.UpdateMetadataRequest, control_requests.update_metadata),
}
_REFUSALS: Final = {
    KafkaApiKey.LEADER_AND_ISR: control.LeaderAndIsrResponse,
    KafkaApiKey.STOP_REPLICA: control.StopReplicaResponse,
    KafkaApiKey.UPDATE_METADATA: control.UpdateMetadataResponse,
}


def kafka_endpoint(broker: BrokerInfo | UpdateMetadataBroker) -> str:
    """Return where brokers of Kafka find a broker, and are found by all: its only listener."""
    (endpoint,) = broker.endpoints
    return f"tcp://{endpoint.host}:{endpoint.port}"


@dataclass(frozen=True, slots=True)
class KafkaCall:
    """A request in one version."""

    request: Meaning
    version: int
    body: bytes

    def __str__(self) -> str:
        return f"{type(self.request).__name__} {self.version} of Kafka"


@dataclass(frozen=True, slots=True)
class KafkaAnswer:
    """Its answer."""

    body: bytes


@dataclass(frozen=True, slots=True)
class EpochEndsRequest:
    """OffsetsForLeaderEpoch of a follower, which will truncate its logs."""

    queries: Mapping[TopicPartition, EpochQuery]


@dataclass(frozen=True, slots=True)
class EpochEndsResponse:
    """Where the leader's epochs end."""

    ends: Mapping[TopicPartition, EpochEnd]


# --- control requests ---


def control_calls(
    body: KafkaControlBody, header: ControlHeader, release: KafkaRelease
) -> list[KafkaCall]:
    """Return a request as a broker of a release gets it: one call, or two."""
    version = release.version(body.request)
    if isinstance(body.request, LeaderAndIsrRequest) and any(
        topic.topic_id is None for topic in body.request.topic_states
    ):
        version = min(version, 4)
    return [KafkaCall(body.request, version, sent) for sent in body.bodies(version, header)]


def read_control_call(call: KafkaCall) -> tuple[Any, ControlRequest]:
    """Return Kafka's message, and the request that this project's brokers make of it."""
    key = KEYS[type(call.request)]  # type: ignore[index]
    kind, translated = _MESSAGES[key]
    asked: Any = _decoded(kind, key, call.version, call.body)
    return asked, translated(asked)  # type: ignore[operator]


def control_answer(call: KafkaCall, asked: Any, given: ControlResponse | Errors) -> KafkaAnswer:
    """Return the answer of a broker of either kind; an error refuses the request."""
    key = KEYS[type(call.request)]  # type: ignore[index]
    error = given if isinstance(given, Errors) else given.error_code
    message: object
    if isinstance(given, Errors):
        message = _REFUSALS[key](error_code=error)
    elif isinstance(given, LeaderAndIsrResponse):
        message = (
            control_requests._leader_and_isr_answer(asked, given, call.version)
            if error is Errors.NONE
            else control.LeaderAndIsrResponse(error_code=error)
        )
    elif isinstance(given, StopReplicaResponse):
        rows = tuple(
            control.StopReplicaPartitionError(
                topic_name=row.topic_name,
                partition_index=row.partition_index,
                error_code=row.error_code,
            )
            for row in given.partition_errors
        )
        message = control.StopReplicaResponse(error_code=error, partition_errors=rows)
    else:
        message = control.UpdateMetadataResponse(error_code=error)
    return _encoded_answer(message, key, call.version)


def read_control_answers(
    request: ControlRequest, answers: list[KafkaAnswer], version: int
) -> ControlResponse:
    """Return what a controller of this project reads in the answers to a request."""
    return answer_of(request, [memoryview(answer.body) for answer in answers], version)


# --- requests to a controller ---


def controller_call(
    request: AlterPartitionRequest | ControlledShutdownRequest, version: int
) -> KafkaCall:
    """Return a request to a controller; a leader of Kafka names no broker epochs of members."""
    if isinstance(request, AlterPartitionRequest):
        message: Any = controller_channel._alter_partition(request)
        key = KafkaApiKey.ALTER_PARTITION
    else:
        message = controller.ControlledShutdownRequestData(
            broker_id=request.broker_id, broker_epoch=request.broker_epoch
        )
        key = KafkaApiKey.CONTROLLED_SHUTDOWN
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
    return KafkaCall(request, version, encoded(message, version, is_flexible=is_flexible))


def without_epochs(request: AlterPartitionRequest) -> AlterPartitionRequest:
    """Return a proposal as a leader of Kafka in ZooKeeper mode makes it, see ``Partition``."""
    rows = tuple(
        row._replace(isr_broker_epochs=(UNKNOWN_BROKER_EPOCH,) * len(row.new_isr))
        for row in request.partitions
    )
    return AlterPartitionRequest(request.broker_id, request.broker_epoch, rows)


@dataclass(frozen=True, slots=True)
class AskedOfController:
    """A request to a controller as its receiver reads it; ``request`` is for its event queue."""

    request: AlterPartitionRequest | ControlledShutdownRequest
    topics: tuple[tuple[str, str | None], ...]  # of each row: name and id, as the request has them

    def answer(self, call: KafkaCall, given: object) -> KafkaAnswer:
        """Return the answer to a call."""
        if isinstance(given, ControlledShutdownResponse):
            return _shutdown_answer(call, given)
        assert isinstance(given, AlterPartitionResponse)
        topics: dict[tuple[str, str | None], list[controller.AlteredPartitionData]] = {}
        for topic, row in zip(self.topics, given.partitions, strict=False):
            altered = controller_requests._altered(row, call.version)
            topics.setdefault(topic, []).append(altered)
        message = controller.AlterPartitionResponseData(
            error_code=given.error_code,
            topics=tuple(
                controller.AlteredTopicData(topic_name=name, topic_id=i, partitions=tuple(rows))
                for (name, i), rows in topics.items()
            ),
        )
        return _encoded_answer(message, KafkaApiKey.ALTER_PARTITION, call.version)


def read_controller_call(call: KafkaCall, names: TopicNamesById) -> AskedOfController:
    """Return what the broker of a controller of this project makes of a call."""
    if isinstance(call.request, ControlledShutdownRequest):
        key = KafkaApiKey.CONTROLLED_SHUTDOWN
        shutdown: Any = _decoded(
            controller.ControlledShutdownRequestData, key, call.version, call.body
        )
        asked = ControlledShutdownRequest(shutdown.broker_id, shutdown.broker_epoch)
        return AskedOfController(asked, ())
    key = KafkaApiKey.ALTER_PARTITION
    proposed: Any = _decoded(controller.AlterPartitionRequestData, key, call.version, call.body)
    rows = controller_requests._rows(proposed, call.version, names)
    request = AlterPartitionRequest(proposed.broker_id, proposed.broker_epoch, tuple(rows.values()))
    return AskedOfController(request, tuple((name, topic_id) for name, topic_id, _ in rows))


def read_controller_answer(
    call: KafkaCall, answer: KafkaAnswer
) -> AlterPartitionResponse | ControlledShutdownResponse:
    """Return what the asking broker reads."""
    if isinstance(call.request, AlterPartitionRequest):
        key = KafkaApiKey.ALTER_PARTITION
        altered: Any = _decoded(
            controller.AlterPartitionResponseData, key, call.version, answer.body
        )
        return controller_channel._altered(call.request, altered)
    key = KafkaApiKey.CONTROLLED_SHUTDOWN
    stopped: Any = _decoded(
        controller.ControlledShutdownResponseData, key, call.version, answer.body
    )
    return controller_channel._shut_down(stopped)


def _shutdown_answer(call: KafkaCall, given: ControlledShutdownResponse) -> KafkaAnswer:
    message = controller.ControlledShutdownResponseData(
        error_code=given.error_code,
        remaining_partitions=tuple(
            controller.RemainingPartition(topic_name=topic, partition_index=partition)
            for topic, partition in given.remaining_partitions
        ),
    )
    return _encoded_answer(message, KafkaApiKey.CONTROLLED_SHUTDOWN, call.version)


def _decoded(kind: Any, key: KafkaApiKey, version: int, body: bytes) -> object:
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
    return decoded(kind, memoryview(body), version, is_flexible=is_flexible)


def _encoded_answer(message: object, key: KafkaApiKey, version: int) -> KafkaAnswer:
    is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
    return KafkaAnswer(encoded(message, version, is_flexible=is_flexible))
