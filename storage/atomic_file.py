"""Files that are replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

from regent.storage.file_errors import storage_error, sync


def write_atomically(path: Path, data: bytes, *, is_synced: bool = True) -> None:
    """Replace a file so that a reader, or a crash, sees the old content or the new one.

    Not ``is_synced``: a loss of power may leave something else, and nobody waits for the disk; for
    what its reader can check and rebuild. Raises ``StorageError``.
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
    """Write a file from its begin on, and wait for nothing.

    A crash of this process leaves the old content or the new one, which may have the end of a
    longer old one behind it; a loss of power leaves anything. For what its reader can check and
    rebuild, and what is written thousands of times at once: putting another file in the place of
    one makes ext4 write it to the disk, which takes milliseconds. Raises ``StorageError``.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644), "wb") as file:
            file.write(data)
            file.truncate()
    except OSError as error:
        raise storage_error(path, error) from None
