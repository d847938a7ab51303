"""The deleted logs of one directory that can come back: those of topics that were deleted.

Such a log is renamed, and its files are deleted after a delay. Until then it can be used again if
its topic returns with the same id (``regent topics undelete``). ``hold`` makes it a stray log,
which stays until that happens, also after a loss of power, and nothing else ends that: a broker
that has said once that it holds a log holds it until its topic returns.

A log is offered only if it has the checkpoint that stray logs have. It is removed before the first
file of the log is: what a crash leaves of a log is never offered.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from regent.core.errors import BadDataError, ShortageError, StorageError
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.checkpoints import read_topic_id
from regent.storage.files import sync_path
from regent.storage.log_names import (
    STRAY,
    TO_DELETE,
    is_moved,
    is_name_of,
    move_log,
    out_of_use,
)
from regent.storage.recovery.stray_logs import (
    StrayLogs,
    can_be_used_again,
    is_held,
    mark_held,
    remove_checkpoint,
)

if TYPE_CHECKING:
    from regent.storage.directory_logs import DirectoryLogs

LACKS_RECORDS = "lacks-records"
"""The file in a log that was created empty for a replica that had records, or was to fetch them."""
_NUMBER = re.compile(r".+-(?P<partition>[0-9]+)\.[0-9a-f]{32}-delete", re.ASCII)


class DeletedLogs:
    """Thread-safe; ``hold`` and the deletion of files exclude each other."""

    def __init__(
        self, directory: Path, strays: StrayLogs, wall_clock_ms: Callable[[], int]
    ) -> None:
        self._directory = directory
        self._strays = strays
        self._wall_clock_ms = wall_clock_ms
        self._lock = threading.Lock()
        self._names: dict[tuple[TopicId, int], str] = {}
        self._keys: dict[str, tuple[TopicId, int]] = {}  # by name

    def load(self, *, lost_power: bool) -> None:
        """Find the deleted logs of earlier processes. Raises ``OSError``, ``ShortageError``.

        ``lost_power``: what was not flushed is lost, so that none of them is complete.
        """
        with os.scandir(self._directory) as entries:
            names = [e.name for e in entries if e.name.endswith(TO_DELETE)]
        for name in filter(is_moved, names):
            path, match = self._directory / name, _NUMBER.fullmatch(name)
            if match is None or not can_be_used_again(path):
                continue
            if lost_power:
                remove_checkpoint(path)
                continue
            try:
                topic_id = read_topic_id(path)
            except ShortageError:
                raise
            except (BadDataError, StorageError):
                continue
            if topic_id is not None:
                self._offer((topic_id, int(match["partition"])), name)

    def add(self, path: Path, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Offer a log that was just deleted, and no earlier one. Raises ``OSError``.

        It is not offered if its checkpoint could not be written.
        """
        with self._lock:
            self._withdraw((topic_id, topic_partition.partition))
            if can_be_used_again(path):
                self._offer((topic_id, topic_partition.partition), path.name)

    def forget(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Offer no deleted log of a partition any more. Raises ``OSError``."""
        with self._lock:
            self._withdraw((topic_id, topic_partition.partition))

    def hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Make the deleted log a stray log that stays; return whether there is one now.

        Raises ``OSError``, ``StorageError``.
        """
        name = self._names.get((topic_id, topic_partition.partition))
        if name is not None:
            with suppress(FileNotFoundError):  # it is being deleted, or it is held now
                for file in (self._directory / name).iterdir():
                    sync_path(file)  # long, so without the lock: nobody writes to it
        with self._lock:
            self._set_aside(topic_partition, topic_id, name, keeps=True)
            if not any(map(is_held, self._strays.of(topic_partition, topic_id))):
                return False
            sync_path(self._directory)  # its name, which a former process may have given it
            return True

    def set_aside(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Make the deleted log a stray log, to use it at once; return whether there was one.

        Raises ``OSError``, ``StorageError``.
        """
        with self._lock:
            name = self._names.get((topic_id, topic_partition.partition))
            return self._set_aside(topic_partition, topic_id, name, keeps=False)

    def give_up(self, path: Path) -> bool:
        """Offer a log no more, because its files are deleted now; return whether it is there."""
        with self._lock:
            key = self._keys.pop(path.name, None)
            if key is not None:
                del self._names[key]
            if not path.exists():
                return False
            remove_checkpoint(path)
            return True

    def _offer(self, key: tuple[TopicId, int], name: str) -> None:
        self._names[key] = name
        self._keys[name] = key

    def _withdraw(self, key: tuple[TopicId, int]) -> None:
        name = self._names.pop(key, None)
        if name is not None:
            del self._keys[name]
            remove_checkpoint(self._directory / name)

    def _set_aside(
        self, topic_partition: TopicPartition, topic_id: TopicId, name: str | None, *, keeps: bool
    ) -> bool:
        key = topic_id, topic_partition.partition
        if name is None or name != self._names.get(key) or not is_name_of(topic_partition, name):
            return False
        path, stray = self._directory / name, self._directory / out_of_use(topic_partition, STRAY)
        is_there = False
        with suppress(FileNotFoundError):  # an operator removed it
            if keeps:
                mark_held(path, stray.name)
            move_log(path, stray, self._wall_clock_ms())
            self._strays.add(stray, topic_id)
            is_there = True
        del self._keys[name], self._names[key]  # at last: what has failed is tried again
        return is_there


class DeletedLogsOfBroker:
    """The deleted logs of all directories. Implements ``core.replica_logs.DeletedReplicaLogs``."""

    def __init__(self, live: Callable[[], Sequence[DirectoryLogs]]) -> None:
        self._live = live

    def mark_whole(self, topic_partition: TopicPartition) -> None:
        """Note that a log, which may be deleted later, has every record."""
        for logs in self._live():
            with suppress(StorageError), logs.directory:  # the directory has logged it
                path = logs.directory.path / str(topic_partition)
                (path / LACKS_RECORDS).unlink(missing_ok=True)

    def hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Keep the log of a deleted topic; return whether it is kept."""
        for logs in self._live():
            with logs.directory:
                if logs.deleted.hold(topic_partition, topic_id):
                    return True
        return False

    def settle(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> bool:
        """Make a deleted log that is assigned again stray; forget it if a new log takes its place.

        Return whether it is stray since now. Then its topic is still the same, and has the leader
        epochs of the log; another topic with the id of a stray log may begin with epoch 0.
        """
        is_any = False
        if topic_id is None:
            return False
        for logs in self._live():
            with logs.directory:
                if is_new:
                    logs.deleted.forget(topic_partition, topic_id)
                else:
                    is_any |= logs.deleted.set_aside(topic_partition, topic_id)
        return is_any
