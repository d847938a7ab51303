"""Converts errors of the operating system; distinguishes disk failures from shortages."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
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


def sync_files(*paths: Path) -> None:
    """Wait until the bytes of those of these files that exist are on the disk.

    Raises ``OSError``, ``StorageError``.
    """
    for path in paths:
        with suppress(FileNotFoundError):
            sync_path(path)
