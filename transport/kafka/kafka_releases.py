"""Which release of Kafka a broker is, by the versions of the requests that it knows.

No answer in Kafka's protocol names the software of a broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from regent.core.protocol.message import Int16, message

Versions: TypeAlias = Mapping[int, tuple[int, int]]
"""The first and the last version of each API of a broker, by API key."""

OLDEST_RELEASE: Final = "2.4"
"""The oldest release whose brokers a controller of this project rules."""

_PRODUCE, _FETCH, _LIST_OFFSETS, _LEADER_AND_ISR, _STOP_REPLICA = 0, 1, 2, 4, 5
_JOIN_GROUP, _ALTER_PARTITION = 11, 56
_NEWEST_FIRST: Final = (
    ("3.9", _FETCH, 17),
    ("3.8", _PRODUCE, 11),
    ("3.7", _FETCH, 16),
    ("3.5", _FETCH, 15),  # and 3.6
    ("3.4", _LEADER_AND_ISR, 7),
    ("3.3", _ALTER_PARTITION, 2),
    ("3.2", _LEADER_AND_ISR, 6),
    ("3.1", _FETCH, 13),
    ("3.0", _LIST_OFFSETS, 7),
    ("2.8", _LEADER_AND_ISR, 5),
    ("2.7", _FETCH, 12),
    ("2.6", _STOP_REPLICA, 3),
    ("2.5", _JOIN_GROUP, 7),
    (OLDEST_RELEASE, _LEADER_AND_ISR, 4),
)
"""The first release that knows a version of an API."""


@message
class ApiVersion:
    """The versions of one API."""

    api_key: Int16
    min_version: Int16
    max_version: Int16


@message
class ApiVersionsAnswer:
    """The answer to ApiVersions, version 0, which every broker knows."""

    error_code: Int16
    api_keys: tuple[ApiVersion, ...]

    @property
    def versions(self) -> Versions:
        """The versions by API key."""
        return {row.api_key: (row.min_version, row.max_version) for row in self.api_keys}


def release_of(versions: Versions) -> str:
    """Return the release, for example 3.9; empty: an older one. A later patch looks the same."""
    for release, key, version in _NEWEST_FIRST:
        if versions.get(key, (0, -1))[1] >= version:
            return release
    return ""
