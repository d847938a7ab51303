"""The connection to a controller that is a broker of Kafka.

It takes the requests that go to the control port of a controller of this project, and sends them in
Kafka's protocol to the listener of brokers. Mirrors
``kafka.server.NodeToControllerChannelManager``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
)
from regent.core.protocol.messages import controller
from regent.core.protocol.messages.topics import CreateTopicsRequest, CreateTopicsResponse
from regent.transport.control.client import RequestFailedError
from regent.transport.kafka.api import API_NAMES, FIRST_FLEXIBLE_VERSION, KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity

KafkaControllerRequest: TypeAlias = (
    AlterPartitionRequest | ControlledShutdownRequest | CreateTopicsRequest
)
KafkaControllerResponse: TypeAlias = (
    AlterPartitionResponse | ControlledShutdownResponse | CreateTopicsResponse
)

_LAST_BY_NAME: Final = 1  # AlterPartition, and
_LAST_WITHOUT_EPOCHS: Final = 2


class _Exchange(NamedTuple):
    key: KafkaApiKey
    last_version: int
    response: type


_EXCHANGES: Final[Mapping[type, _Exchange]] = {
    controller.AlterPartitionRequestData: _Exchange(
        KafkaApiKey.ALTER_PARTITION, 3, controller.AlterPartitionResponseData
    ),
    controller.ControlledShutdownRequestData: _Exchange(
        KafkaApiKey.CONTROLLED_SHUTDOWN, 3, controller.ControlledShutdownResponseData
    ),
    CreateTopicsRequest: _Exchange(KafkaApiKey.CREATE_TOPICS, 7, CreateTopicsResponse),
}
"""The messages, with the last version that is declared."""


class KafkaControllerChannel:
    """One thread uses and closes it."""

    def __init__(
        self, endpoint: str, *, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self._connection = BrokerConnection(endpoint, client_id=client_id, security=security)

    def request(
        self, body: KafkaControllerRequest, *, timeout_ms: int, closing: Closing | None = None
    ) -> KafkaControllerResponse:
        """Send and wait for the answer; raises ``RequestError``, soon after ``closing`` is set."""

        def ask(message: Any, last_version: int) -> Any:
            return self._ask(message, last_version, timeout_ms, closing)

        match body:
            case AlterPartitionRequest():
                has_ids = all(row.topic_id is not None for row in body.partitions)
                last = _LAST_WITHOUT_EPOCHS + 1 if has_ids else _LAST_BY_NAME
                return _altered(body, ask(_alter_partition(body), last))
            case ControlledShutdownRequest(broker_id, broker_epoch):
                message = controller.ControlledShutdownRequestData(
                    broker_id=broker_id, broker_epoch=broker_epoch
                )
                return _shut_down(ask(message, _EXCHANGES[type(message)].last_version))
            case CreateTopicsRequest():
                created: CreateTopicsResponse = ask(
                    _with_time(body, timeout_ms), _EXCHANGES[type(body)].last_version
                )
                return created

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _ask(
        self, message: Any, last_version: int, timeout_ms: int, closing: Closing | None
    ) -> Any:
        """Return the answer to a message, in the newest version that both know."""
        key, _, response = _EXCHANGES[type(message)]
        versions = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        oldest, newest = versions.get(key, (0, -1))
        version = min(newest, last_version)
        if version < oldest:
            reason = (
                f"a broker of Kafka that knows {API_NAMES[key]} in the versions {oldest} to"
                f" {newest}: it needs a release between 2.4 and 3.9, in ZooKeeper mode"
            )
            if key is KafkaApiKey.ALTER_PARTITION and newest < 0:
                reason = 'a controller before Kafka 2.7: set isr_change_protocol = "zookeeper"'
            raise RequestFailedError(self._connection.endpoint, Errors.UNSUPPORTED_VERSION, reason)
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
        body = encoded(message, version, is_flexible=is_flexible)
        view = self._connection.exchange(key, version, body, timeout_ms=timeout_ms, closing=closing)
        try:
            return decoded(response, view, version, is_flexible=is_flexible)
        except MalformedRequestError as error:
            raise self._connection.failed(error) from error


def _alter_partition(asked: AlterPartitionRequest) -> controller.AlterPartitionRequestData:
    """Return proposals with what all versions have: each writes its own fields."""

    def topic_of(row: AlterPartitionRow) -> tuple[str, TopicId | None]:
        return row.topic, row.topic_id

    rows = sorted(asked.partitions, key=lambda row: (row.topic, row.topic_id or ""))
    return controller.AlterPartitionRequestData(
        broker_id=asked.broker_id,
        broker_epoch=asked.broker_epoch,
        topics=tuple(
            controller.TopicData(
                topic_name=name, topic_id=topic_id, partitions=tuple(map(_proposal, of_topic))
            )
            for (name, topic_id), of_topic in groupby(rows, topic_of)
        ),
    )


def _proposal(row: AlterPartitionRow) -> controller.PartitionData:
    members: Iterable[tuple[BrokerId, int]] = zip(row.new_isr, row.isr_broker_epochs, strict=True)
    return controller.PartitionData(
        partition_index=row.partition,
        leader_epoch=row.leader_epoch,
        new_isr=row.new_isr,
        new_isr_with_epochs=tuple(
            controller.IsrMember(broker_id=member, broker_epoch=epoch) for member, epoch in members
        ),
        leader_recovery_state=row.leader_recovery_state,
        partition_epoch=row.partition_epoch,
    )


def _altered(
    asked: AlterPartitionRequest, given: controller.AlterPartitionResponseData
) -> AlterPartitionResponse:
    names = {row.topic_id: row.topic for row in asked.partitions if row.topic_id is not None}

    def rows() -> Iterator[AlteredPartition]:
        for topic in given.topics:
            name = topic.topic_name or names.get(topic.topic_id or "", "")
            for row in topic.partitions:
                error = Errors(row.error_code)
                if error is not Errors.NONE:  # Kafka tells no state then
                    yield AlteredPartition(name, row.partition_index, error)
                    continue
                yield AlteredPartition(
                    name,
                    row.partition_index,
                    error,
                    row.leader_id,
                    row.leader_epoch,
                    row.isr,
                    row.leader_recovery_state,
                    row.partition_epoch,
                )

    return AlterPartitionResponse(Errors(given.error_code), tuple(rows()))


def _shut_down(given: controller.ControlledShutdownResponseData) -> ControlledShutdownResponse:
    remaining = (
        TopicPartition(row.topic_name, row.partition_index) for row in given.remaining_partitions
    )
    return ControlledShutdownResponse(Errors(given.error_code), tuple(remaining))


def _with_time(asked: CreateTopicsRequest, timeout_ms: int) -> CreateTopicsRequest:
    """Return a request that the controller may take some time for: Kafka's does not wait in 0 ms.

    It answers before the connection is given up.
    """
    most_ms = max(timeout_ms * 3 // 4, 1)
    if 0 < asked.timeout_ms <= most_ms:
        return asked
    return dataclasses.replace(asked, timeout_ms=most_ms)
