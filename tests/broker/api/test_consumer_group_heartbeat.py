"""ConsumerGroupHeartbeat: members of the new protocol of groups are told that there is none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader

from regent.broker.api.consumer_group_heartbeat import consumer_group_heartbeat_apis
from regent.core.errors import Errors
from regent.transport.kafka.api import KafkaApiKey
from tests.support.fuzzed_requests import CONSUMER_GROUP_HEARTBEATS
from tests.transport.kafka.wire import request_of, whole

KEY = KafkaApiKey.CONSUMER_GROUP_HEARTBEAT


def test_the_requests_of_the_fuzzer_are_read_by_others():
    for version, body in enumerate(CONSUMER_GROUP_HEARTBEATS):
        schema: Any = load_request_schema(KEY, version)
        member, size = entity_reader(schema)(body, 0)
        assert (size, member.group_id, member.subscribed_topic_names) == (len(body), "g", ("t",))


@pytest.mark.parametrize("version", range(2))
def test_a_member_of_the_new_protocol_is_refused_with_the_reason(version: int):
    (api,) = consumer_group_heartbeat_apis()

    async def refusal() -> bytes:
        return whole(await api.handle(request_of(KEY, version, b"")))

    body = asyncio.run(refusal())
    schema: Any = load_response_schema(KEY, version)
    answer, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    assert answer.error_code == Errors.UNSUPPORTED_VERSION
    assert answer.assignment is None
    assert "use classic" in answer.error_message
