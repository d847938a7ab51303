"""What the log of a partition of ``__consumer_offsets`` says about groups.

The log is read from its start to its end, batch by batch. Mirrors
``GroupMetadataManager.doLoadGroupsAndOffsets``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from regent.core.coordinator.group.group_offsets import CommittedOffset, TransactionalOffsets
from regent.core.coordinator.group.group_records import GroupKey, OffsetKey, Record, StoredGroup
from regent.core.model import TopicPartition
from regent.core.protocol.groups import OffsetAndMetadata


@dataclass(slots=True)
class LoadedGroup:
    """A group in the log; ``stored`` None: there are only positions."""

    stored: StoredGroup | None = None
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    transactional: dict[int, TransactionalOffsets] = field(default_factory=dict)


class GroupLoader:
    """Takes the batches of a partition in the order of the log."""

    def __init__(self) -> None:
        self.groups: dict[str, LoadedGroup] = {}
        """The groups with something in the log, also if it was removed again."""
        self._open: dict[int, set[str]] = {}  # groups with positions of an open transaction

    def add_batch(
        self, base_offset: int, records: Iterable[Record], producer_id: int | None = None
    ) -> None:
        """Take the records of a batch; ``producer_id``: of its transaction."""
        for key, value in records:
            group = self.groups.get(key.group_id)
            if group is None:
                group = self.groups[key.group_id] = LoadedGroup()
            if isinstance(key, GroupKey):
                assert value is None or isinstance(value, StoredGroup)
                group.stored = value
                continue
            assert value is None or isinstance(value, OffsetAndMetadata)
            if producer_id is None:
                self._put(group.committed, key, base_offset, value)
            else:
                self._open.setdefault(producer_id, set()).add(key.group_id)
                self._put(group.transactional.setdefault(producer_id, {}), key, base_offset, value)

    def add_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """Take the end of a transaction."""
        for group_id in self._open.pop(producer_id, ()):
            group = self.groups[group_id]
            for topic_partition, committed in group.transactional.pop(producer_id, {}).items():
                present = group.committed.get(topic_partition)
                if is_commit and committed is not None and committed.is_later_than(present):
                    group.committed[topic_partition] = committed

    @staticmethod
    def _put(
        offsets: TransactionalOffsets | dict[TopicPartition, CommittedOffset],
        key: OffsetKey,
        base_offset: int,
        value: OffsetAndMetadata | None,
    ) -> None:
        if value is None:
            offsets.pop(key.topic_partition, None)
        else:
            offsets[key.topic_partition] = CommittedOffset(base_offset, value)
