"""Finds the logs of one directory that may have lost committed records (suspect logs).

A log is suspect when one of these holds:

* Its machine stopped while the directory was in use: what was not flushed is lost.
* It ends before its recorded end (``LogEndOffsetFile``): its files were changed from outside.
* It ends before its checkpointed high watermark.
* ``control-plane.properties`` is missing from a used directory: an operator removed it to accept
  older ZooKeeper data, and the ISRs in such data may lack replicas with newer records.

The set of earlier logs is unknown if the directory is new, if it lacks recorded logs, or if its
machine may have stopped while it was in use: new logs may be lost together with their recorded
ends. That of a Kafka that died may have, too.

The file ``suspect-logs`` keeps the suspects until they are in sync again. Kafka ignores it, and
truncates and deletes logs without a note. So what was noted counts only if Kafka has not used the
directory since: its start removes our mark of a clean shutdown, and its own is another.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import parse_numbers, read_rows, write_rows
from regent.storage.log_directory import LogDirectory, LogEndOffsetFile, RecordedLogEndOffsets

SUSPECT_LOGS = "suspect-logs"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOSED = "closed"
_MARKED = "marked"  # version 0.3 has "logs": its mark of a clean shutdown is like Kafka's
_ANOTHER = "another"  # program has used the directory since
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

    def load(self, directory: LogDirectory) -> None:
        """Read the file of an earlier process; treat an incomplete file as missing.

        Keep nothing of it if another program has used the directory since. A program that died
        after one of ours had died is not noticed: if the machine ran on, no log lost records.
        Raises ``OSError``.
        """
        try:
            rows = read_rows(self._path, columns=_COLUMNS)
            if not rows:
                return
            (self._used_in, knows_all, kind), *suspects = rows
            self.knows_all = knows_all == "all"
            self.names = {
                TopicPartition(topic, *parse_numbers(self._path, (partition,)))
                for topic, partition, _ in suspects
            }
        except BadDataError:
            self._used_in = ""
            return
        if kind != _MARKED or self._used_in == _ANOTHER or directory.was_closed_by_us():
            return
        if self._used_in == _CLOSED or directory.was_closed_cleanly():
            self._used_in, self.knows_all, self.names = _ANOTHER, True, set()

    def noted_in(self, ends: LogEndOffsetFile) -> RecordedLogEndOffsets | None:
        """Return the log end offsets of an earlier process; None: there are none that count.

        Raises ``StorageError``.
        """
        return None if self._used_in == _ANOTHER else ends.read()

    @property
    def lost_power(self) -> bool:
        """Whether the machine stopped, or may have, while the directory was in use."""
        return self._used_in not in ("", _ANOTHER, _CLOSED, boot_id())

    def examine(self, found: FoundLogs) -> None:
        """Find the suspect logs."""
        boot = boot_id()
        is_same_boot = bool(boot) and self._used_in == boot
        is_new = found.is_new and not self._used_in
        # Kafka writes no such file.
        is_set_back = found.is_set_back and self._used_in not in ("", _ANOTHER)
        for topic_partition, end in found.ends.items():
            noted = None if found.noted is None else found.noted.of(topic_partition)
            is_proven = found.is_clean or (is_same_boot and noted is not None)
            least = max(noted or 0, found.high_watermarks.get(topic_partition, 0))
            if is_set_back or not is_proven or end < least:
                self.names.add(topic_partition)
        is_any_gone = found.noted is not None and found.noted.has_others(
            {*found.ends, *found.unusable}
        )
        is_proven = found.is_clean or is_same_boot
        is_unknown = is_new or is_any_gone or not is_proven
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
            used_in = self._used_in or _ANOTHER
            write_rows(self._path, [f"{used_in} {known} {_MARKED}", *rows])
            self._is_saved = True

    def close(self) -> None:
        """Record that the directory is no longer in use. Raises ``StorageError``."""
        self._used_in = _CLOSED
        self._is_saved = False
        self.save()
