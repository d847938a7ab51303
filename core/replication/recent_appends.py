"""What leaders have appended and not committed yet: followers get it without a read of the file.

A follower in the ISR asks for exactly these records. Read from the file, each of them would copy
them once more. Committed records are sent from the file, which copies them less often.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from regent.core.model import TopicPartition
from regent.core.records import RecordBytes
from regent.core.replica_logs import AppendedRecords

LIMIT_BYTES: Final = 16 * 1024 * 1024
_COPIED_BYTES: Final = 8 * 1024  # less is copied: it would keep the whole request in memory
ENTRY_BYTES: Final = 512
"""What an append costs besides its records."""


class _Append(NamedTuple):
    """One append; ``cost``: how many bytes of memory it keeps."""

    next_offset: int
    data: RecordBytes
    cost: int


class RecentAppends:
    """The appends of each partition, by their first offsets. Not thread-safe.

    They keep at most about ``limit`` bytes of memory: when there are more, all of them are
    forgotten, and followers read the file. Those of a partition must be forgotten when its
    leadership ends, because the log may be truncated then.
    """

    def __init__(self, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._appends: dict[TopicPartition, dict[int, _Append]] = {}
        self.size = 0
        """How many bytes of memory they keep."""

    def note(self, topic_partition: TopicPartition, appended: AppendedRecords) -> None:
        """Keep what was appended; its bytes must not change any more."""
        data = appended.data
        if len(data) < _COPIED_BYTES:
            data = bytes(data)
        size = memoryview(data.obj).nbytes if isinstance(data, memoryview) else len(data)
        cost = size + ENTRY_BYTES
        self.size += cost
        if self.size > self._limit:
            self._appends.clear()
            self.size = 0
            return
        appends = self._appends.setdefault(topic_partition, {})
        appends[appended.first_offset] = _Append(appended.last_offset + 1, data, cost)

    def read(self, topic_partition: TopicPartition, offset: int, max_bytes: int) -> RecordBytes:
        """Return what was appended from ``offset`` on, as far as it is here and fits.

        Empty: read the log. Perhaps the log has such records nevertheless.
        """
        appends = self._appends.get(topic_partition)
        append = None if appends is None else appends.get(offset)
        pieces: list[RecordBytes] = []
        while appends is not None and append is not None and len(append.data) <= max_bytes:
            pieces.append(append.data)
            max_bytes -= len(append.data)
            append = appends.get(append.next_offset)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def on_committed(self, topic_partition: TopicPartition, high_watermark: int) -> None:
        """Forget what is committed: the members of the ISR have it."""
        appends = self._appends.get(topic_partition)
        while appends:
            first_offset, append = next(iter(appends.items()))
            if append.next_offset > high_watermark:
                return
            del appends[first_offset]
            self.size -= append.cost
        if appends is not None:
            del self._appends[topic_partition]

    def forget(self, topic_partition: TopicPartition) -> None:
        """Forget a partition."""
        appends = self._appends.pop(topic_partition, {})
        self.size -= sum(append.cost for append in appends.values())
