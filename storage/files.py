"""Files: flushes and replaces them; tells failures of a disk from shortages."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regent.core.errors import ShortageError, StorageError

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def storage_error(path: Path | str, error: OSError) -> StorageError:
    """Return the exception to raise for an error of a file in a log directory."""
    kind = ShortageError if error.errno in _SHORTAGES else StorageError
    return kind(f"{path}: {error.strerror or error}")


def sync_path(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk.

    Raises ``OSError``, ``StorageError``.
    """
    file = os.open(path, os.O_RDONLY)
    try:
        sync(file, path)
    finally:
        os.close(file)


def sync(file: int, path: Path) -> None:
    """Wait until the bytes of an open file are on the disk.

    Raises ``StorageError``, never ``ShortageError``: after any failure it is unknown what is on the
    disk.
    """
    try:
        os.fsync(file)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None


@contextmanager
def synced_afterwards(directory: Path) -> Iterator[None]:
    """Change names in a directory, then wait until they are on the disk.

    The directory is opened before the change: without a file descriptor nothing is changed. Raises
    ``OSError``, ``StorageError``.
    """
    file = os.open(directory, os.O_RDONLY)
    try:
        yield
        sync(file, directory)
    finally:
        os.close(file)


def sync_files(*paths: Path) -> None:
    """Wait until the bytes of those of these files that exist are on the disk.

    Raises ``OSError``, ``StorageError``.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            sync_path(path)


def write_atomically(path: Path, data: bytes, *, is_synced: bool = True) -> None:
    """Replace a file atomically: after a crash it has either the old content or the new one.

    Without ``is_synced`` the call does not wait for the disk, and a power failure may leave other
    content: use that only for files that their reader checks and rebuilds. Raises ``StorageError``.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if is_synced:
                file.flush()
                sync(file.fileno(), path)
        os.replace(temporary, path)
        if not is_synced:
            return
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            sync(directory, path)
        finally:
            os.close(directory)
    except OSError as error:
        raise storage_error(path, error) from None


def overwrite(path: Path, data: bytes) -> None:
    """Write a file in place, from its first byte, without waiting for the disk.

    A crash of this process leaves the old content, or the new content followed by the end of a
    longer old one; a power failure may leave any content. Use this for files that their reader
    checks and rebuilds, if there are thousands of them: when a file is renamed over another one,
    ext4 writes it to the disk, which takes milliseconds. Raises ``StorageError``.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(data)
            file.truncate()
    except OSError as error:
        raise storage_error(path, error) from None
