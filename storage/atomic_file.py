"""Replaces whole files, atomically or in place."""

from __future__ import annotations

import os
from pathlib import Path

from regent.storage.file_errors import storage_error, sync


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
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(data)
            file.truncate()
    except OSError as error:
        raise storage_error(path, error) from None
