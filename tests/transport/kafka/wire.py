"""Requests and answers in the encodings of two other people: kafka-python and kio.

kafka-python's schemas have every version, also those Kafka 4 dropped, which kio's have not.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any

from kafka.protocol.api_message import ApiMessage
from kio.index import UnknownEntity, load_response_schema
from kio.serial import entity_reader, entity_writer

from regent.core.records import RecordBytes, Records
from regent.core.security.session import Session
from regent.transport.kafka.api import KafkaAnswer, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.throttle import Throttle

SESSION = Session("127.0.0.1")


def request_of(
    api_key: int,
    version: int,
    body: bytes,
    throttle: Throttle | None = None,
    session: Session = SESSION,
) -> KafkaRequest:
    """A request as a listener hands it to a handler."""
    view, key = memoryview(bytearray(body)), KafkaApiKey(api_key)
    return KafkaRequest(key, version, 1, "client", session, view, throttle=throttle)


def whole(answer: KafkaAnswer) -> bytes:
    """The body of an answer as it goes out."""
    assert answer is not None
    return b"".join(bytes(_data(piece)) for piece in answer)


def _data(piece: RecordBytes | Records) -> RecordBytes:
    return piece if isinstance(piece, bytes | bytearray | memoryview) else piece.read()


def call(
    apis: Sequence[KafkaApi],
    request: ApiMessage,
    version: int,
    throttle: Throttle | None = None,
    session: Session = SESSION,
) -> KafkaAnswer:
    """What the handler of a request answers."""
    (api,) = [api for api in apis if api.key == type(request).API_KEY]
    assert api.min_version <= version <= api.max_version

    async def answer() -> KafkaAnswer:
        body = request.encode(version=version)
        return await api.handle(request_of(api.key, version, body, throttle, session))

    return asyncio.run(answer())


def ask(
    apis: Sequence[KafkaApi],
    request: ApiMessage,
    version: int,
    throttle: Throttle | None = None,
    session: Session = SESSION,
) -> Any:
    """The answer to a request, read by kafka-python: what others would write is the same bytes."""
    body = whole(call(apis, request, version, throttle, session))
    return read(type(request), version, body)


def read(request_type: type[ApiMessage], version: int, body: bytes) -> Any:
    """Read the body of an answer, which kafka-python and kio must encode to the same bytes."""
    response_type = _response_type(request_type)
    decoded = response_type.decode(body, version=version)
    again = response_type.decode(body, version=version)
    again._header = None
    assert bytes(again.encode(version=version)) == body
    _check_with_kio(request_type.API_KEY, version, body)
    return decoded


def _response_type(request_type: type[ApiMessage]) -> Any:
    module = __import__(request_type.__module__, fromlist=["responses"])
    return getattr(module, request_type.__name__.replace("Request", "Response"))


def _check_with_kio(api_key: int, version: int, body: bytes) -> None:
    try:
        schema = load_response_schema(api_key, version)
    except UnknownEntity:
        return
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    stream = io.BytesIO()
    entity_writer(schema)(stream, entity)
    assert stream.getvalue() == body
