"""``events``: the journals of the controllers, merged by time."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Final

import click

from regent.cli.output import Output, examples, note, output_option
from regent.cli.watching import complete_brokers
from regent.client.answered_tree import read_from_brokers
from regent.client.cluster_connection import (
    Cluster,
    bootstrap_option,
    named_by_brokers,
    named_by_zookeeper,
    pass_cluster,
)
from regent.client.journals import Event, EventsError, Journals
from regent.client.wording import counted
from regent.config.moments import parse_moment
from regent.core.model import BrokerId
from regent.core.topic_validation import INTERNAL_TOPICS

_POLL_S: Final = 0.2
_POLL_BROKERS_S: Final = 0.5
_CONTEXT: Final = 10  # events shown before --follow, as with tail -f

_LINE: Final = "{:23}  {:>6}  {:>9}  {:40}  {:33}  {:>9}  {:>11}"
_HEADER: Final = _LINE.format(
    "TIME-UTC", "BROKER", "ID", "EVENT", "CAUSE", "QUEUE-MS", "HANDLING-MS"
)
_INTERNAL: Final = re.compile(rf"(?<![\w.-])({'|'.join(INTERNAL_TOPICS)})(-[0-9]+)?(?![\w.-])")
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
    epilog=examples(
        "events --follow",
        "events --since 10m --zookeeper zk1:2181 --keys ~/regent-keys",
        "events --bootstrap-server 192.0.2.1:9092 --keys ~/regent-keys",
        "events --broker 0 -o json",
    )
)
@click.option(
    "--follow",
    "-f",
    is_flag=True,
    help=f"Show the last {_CONTEXT} events, then new ones as they happen, until Ctrl-C.",
)
@click.option(
    "--tail", type=click.IntRange(0, sys.maxsize), metavar="N", help="Only the last N events."
)
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=_moment,
    help="Only events since a time in UTC, 2026-01-31T23:59:00, or since 30s, 10m, 2h, 1d ago.",
)
@click.option(
    "--broker",
    "broker_id",
    shell_complete=complete_brokers,
    type=click.IntRange(min=0),
    metavar="ID",
    help="Only events of this broker.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also show answers of brokers that changed nothing."
)
@click.option(
    "--internal", "show_internal", is_flag=True, help="Also show changes of internal topics."
)
@output_option
@bootstrap_option
@pass_cluster
def events(
    cluster: Cluster,
    /,
    follow: bool,
    tail: int | None,
    since_ms: int | None,
    broker_id: BrokerId | None,
    show_all: bool,
    show_internal: bool,
    output: str,
) -> None:
    """Show the events that the controllers of all brokers handled, by time.

    The journals are read from the data directory of a cluster on this machine; with --zookeeper
    or --bootstrap-server the brokers read them for us, with our key. The table leaves out the
    brokers' answers that changed nothing, and internal topics; JSON has a line for every event.
    With --follow, --tail and --since select the past events to show first.
    """
    if follow and tail is None and since_ms is None:
        tail = _CONTEXT
        note(f"the last {tail} events, then new ones; --tail N or --since TIME shows more")
    shown = Shown.LINES if output == Output.JSON else Shown.ALL if show_all else Shown.TELLING
    is_shown = partial(_is_shown, shown, since_ms or 0, show_internal)
    show = partial(_print, shown, show_internal)
    with closing(_journals(cluster, broker_id, since_ms or 0)) as journals:
        try:
            _show(journals, show, is_shown, follow=follow, tail=tail)
        except KeyboardInterrupt:
            if not follow:
                raise
        if journals.unreadable:
            note(f"{counted(journals.unreadable, 'unreadable line')} left out")


def _journals(cluster: Cluster, broker_id: BrokerId | None, since_ms: int) -> Journals:
    context = click.get_current_context()
    if named_by_brokers(context, cluster):
        return Journals(read_from_brokers(cluster), None, broker_id, since_ms, note)
    if named_by_zookeeper(context):
        return Journals(cluster, cluster.data_dir, broker_id, since_ms, note)
    data_dir = context.params["data_dir"]
    return Journals(None, data_dir, broker_id, since_ms, note)


def _show(
    journals: Journals,
    show: Callable[..., None],
    is_shown: Callable[[Event], bool],
    *,
    follow: bool,
    tail: int | None,
) -> None:
    """Print the events, with ``follow`` until Ctrl-C. Raises ``RegentError``."""
    began_ms = time.time_ns() // 1_000_000
    if not journals.look() and not (follow and journals.can_appear):
        raise EventsError(journals.none())
    past = journals.new() if tail is None else journals.last(tail, is_shown)
    show(filter(is_shown, past), write_header=True)
    if not follow:
        if journals.none_was_read():
            raise EventsError("no broker could be asked for its journal")
        return
    if tail is not None:
        journals.begin_others_at(began_ms)
    while True:
        time.sleep(_POLL_BROKERS_S if journals.is_far else _POLL_S)
        journals.look()
        show(filter(is_shown, journals.new()))


def _is_shown(shown: Shown, since_ms: int, show_internal: bool, event: Event) -> bool:
    if event.ts_ms < since_ms or shown is Shown.LINES:
        return event.ts_ms >= since_ms
    if not show_internal and _is_internal(event):
        return False
    return shown is Shown.ALL or _tells_something(event)


def _is_internal(event: Event) -> bool:
    """Whether an event tells of internal topics only."""
    changes = _changes(event)
    if not changes:
        return event.fields.get("topic") in INTERNAL_TOPICS
    return all(_is_about_internal_topic(change) for change in changes)


def _changes(event: Event) -> list[str]:
    changes = event.fields.get("changes")
    return [str(change) for change in changes] if isinstance(changes, list) else []


def _is_about_internal_topic(change: str) -> bool:
    return _INTERNAL.search(change) is not None


def _print(
    shown: Shown, show_internal: bool, events: Iterable[Event], *, write_header: bool = False
) -> None:
    stream = sys.stdout.buffer
    if write_header and shown is not Shown.LINES:
        stream.write(f"{_HEADER}\n".encode())
    for event in events:
        text = f"{event.line}\n" if shown is Shown.LINES else _rows(event, show_internal)
        stream.write(text.encode())
    stream.flush()


def _tells_something(event: Event) -> bool:
    is_answer = str(event.fields.get("event")).endswith("ResponseReceived")
    return bool(event.fields.get("changes")) or not is_answer


def _rows(event: Event, show_internal: bool) -> str:
    fields = event.fields
    moment = datetime.fromtimestamp(event.ts_ms / 1000, UTC)
    names = ("event", "cause", "queue_ms", "handling_ms")
    row = _LINE.format(
        f"{moment:%Y-%m-%d %H:%M:%S}.{event.ts_ms % 1000:03}",
        str(fields.get("broker_id", "-")),
        f"{fields.get('controller_epoch', '')}-{fields.get('event_id', '')}",
        *(str(fields.get(name, "-")) for name in names),
    )
    changes = _changes(event)
    if not show_internal:
        changes = [change for change in changes if not _is_about_internal_topic(change)]
        if left_out := len(_changes(event)) - len(changes):
            changes.append(f"and {counted(left_out, 'change')} of internal topics (--internal)")
    below = [f"{_CHANGE}{change}" for change in changes]
    return "".join(f"{_printable(line.rstrip())}\n" for line in (row, *below))


def _printable(line: str) -> str:
    """Return a line of another machine without characters that a terminal would obey."""
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)
