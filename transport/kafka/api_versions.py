"""ApiVersions: the supported requests and versions (KIP-35, KIP-511).

It is the first request of most clients. An unknown version is answered in version 0 with
UNSUPPORTED_VERSION and the list, so that the client can choose another version. For the same reason
the header of the response never changes. Clients name their software from version 3 on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from regent.core.errors import Errors
from regent.core.protocol.messages.api_versions import ApiVersionsRequest
from regent.transport.kafka.api import (
    FIRST_FLEXIBLE_VERSION,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
)
from regent.transport.kafka.message_codec import decode
from regent.transport.kafka.primitives import Writer

_MAX_VERSION: Final = 4  # version 4 differs in features (KIP-584), and there are none
_WORD: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_MAX_LENGTH: Final = 64
_NAMED_FROM: Final = 3


class ClientSoftware(NamedTuple):
    """The name and version of a client's software, such as "apache-kafka-java" "3.9.1"."""

    name: str
    version: str

    @property
    def is_valid(self) -> bool:
        """Whether both words have only the characters that are allowed."""
        return all(map(_WORD.fullmatch, self))


UNKNOWN_SOFTWARE: Final = ClientSoftware("unknown", "unknown")


def client_software(request: KafkaRequest) -> ClientSoftware:
    """Return what an ApiVersions request tells; raises ``MalformedRequestError``."""
    asked = decode(ApiVersionsRequest, request)
    return ClientSoftware(asked.client_software_name, asked.client_software_version)


def told_software(request: KafkaRequest) -> ClientSoftware | None:
    """Return the software that a request tells; None: it tells none, or not in a valid form.

    Raises ``MalformedRequestError``.
    """
    if request.api_key is not KafkaApiKey.API_VERSIONS or request.api_version < _NAMED_FROM:
        return None
    software = client_software(request)
    is_short = max(map(len, software)) <= _MAX_LENGTH
    return software if software.is_valid and is_short else None


def api_versions_api(apis: Sequence[KafkaApi]) -> KafkaApi:
    """Return the handler that advertises ``apis``, and itself."""
    ranges = [(api.key, api.min_version, api.max_version) for api in apis]
    ranges = sorted([*ranges, (KafkaApiKey.API_VERSIONS, 0, _MAX_VERSION)])
    answers = [_encode(version, Errors.NONE, ranges) for version in range(_MAX_VERSION + 1)]
    not_supported = _encode(0, Errors.UNSUPPORTED_VERSION, ranges)

    async def handle(request: KafkaRequest) -> KafkaAnswer:
        version = request.api_version
        if not 0 <= version <= _MAX_VERSION:
            return (not_supported,)
        software = client_software(request)
        if version >= _NAMED_FROM and not software.is_valid:
            return (_encode(version, Errors.INVALID_REQUEST, ()),)
        if request.throttle_time_ms:
            return (_encode(version, Errors.NONE, ranges, request.throttle_time_ms),)
        return (answers[version],)

    return KafkaApi(KafkaApiKey.API_VERSIONS, 0, _MAX_VERSION, handle)


def _encode(
    version: int,
    error: Errors,
    ranges: Sequence[tuple[KafkaApiKey, int, int]],
    throttle_time_ms: int = 0,
) -> bytes:
    writer = Writer(is_flexible=version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey.API_VERSIONS])

    def write(numbers: tuple[KafkaApiKey, int, int]) -> None:
        for number in numbers:
            writer.int16(number)
        writer.end_struct()

    writer.int16(error)
    writer.array(ranges, write)
    if version >= 1:
        writer.int32(throttle_time_ms)
    writer.end_struct()
    return writer.whole()
