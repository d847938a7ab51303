from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.api_versions import api_versions_api
from tests.transport.kafka.wire import ask, read, request_of, whole

UNSUPPORTED_VERSION = 35


async def nothing(request: KafkaRequest) -> KafkaAnswer:
    return None


APIS = [KafkaApi(KafkaApiKey.PRODUCE, 3, 8, nothing), KafkaApi(KafkaApiKey.FETCH, 4, 11, nothing)]
ADVERTISED = [(0, 3, 8), (1, 4, 11), (18, 0, 4)]


def listed(answer: Any) -> list[tuple[int, int, int]]:
    return [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys]


@pytest.mark.parametrize("version", range(5))
def test_every_version_lists_the_apis_and_itself(version: int):
    answer = ask([api_versions_api(APIS)], ApiVersionsRequest(), version)

    assert answer.error_code == 0
    assert listed(answer) == ADVERTISED


@pytest.mark.parametrize("version", [-1, 5, 6, 32_767])
def test_who_asks_in_an_unknown_version_is_told_in_the_first_one(version: int):
    request = request_of(18, version, b"whatever that version looks like")

    async def answer() -> KafkaAnswer:
        return await api_versions_api(APIS).handle(request)

    told = read(ApiVersionsRequest, 0, whole(asyncio.run(answer())))
    assert told.error_code == UNSUPPORTED_VERSION
    assert listed(told) == ADVERTISED
