"""The znodes of consumers of Kafka 0.8.1."""

from __future__ import annotations

import re
from typing import Final

from regent.zk.codecs.json_fields import MAX_INT64, bad_field

_DECIMAL: Final = re.compile(rb"-?[0-9]{1,19}")


class ConsumerOffsetZNode:
    """``/consumers/G/offsets/T/P``: the position of a group in a partition, as decimal text."""

    @staticmethod
    def path(group_id: str, topic: str, partition: int) -> str:
        """Return the path of a position."""
        return f"/consumers/{group_id}/offsets/{topic}/{partition}"

    @staticmethod
    def parents(path: str) -> list[str]:
        """Return the znodes that a position is below, ``/consumers`` first."""
        names = path.split("/")
        return ["/".join(names[:count]) for count in range(2, len(names))]

    @staticmethod
    def decode(data: bytes, path: str) -> int:
        """Return the position."""
        if _DECIMAL.fullmatch(data) and -MAX_INT64 - 1 <= (offset := int(data)) <= MAX_INT64:
            return offset
        raise bad_field(path, "the data", "a decimal number of 64 bits", data)
