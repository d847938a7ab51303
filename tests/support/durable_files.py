"""The contents of a disk after a loss of power: flushed data (fsync), and perhaps more.

Files are identified by inode numbers, so the file system must not reuse them: tmpfs.
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
    """Stores the contents of every file and directory at its last fsync."""

    def __init__(self) -> None:
        self._contents: dict[int, bytes] = {}  # by inode
        self._names: dict[int, dict[str, int]] = {}
        self._fsync: Callable[[int], None] = os.fsync

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Replace ``os.fsync``."""
        with patch.object(os, "fsync", self._flush):
            yield

    def _flush(self, fd: int) -> None:
        self._fsync(fd)
        self._note(os.fstat(fd).st_ino, Path(f"/proc/self/fd/{fd}"))

    def _note(self, inode: int, path: Path) -> None:
        self._contents.pop(inode, None)  # of a file or directory that is gone
        self._names.pop(inode, None)
        if path.is_dir():
            with os.scandir(path) as entries:
                self._names[inode] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[inode] = path.read_bytes()

    def note_all(self, directory: Path) -> None:
        """Treat everything in a directory as flushed: it existed when the machine started."""
        for path in (directory, *directory.rglob("*")):
            self._note(path.stat().st_ino, path)

    def restore(self, directory: Path, copy: Path) -> None:
        """Write the flushed data to another place, and nothing else."""
        self._restore(directory.stat().st_ino, copy)

    def restore_torn(
        self, directory: Path, copy: Path, dice: random.Random, *, is_garbled: bool = False
    ) -> None:
        """Write everything to another place, but lose the unflushed ends of files.

        A file of which nothing new was written is as it was flushed, also if it was overwritten.
        This is a file system that keeps the sequence of changes to names and sizes. ``is_garbled``
        files have zeros instead of the lost data: only their sizes were written.
        """
        shutil.copytree(directory, copy)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                data, flushed = path.read_bytes(), self._contents.get(path.stat().st_ino, b"")
                pairs = enumerate(zip(data, flushed, strict=False))
                kept = next((i for i, (a, b) in pairs if a != b), min(len(data), len(flushed)))
                size = dice.randint(kept, len(data))
                torn = data[:size].ljust(len(data) if is_garbled else 0, b"\0")
                is_old = size == kept and kept < len(flushed)
                (copy / path.relative_to(directory)).write_bytes(flushed if is_old else torn)

    def restore_named(self, directory: Path, copy: Path) -> None:
        """Write every name to another place, but only the flushed data.

        This is a file system that keeps the sequence of changes to names, as ext4 with its journal.
        """
        shutil.copytree(directory, copy)
        for path in directory.rglob("*"):
            if path.is_file():
                flushed = self._contents.get(path.stat().st_ino, b"")
                (copy / path.relative_to(directory)).write_bytes(flushed)

    def _restore(self, inode: int, path: Path) -> None:
        if inode in self._contents:
            path.write_bytes(self._contents[inode])
        elif inode in self._names:
            path.mkdir()
            for name, entry in self._names[inode].items():
                self._restore(entry, path / name)
