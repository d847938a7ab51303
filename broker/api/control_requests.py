"""LeaderAndIsr, StopReplica and UpdateMetadata of a controller that is a broker of Kafka.

They become the requests that come to the control port, with the same checks of epochs. Only the
broker that ZooKeeper names as the controller is believed, and only if it has no control port: a
controller of this project never comes here. Kafka's controller takes every answer for done, and
repeats a request only after a lost connection. So what must be repeated is not answered: its
connection is closed.

Kafka's requests have no sequence and no event. They do not say whether they list all partitions:
see ``update_metadata``. Mirrors ``kafka.server.KafkaApis``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from pykka import ActorDeadError, ActorRef

from regent.actors.control_request_check import ControlRequestReceived
from regent.actors.inbox import InboxFullError, MessageWithReply, Reply
from regent.config.addresses import tcp_endpoint
from regent.core.errors import Errors, RegentError
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId
from regent.core.protocol.control import (
    ControlHeader,
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    LiveLeader,
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
from regent.core.protocol.messages import control as kafka
from regent.core.repeated_lines import RepeatedLines
from regent.core.security.session import SecurityProtocol
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

T = TypeVar("T")

logger = logging.getLogger(__name__)

_LARGE_BYTES: Final = 64 * 1024  # above, a request is decoded beside the event loop
_FULL: Final = 2  # Kafka's number of the type of a request that lists all partitions
_FIRST_WITH_IDS: Final = 5  # an answer to LeaderAndIsr
_FIRST_WITH_EACH_DELETION: Final = 3  # StopReplica
_PROTOCOLS: Final = tuple(SecurityProtocol)  # by Kafka's numbers

Message: TypeAlias = (
    kafka.LeaderAndIsrRequest | kafka.StopReplicaRequest | kafka.UpdateMetadataRequest
)


@dataclass(frozen=True, slots=True)
class ControlledBroker:
    """The broker that a controller of Kafka rules.

    Two functions ask ZooKeeper. They run in ``executor``, and raise ``RegentError`` if the answer
    is not known now: ``is_of_kafka`` returns whether the registration of a broker is one of
    Kafka's, ``has_partitions`` whether any partition ever had a leader. ``knows_all`` returns
    whether this broker was told of all partitions once.
    """

    broker_id: BrokerId
    ref: ActorRef[Any]
    is_of_kafka: Callable[[BrokerId], bool]
    has_partitions: Callable[[], bool]
    knows_all: Callable[[], bool]
    executor: Executor


class _ControlRequests:
    """Passes requests to the Broker actor; used on the listener's loop only."""

    def __init__(self, broker: ControlledBroker) -> None:
        self._broker = broker
        self._replies = Replies()
        self._believed: tuple[BrokerId, int] | None = None  # a controller of Kafka, and its epoch
        self._lines = RepeatedLines()

    async def lead_and_follow(self, request: KafkaRequest) -> KafkaAnswer:
        asked = await self._decoded(kafka.LeaderAndIsrRequest, request)
        given = await self._carried_out(request, asked, leader_and_isr)
        if isinstance(given, Errors):
            return answer(kafka.LeaderAndIsrResponse(error_code=given), request)
        assert isinstance(given, LeaderAndIsrResponse)
        if given.error_code is Errors.UNKNOWN_SERVER_ERROR:
            raise UnansweredRequestError("some replicas could not be started now")
        return answer(_leader_and_isr_answer(asked, given, request.api_version), request)

    async def stop_replicas(self, request: KafkaRequest) -> KafkaAnswer:
        asked = await self._decoded(kafka.StopReplicaRequest, request)
        given = await self._carried_out(request, asked, stop_replica)
        if isinstance(given, Errors):
            return answer(kafka.StopReplicaResponse(error_code=given), request)
        assert isinstance(given, StopReplicaResponse)
        rows = tuple(
            kafka.StopReplicaPartitionError(
                topic_name=row.topic_name,
                partition_index=row.partition_index,
                error_code=row.error_code,
            )
            for row in given.partition_errors
        )
        response = kafka.StopReplicaResponse(error_code=given.error_code, partition_errors=rows)
        return answer(response, request)

    async def update_metadata(self, request: KafkaRequest) -> KafkaAnswer:
        asked = await self._decoded(kafka.UpdateMetadataRequest, request)
        given = await self._carried_out(request, asked, update_metadata)
        if isinstance(given, Errors):
            return answer(kafka.UpdateMetadataResponse(error_code=given), request)
        assert isinstance(given, UpdateMetadataResponse)
        return answer(kafka.UpdateMetadataResponse(error_code=given.error_code), request)

    async def _decoded(self, kind: type[T], request: KafkaRequest) -> T:
        if len(request.body) < _LARGE_BYTES:
            return decode(kind, request)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._broker.executor, decode, kind, request)

    async def _carried_out(
        self,
        request: KafkaRequest,
        asked: Any,
        translated: Callable[[Any], ControlRequest],
    ) -> object:
        """Return the answer of the Broker actor, or why nobody asked it.

        Raises ``UnansweredRequestError`` if the controller must send the request again.
        """
        request.exempt_from_quotas()
        if not await self._is_of_controller(request, asked):
            return Errors.CLUSTER_AUTHORIZATION_FAILED
        header = ControlHeader(
            asked.controller_id,
            asked.controller_epoch,
            asked.broker_epoch,
            broker_id=self._broker.broker_id,
        )
        reply: AwaitedReply[Any] = self._replies.new()
        command = translated(asked)
        if isinstance(command, UpdateMetadataRequest) and not command.lists_all:
            command = replace(command, lists_all=await self._is_without_partitions())
        message = ControlRequestReceived(header, command)
        try:
            self._broker.ref.tell(MessageWithReply(message, Reply.of(reply.give)))
        except (ActorDeadError, InboxFullError) as refused:
            raise UnansweredRequestError(str(refused)) from None
        given = await reply
        if isinstance(given, Exception):
            raise UnansweredRequestError(str(given))
        return given

    async def _is_without_partitions(self) -> bool:
        """Whether a request without partitions lists all: then the cluster has none.

        A partition that is created meanwhile comes with a later request.
        """
        broker = self._broker
        if broker.knows_all():
            return False
        return not await self._known_by_zookeeper(broker.has_partitions)

    async def _known_by_zookeeper(self, ask: Callable[..., bool], *arguments: BrokerId) -> bool:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._broker.executor, ask, *arguments)
        except RegentError as error:
            raise UnansweredRequestError(f"ZooKeeper does not say now: {error}") from None

    async def _is_of_controller(self, request: KafkaRequest, asked: Message) -> bool:
        """Whether the sender may be a controller of Kafka; its epochs are checked later."""
        sender = asked.controller_id, asked.controller_epoch
        if asked.is_k_raft_controller:
            self._warn(request, f"of controller {sender[0]}, which is in KRaft mode")
            return False
        if not request.may_act_as(asked.controller_id):
            return False
        if sender == self._believed:
            return True
        is_of_kafka = await self._known_by_zookeeper(self._broker.is_of_kafka, asked.controller_id)
        if is_of_kafka:
            self._believed = sender
        else:
            self._warn(request, f"of broker {sender[0]}, which is not a broker of Kafka")
        return is_of_kafka

    def _warn(self, request: KafkaRequest, why: str) -> None:
        if self._lines.is_due(why, round(time.monotonic() * 1000)):
            host = request.session.client_host
            logger.warning("%s from %s is refused: %s", request.api_key.name, host, why)


