"""What the log of a partition of ``__consumer_offsets`` says about groups.

The log is read from its start to its end, batch by batch. Most records are replaced by later ones,
so keys and values stay bytes until the end. Mirrors
``GroupMetadataManager.doLoadGroupsAndOffsets``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from regent.core.coordinator.group.group_offsets import CommittedOffset, TransactionalOffsets
from regent.core.coordinator.group.group_records import (
    GroupKey,
    Key,
    StoredGroup,
    decode_group,
    decode_key,
    decode_offset,
)
from regent.core.errors import BadDataError
from regent.core.model import TopicPartition

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedGroup:
    """A group in the log; ``stored`` None: there are only positions."""

    stored: StoredGroup | None = None
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    transactional: dict[int, TransactionalOffsets] = field(default_factory=dict)


_Newest = dict[bytes, tuple[int, bytes]]  # by key: the offset of the batch, and the value


class GroupLoader:
    """Takes the batches of a partition in the order of the log."""

    def __init__(self) -> None:
        self._newest: _Newest = {}
        self._open: dict[int, _Newest] = {}  # of transactions, by producer id

    def add_batch(
        self,
        base_offset: int,
        records: Iterable[tuple[bytes, bytes | None]],
        producer_id: int | None = None,
    ) -> None:
        """Take the records of a batch; ``producer_id``: of its transaction."""
        newest = self._newest if producer_id is None else self._open.setdefault(producer_id, {})
        for key, value in records:
            if value is None:
                newest.pop(key, None)
            else:
                newest[key] = (base_offset, value)

    def add_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """Take the end of a transaction."""
        for key, (base_offset, value) in self._open.pop(producer_id, {}).items():
            if is_commit and self._newest.get(key, (-1, b""))[0] < base_offset:
                self._newest[key] = (base_offset, value)

    def groups(self) -> Mapping[str, LoadedGroup]:
        """Return the groups. Records that cannot be decoded are logged and left out."""
        groups: dict[str, LoadedGroup] = {}
        problems: list[str] = []
        for producer_id, newest in ((None, self._newest), *self._open.items()):
            for encoded, (base_offset, value) in newest.items():
                try:
                    key = decode_key(encoded)
                    if key is None:  # of a newer kind of group (KAFKA-14869)
                        continue
                    group = groups.setdefault(key.group_id, LoadedGroup())
                    _put(group, key, base_offset, value, producer_id)
                except BadDataError as error:
                    problems.append(f"the record at offset {base_offset}: {error}")
        if problems:
            log.error(
                "%d records of groups cannot be read and are left out, the first: %s",
                len(problems),
                problems[0],
            )
        return groups


def _put(
    group: LoadedGroup, key: Key, base_offset: int, value: bytes, producer_id: int | None
) -> None:
    if isinstance(key, GroupKey):
        group.stored = decode_group(value)
        return
    committed = CommittedOffset(base_offset, decode_offset(value), base_offset)
    if producer_id is None:
        group.committed[key.topic_partition] = committed
    else:
        group.transactional.setdefault(producer_id, {})[key.topic_partition] = committed
