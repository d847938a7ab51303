"""Whether the whole file of a segment is known to be sound, and when to check it again.

A disk may corrupt bytes long after they were written. So a file counts as sound from when all of
its batches were checked until it is written to, which its modification time shows. It is also
checked again in the background from time to time.
"""

from __future__ import annotations

from pathlib import Path

from regent.storage.log_file import LogFile


class ScrubState:
    """At first nothing is known, and a check is due. ``due_ms`` is of the wall clock."""

    __slots__ = ("_modified_ns", "due_ms")

    def __init__(self) -> None:
        self.due_ms = 0
        self._modified_ns = 0  # of the file, when all of it had been checked; 0: it was not

    def note(self, modified_ns: int, due_ms: int = 0) -> None:
        """Remember that the file, last modified then, is sound; a check of it is due at a time."""
        self._modified_ns = modified_ns
        self.due_ms = due_ms

    def forget(self, due_ms: int = 0) -> None:
        """Treat the file as unchecked; a check is due at once or at a time."""
        self._modified_ns = 0
        self.due_ms = due_ms

    def holds(self, file: LogFile) -> bool:
        """Whether all of the file was checked and it was not written to since.

        Raises ``StorageError``.
        """
        if self._modified_ns == 0:
            return False
        if file.modified_ns() == self._modified_ns:
            return True
        self.forget()
        return False

    def is_due(self, path: Path, now_ms: int) -> bool:
        """Whether to check the file: the time has come, or it was written to. Raises ``OSError``.

        Any thread may ask.
        """
        if self.due_ms <= now_ms:
            return True
        if self._modified_ns == 0:
            return False
        try:
            return path.stat().st_mtime_ns != self._modified_ns
        except FileNotFoundError:
            return True  # it was deleted or renamed meanwhile