def control_apis(broker: ControlledBroker) -> Sequence[KafkaApi]:
    """Return the APIs by which a controller of Kafka rules this broker."""
    requests = _ControlRequests(broker)
    handlers = {
        KafkaApiKey.LEADER_AND_ISR: (kafka.LeaderAndIsrRequest, requests.lead_and_follow),
        KafkaApiKey.STOP_REPLICA: (kafka.StopReplicaRequest, requests.stop_replicas),
        KafkaApiKey.UPDATE_METADATA: (kafka.UpdateMetadataRequest, requests.update_metadata),
    }
    return [
        KafkaApi(key, kafka.FIRST_VERSIONS[kind], kafka.LAST_VERSIONS[kind], handle)
        for key, (kind, handle) in handlers.items()
    ]


# --- requests ---


def leader_and_isr(asked: kafka.LeaderAndIsrRequest) -> LeaderAndIsrRequest:
    """Return a request of Kafka's as the one of the control port."""
    return LeaderAndIsrRequest(
        LeaderAndIsrType.FULL if asked.type == _FULL else LeaderAndIsrType.INCREMENTAL,
        tuple(
            LeaderAndIsrTopic(
                topic.topic_name,
                topic.topic_id,
                tuple(
                    LeaderAndIsrPartition(
                        row.partition_index,
                        row.controller_epoch,
                        row.leader,
                        row.leader_epoch,
                        row.isr,
                        row.partition_epoch,
                        row.replicas,
                        row.adding_replicas,
                        row.removing_replicas,
                        row.is_new,
                        row.leader_recovery_state,
                    )
                    for row in topic.partition_states
                ),
            )
            for topic in asked.topic_states
        ),
        tuple(
            LiveLeader(leader.broker_id, tcp_endpoint(leader.host_name, leader.port))
            for leader in asked.live_leaders
        ),
    )


