"""A broker's log directory: one owner at a time, of one broker and one cluster.

Files as Kafka's: ``.lock`` and ``meta.properties`` (``version``, ``broker.id``, ``cluster.id``).
"""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

from core.errors import StorageError
from core.model import BrokerId
from storage.atomic_file import write_atomically

_VERSION = "0"


class LogDirectory:
    """Locked from ``open`` to ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self, broker_id: BrokerId) -> None:
        """Create the directory if need be and lock it.

        Raises ``StorageError`` when it cannot be written, belongs to another broker, or is in use.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("ab")
        except OSError as error:
            raise StorageError(f"log directory {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise StorageError(
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

        Raises ``StorageError`` when it is bound to another one, or cannot be written.
        """
        stored = self._read_meta().get("cluster.id")
        if stored not in (None, cluster_id):
            raise StorageError(
                f"log directory {self.path} belongs to cluster {stored}, but ZooKeeper says"
                f" {cluster_id}: the ZooKeeper data was replaced, or --zookeeper is wrong"
            )
        text = f"version={_VERSION}\nbroker.id={broker_id}\ncluster.id={cluster_id}\n"
        write_atomically(self.path / "meta.properties", text.encode())

    def close(self) -> None:
        """Unlock the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _check_owner(self, broker_id: BrokerId) -> None:
        stored = self._read_meta().get("broker.id")
        if stored is not None and stored != str(broker_id):
            raise StorageError(
                f"log directory {self.path} belongs to broker {stored}, not to broker {broker_id}"
            )

    def _read_meta(self) -> dict[str, str]:
        try:
            text = (self.path / "meta.properties").read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{self.path / 'meta.properties'}: {error}") from None
        pairs = (line.partition("=") for line in text.splitlines() if not line.startswith("#"))
        return {key.strip(): value.strip() for key, found, value in pairs if found}
