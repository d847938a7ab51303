"""The partition of an internal topic that has the state of a group or of a transactional id.

Mirrors ``GroupMetadataManager.partitionFor``: clients never compute it, but a log written by Kafka
must be found again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from regent.core.model import NO_EPOCH
from regent.core.protocol.control import TopicId, differ
from regent.core.replication.leader_partitions import Leadership
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.topic_validation import GROUP_METADATA_TOPIC

UNKNOWN_PARTITION: Final = -1
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
    """The partitions of an internal topic over which keys are spread. Thread-safe.

    Nothing is decided here: the controller tells the number with every partition of the topic, so
    that all brokers agree. ``configured`` is the number of a topic that does not exist.
    """

    def __init__(self, topic: str, cache: MetadataCache, configured: int) -> None:
        self.topic = topic
        self._cache = cache
        self._configured = configured

    def of(self, key: str) -> int:
        """Return the partition that has the state of a group or of a transactional id.

        UNKNOWN_PARTITION until the number is known: no broker coordinates that partition.
        """
        count = self._count(self._cache.snapshot)
        return partition_for(key, count) if count else UNKNOWN_PARTITION

    def are_known(self, topic_id: TopicId | None) -> bool:
        """Whether the number is known, and is that of the topic with this id."""
        snapshot = self._cache.snapshot
        if self.topic not in snapshot.topic_ids or not self._count(snapshot):
            return False
        return not differ(snapshot.topic_ids[self.topic], topic_id)

    @property
    def newest_leader_epoch(self) -> int:
        """The highest leader epoch of the partitions; NO_EPOCH: none is known."""
        rows = self._cache.snapshot.topics.get(self.topic, {})
        return max((row.leader_epoch for row in rows.values()), default=NO_EPOCH)

    @property
    def warnings(self) -> Sequence[str]:
        """A line if the topic has grown, else nothing."""
        snapshot = self._cache.snapshot
        used = snapshot.coordinated_partitions.get(self.topic, 0)
        present = max(snapshot.topics.get(self.topic, ()), default=-1) + 1
        if not 0 < used < present:
            return ()
        kind = "groups" if self.topic == GROUP_METADATA_TOPIC else "transactional ids"
        return (
            f"{self.topic} has {present} partitions, but only the first {used} are used, as when it"
            f" was created: {kind} cannot move to others; the number should not be changed",
        )

    def _count(self, snapshot: MetadataSnapshot) -> int:
        """Return the number of partitions; 0: it is not known."""
        told = snapshot.coordinated_partitions.get(self.topic, 0)
        if told or not snapshot.is_complete:
            return told
        rows = snapshot.topics.get(self.topic)
        if rows is None:
            return self._configured
        # A controller of an earlier version, or one that may not read its note, tells no number.
        return len(rows) if max(rows) == len(rows) - 1 else 0


class AwaitedLeaderships:
    """Leaderships of an internal topic, kept until the number of its partitions is known.

    Before that a coordinator would look for what it reads in other partitions. Not thread-safe.
    """

    def __init__(
        self,
        partitions: CoordinatorPartitions,
        on_elected: Callable[[int, int, int], None],
        on_resigned: Callable[[int, int | None], None],
    ) -> None:
        self._partitions = partitions
        self._on_elected = on_elected
        self._on_resigned = on_resigned
        self._waiting: dict[int, Leadership] = {}

    def __len__(self) -> int:
        """Return how many leaderships wait."""
        return len(self._waiting)

    def add(self, leadership: Leadership) -> None:
        """Pass on a leadership, now or later, or its end."""
        (topic, partition), term, epoch, topic_id = leadership
        if topic != self._partitions.topic:
            return
        self._waiting.pop(partition, None)
        if term is None or epoch is None:
            self._on_resigned(partition, epoch)
        elif self._partitions.are_known(topic_id):
            self._on_elected(partition, epoch, term)
        else:
            # If the topic was created again, the end of the earlier leadership may not be told.
            self._on_resigned(partition, None)
            self._waiting[partition] = leadership

    def on_metadata_changed(self) -> None:
        """Pass on what waits, if the number is known now."""
        waiting, self._waiting = self._waiting, {}
        for leadership in waiting.values():
            self.add(leadership)
