"""Follows the journals of controllers: a stream of lines.

A journal is the files ``events.jsonl.1``, then ``events.jsonl``, in the folder of a broker. A full
``events.jsonl`` is renamed and replaces the older file. So a file is known by its *number*, a
checksum of its first line, and a position by the number and an offset in bytes.

The offset of a stream has for each folder the number of the last file, how many bytes of it are
read, which is a whole number of lines, and the number of the file before it. Only the second of two
files grows, so the same two offsets give the same rows again.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from regent.config.cluster_location import numbered_folders
from regent.jobs.files import is_remote, local_path
from regent.jobs.source.options import JournalOptions, OptionError, journal_options
from regent.storage.journal_reader import JOURNAL, PREVIOUS

Offset = dict[str, dict[str, int]]
"""By folder: ``file`` and ``previous``, the numbers of files (or -1), and ``offset`` in bytes."""

_NO_FILE: Final = -1
_BLOCK_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class JournalPart(InputPartition):
    """The input of a task: bytes of a file of a journal, to before ``end`` or (None) to its end."""

    folder: str
    number: int
    start: int
    end: int | None


class _File(NamedTuple):
    number: int
    end: int  # of the last whole line


LINES: Final = "value string"
"""The columns: a row for each whole line."""


class JournalStreamReader(DataSourceStreamReader):
    """Follows the journals in folders of this machine, from their first lines on.

    Brokers that are added to the folder of a cluster are found. ``options`` are checked in the
    first call: Spark 4.3 hides the errors of an earlier one.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._given = options

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before all lines. Raises ``OptionError``."""
        for place in self._options.journals:
            if is_remote(place) or not local_path(place).is_dir():
                raise OptionError(
                    f"{place} is no folder of this machine: a stream follows the folder of a"
                    " cluster or of a broker; read other journals as a batch"
                )
        return {}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the offset after the last whole lines."""
        del limit  # two files of 64 MB for each broker, at most
        places = [local_path(place) for place in self._options.journals]
        return latest_offset(start, [folder for place in places for folder in _folders(place)])

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts between two offsets. Raises ``DataLossError``."""
        return new_parts(start, end, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the lines of a part. Raises ``DataLossError``."""
        if isinstance(partition, JournalPart):
            text = _content(partition, self._options).decode(errors="replace")
            lines = text.removesuffix("\n").split("\n") if text else []
            yield pa.RecordBatch.from_pydict({"value": pa.array(lines, pa.string())})

    @property
    def _options(self) -> JournalOptions:
        return journal_options(self._given)


# --- positions ------------------------------------------------------------------------------------


def latest_offset(start: Offset, folders: Sequence[Path]) -> Offset:
    """Return ``start``, moved to the last whole lines of the journals in these folders."""
    end = dict(start)
    for folder in folders:
        if files := _files(folder):
            previous = files[-2].number if len(files) > 1 else _NO_FILE
            last = files[-1]
            end[str(folder)] = {"previous": previous, "file": last.number, "offset": last.end}
    return end


def new_parts(start: Offset, end: Offset, options: JournalOptions) -> list[InputPartition]:
    """Return what lies between two offsets. Raises ``DataLossError``."""
    parts: list[JournalPart] = []
    for folder, last in end.items():
        file, previous = last["file"], last["previous"]
        whole = [JournalPart(folder, previous, 0, None)] if previous != _NO_FILE else []
        begin = 0
        if (first := start.get(folder)) is not None:
            if first["file"] == file:
                whole, begin = [], first["offset"]
            elif first["file"] == previous:
                whole = [JournalPart(folder, previous, first["offset"], None)]
            else:
                text = f"{folder}: {JOURNAL} was replaced more than once since it was read"
                options.report_data_loss(text)
        if begin < last["offset"]:
            whole.append(JournalPart(folder, file, begin, last["offset"]))
        parts += whole
    return list(parts)


def _folders(place: Path) -> list[Path]:
    """Return the folders with a journal: a place itself, and those of brokers in it."""
    if not place.is_dir():
        return []
    folders = [place, *numbered_folders(place, "broker").values()]
    return [f.absolute() for f in folders if any((f / name).exists() for name in _NAMES)]


_NAMES: Final = (JOURNAL, PREVIOUS)
"""The file that is renamed comes first: between two opens it may get the other name."""


def _files(folder: Path) -> list[_File]:
    """Return the files of a journal that have a whole line, the older one first."""
    files: list[_File] = []
    for name in _NAMES:
        try:
            with (folder / name).open("rb") as file:
                number = _number(file)
                if number is not None and number not in (known.number for known in files):
                    files.insert(0, _File(number, _end_of_lines(file)))  # renamed just now: once
        except FileNotFoundError:
            continue
    return files


def _number(file: Any) -> int | None:
    first: bytes = file.readline()
    return zlib.crc32(first) if first.endswith(b"\n") else None


def _end_of_lines(file: Any) -> int:
    end: int = file.seek(0, io.SEEK_END)
    while end > 0:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        found: int = file.read(end - begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0


def _content(part: JournalPart, options: JournalOptions) -> bytes:
    """Return the bytes of a part, whatever the name of its file is now."""
    for name in _NAMES:
        try:
            with Path(part.folder, name).open("rb") as file:
                if _number(file) == part.number:
                    file.seek(part.start)
                    return file.read(-1 if part.end is None else part.end - part.start)
        except FileNotFoundError:
            continue
    options.report_data_loss(f"{part.folder}: a file of the journal is gone")
    return b""
