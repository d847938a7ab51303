"""``events``: the journals of the controllers, merged by time."""

from __future__ import annotations

import heapq
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Final

import click

from regent.cli.output import Output, examples, note, output_option
from regent.client.cluster_connection import data_dir_option
from regent.client.journals import (
    JOURNAL,
    Event,
    EventsError,
    JournalReader,
    journal_directories,
)
from regent.client.wording import counted
from regent.config.moments import parse_moment
from regent.core.model import BrokerId

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
            for directory in set(journal_directories(data_dir, broker_id)) - readers.keys():
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
