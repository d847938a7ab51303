"""What the operating system refuses, in our words."""

from __future__ import annotations

from pathlib import Path

from core.errors import StorageError


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return what to raise when a file of a log directory cannot be used."""
    return StorageError(f"{path}: {error.strerror or error}")
