"""What the operating system refuses, in our words; and whether it is the disk that refuses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from regent.core.errors import ShortageError, StorageError

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def storage_error(path: Path | str, error: OSError) -> StorageError:
    """Return what to raise when a file of a log directory cannot be used."""
    kind = ShortageError if error.errno in _SHORTAGES else StorageError
    return kind(f"{path}: {error.strerror or error}")


def sync(file: int, path: Path) -> None:
    """Wait until the bytes are on the disk. Raises ``StorageError``, and no ``ShortageError``.

    Whatever made it fail, nobody knows what is on the disk then.
    """
    try:
        os.fsync(file)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None
