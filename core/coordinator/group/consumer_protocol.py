"""The part of the consumers' protocol that the coordinator reads: which topics a member wants.

Mirrors ``org.apache.kafka.clients.consumer.internals.ConsumerProtocol``. Metadata of any version
begin with the fields of version 0, and more is not read.
"""

from __future__ import annotations

import struct
from typing import Final

CONSUMER: Final = "consumer"
"""The protocol type of groups of consumers."""

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def subscribed_topics(metadata: bytes) -> list[str] | None:
    """Return the topics in the metadata of a consumer; None: they cannot be read."""
    try:
        (count,) = _INT32.unpack_from(metadata, _INT16.size)
        position, topics = _INT16.size + _INT32.size, []
        for _ in range(count):
            (length,) = _INT16.unpack_from(metadata, position)
            position += _INT16.size
            end = position + length
            if length < 0 or end > len(metadata):
                return None
            topics.append(metadata[position:end].decode())
            position = end
        (length,) = _INT32.unpack_from(metadata, position)  # user data, which may be null
        is_whole = count >= 0 and position + _INT32.size + max(length, 0) <= len(metadata)
    except (struct.error, UnicodeDecodeError):
        return None
    return topics if is_whole else None
