from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kafka.protocol.metadata import ApiVersionsRequest

from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.api_versions import api_versions_api
from tests.transport.kafka.wire import ask, call, read, request_of, whole

UNSUPPORTED_VERSION = 35
INVALID_REQUEST = 42
NO_APIS = b"\1\0\0\0\0\0"  # an empty list, no throttling, and no tagged fields


async def nothing(request: KafkaRequest) -> KafkaAnswer:
    return None


APIS = [KafkaApi(KafkaApiKey.PRODUCE, 3, 8, nothing), KafkaApi(KafkaApiKey.FETCH, 4, 11, nothing)]
ADVERTISED = [(0, 3, 8), (1, 4, 11), (18, 0, 4)]


def asking(name: str = "kafka-python", version: str = "3.0.12") -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name=name, client_software_version=version)


def listed(answer: Any) -> list[tuple[int, int, int]]:
    return [(api.api_key, api.min_version, api.max_version) for api in answer.api_keys]


@pytest.mark.parametrize("version", range(5))
def test_every_version_lists_the_apis_and_itself(version: int):
    answer = ask([api_versions_api(APIS)], asking(), version)

    assert answer.error_code == 0
    assert listed(answer) == ADVERTISED


@pytest.mark.parametrize("version", [-1, 5, 6, 32_767])
def test_an_unknown_version_is_answered_in_version_0(version: int):
    request = request_of(18, version, b"whatever that version looks like")

    async def answer() -> KafkaAnswer:
        return await api_versions_api(APIS).handle(request)

    told = read(ApiVersionsRequest, 0, whole(asyncio.run(answer())))
    assert told.error_code == UNSUPPORTED_VERSION
    assert listed(told) == ADVERTISED


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("word", ["a", "7", "apache-kafka-java", "librdkafka.x", "3.9.1"])
def test_a_client_may_name_its_software(version: int, word: str):
    answer = ask([api_versions_api(APIS)], asking(word, word), version)
    assert listed(answer) == ADVERTISED


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("word", ["", "-a", "a-", ".", "a b", "a\n", "ä", "a_b"])
def test_software_with_another_name_is_refused(version: int, word: str):
    for request in (asking(name=word), asking(version=word)):
        answer = whole(call([api_versions_api(APIS)], request, version))
        assert answer == INVALID_REQUEST.to_bytes(2) + NO_APIS
