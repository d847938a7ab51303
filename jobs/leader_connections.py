"""How a restore writes: batches to the leaders of partitions, until their outcome is known."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from regent.client.command_config import CommandConfig
from regent.config.addresses import tcp_endpoint
from regent.core.errors import Errors, RegentError
from regent.core.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from regent.jobs.backup import Settings, said
from regent.transport.control.client import RequestError
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.2
_CONNECT_MS: Final = 5_000
_PRODUCE_VERSION: Final = 8
_AGAIN: Final = frozenset(
    {
        Errors.NOT_LEADER_OR_FOLLOWER,
        Errors.LEADER_NOT_AVAILABLE,
        Errors.UNKNOWN_TOPIC_OR_PARTITION,
        Errors.NOT_ENOUGH_REPLICAS,
        Errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Errors.REQUEST_TIMED_OUT,
        Errors.KAFKA_STORAGE_ERROR,
    }
)


class RestoreError(RegentError):
    """Topics cannot be restored; the message names the first one and the remedy."""


class BrokerAccess(NamedTuple):
    """How tasks connect to brokers; the files that ``config`` names are on their machines, too."""

    settings: Settings
    config: CommandConfig | None


class LeaderConnections:
    """Writes batches to the leaders of partitions, again where the outcome is not known."""

    def __init__(self, access: BrokerAccess) -> None:
        self._admin = AdminClient(dict(access.settings))
        self._security = None if access.config is None else access.config.security()
        self._connections: dict[str, BrokerConnection] = {}
        self._leaders: dict[tuple[str, int], str] = {}

    def close(self) -> None:
        """Close the connections."""
        for connection in self._connections.values():
            connection.close()

    def produce(self, topic: str, number: int, batch: bytearray, offset: int) -> None:
        """Append a batch that begins at an offset. Raises ``RestoreError``."""
        data = PartitionProduceData(index=number, records=bytes(batch))
        request = ProduceRequest(
            timeout_ms=round(_TIMEOUT_S * 500),
            topic_data=(TopicProduceData(name=topic, partition_data=(data,)),),
        )
        body = encoded(request, _PRODUCE_VERSION, is_flexible=False)
        deadline = time.monotonic() + _TIMEOUT_S
        while (why := self._tried(topic, number, body, offset)) is not None:
            if time.monotonic() > deadline:
                raise RestoreError(f"{topic}-{number}: {why}")
            self._leaders.pop((topic, number), None)
            time.sleep(_PAUSE_S)

    def _tried(self, topic: str, number: int, body: bytes, offset: int) -> str | None:
        """Send a request; return why it must be sent again, None: it is done."""
        try:
            connection = self._leader_of(topic, number)
            if connection is None:
                return "it has no leader"
            received = connection.exchange(
                KafkaApiKey.PRODUCE, _PRODUCE_VERSION, body, timeout_ms=round(_TIMEOUT_S * 1000)
            )
            answer = decoded(ProduceResponse, received, _PRODUCE_VERSION, is_flexible=False)
        except (RequestError, MalformedRequestError) as error:
            return str(error)
        except KafkaException as error:
            return said(error)
        found = answer.responses[0].partition_responses[0]
        code = Errors(found.error_code)
        if code in _AGAIN:
            return code.name
        if code is not Errors.NONE:
            is_other = code is Errors.INVALID_RECORD
            remedy = ": delete the topic and restore it again" if is_other else ""
            raise RestoreError(f"{topic}-{number}: {found.error_message or code.name}{remedy}")
        if found.base_offset != offset:
            raise RestoreError(
                f"{topic}-{number}: its leader does not keep offsets: is it a broker of Kafka's?"
            )
        return None

    def _leader_of(self, topic: str, number: int) -> BrokerConnection | None:
        place = self._leaders.get((topic, number))
        if place is None:
            listed = self._admin.list_topics(topic, timeout=_TIMEOUT_S)
            for found in listed.topics[topic].partitions.values():
                broker = listed.brokers.get(found.leader)
                if broker is not None:
                    self._leaders[topic, found.id] = tcp_endpoint(str(broker.host), broker.port)
            place = self._leaders.get((topic, number))
        if place is None:
            return None
        if place not in self._connections:
            self._connections[place] = BrokerConnection(
                place,
                client_id="regent-restore",
                connect_timeout_ms=_CONNECT_MS,
                security=self._security,
            )
        return self._connections[place]
