"""``events``: the journals of the controllers, merged by time."""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import click
import orjson

from regent.cli.output import Output, examples, note, output_option
from regent.client.cluster_connection import data_dir_option
from regent.client.wording import counted
from regent.config.moments import parse_moment
from regent.core.errors import RegentError
from regent.core.model import BrokerId

JOURNAL: Final = "events.jsonl"
_PREVIOUS: Final = "events.jsonl.1"
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
_POLL_S: Final = 0.2
_CONTEXT: Final = 10  # events shown before --follow, as with tail -f

_LINE: Final = "{:23}  {:>6}  {:>9}  {:40}  {:33}  {:>9}  {:>11}"
_HEADER: Final = _LINE.format("TIME", "BROKER", "ID", "EVENT", "CAUSE", "QUEUE-MS", "HANDLING-MS")
_CHANGE: Final = "    "  # a change is printed below its event


class Shown(Enum):
    """The events to print, and their form."""

    LINES = "every event, as its line"
    ALL = "every event in the table"
    TELLING = "without answers of brokers that changed nothing"


class EventsError(RegentError):
    """There are no journals to read."""


class Event(NamedTuple):
    """One line of a journal."""

    ts_ms: int
    line: bytes
    fields: dict[str, Any]


class JournalReader:
    """Reads one broker's journal from its beginning; each call continues after the last one."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / JOURNAL
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
            except FileNotFoundError:
                return None
            except OSError as error:
                raise EventsError(f"{path}: {error.strerror}") from None
        return self._file

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


def _moment(_context: object, _option: object, text: str | None) -> int | None:
    try:
        return None if text is None else parse_moment(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(
    epilog=examples("events --follow", "events --since 10m", "events --broker 0 -o json")
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help=f"Show the last {_CONTEXT} events, then new ones as they happen, until Ctrl-C.",
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N events.")
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=_moment,
    help="Only events since a time, 2026-01-31T23:59:00, or since 30s, 10m, 2h, 1d ago.",
)
@click.option(
    "--broker",
    "broker_id",
    type=click.IntRange(min=0),
    metavar="ID",
    help="Only events of this broker.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also show answers of brokers that changed nothing."
)
@data_dir_option
@output_option
def events(
    follow: bool,
    tail: int | None,
    since_ms: int | None,
    broker_id: BrokerId | None,
    show_all: bool,
    data_dir: Path,
    output: str,
) -> None:
    """Show the events that the controllers of all brokers handled, by time.

    The table leaves out the brokers' answers that changed nothing; JSON has a line for every event.
    With --follow, --tail and --since select the past events to show first.
    """
    if follow and tail is None and since_ms is None:
        tail = _CONTEXT
        note(f"the last {tail} events, then new ones; --tail N or --since TIME shows more")
    readers: dict[Path, JournalReader] = {}
    shown = Shown.LINES if output == Output.JSON else Shown.ALL if show_all else Shown.TELLING
    write_header = output == Output.TABLE
    try:
        while True:
            for directory in set(_directories(data_dir, broker_id)) - readers.keys():
                readers[directory] = JournalReader(directory)
            if not readers and not (follow and data_dir.is_dir()):
                raise EventsError(_nothing_to_read(data_dir, broker_id))
            new = _new_events(readers.values(), shown, since_ms or 0)
            _print(new if tail is None else deque(new, tail), shown, write_header=write_header)
            write_header, tail = False, None
            if not follow:
                break
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        for reader in readers.values():
            reader.close()
    unreadable = sum(reader.unreadable for reader in readers.values())
    if unreadable:
        note(f"{counted(unreadable, 'unreadable line')} left out")


def _directories(data_dir: Path, broker_id: BrokerId | None) -> list[Path]:
    """Return the folders of brokers that have a journal."""
    pattern = "broker-*" if broker_id is None else f"broker-{broker_id}"
    return sorted(path.parent for path in data_dir.glob(f"{pattern}/{JOURNAL}"))


def _nothing_to_read(data_dir: Path, broker_id: BrokerId | None) -> str:
    whose = "any broker" if broker_id is None else f"broker {broker_id}"
    return f"no {JOURNAL} of {whose} in {data_dir}; --data-dir names the folder of a cluster"


def _new_events(readers: Iterable[JournalReader], shown: Shown, since_ms: int) -> Iterator[Event]:
    for event in heapq.merge(*(reader.read() for reader in readers), key=_ts_ms):
        if event.ts_ms >= since_ms and (shown is not Shown.TELLING or _tells_something(event)):
            yield event


def _print(events: Iterable[Event], shown: Shown, *, write_header: bool) -> None:
    stream = sys.stdout.buffer
    if write_header:
        stream.write(f"{_HEADER}\n".encode())
    for event in events:
        stream.write(event.line if shown is Shown.LINES else _rows(event).encode())
    stream.flush()


def _tells_something(event: Event) -> bool:
    is_answer = str(event.fields.get("event")).endswith("ResponseReceived")
    return bool(event.fields.get("changes")) or not is_answer


def _ts_ms(event: Event) -> int:
    return event.ts_ms


def _rows(event: Event) -> str:
    fields = event.fields
    moment = datetime.fromtimestamp(event.ts_ms / 1000)
    names = ("event", "cause", "queue_ms", "handling_ms")
    row = _LINE.format(
        f"{moment:%Y-%m-%d %H:%M:%S}.{event.ts_ms % 1000:03}",
        str(fields.get("broker_id", "-")),
        f"{fields.get('controller_epoch', '')}-{fields.get('event_id', '')}",
        *(str(fields.get(name, "-")) for name in names),
    )
    changes = fields.get("changes")
    below = [f"{_CHANGE}{change}" for change in changes] if isinstance(changes, list) else []
    return "".join(f"{line.rstrip()}\n" for line in (row, *below))
