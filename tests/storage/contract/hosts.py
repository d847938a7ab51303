"""Logs in memory, for simulations, and logs on disk, with the same operations for tests."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from regent.core.log_config import LogConfig
from regent.core.model import TopicPartition
from regent.core.replica_logs import PartitionLog, ReplicaLogs
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import flip_byte
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import TIMESTAMP_MS
from tests.support.record_checks import headers_of

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
A, B = "AAAAAAAAAAAAAAAAAAAAAA", "BBBBBBBBBBBBBBBBBBBBBB"
SEGMENT_BYTES = 400  # so that a log on disk has several of them
DEFAULTS = LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=100)


class Host(Protocol):
    """A broker's logs, and operations on its process."""

    @property
    def logs(self) -> ReplicaLogs:
        """The logs of the present process."""
        ...

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the settings of some topics."""
        ...

    def restart(self) -> None:
        """Shut the process down cleanly, and start another one."""
        ...

    def crash(self) -> None:
        """Kill the process, and start another one, which finds what was written."""
        ...

    def damage(self, name: TopicPartition, base_offset: int) -> None:
        """Change a bit in the records of a batch, which must not be in the newest segment."""
        ...


class MemoryHost:
    """Logs in memory, which exist longer than every process."""

    def __init__(self) -> None:
        self.logs = MemoryLogs(defaults=DEFAULTS)

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the settings of some topics."""
        self.logs.configure(configs)

    def restart(self) -> None:
        """Do nothing."""

    def crash(self) -> None:
        """Forget what only the process knew."""
        self.logs.crash()

    def damage(self, name: TopicPartition, base_offset: int) -> None:
        """Change the bytes of a batch."""
        self.logs.log(name).damaged.add(base_offset)


class DiskHost:
    """Logs on disk."""

    def __init__(self, directory: Path) -> None:
        self._directories = [directory / "one", directory / "two"]
        self._configs: dict[str, LogConfig] = {}
        self._managers: list[LogManager] = []
        self._open()

    @property
    def logs(self) -> LogManager:
        """The logs of the present process."""
        return self._managers[-1]

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the settings of some topics."""
        self._configs.update(configs)
        self.logs.configure(configs)

    def restart(self) -> None:
        """Close everything and open it."""
        self.logs.close(is_clean=True)
        self._open()

    def crash(self) -> None:
        """Open copies of the files; the former process keeps its own."""
        for i, directory in enumerate(self._directories):
            self._directories[i] = directory.with_name(directory.name + "+")
            shutil.copytree(directory, self._directories[i])
        self._open()

    def damage(self, name: TopicPartition, base_offset: int) -> None:
        """Change the last bit of a batch, in its file."""
        for directory in self._directories:
            for path in sorted((directory / str(name)).glob("*.log"))[:-1]:
                for position, header in headers_of(path.read_bytes()):
                    if header.base_offset == base_offset:
                        flip_byte(path, position + header.size - 1)
                        return
        raise AssertionError(f"no closed segment of {name} has a batch at {base_offset}")

    def end(self) -> None:
        """Close everything."""
        for manager in self._managers:
            manager.close(is_clean=True)

    def _open(self) -> None:
        manager = LogManager(
            self._directories, 1, defaults=DEFAULTS, wall_clock_ms=lambda: TIMESTAMP_MS
        )
        manager.open()
        manager.configure(self._configs)
        self._managers.append(manager)


def create(host: Host, name: TopicPartition = T0, topic_id: str | None = A) -> PartitionLog:
    """Return a new log."""
    return host.logs.get_or_create(name, topic_id, is_new=True)


def log_of(host: Host, name: TopicPartition = T0) -> PartitionLog:
    """Return a log that exists."""
    log = host.logs.get(name)
    assert log is not None
    return log
