"""ConsumerGroupHeartbeat: members of the new protocol of groups are told that there is none."""

from __future__ import annotations

import asyncio

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from regent.api.consumer_group_heartbeat import consumer_group_heartbeat_apis
from regent.core.errors import Errors
from regent.transport.kafka.api import KafkaApiKey
from tests.transport.kafka.wire import request_of, whole

KEY = KafkaApiKey.CONSUMER_GROUP_HEARTBEAT


@pytest.mark.parametrize("version", range(2))
def test_a_member_of_the_new_protocol_is_refused_with_the_reason(version: int):
    (api,) = consumer_group_heartbeat_apis()

    async def refusal() -> bytes:
        return whole(await api.handle(request_of(KEY, version, b"")))

    body = asyncio.run(refusal())
    read = entity_reader(load_response_schema(KEY, version))
    answer, size = read(body, 0)
    assert size == len(body)
    assert answer.error_code == Errors.UNSUPPORTED_VERSION
    assert answer.assignment is None
    assert "use classic" in answer.error_message
