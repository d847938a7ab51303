"""Logs on disk for tests of ``storage``: a clock set by hand, crashes, broken disks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from regent.core.log_config import DEFAULT_CLEANER_SETTINGS, CleanerSettings, LogConfig
from regent.core.model import TopicPartition
from regent.core.replica_logs import AppendedRecords
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.record_batches import TIMESTAMP_MS, batch, values_of

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
TOPIC_ID, OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"
BROKER = 1
BATCH_BYTES = len(batch(b"0000"))
THREE_A_SEGMENT = LogConfig(segment_bytes=3 * BATCH_BYTES, index_interval_bytes=1)


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now_ms = TIMESTAMP_MS

    def __call__(self) -> int:
        return self.now_ms


class Machine:
    """A broker's log directories, and the processes that use them one after the other.

    ``failed``: the directories that the present process reported as failed.
    ``damaged``: the logs in which it reported damage.
    """

    def __init__(
        self,
        *directories: Path,
        defaults: LogConfig = THREE_A_SEGMENT,
        recovery_threads: int = 1,
        cleaner: CleanerSettings = DEFAULT_CLEANER_SETTINGS,
        open_files_max: int | None = None,
    ) -> None:
        self.directories = list(directories)
        self.defaults = defaults
        self.clock = Clock()
        self.failed: list[Path] = []
        self.damaged: list[TopicPartition] = []
        self._recovery_threads = recovery_threads
        self._cleaner = cleaner
        self._open_files_max = open_files_max
        self._managers: list[LogManager] = []

    @property
    def logs(self) -> LogManager:
        """The logs of the present process."""
        return self._managers[-1]

    def start(self) -> LogManager:
        """Start a process."""
        self.failed, self.damaged = [], []
        manager = LogManager(
            self.directories,
            BROKER,
            defaults=self.defaults,
            on_directory_failed=self.failed.append,
            on_records_damaged=lambda name, _: self.damaged.append(name),
            recovery_threads=self._recovery_threads,
            wall_clock_ms=self.clock,
            cleaner=self._cleaner,
        )
        if self._open_files_max is not None:
            manager.files.limit = self._open_files_max
        self._managers.append(manager)
        manager.open()
        return manager

    def restart(self) -> LogManager:
        """Shut the process down cleanly and start another."""
        self.logs.close(is_clean=True)
        return self.start()

    def crash(self) -> LogManager:
        """Kill the process and start another, which finds what was written.

        The former process keeps the old directories, and the new one gets copies of them.
        """
        self.copy()
        return self.start()

    def copy(self) -> None:
        """Continue with copies of the directories in their present state."""
        for i, directory in enumerate(self.directories):
            self.directories[i] = directory.with_name(directory.name + "+")
            shutil.copytree(directory, self.directories[i])

    def end(self) -> None:
        """End all processes."""
        for manager in self._managers:
            manager.close(is_clean=False)


def create(
    logs: LogManager, name: TopicPartition = T0, topic_id: str | None = TOPIC_ID
) -> UnifiedLog:
    """Return a new log."""
    return logs.get_or_create(name, topic_id, is_new=True)


def log_of(logs: LogManager, name: TopicPartition = T0) -> UnifiedLog:
    """Return a log that exists."""
    log = logs.get(name)
    assert log is not None
    return log


def send(log: UnifiedLog, *values: bytes, leader_epoch: int = 0, **fields: Any) -> AppendedRecords:
    """Append a batch as a producer sends it."""
    return log.append_as_leader(bytearray(batch(*values, **fields)), leader_epoch)


def fill(log: UnifiedLog, count: int, leader_epoch: int = 0) -> None:
    """Append batches of one record: b"0000", b"0001" …; the value is the offset."""
    for _ in range(count):
        send(log, b"%04d" % log.log_end_offset, leader_epoch=leader_epoch)


def values(log: UnifiedLog) -> list[bytes | None]:
    """Return the readable records."""
    found: list[bytes | None] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 20, log.log_end_offset, at_least_one=True).read()
        assert data, f"there is no record at {offset} of {log}"
        found += values_of(data)
        offset = log.log_start_offset + len(found)
    return found


def numbered(start: int, end: int) -> list[bytes]:
    """Return the values that ``fill`` writes at offsets."""
    return [b"%04d" % offset for offset in range(start, end)]


def files(directory: Path, suffix: str = ".log") -> list[str]:
    """Return the names of a log's files, without leading zeros."""
    return sorted(path.name.lstrip("0") for path in directory.glob(f"*{suffix}"))


def segment_file(directory: Path, base_offset: int, suffix: str = ".log") -> Path:
    """Return the path of a segment's file."""
    return directory / f"{base_offset:020d}{suffix}"


def break_disk(path: Path, device: str = "/dev/full") -> None:
    """Replace an open file by a device, so that its errors are real ones.

    ``/dev/full`` can be read (zeros) but not written or flushed. With the file itself as
    ``device`` it can be read but not written.
    """
    opened = [fd for fd in os.listdir("/proc/self/fd") if _target(fd) == str(path)]
    assert opened, f"{path} is not open"
    broken = os.open(device, os.O_RDONLY if device == str(path) else os.O_RDWR)
    for fd in opened:
        os.dup2(broken, int(fd))
    os.close(broken)


def _target(fd: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except FileNotFoundError:
        return ""


def flip_byte(path: Path, position: int) -> None:
    """Flip one bit of a file and advance its modification time."""
    modified_ns = path.stat().st_mtime_ns
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(modified_ns, modified_ns + 1_000_000))  # some clocks are coarse
