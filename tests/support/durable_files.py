"""What is on the disk when the power goes: what somebody waited for (fsync), and perhaps more.

A file counts by its inode number, so it must be on a file system that gives none twice: tmpfs.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


class DurableFiles:
    """Remembers of every file and directory what was in it when somebody last waited for it."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[int, dict[str, int]] = {}
        self._fsync: Callable[[int], None] = os.fsync

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take the place of ``os.fsync``."""
        with patch.object(os, "fsync", self._flush):
            yield

    def _flush(self, fd: int) -> None:
        self._fsync(fd)
        self._note(os.fstat(fd).st_ino, Path(f"/proc/self/fd/{fd}"))

    def _note(self, inode: int, path: Path) -> None:
        if path.is_dir():
            with os.scandir(path) as entries:
                self._names[inode] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[inode] = path.read_bytes()

    def note_all(self, directory: Path) -> None:
        """Take everything in a directory for durable: it was there when the machine started."""
        for path in (directory, *directory.rglob("*")):
            self._note(path.stat().st_ino, path)

    def restore(self, directory: Path, copy: Path) -> None:
        """Write to another place what somebody waited for, and no more."""
        self._restore(directory.stat().st_ino, copy)

    def restore_torn(
        self, directory: Path, copy: Path, dice: random.Random, *, is_garbled: bool = False
    ) -> None:
        """Write everything to another place, but lose the ends of what nobody waited for.

        As a file system does that keeps the order of what happens to names and sizes. Files that
        are ``is_garbled`` have zeros instead of what is lost: only their sizes were written.
        """
        shutil.copytree(directory, copy)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                data, flushed = path.read_bytes(), self._contents.get(path.stat().st_ino, b"")
                pairs = enumerate(zip(data, flushed, strict=False))
                kept = next((i for i, (a, b) in pairs if a != b), min(len(data), len(flushed)))
                torn = data[: dice.randint(kept, len(data))]
                copied = copy / path.relative_to(directory)
                copied.write_bytes(torn.ljust(len(data), b"\0") if is_garbled else torn)

    def _restore(self, inode: int, path: Path) -> None:
        if inode in self._contents:
            path.write_bytes(self._contents[inode])
        elif inode in self._names:
            path.mkdir()
            for name, entry in self._names[inode].items():
                self._restore(entry, path / name)