def stop_replica(asked: kafka.StopReplicaRequest) -> StopReplicaRequest:
    """Return a request of Kafka's as the one of the control port.

    Until version 2 it deletes all its replicas or none, and has no leader epochs.
    """
    deletes = asked.delete_partitions
    old = (
        StopReplicaTopic(
            topic.name,
            None,
            tuple(StopReplicaPartition(n, NO_EPOCH, deletes) for n in topic.partition_indexes),
        )
        for topic in asked.topics
    )
    new = (
        StopReplicaTopic(
            topic.topic_name,
            None,
            tuple(
                StopReplicaPartition(row.partition_index, row.leader_epoch, row.delete_partition)
                for row in topic.partition_states
            ),
        )
        for topic in asked.topic_states
    )
    return StopReplicaRequest((*old, *new))


def update_metadata(asked: kafka.UpdateMetadataRequest) -> UpdateMetadataRequest:
    """Return a request of Kafka's as the one of the control port.

    The first request with partitions that a broker gets from a controller of Kafka lists all that
    have leaders: of a new controller after the one with the live brokers only, and of a running one
    for a broker that has registered. One without partitions lists all only if there are none.
    """
    topics = tuple(
        UpdateMetadataTopic(
            topic.topic_name,
            topic.topic_id,
            tuple(
                UpdateMetadataPartition(
                    row.partition_index,
                    row.controller_epoch,
                    row.leader,
                    row.leader_epoch,
                    row.isr,
                    row.zk_version,
                    row.replicas,
                    row.offline_replicas,
                )
                for row in topic.partition_states
            ),
        )
        for topic in asked.topic_states
    )
    brokers = tuple(map(_live_broker, asked.live_brokers))
    return UpdateMetadataRequest(topics, brokers, lists_all=bool(topics))


def _live_broker(broker: kafka.UpdateMetadataBroker) -> UpdateMetadataBroker:
    """Return a broker whose broker epoch and control port Kafka does not tell."""
    endpoints = tuple(
        UpdateMetadataEndPoint(
            endpoint.listener,
            endpoint.host,
            endpoint.port,
            _PROTOCOLS[endpoint.security_protocol].value,
        )
        for endpoint in broker.endpoints
        if 0 <= endpoint.security_protocol < len(_PROTOCOLS)
    )
    return UpdateMetadataBroker(broker.id, UNKNOWN_BROKER_EPOCH, endpoints, broker.rack, None, None)


# --- answers ---


def _leader_and_isr_answer(
    asked: kafka.LeaderAndIsrRequest, given: LeaderAndIsrResponse, version: int
) -> kafka.LeaderAndIsrResponse:
    errors: dict[str, list[kafka.LeaderAndIsrPartitionError]] = {}
    for row in given.partition_errors:
        error = kafka.LeaderAndIsrPartitionError(
            topic_name=row.topic_name,
            partition_index=row.partition_index,
            error_code=_known_to_kafka(row.error_code),
        )
        errors.setdefault(row.topic_name, []).append(error)
    if version < _FIRST_WITH_IDS:
        every = tuple(error for rows in errors.values() for error in rows)
        return kafka.LeaderAndIsrResponse(error_code=given.error_code, partition_errors=every)
    ids = {topic.topic_name: topic.topic_id for topic in asked.topic_states}
    return kafka.LeaderAndIsrResponse(
        error_code=given.error_code,
        topics=tuple(
            kafka.LeaderAndIsrTopicError(topic_id=ids[name], partition_errors=tuple(rows))
            for name, rows in errors.items()
        ),
    )


def _known_to_kafka(error: Errors) -> Errors:
    """Return an error that makes a controller of Kafka elect another leader.

    A suspect replica refuses to lead on. Kafka's controller heeds one error of a partition only.
    """
    return Errors.KAFKA_STORAGE_ERROR if error is Errors.CORRUPT_MESSAGE else error
