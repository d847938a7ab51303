"""The log end offsets of a directory, recorded with every append.

The kernel keeps what a killed process wrote. So if a log ends before its recorded end, and the
machine was not rebooted since, its files were changed by hand and it lost records. A power
failure loses data that were not flushed, perhaps including this file.

An entry is 24 bytes, a digest of the log's name and an offset. Nothing here is flushed.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from regent.core.model import TopicPartition
from regent.storage.files import storage_error, write_atomically

LOG_ENDS = "log-end-offsets"
_ENTRY = struct.Struct(">16sq")
_OFFSET = struct.Struct(">q")
_FREE = bytes(16)


class LogEndOffsetFile:
    """The file, open for writing. Every method that writes may raise ``OSError``. The caller
    that adds or removes logs holds a lock.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOG_ENDS
        self._file = -1
        self._slots: dict[TopicPartition, int] = {}
        self._free: list[int] = []
        self._count = 0

    def read(self) -> RecordedLogEndOffsets | None:
        """Return the recorded ends; None if there is no such file. Raises ``StorageError``."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error(self._path, error) from None
        whole = len(data) - len(data) % _ENTRY.size
        entries = dict(_ENTRY.iter_unpack(data[:whole]))
        entries.pop(_FREE, None)
        return RecordedLogEndOffsets(entries)

    def begin(self, ends: Mapping[TopicPartition, int]) -> None:
        """Write a new file with the ends of all logs. Raises ``StorageError``."""
        data = b"".join(
            _ENTRY.pack(_digest(topic_partition), end) for topic_partition, end in ends.items()
        )
        write_atomically(self._path, data, is_synced=False)
        self._slots = {topic_partition: slot for slot, topic_partition in enumerate(ends)}
        self._free, self._count = [], len(ends)
        self.close()
        self._file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)

    def add(self, topic_partition: TopicPartition) -> None:
        """Add an empty log."""
        if topic_partition not in self._slots:
            slot = self._free.pop() if self._free else self._count
            self._count = max(self._count, slot + 1)
            self._slots[topic_partition] = slot
        os.pwrite(
            self._file,
            _ENTRY.pack(_digest(topic_partition), 0),
            self._slots[topic_partition] * _ENTRY.size,
        )

    def note(self, topic_partition: TopicPartition, log_end_offset: int) -> None:
        """Record the log end offset of a log."""
        position = self._slots[topic_partition] * _ENTRY.size + len(_FREE)
        os.pwrite(self._file, _OFFSET.pack(log_end_offset), position)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Remove a log. No-op if absent."""
        slot = self._slots.pop(topic_partition, None)
        if slot is not None:
            os.pwrite(self._file, _ENTRY.pack(_FREE, 0), slot * _ENTRY.size)
            self._free.append(slot)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class RecordedLogEndOffsets:
    """What an earlier process recorded."""

    def __init__(self, by_digest: dict[bytes, int]) -> None:
        self._by_digest = by_digest

    def of(self, topic_partition: TopicPartition) -> int | None:
        """Return the recorded log end offset of a log; None: there is no entry."""
        return self._by_digest.get(_digest(topic_partition))

    def has_others(self, topic_partitions: set[TopicPartition]) -> bool:
        """Whether there is an entry for a log with records that is not among these."""
        known = {_digest(topic_partition) for topic_partition in topic_partitions}
        return any(end > 0 and digest not in known for digest, end in self._by_digest.items())


def _digest(topic_partition: TopicPartition) -> bytes:
    return hashlib.blake2b(str(topic_partition).encode(), digest_size=16).digest()
