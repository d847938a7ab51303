"""The journals of a local cluster's controllers, as their readers follow them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import orjson

from regent.core.errors import RegentError
from regent.core.model import BrokerId

JOURNAL: Final = "events.jsonl"
_PREVIOUS: Final = "events.jsonl.1"
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024


class EventsError(RegentError):
    """There are no journals to read."""


class Event(NamedTuple):
    """One line of a journal."""

    ts_ms: int
    line: bytes
    fields: dict[str, Any]


class JournalReader:
    """Reads one broker's journal; each call continues after the last one.

    It begins at the beginning, or at the first line of the last ``last_bytes``.
    """

    def __init__(self, directory: Path, last_bytes: int | None = None) -> None:
        self._path = directory / JOURNAL
        self._last_bytes = last_bytes
        self._next = [path for path in (directory / _PREVIOUS, self._path) if path.exists()]
        self._file: IO[bytes] | None = None
        self.unreadable = 0
        """Number of unreadable lines, which a crash left incomplete."""

    def read(self) -> Iterator[Event]:
        """Yield the complete events; an incomplete last line is left for the next call."""
        while (file := self._open()) is not None:
            for line in self._complete_lines(file):
                event = _parse(line)
                if event is None:
                    self.unreadable += 1
                else:
                    yield event
            if not self._next and not self._is_replaced(file):
                return
            file.close()
            self._file = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> IO[bytes] | None:
        if self._file is None:
            path = self._next.pop(0) if self._next else self._path
            try:
                self._file = path.open("rb")
                self._skip(self._file, path)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise EventsError(f"{path}: {error.strerror}") from None
        return self._file

    def _skip(self, file: IO[bytes], path: Path) -> None:
        """Go to the last bytes that are wanted, in the files that were there at the beginning."""
        if self._last_bytes is None:
            return
        size = os.fstat(file.fileno()).st_size
        wanted = self._last_bytes
        if path != self._path:  # the newer file counts first
            with suppress(FileNotFoundError):
                wanted -= self._path.stat().st_size
        else:
            self._last_bytes = None
        if size > wanted:
            file.seek(size - max(wanted, 0))
            file.readline()

    def _complete_lines(self, file: IO[bytes]) -> Iterator[bytes]:
        while True:
            position = file.tell()
            line = file.readline(_MAX_LINE_BYTES)
            if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                file.seek(position)
                return
            yield line

    def _is_replaced(self, file: IO[bytes]) -> bool:
        """Whether a new journal was begun because this one was full."""
        try:
            return self._path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            return False


def _parse(line: bytes) -> Event | None:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    ts_ms = fields.get("ts_ms") if isinstance(fields, dict) else None
    return Event(ts_ms, line, fields) if isinstance(ts_ms, int) else None


def journal_directories(data_dir: Path, broker_id: BrokerId | None = None) -> list[Path]:
    """Return the folders of brokers that have a journal; of one broker, or of all."""
    pattern = "broker-*" if broker_id is None else f"broker-{broker_id}"
    return sorted(path.parent for path in data_dir.glob(f"{pattern}/{JOURNAL}"))
