"""Random bodies of admin requests: a response or a malformed request, and no other error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.broker.api.delete_records import delete_records_apis
from regent.broker.api.partitions import partition_apis
from regent.broker.api.producer_ids import producer_id_apis
from regent.broker.api.topics import topic_apis
from regent.core.protocol.messages.partitions import (
    ElectLeadersResponse,
)
from regent.transport.kafka.api import KafkaApi, KafkaApiKey
from regent.transport.kafka.primitives import MalformedRequestError
from tests.broker.api.test_configs import Configs
from tests.broker.api.test_delete_records import Deleter
from tests.broker.api.test_partitions import Controller
from tests.broker.api.test_topics import SETTINGS, Forwarding
from tests.transport.kafka.wire import request_of, whole

KEYS = [19, 20, 21, 22, 32, 33, 37, 43, 44, 45, 46]
# Mostly bytes of lengths, so that some bodies are parsed beyond their first fields.
BODIES = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 97, 255]), max_size=60).map(bytes)
repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=50)


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def the_api(key: int, executor: ThreadPoolExecutor) -> KafkaApi:
    apis = [
        *Configs(executor).apis,
        *topic_apis(Forwarding(), lambda: SETTINGS, executor),
        *partition_apis(Controller(ElectLeadersResponse.of({}))),
        *delete_records_apis(Deleter()),
        *producer_id_apis(lambda: range(1_000), executor),
    ]
    assert sorted(api.key for api in apis) == KEYS
    return next(api for api in apis if api.key == key)


@pytest.mark.parametrize("key", KEYS, ids=[KafkaApiKey(key).name for key in KEYS])
def test_random_bytes_get_a_response_or_are_malformed(key: int, executor: ThreadPoolExecutor):
    @repeatable
    @given(body=BODIES, newest=st.booleans())
    def check(body: bytes, newest: bool) -> None:
        api = the_api(key, executor)
        version = api.max_version if newest else api.min_version

        async def answer() -> None:
            with suppress(MalformedRequestError):
                assert whole(await api.handle(request_of(key, version, body)))

        asyncio.run(answer())

    check()
