"""Which logs of one directory may have lost committed records, and how that is found out.

A log is suspect when one of these holds:

* Its machine stopped while the directory was in use: what was not flushed is lost.
* It ends before its recorded end (``storage.log_end_offset_file``): somebody changed its files.
* It ends before its checkpointed high watermark.
* Nothing says how far the cluster had come, although the cluster used the directory: an operator
  removed the note to accept older ZooKeeper data, whose ISRs may lack replicas with newer records.

A directory that is new, or lacks logs that are recorded, had unknown contents. So had one in use
when its machine stopped: young logs may be gone together with their records in the file.

The file ``suspect-logs`` keeps the suspects until they are in sync again. Kafka ignores it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import parse_numbers, read_rows, write_rows
from regent.storage.log_end_offset_file import RecordedLogEndOffsets

SUSPECT_LOGS = "suspect-logs"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOSED = "closed"
_COLUMNS = 3


def boot_id() -> str:
    """Return what tells one boot of this machine from the next; empty where nothing does.

    Raises ``OSError``: where something does, nothing is not to be believed.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (FileNotFoundError, PermissionError):
        return ""


class FoundLogs(NamedTuple):
    """What there is in a directory when it is opened.

    ``ends`` of the logs that can be used, ``unusable`` ones; ``is_new``: nobody used it before;
    ``is_set_back``: what ZooKeeper says of the cluster may be older than what is here.
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

    ``knows_all``: it is known which logs there were. ``names`` may include logs that are gone.
    """

    def __init__(self, directory: Path) -> None:
        self.names: set[TopicPartition] = set()
        self.knows_all = True
        self._path = directory / SUSPECT_LOGS
        self._used_in = ""  # which boot; empty: unknown
        self._is_saved = False

    def load(self) -> None:
        """Read what an earlier process wrote down; nothing if it is torn."""
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
        """Find out what is suspect by now."""
        boot = boot_id()
        is_same_boot = bool(boot) and self._used_in == boot
        is_new = found.is_new and not self._used_in
        is_set_back = found.is_set_back and bool(self._used_in)  # Kafka notes nothing of the kind
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
        """Write down that the directory is in use. Raises ``StorageError``."""
        self._used_in = boot_id() or "unknown"
        self._is_saved = False
        self.save()

    def change(self) -> None:
        """Note that what is written down is not what is so."""
        self._is_saved = False

    def save(self) -> None:
        """Write down what changed. Raises ``StorageError``."""
        if not self._is_saved:
            known = "all" if self.knows_all else "some"
            rows = [
                f"{topic_partition.topic} {topic_partition.partition} suspect"
                for topic_partition in sorted(self.names)
            ]
            write_rows(self._path, [f"{self._used_in} {known} logs", *rows])
            self._is_saved = True

    def close(self) -> None:
        """Write down that nothing is in use any more. Raises ``StorageError``."""
        self._used_in = _CLOSED
        self._is_saved = False
        self.save()
