"""Temporary files that a crash left in the directory of a log, also those of Kafka's log cleaner.

Mirrors ``kafka.log.LogLoader``. ``.deleted`` files and unfinished copies (``.cleaned``) are
deleted; finished copies (``.swap``) replace the segments they were made of.
"""

from __future__ import annotations

import os
from pathlib import Path

from regent.storage.log.log_file import LogFile
from regent.storage.log_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    base_offset_of,
)


def complete_swaps(directory: Path) -> list[int]:
    """Complete the swaps and return the base offsets of the segments, in ascending order.

    Raises ``OSError``, and ``StorageError`` if a file cannot be read.
    """
    names = os.listdir(directory)
    if any(name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)) for name in names):
        _finish_swaps(directory, _without_unfinished(directory, names))
        names = os.listdir(directory)
    offsets = sorted(o for o in (base_offset_of(name) for name in names) if o is not None)
    for name in names:
        stem, dot, kind = name.partition(".")
        if dot + kind in INDEX_SUFFIXES and stem + LOG_SUFFIX not in names:
            (directory / name).unlink()
    return offsets


def _without_unfinished(directory: Path, names: list[str]) -> list[str]:
    """Delete unfinished files and return the names of the others.

    A swap file beyond a cleaned one is part of an unfinished split (KAFKA-6264).
    """
    cleaned = [_offset(name) for name in names if name.endswith(CLEANED_SUFFIX)]
    first_cleaned = min(cleaned, default=None)
    kept = []
    for name in names:
        is_unfinished = name.endswith((DELETED_SUFFIX, CLEANED_SUFFIX)) or (
            name.endswith(SWAP_SUFFIX)
            and first_cleaned is not None
            and _offset(name) >= first_cleaned
        )
        if is_unfinished:
            (directory / name).unlink()
        else:
            kept.append(name)
    return kept


def _finish_swaps(directory: Path, names: list[str]) -> None:
    swaps = [name for name in names if name.endswith(SWAP_SUFFIX)]
    logs = [name for name in swaps if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    if logs:
        start = min(_offset(name) for name in logs)
        end = max(_next_offset(directory / name) for name in logs)
        for name in names:
            is_of_segment = name.endswith((LOG_SUFFIX, *INDEX_SUFFIXES))
            if is_of_segment and start <= _offset(name) < end:
                (directory / name).unlink()
    for name in swaps:
        (directory / name).rename(directory / name.removesuffix(SWAP_SUFFIX))


def _next_offset(path: Path) -> int:
    """Return the offset after the last record of a file."""
    end = _offset(path.name)
    for _, header in LogFile(path).batches(0, path.stat().st_size):
        end = header.next_offset
    return end


def _offset(name: str) -> int:
    """Return the offset in the name of a file; -1: there is none."""
    stem = name.partition(".")[0]
    return int(stem) if stem.isascii() and stem.isdigit() else -1
