"""A log directory: locked by one process, bound to one broker and one cluster, live or offline.

Its files are Kafka's ``.lock``, ``meta.properties`` (``version``, ``broker.id``, ``cluster.id``)
and ``.kafka_cleanshutdown``, and also ``control-plane.properties`` and ``log-end-offsets``, which
Kafka ignores. Mirrors ``kafka.server.LogDirFailureChannel``.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

from regent.core.errors import ForeignDirectoryError, ShortageError, StorageError
from regent.core.model import BrokerId, TopicPartition
from regent.core.replica_logs import SeenOfCluster
from regent.storage.disk_space import DiskSpace
from regent.storage.files import storage_error, write_atomically
from regent.storage.log.log_file import CorruptSegmentError

_META = "meta.properties"
_VERSION = "0"
LOG_ENDS = "log-end-offsets"
_ENTRY = struct.Struct(">16sq")
_OFFSET = struct.Struct(">q")
_FREE = bytes(16)
_SEEN = "control-plane.properties"
_SEEN_KEYS = ("controller.epoch", "zookeeper.zxid", "zookeeper.mark")  # as in SeenOfCluster
_CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
_CLOSED_BY_US = b"regent\n"  # Kafka's is empty, or JSON
_SHORTAGE_LOG_INTERVAL_S = 10.0
_log = logging.getLogger(__name__)


def _ignore(path: Path) -> None:
    del path


class LogDirectory:
    """Locked from ``open`` to ``close``; a context manager in which a disk error takes it offline.

    All access to its files is inside ``with directory:``. The first ``OSError`` there takes the
    directory offline until the next start, because data that a failed disk confirmed earlier cannot
    be trusted. ``on_failed`` is called once, on the thread that got the error; afterwards ``with``
    raises ``StorageError``. A ``CorruptSegmentError`` concerns one log and a ``ShortageError`` this
    process: they do not take the directory offline.
    """

    def __init__(self, path: Path, on_failed: Callable[[Path], None] = _ignore) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._on_failed = on_failed
        self.cluster_id: str | None = None  # that it is bound to
        self.failure = ""  # one line; empty: the directory is live
        self._seen = SeenOfCluster()  # as its file has it
        self._failure_lock = threading.Lock()
        self._say_shortage_at = 0.0
        self.space = DiskSpace(path)

    def __enter__(self) -> None:
        if self.failure:
            raise StorageError(self.failure)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            failure = storage_error(error.filename or self.path, error)
            self.judge(failure)
            if isinstance(failure, ShortageError):
                raise ShortageError(str(failure)) from error
            raise StorageError(self.failure) from error
        if isinstance(error, StorageError):
            self.judge(error)

    def judge(self, error: StorageError) -> None:
        """Take the directory offline if an error is a disk failure."""
        if isinstance(error, ShortageError):
            self._report_shortage(error)
        elif not isinstance(error, CorruptSegmentError):
            self.fail(str(error))

    @property
    def is_offline(self) -> bool:
        """Whether the directory has failed."""
        return bool(self.failure)

    def fail(self, reason: str) -> None:
        """Take the directory offline. The first reason is kept."""
        with self._failure_lock:
            if self.failure:
                return
            self.failure = f"log directory {self.path} is offline: {reason}"
        _log.error("%s", self.failure)
        self._on_failed(self.path)

    def _report_shortage(self, error: ShortageError) -> None:
        now = time.monotonic()
        if now >= self._say_shortage_at:
            self._say_shortage_at = now + _SHORTAGE_LOG_INTERVAL_S
            _log.error("%s; will retry; raise the limit (ulimit -n)", error)

    def open(self, broker_id: BrokerId) -> None:
        """Create the directory if it is missing, and lock it.

        Raises ``StorageError`` if it cannot be written; ``ForeignDirectoryError`` if it belongs
        to another broker or to Kafka without ZooKeeper, or another process uses it.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("ab")
        except OSError as error:
            raise storage_error(error.filename, error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as Kafka, which does not see flock
        except OSError:
            lock.close()
            raise ForeignDirectoryError(
                f"log directory {self.path} is in use by another process; give this broker its own"
                " --data-dir or stop the other one"
            ) from None
        self._lock = lock
        try:
            self._check_owner(broker_id)
        except StorageError:
            self.close()
            raise

    def join_cluster(self, broker_id: BrokerId, cluster_id: str) -> None:
        """Bind the directory to a cluster.

        Raises ``ForeignDirectoryError`` if it is bound to another one, ``StorageError`` if it
        cannot be written.
        """
        self.check_cluster(cluster_id)
        ours = {"version": _VERSION, "broker.id": broker_id, "cluster.id": cluster_id}
        others = _read_properties(self.path / _META)  # Kafka's directory.id, for example
        text = "".join(f"{name}={value}\n" for name, value in {**ours, **others, **ours}.items())
        write_atomically(self.path / _META, text.encode())
        self.cluster_id = cluster_id

    def check_cluster(self, cluster_id: str | None) -> None:
        """Raise ``ForeignDirectoryError`` if it is bound to another cluster than ``cluster_id``.

        None: ZooKeeper has no cluster id.
        """
        bound_to = self.cluster_id
        if bound_to is None or bound_to == cluster_id:
            return
        if cluster_id is None:
            raise ForeignDirectoryError(
                f"log directory {self.path} belongs to cluster {bound_to}, but ZooKeeper has no"
                " /cluster/id: the ZooKeeper data was deleted or replaced, or --zookeeper is wrong;"
                " restore its data; the logs were not changed"
            )
        raise ForeignDirectoryError(
            f"log directory {self.path} belongs to cluster {bound_to}, but ZooKeeper says"
            f" {cluster_id}: the ZooKeeper data was replaced, or --zookeeper is wrong; restore its"
            " data; the logs were not changed"
        )

    def check_not_older(self, zxid: int, mark: int | None, seen: SeenOfCluster) -> None:
        """Raise ``ForeignDirectoryError`` if ZooKeeper is behind what this broker has seen.

        See ``ClusterNotes.check_not_older``.
        """
        if zxid < seen.zxid or (mark is not None and mark < seen.mark):
            raise ForeignDirectoryError(
                "the ZooKeeper data is older than what this broker has seen: an older copy was"
                " restored, or the znodes were copied into a new ZooKeeper; restore the newer data,"
                " or accept the loss of the newer changes; in either case remove"
                f" {self.seen_file.name} from the log directories of every broker ({self.path})"
                " and start again; the logs were not changed"
            )

    @property
    def seen_file(self) -> Path:
        """The file with the newest cluster state that this broker has seen."""
        return self.path / _SEEN

    def read_seen(self) -> SeenOfCluster:
        """Return the newest cluster state that was recorded; zeros if there is no record."""
        noted = _read_properties(self.seen_file)
        numbers = [noted.get(key, "0") for key in _SEEN_KEYS]
        if all(number.isdecimal() for number in numbers):
            self._seen = SeenOfCluster(*map(int, numbers))
            return self._seen
        _log.warning("ignoring %s: it contains no numbers", self.seen_file)
        return SeenOfCluster()

    def note_seen(self, seen: SeenOfCluster) -> None:
        """Record durably the newest cluster state seen, if it changed. Raises ``StorageError``."""
        if seen == self._seen:
            return
        text = "".join(f"{key}={number}\n" for key, number in zip(_SEEN_KEYS, seen, strict=True))
        write_atomically(self.seen_file, text.encode())
        self._seen = seen

    def was_closed_cleanly(self) -> bool:
        """Whether its last user flushed and checkpointed everything."""
        return (self.path / _CLEAN_SHUTDOWN).exists()

    def was_closed_by_us(self) -> bool:
        """Whether its last user closed it cleanly and was not Kafka. Raises ``OSError``."""
        try:
            return (self.path / _CLEAN_SHUTDOWN).read_bytes() == _CLOSED_BY_US
        except FileNotFoundError:
            return False

    def mark_clean(self) -> None:
        """Write ``.kafka_cleanshutdown``: everything is flushed and checkpointed.

        Each start of Kafka removes it.
        """
        write_atomically(self.path / _CLEAN_SHUTDOWN, _CLOSED_BY_US)

    def mark_in_use(self) -> None:
        """Remove ``.kafka_cleanshutdown`` before anything is written."""
        (self.path / _CLEAN_SHUTDOWN).unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_meta_properties(self) -> str | None:
        """Read ``meta.properties`` without locking: set the cluster id, return the broker id.

        Raises ``StorageError``.
        """
        return self._read_meta().get("broker.id")

    def _read_meta(self) -> Mapping[str, str]:
        meta = _read_properties(self.path / _META)
        self.cluster_id = meta.get("cluster.id") or None
        return meta

    def _check_owner(self, broker_id: BrokerId) -> None:
        meta = self._read_meta()
        if meta.get("version", _VERSION) != _VERSION or "node.id" in meta:
            raise ForeignDirectoryError(
                f"log directory {self.path} belongs to Kafka without ZooKeeper (KRaft), version"
                f" {meta.get('version')} of {_META}: give this broker another one; the logs were"
                " not changed"
            )
        stored = meta.get("broker.id")
        if stored is not None and stored != str(broker_id):
            raise ForeignDirectoryError(
                f"log directory {self.path} belongs to broker {stored}, not to broker {broker_id}"
            )


def _read_properties(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError as error:
        raise StorageError(f"{path}: {error}") from None
    except OSError as error:
        raise storage_error(path, error) from None
    pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
    return {key.strip(): value.strip() for key, found, value in pairs if found}


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
