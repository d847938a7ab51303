"""Remembers whether the whole file of a segment was verified, and when to check it again.

A file counts as verified from the check of all of its batches until it is written to, which its
modification time shows. A disk may corrupt bytes long after they were written, so the file is
checked again in the background from time to time.
"""

from __future__ import annotations

from pathlib import Path

from regent.storage.log.log_file import LogFile


class ScrubState:
    """At first the file is not verified, and a check is due. ``due_ms`` is wall clock time."""

    __slots__ = ("_modified_ns", "due_ms")

    def __init__(self) -> None:
        self.due_ms = 0
        self._modified_ns = 0  # modification time at the last complete check; 0: none

    def note(self, modified_ns: int, due_ms: int = 0) -> None:
        """Remember that the file with this modification time is sound; next check at ``due_ms``."""
        self._modified_ns = modified_ns
        self.due_ms = due_ms

    def forget(self, due_ms: int = 0) -> None:
        """Treat the file as unchecked; next check at ``due_ms``."""
        self._modified_ns = 0
        self.due_ms = due_ms

    def holds(self, file: LogFile) -> bool:
        """Whether all of the file was checked, with no write since.

        Raises ``StorageError``.
        """
        if self._modified_ns == 0:
            return False
        if file.modified_ns() == self._modified_ns:
            return True
        self.forget()
        return False

    def is_due(self, path: Path, now_ms: int) -> bool:
        """Whether a check is due, or the file was written to. Raises ``OSError``. Thread-safe."""
        if self.due_ms <= now_ms:
            return True
        if self._modified_ns == 0:
            return False
        try:
            return path.stat().st_mtime_ns != self._modified_ns
        except FileNotFoundError:
            return True  # another thread has deleted or renamed it
