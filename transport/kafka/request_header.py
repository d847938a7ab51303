"""Decodes the header of a request: whether its body may be read, and by which handler."""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping
from typing import Final

from regent.core.security.session import Session
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApi, KafkaApiKey, KafkaRequest
from regent.transport.kafka.metrics import ListenerMetrics
from regent.transport.kafka.primitives import Reader
from regent.transport.kafka.sasl_server import SaslServerAuthenticator

_REQUEST_HEADER: Final = struct.Struct(">hhi")


class UnsupportedRequestError(Exception):
    """A request of a kind or version that is not advertised."""


def decode_request(
    frame: memoryview,
    session: Session,
    apis: Mapping[int, KafkaApi],
    metrics: ListenerMetrics,
    connection: Hashable,
    login: SaslServerAuthenticator | None,
) -> KafkaRequest:
    """Return a request, without a throttle.

    Raises ``MalformedRequestError``, ``UnsupportedRequestError``, and ``LoginRefusedError`` before
    anything but the API key is read.
    """
    if login is not None and login.takes_raw_tokens:
        return login.raw_request(frame)
    reader = Reader(frame)
    number, version, correlation_id = reader.unpack(_REQUEST_HEADER)
    if login is not None:
        login.admit(number)
    api = apis.get(number)
    # ApiVersions is accepted in any version: the client does not know the versions yet.
    asks_versions = number == KafkaApiKey.API_VERSIONS
    if api is None or not (asks_versions or api.min_version <= version <= api.max_version):
        raise UnsupportedRequestError(f"api {number} version {version}")
    has_client_id = number != KafkaApiKey.CONTROLLED_SHUTDOWN or version > 0
    client_id = reader.nullable_string() if has_client_id else None
    if version >= FIRST_FLEXIBLE_VERSION[api.key]:
        reader = Reader(frame, reader.position, is_flexible=True)
        reader.end_struct()
    body = frame[reader.position :]
    errors = metrics.requests[number].errors
    return KafkaRequest(
        api.key, version, correlation_id, client_id, session, body, errors, None, connection
    )
