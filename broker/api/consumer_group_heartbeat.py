"""ConsumerGroupHeartbeat, versions 0 and 1: refused, as by Kafka 3.9 with ZooKeeper.

Consumers with ``group.protocol=consumer`` (KIP-848) begin with this request. They end with the
error of the answer. Without an answer librdkafka would look for a coordinator for ever and tell
the application nothing. Kafka 3.9 refuses version 0; version 1 is the only one that librdkafka
sends since 2.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from regent.core.errors import Errors
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest

_REASON: Final = "groups of group.protocol=consumer (KIP-848) are not supported; use classic"
_NULL_STRUCT: Final = -1


def consumer_group_heartbeat_apis() -> Sequence[KafkaApi]:
    """Return the API that refuses members of the new protocol of groups."""
    return [KafkaApi(KafkaApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, _refuse)]


async def _refuse(request: KafkaRequest) -> KafkaAnswer:
    error, writer = Errors.UNSUPPORTED_VERSION, request.answer_writer()
    request.errors[error.name] += 1
    writer.int32(request.throttle_time_ms)
    writer.int16(error)
    writer.nullable_string(_REASON)
    writer.nullable_string(None)  # member id
    writer.int32(0)  # member epoch
    writer.int32(0)  # heartbeat interval
    writer.int8(_NULL_STRUCT)  # assignment
    writer.end_struct()
    return writer.pieces()
