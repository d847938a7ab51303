"""What brokers of Kafka ask a controller: ISRs, controlled shutdowns, and ids of producers.

They become the same requests to the controller's thread as those of our own brokers, which come to
the control port. A broker that is not the controller answers NOT_CONTROLLER, and the sender looks
for the controller. Mirrors ``kafka.server.KafkaApis`` and ``KafkaController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from regent.broker.api.fetch import TopicNamesById
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors, RegentError
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId
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
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest, apis_of
from regent.transport.kafka.message_codec import answer, decode
from regent.transport.kafka.replies import AwaitedReply, Replies

logger = logging.getLogger(__name__)

_FIRST_WITH_IDS: Final = 2  # AlterPartition (KIP-841)
_FIRST_WITH_EPOCHS: Final = 3  # of the members of the ISR (KIP-903)
_UNKNOWN_TO_OLD: Final = (Errors.INELIGIBLE_REPLICA, Errors.NEW_LEADER_ELECTED)

AskController: TypeAlias = Callable[[ControllerRequest, Callable[[object], None]], None]
"""Passes the answer of our own controller, or an exception, to the callable, on any thread."""


@dataclass(frozen=True, slots=True)
class ControllerAccess:
    """The controller of this broker process, active or not; its functions are thread-safe.

    ``take_block`` reserves producer ids for a broker, or raises ``RegentError``; it runs in
    ``executor``.
    """

    is_active: Callable[[], bool]
    ask: AskController
    take_block: Callable[[BrokerId], range]
    executor: Executor


class _Controller:
    """Answers other brokers; used on the listener's loop only."""

    def __init__(
        self, access: ControllerAccess, names: TopicNamesById, registered: RegisteredFollowers
    ) -> None:
        self._access = access
        self._names = names
        self._registered = registered
        self._replies = Replies()

    async def alter_partitions(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(kafka.AlterPartitionRequestData, request)
        refused = self._refusal(request, asked.broker_id, asked.broker_epoch)
        if refused is not Errors.NONE:
            return answer(kafka.AlterPartitionResponseData(error_code=refused), request)
        request.exempt_from_quotas()
        proposed = _rows(asked, request.api_version, self._names)
        given = await self._ask(
            AlterPartitionRequest(asked.broker_id, asked.broker_epoch, tuple(proposed.values()))
        )
        if not isinstance(given, AlterPartitionResponse):
            return answer(kafka.AlterPartitionResponseData(error_code=_error(given)), request)
        topics: dict[tuple[str, str | None], list[kafka.AlteredPartitionData]] = {}
        for (name, topic_id, _), row in zip(proposed, given.partitions, strict=False):
            altered = _altered(row, request.api_version)
            topics.setdefault((name, topic_id), []).append(altered)
        response = kafka.AlterPartitionResponseData(
            error_code=given.error_code,
            topics=tuple(
                kafka.AlteredTopicData(topic_name=name, topic_id=topic_id, partitions=tuple(rows))
                for (name, topic_id), rows in topics.items()
            ),
        )
        return answer(response, request)

    async def shut_down(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(kafka.ControlledShutdownRequestData, request)
        refused = self._refusal(request, asked.broker_id, asked.broker_epoch)
        if refused is not Errors.NONE:
            return answer(kafka.ControlledShutdownResponseData(error_code=refused), request)
        request.exempt_from_quotas()
        given = await self._ask(ControlledShutdownRequest(asked.broker_id, asked.broker_epoch))
        if not isinstance(given, ControlledShutdownResponse):
            return answer(kafka.ControlledShutdownResponseData(error_code=_error(given)), request)
        response = kafka.ControlledShutdownResponseData(
            error_code=given.error_code,
            remaining_partitions=tuple(
                kafka.RemainingPartition(topic_name=topic, partition_index=partition)
                for topic, partition in given.remaining_partitions
            ),
        )
        return answer(response, request)

    async def allocate_producer_ids(self, request: KafkaRequest) -> KafkaAnswer:
        asked = decode(kafka.AllocateProducerIdsRequestData, request)
        refused = self._refusal(request, asked.broker_id, asked.broker_epoch)
        if refused is not Errors.NONE:
            return answer(kafka.AllocateProducerIdsResponseData(error_code=refused), request)
        loop, access = asyncio.get_running_loop(), self._access
        try:
            block = await loop.run_in_executor(access.executor, access.take_block, asked.broker_id)
        except RegentError as error:
            logger.warning("No producer ids for broker %d: %s", asked.broker_id, error)
            failed = Errors.UNKNOWN_SERVER_ERROR
            return answer(kafka.AllocateProducerIdsResponseData(error_code=failed), request)
        response = kafka.AllocateProducerIdsResponseData(
            error_code=Errors.NONE, producer_id_start=block.start, producer_id_len=len(block)
        )
        return answer(response, request)

    def _refusal(self, request: KafkaRequest, broker_id: BrokerId, broker_epoch: int) -> Errors:
        """Return why a request is refused as a whole, or NONE.

        Anybody can reach this listener: the sender must name a registered broker of Kafka and its
        epoch.
        """
        if not self._access.is_active():
            return Errors.NOT_CONTROLLER
        is_itself = request.may_act_as(broker_id)
        if not is_itself or broker_epoch == UNKNOWN_BROKER_EPOCH:
            return Errors.CLUSTER_AUTHORIZATION_FAILED
        return self._registered.refusal_by_controller(broker_id, broker_epoch)

    async def _ask(self, request: ControllerRequest) -> object:
        reply: AwaitedReply[Any] = self._replies.new()
        self._access.ask(request, reply.give)
        return await reply


def controller_apis(
    access: ControllerAccess, names: TopicNamesById, registered: RegisteredFollowers
) -> Sequence[KafkaApi]:
    """Return the APIs of a controller, for brokers that are ``registered``."""
    controller = _Controller(access, names, registered)
    return apis_of(
        controller,
        [
            (KafkaApiKey.CONTROLLED_SHUTDOWN, 3, _Controller.shut_down),
            (KafkaApiKey.ALTER_PARTITION, 3, _Controller.alter_partitions),
            (KafkaApiKey.ALLOCATE_PRODUCER_IDS, 0, _Controller.allocate_producer_ids),
        ],
    )


def _rows(
    asked: kafka.AlterPartitionRequestData, version: int, names: TopicNamesById
) -> dict[tuple[str, str | None, int], AlterPartitionRow]:
    """Return the proposals by the topic, as the request names it, and the partition.

    A topic id that is not known here stands for a name, which no topic has: the controller may
    know it.
    """
    has_ids, has_epochs = version >= _FIRST_WITH_IDS, version >= _FIRST_WITH_EPOCHS
    known = names.current() if has_ids else {}
    rows: dict[tuple[str, str | None, int], AlterPartitionRow] = {}
    for topic in asked.topics:
        topic_id = topic.topic_id
        name = known.get(topic_id, f":{topic_id}") if has_ids else topic.topic_name
        for row in topic.partitions:
            members = tuple(member.broker_id for member in row.new_isr_with_epochs)
            epochs = tuple(member.broker_epoch for member in row.new_isr_with_epochs)
            if not has_epochs:
                members, epochs = row.new_isr, (UNKNOWN_BROKER_EPOCH,) * len(row.new_isr)
            rows[topic.topic_name, topic_id, row.partition_index] = AlterPartitionRow(
                name,
                row.partition_index,
                topic_id if has_ids else None,
                row.leader_epoch,
                members,
                epochs,
                row.leader_recovery_state,
                row.partition_epoch,
            )
    return rows


def _altered(row: AlteredPartition, version: int) -> kafka.AlteredPartitionData:
    """Return an outcome as Kafka's: with an error there is no state."""
    error = row.error_code
    if error is not Errors.NONE:
        if error in _UNKNOWN_TO_OLD and version < _FIRST_WITH_IDS:
            error = Errors.OPERATION_NOT_ATTEMPTED
        return kafka.AlteredPartitionData(partition_index=row.partition, error_code=error)
    return kafka.AlteredPartitionData(
        partition_index=row.partition,
        error_code=error,
        leader_id=row.leader,
        leader_epoch=row.leader_epoch,
        isr=row.isr,
        leader_recovery_state=row.leader_recovery_state,
        partition_epoch=row.partition_epoch,
    )


def _error(given: object) -> Errors:
    """Return the error of a request that the controller did not answer as usual."""
    logger.warning("The controller could not answer another broker: %s", given)
    return Errors.UNKNOWN_SERVER_ERROR
