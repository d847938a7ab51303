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


TransactionalOffsets: TypeAlias = dict[TopicPartition, CommittedOffset | None]
"""The positions of an open transaction; None: the record is not replicated yet."""


class GroupOffsets:
    """The positions of one group."""

    __slots__ = ("_deleted_at", "_pending", "committed", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.transactional: dict[int, TransactionalOffsets] = {}
        """By producer id."""
        self._pending: dict[TopicPartition, list[OffsetAndMetadata]] = {}
        # The offsets of tombstones, which may follow the marker of a transaction that is not
        # known to be complete.
        self._deleted_at: dict[TopicPartition, int] = {}

    def has_only(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether there are no positions but those that count of ``partitions``."""
        is_settled = not self._pending and not self.transactional
        return is_settled and self.committed.keys() <= set(partitions)

    # --- commits ---

    def stage(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note positions whose record is about to be appended."""
        for topic_partition, value in offsets.items():
            self._pending.setdefault(topic_partition, []).append(value)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], record_offset: int
    ) -> None:
        """Count staged positions, whose records are replicated, unless later ones count already.

        A position that is not staged any more is left out: it, or its topic, was deleted.
        """
        for topic_partition, value in offsets.items():
            if self._unstage(topic_partition, value):
                self.put(topic_partition, CommittedOffset(record_offset, value, record_offset))

    def fail(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Forget that positions are staged. Others of the same partitions may still succeed."""
        for topic_partition, value in offsets.items():
            self._unstage(topic_partition, value)

    def _unstage(self, topic_partition: TopicPartition, value: OffsetAndMetadata) -> bool:
        """Forget that a position is staged; return whether it was."""
        staged = self._pending.get(topic_partition, [])
        for index, other in enumerate(staged):
            if other is value:
                del staged[index]
                if not staged:
                    del self._pending[topic_partition]
                return True
        return False

    def put(self, topic_partition: TopicPartition, committed: CommittedOffset) -> None:
        """Count a position, unless one with a later record counts already."""
        if committed.is_later_than(self.committed.get(topic_partition)):
            self.committed[topic_partition] = committed

    # --- commits in transactions ---

    def stage_transactional(self, producer_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Note positions of a transaction whose record is about to be appended."""
        self.transactional.setdefault(producer_id, {}).update(dict.fromkeys(partitions))

    def put_transactional(
        self,
        producer_id: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        record_offset: int,
    ) -> None:
        """Note positions of a transaction whose record is replicated."""
        pending = self.transactional.get(producer_id, {})
        for topic_partition, value in offsets.items():
            if topic_partition in pending:
                pending[topic_partition] = CommittedOffset(record_offset, value, record_offset)

    def fail_transactional(self, producer_id: int, partitions: Iterable[TopicPartition]) -> None:
        """Forget positions of a transaction whose record was not appended."""
        pending = self.transactional.get(producer_id, {})
        for topic_partition in partitions:
            if pending.get(topic_partition) is None:
                pending.pop(topic_partition, None)
        if not pending:
            self.transactional.pop(producer_id, None)

    def complete_transaction(
        self, producer_id: int, marker_offset: int, *, is_commit: bool
    ) -> None:
        """Count the positions of a transaction that are not deleted since, or forget them."""
        for topic_partition, committed in self.transactional.pop(producer_id, {}).items():
            is_deleted = self._deleted_at.get(topic_partition, -1) > marker_offset
            if is_commit and committed is not None and not is_deleted:
                self.put(topic_partition, committed._replace(counts_from=marker_offset))
        if not self.transactional:
            self._deleted_at.clear()

    # --- reading and removing ---

    def is_unstable(self, topic_partition: TopicPartition) -> bool:
        """Whether a position may change soon, without another request."""
        return topic_partition in self._pending or any(
            topic_partition in offsets for offsets in self.transactional.values()
        )

    def known(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, list[OffsetAndMetadata]]:
        """Return the positions that count of ``partitions``, each with those that are staged."""
        return {
            topic_partition: [committed.value, *self._pending.get(topic_partition, ())]
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
                self._unstage(topic_partition, value)
            committed = self.committed.get(topic_partition)
            if committed is not None and committed.counts_from < tombstone_offset:
                del self.committed[topic_partition]
            if any(topic_partition in offsets for offsets in self.transactional.values()):
                self._deleted_at[topic_partition] = tombstone_offset

    def forget(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Forget everything about partitions that were deleted; return those that counted."""
        counted = [tp for tp in partitions if self.committed.pop(tp, None) is not None]
        for topic_partition in partitions:
            self._pending.pop(topic_partition, None)
            for offsets in self.transactional.values():
                offsets.pop(topic_partition, None)
        for producer_id in [p for p, offsets in self.transactional.items() if not offsets]:
            del self.transactional[producer_id]
        return counted

    def expired(
        self, now_ms: int, retention_ms: int, since_ms: int | None, topics_kept: Collection[str]
    ) -> Iterator[TopicPartition]:
        """Yield the partitions whose positions have expired.

        ``since_ms``: when the retention began, for all; None: with the commit of each. Positions of
        ``topics_kept``, and those about to be committed, do not expire.
        """
        for topic_partition, committed in self.committed.items():
            value = committed.value
            if topic_partition in self._pending or topic_partition.topic in topics_kept:
                continue
            began_ms = value.commit_timestamp_ms if since_ms is None else since_ms
            expire_ms = value.expire_timestamp_ms
            if expire_ms == NO_TIMESTAMP:
                expire_ms = began_ms + retention_ms
            if now_ms >= expire_ms:
                yield topic_partition
