"""The positions of one group: committed, about to be committed, and those of open transactions.

A commit is staged before its record is appended. It counts when the record is replicated, for a
transaction when its marker is. Of two commits the one with the later record counts, in whatever
order they become known. Mirrors the offsets of ``kafka.coordinator.group.GroupMetadata``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from regent.core.model import TopicPartition
from regent.core.protocol.groups import NO_TIMESTAMP, OffsetAndMetadata


class CommittedOffset(NamedTuple):
    """A position. ``record_offset``: of its record in ``__consumer_offsets``.

    ``counts_from``: the same offset, or that of the marker of its transaction.
    """

    record_offset: int
    value: OffsetAndMetadata
    counts_from: int

    def is_later_than(self, other: CommittedOffset | None) -> bool:
        """Whether its record follows that of another."""
        return other is None or other.record_offset < self.record_offset


TransactionalOffsets: TypeAlias = dict[TopicPartition, CommittedOffset]
"""The positions of an open transaction whose records are replicated."""


class GroupOffsets:
    """The positions of one group."""

    __slots__ = ("_deleted_at", "_staged", "committed", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.transactional: dict[int, TransactionalOffsets] = {}
        """By producer id."""
        # By the producer id of their transaction; None: of no transaction. An append that is
        # refused takes back only what was staged for it: a former instance of a transactional
        # producer, whose append the log refuses, has the same producer id.
        self._staged: dict[int | None, dict[TopicPartition, list[OffsetAndMetadata]]] = {}
        # The offsets of tombstones, which may follow the marker of a transaction that is not
        # known to be complete.
        self._deleted_at: dict[TopicPartition, int] = {}

    def has_only(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether there are no positions but those that count of ``partitions``."""
        is_settled = not self._staged and not self.transactional
        return is_settled and self.committed.keys() <= set(partitions)

    # --- commits ---

    def stage(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], producer_id: int | None = None
    ) -> None:
        """Note positions whose record is about to be appended.

        ``producer_id``: they are part of its transaction.
        """
        staged = self._staged.setdefault(producer_id, {})
        for topic_partition, value in offsets.items():
            staged.setdefault(topic_partition, []).append(value)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        record_offset: int,
        producer_id: int | None = None,
    ) -> None:
        """Take staged positions, whose records are replicated, unless there are later ones already.

        They count now, or with the marker of their transaction. A position that is not staged any
        more is left out: it, or its topic, was deleted, or its transaction has ended.
        """
        for topic_partition, value in offsets.items():
            if self._unstage(topic_partition, value, producer_id):
                committed = CommittedOffset(record_offset, value, record_offset)
                if producer_id is None:
                    self.put(topic_partition, committed)
                    continue
                written = self.transactional.setdefault(producer_id, {})
                if committed.is_later_than(written.get(topic_partition)):
                    written[topic_partition] = committed

    def fail(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], producer_id: int | None = None
    ) -> None:
        """Forget that positions are staged. Others of the same partitions may still succeed."""
        for topic_partition, value in offsets.items():
            self._unstage(topic_partition, value, producer_id)

    def _unstage(
        self, topic_partition: TopicPartition, value: OffsetAndMetadata, producer_id: int | None
    ) -> bool:
        """Forget that a position is staged; return whether it was."""
        of_producer = self._staged.get(producer_id, {})
        staged = of_producer.get(topic_partition, [])
        for index, other in enumerate(staged):
            if other is value:
                del staged[index]
                if not staged:
                    del of_producer[topic_partition]
                if not of_producer:
                    del self._staged[producer_id]
                return True
        return False

    def put(self, topic_partition: TopicPartition, committed: CommittedOffset) -> None:
        """Count a position, unless one with a later record counts already."""
        if committed.is_later_than(self.committed.get(topic_partition)):
            self.committed[topic_partition] = committed

    def complete_transaction(
        self, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> None:
        """Count the positions of a transaction that are not deleted since, or forget them.

        Those that are still staged are forgotten: their producer did not wait for them.
        """
        self._staged.pop(producer_id, None)
        for topic_partition, committed in self.transactional.pop(producer_id, {}).items():
            is_deleted = self._deleted_at.get(topic_partition, -1) > marker_offset
            if is_commit and not is_deleted:
                self.put(topic_partition, committed._replace(counts_from=marker_offset))
        if not self.transactional and self._staged.keys() <= {None}:
            self._deleted_at.clear()

    # --- reading and removing ---

    def is_unstable(self, topic_partition: TopicPartition) -> bool:
        """Whether a position may change soon, without another request."""
        return any(topic_partition in staged for staged in self._staged.values()) or any(
            topic_partition in offsets for offsets in self.transactional.values()
        )

    def known(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[OffsetAndMetadata]]:
        """Return the positions that count of ``partitions``, each with those that are staged."""
        staged = self._staged.get(None, {})
        return {
            topic_partition: [committed.value, *staged.get(topic_partition, ())]
            for topic_partition in partitions
            if (committed := self.committed.get(topic_partition)) is not None
        }

    def remove(
        self,
        values: Mapping[TopicPartition, Collection[OffsetAndMetadata]],
        tombstone_offset: int,
    ) -> None:
        """Forget positions, whose tombstones are appended, unless others count since.

        Those that were staged when the tombstones were appended have earlier records, too.
        """
        for topic_partition, removed in values.items():
            for value in removed:
                self._unstage(topic_partition, value, None)
            committed = self.committed.get(topic_partition)
            if committed is not None and committed.counts_from < tombstone_offset:
                del self.committed[topic_partition]
            if self.is_unstable(topic_partition):
                self._deleted_at[topic_partition] = tombstone_offset

    def remove_transactional(self, tombstone_offset: int) -> None:
        """Forget the positions of open transactions, unless their records are later."""
        for producer_id, offsets in list(self.transactional.items()):
            later = {tp: row for tp, row in offsets.items() if row.record_offset > tombstone_offset}
            self.transactional[producer_id] = later
            if not later:
                del self.transactional[producer_id]

    def forget(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Forget everything about partitions that were deleted; return those that counted."""
        counted = [tp for tp in partitions if self.committed.pop(tp, None) is not None]
        for topic_partition in partitions:
            for staged in self._staged.values():
                staged.pop(topic_partition, None)
            for offsets in self.transactional.values():
                offsets.pop(topic_partition, None)
        self._staged = {p: staged for p, staged in self._staged.items() if staged}
        self.transactional = {p: offsets for p, offsets in self.transactional.items() if offsets}
        return counted

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, topics_kept: Collection[str]
    ) -> Iterator[TopicPartition]:
        """Yield the partitions whose positions have expired.

        ``since_ms``: when the retention began, for all; None: with the commit of each. Positions of
        ``topics_kept``, and those about to be committed, do not expire.
        """
        staged = self._staged.get(None, {})
        for topic_partition, committed in self.committed.items():
            value = committed.value
            if topic_partition in staged or topic_partition.topic in topics_kept:
                continue
            began_ms = value.commit_timestamp_ms if since_ms is None else since_ms
            expire_ms = value.expire_timestamp_ms
            if expire_ms == NO_TIMESTAMP:
                expire_ms = began_ms + retention_ms
            if now_ms >= expire_ms:
                yield topic_partition
