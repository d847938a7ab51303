"""Checkpoints: small text files with offsets. Mirrors ``kafka.server.checkpoints``.

A checkpoint has a line with its version, ``0``, a line with the number of entries, and one line for
each entry. Every reader has a safe default for a file that is missing or incomplete after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.core.protocol.control import TopicId
from regent.storage.files import overwrite, storage_error, write_atomically

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

NEVER_CLEANED = -1  # the cleaned offset of a log without an entry

_VERSION = "0"
_METADATA = re.compile(rf"version: {_VERSION}\ntopic_id: ([\w-]{{22}})\n?")


class LogCheckpoints(Protocol):
    """What a log asks of the checkpoints of its directory; ``DirectoryCheckpoints`` implements it.

    Every ``write_…`` raises ``StorageError``.
    """

    def note_lowered(self) -> None:
        """Note that the high watermark of a log was lowered."""
        ...

    def write_lowered(self) -> None:
        """Write the high watermarks if one was lowered."""
        ...

    def write_after_truncation(self) -> None:
        """Write what a truncation may have lowered, except for high watermarks."""
        ...


def read_rows(path: Path, columns: int) -> list[list[str]] | None:
    """Return the lines of a checkpoint, each split into ``columns`` words; None: no such file.

    Raises ``BadDataError`` if it is incomplete, ``StorageError`` if it cannot be read.
    """
    text = _read(path)
    if text is None:
        return None
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise BadDataError(f"{path}: not a checkpoint of version {_VERSION}")
    rows = [line.split(" ") for line in lines[2:]]
    if not text.endswith("\n") or lines[1] != str(len(rows)):
        raise BadDataError(f"{path}: {len(rows)} lines instead of {lines[1][:20]}")
    for row in rows:
        if len(row) != columns:
            raise BadDataError(f"{path}: {' '.join(row)[:80]!r} does not have {columns} words")
    return rows


def write_rows(path: Path, rows: Sequence[str], *, is_synced: bool = True) -> None:
    """Replace a checkpoint, atomically if ``is_synced``. Raises ``StorageError``."""
    text = "\n".join((_VERSION, str(len(rows)), *rows, ""))
    write = write_atomically if is_synced else overwrite
    write(path, text.encode())


def read_offsets(path: Path) -> dict[TopicPartition, int]:
    """Return the offset of each partition; an empty dict if there is no such file.

    Raises ``BadDataError`` if it is incomplete, ``StorageError`` if it cannot be read.
    """
    offsets = {}
    for topic, partition, offset in read_rows(path, columns=3) or ():
        numbers = parse_numbers(path, (partition, offset))
        offsets[TopicPartition(topic, numbers[0])] = numbers[1]
    return offsets


def write_offsets(path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Replace a checkpoint of offsets: one file for all partitions of a directory.

    Raises ``StorageError``.
    """
    write_rows(
        path,
        [
            f"{topic_partition.topic} {topic_partition.partition} {offset}"
            for topic_partition, offset in offsets.items()
        ],
    )


def parse_numbers(path: Path, words: Iterable[str]) -> list[int]:
    """Return non-negative numbers. Raises ``BadDataError``."""
    numbers = []
    for word in words:
        if not (word.isascii() and word.isdigit() and len(word) <= 19):
            raise BadDataError(f"{path}: {word[:80]!r} is not a number")
        numbers.append(int(word))
    return numbers


def read_topic_id(directory: Path) -> TopicId | None:
    """Return the topic id in the ``partition.metadata`` of a log; None: there is no such file.

    Raises ``BadDataError`` if the file is incomplete, ``StorageError`` if it cannot be read.
    """
    path = directory / PARTITION_METADATA
    text = _read(path)
    if text is None:
        return None
    match = _METADATA.fullmatch(text)
    if match is None:
        raise BadDataError(f"{path}: not partition metadata of version {_VERSION}")
    return match[1]


def write_topic_id(directory: Path, topic_id: TopicId, *, is_synced: bool = True) -> None:
    """Write ``partition.metadata``. Raises ``StorageError``."""
    text = f"version: {_VERSION}\ntopic_id: {topic_id}"
    write_atomically(directory / PARTITION_METADATA, text.encode(), is_synced=is_synced)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise BadDataError(f"{path}: not ASCII text") from None
    except OSError as error:
        raise storage_error(path, error) from None
