"""The name and version of a client's software, which it tells in ApiVersions (KIP-511)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from regent.core.protocol.messages.api_versions import ApiVersionsRequest
from regent.transport.kafka.api import KafkaApiKey, KafkaRequest
from regent.transport.kafka.message_codec import decode

_WORD: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_MAX_LENGTH: Final = 64
_FIRST_VERSION: Final = 3


class ClientSoftware(NamedTuple):
    """Such as "apache-kafka-java" "3.9.1"."""

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
    if request.api_key is not KafkaApiKey.API_VERSIONS or request.api_version < _FIRST_VERSION:
        return None
    software = client_software(request)
    is_short = max(map(len, software)) <= _MAX_LENGTH
    return software if software.is_valid and is_short else None
