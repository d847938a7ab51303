"""The partition of an internal topic that has the state of a group or of a transactional id.

Mirrors ``GroupMetadataManager.partitionFor``: clients never compute it, but a log written by Kafka
must be found again.
"""

from __future__ import annotations

from typing import Final

from regent.core.replication.metadata_cache import MetadataCache

_INT32_MIN: Final = -(2**31)


def partition_for(key: str, partitions: int) -> int:
    """Return the partition of ``key``: the absolute value of Java's hash, modulo the number."""
    hash_code = java_hash(key)
    return 0 if hash_code == _INT32_MIN else abs(hash_code) % partitions


def java_hash(text: str) -> int:
    """Return ``String.hashCode``: of UTF-16 code units, in 32 bits with a sign."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(encoded[::2], encoded[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


class CoordinatorPartitions:
    """The partitions of an internal topic.

    Their number is frozen when the topic is first seen: groups must not move to another partition
    while brokers run. Thread-safe.
    """

    def __init__(self, topic: str, cache: MetadataCache, configured: int) -> None:
        self.topic = topic
        self._cache = cache
        self._configured = configured
        self._known = 0

    def of(self, key: str) -> int:
        """Return the partition that has the state of a group or of a transactional id."""
        if not self._known:
            self._known = self._cache.snapshot.partition_count(self.topic)
        return partition_for(key, self._known or self._configured)

    @property
    def are_as_before(self) -> bool:
        """Whether their number is still the one that was frozen."""
        count = self._cache.snapshot.partition_count(self.topic)
        return not self._known or count in (0, self._known)
