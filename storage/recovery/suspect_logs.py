"""Finds the logs of one directory that may have lost committed records (suspect logs).

A log is suspect when one of these holds:

* Its machine stopped while the directory was in use: what was not flushed is lost.
* It ends before its recorded end (``LogEndOffsetFile``): its files were changed from outside.
* It ends before its checkpointed high watermark.
* ``control-plane.properties`` is missing from a used directory: an operator removed it to accept
  older ZooKeeper data, and the ISRs in such data may lack replicas with newer records.

The set of earlier logs is unknown if the directory is new, if it lacks recorded logs, or if its
machine stopped while it was in use: new logs may be lost together with their recorded ends.

The file ``suspect-logs`` keeps the suspects until they are in sync again. Kafka ignores it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import parse_numbers, read_rows, write_rows
from regent.storage.files import storage_error, write_atomically

LOG_ENDS = "log-end-offsets"
_ENTRY = struct.Struct(">16sq")
_OFFSET = struct.Struct(">q")
_FREE = bytes(16)
SUSPECT_LOGS = "suspect-logs"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOSED = "closed"
_COLUMNS = 3


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the system has none.

    Raises ``OSError`` if the system has one that cannot be read.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (FileNotFoundError, PermissionError):
        return ""


class FoundLogs(NamedTuple):
    """The logs that a directory contains when it is opened.

    ``ends``: the log end offsets of the usable logs. ``unusable``: the other logs. ``is_new``: the
    directory was never used. ``is_set_back``: the ZooKeeper data may be older than the logs.
    """

    ends: Mapping[TopicPartition, int]
    unusable: Collection[TopicPartition]
    high_watermarks: Mapping[TopicPartition, int]
    noted: RecordedLogEndOffsets | None
    is_clean: bool
    is_new: bool
    is_set_back: bool


class SuspectLogs:
    """Belongs to one directory; not thread-safe.

    ``knows_all``: the set of earlier logs is known. ``names`` may include missing logs.
    """

    def __init__(self, directory: Path) -> None:
        self.names: set[TopicPartition] = set()
        self.knows_all = True
        self._path = directory / SUSPECT_LOGS
        self._used_in = ""  # boot id; empty: unknown
        self._is_saved = False

    def load(self) -> None:
        """Read the file of an earlier process; treat an incomplete file as missing."""
        try:
            rows = read_rows(self._path, columns=_COLUMNS)
            if not rows:
                return
            (self._used_in, knows_all, _), *suspects = rows
            self.knows_all = knows_all == "all"
            self.names = {
                TopicPartition(topic, *parse_numbers(self._path, (partition,)))
                for topic, partition, _ in suspects
            }
        except BadDataError:
            self._used_in = ""

    @property
    def lost_power(self) -> bool:
        """Whether the machine stopped, or may have, while the directory was in use."""
        return self._used_in not in ("", _CLOSED, boot_id())

    def examine(self, found: FoundLogs) -> None:
        """Find the suspect logs."""
        boot = boot_id()
        is_same_boot = bool(boot) and self._used_in == boot
        is_new = found.is_new and not self._used_in
        is_set_back = found.is_set_back and bool(self._used_in)  # Kafka writes no such file
        for topic_partition, end in found.ends.items():
            noted = None if found.noted is None else found.noted.of(topic_partition)
            is_proven = found.is_clean or (is_same_boot and noted is not None)
            least = max(noted or 0, found.high_watermarks.get(topic_partition, 0))
            if is_set_back or not is_proven or end < least:
                self.names.add(topic_partition)
        is_any_gone = found.noted is not None and found.noted.has_others(
            {*found.ends, *found.unusable}
        )
        is_unknown = is_new or is_any_gone or self.lost_power
        self.knows_all = self.knows_all and not is_unknown

    def begin(self) -> None:
        """Record that the directory is in use. Raises ``StorageError``."""
        self._used_in = boot_id() or "unknown"
        self._is_saved = False
        self.save()

    def change(self) -> None:
        """Mark the file as outdated, so that ``save`` writes it."""
        self._is_saved = False

    def save(self) -> None:
        """Write the file if anything changed. Raises ``StorageError``."""
        if not self._is_saved:
            known = "all" if self.knows_all else "some"
            rows = [
                f"{topic_partition.topic} {topic_partition.partition} suspect"
                for topic_partition in sorted(self.names)
            ]
            write_rows(self._path, [f"{self._used_in} {known} logs", *rows])
            self._is_saved = True

    def close(self) -> None:
        """Record that the directory is no longer in use. Raises ``StorageError``."""
        self._used_in = _CLOSED
        self._is_saved = False
        self.save()


class LogEndOffsetFile:
    """The log end offsets of a directory, recorded with every append.

    The kernel keeps what a killed process wrote. So if a log ends before its recorded end, and the
    machine was not rebooted since, its files were changed by hand and it lost records. A power
    failure loses data that were not flushed, perhaps including this file. An entry is 24 bytes, a
    digest of the log's name and an offset. Nothing here is flushed.

    The file is open for writing. Every method that writes may raise ``OSError``. The caller that
    adds or removes logs holds a lock.
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
