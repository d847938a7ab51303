"""The checkpoints of one log directory, each with an offset of every log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.storage.checkpoints import read_offsets, write_offsets
from regent.storage.log_directory import LogDirectory

_log = logging.getLogger(__name__)


class DirectoryCheckpoints:
    """Knows what the files have, and writes only what has changed. Thread-safe."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory
        self._written: dict[str, Mapping[TopicPartition, int]] = {}
        self._lock = threading.Lock()  # no other lock is taken while holding it

    def written(self, checkpoint: str) -> Mapping[TopicPartition, int]:
        """Return the offsets in a file that was read or written."""
        return self._written.get(checkpoint, {})

    def read(self, checkpoint: str) -> Mapping[TopicPartition, int]:
        """Read a file; an incomplete one counts as empty, which is safe."""
        path = self._directory.path / checkpoint
        offsets: Mapping[TopicPartition, int] = {}
        if not path.exists() or path.stat().st_size > 0:  # Kafka creates it before it writes to it
            try:
                offsets = read_offsets(path)
            except BadDataError as error:
                _log.warning("%s; the checkpoint is ignored: every offset in it counts as 0", error)
        self._written[checkpoint] = offsets
        return offsets

    def write(self, checkpoint: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Write a file. Raises ``StorageError``."""
        with self._lock, self._directory:
            if self._written.get(checkpoint) != offsets:
                write_offsets(self._directory.path / checkpoint, offsets)
                self._written[checkpoint] = offsets
