"""Output of commands: data on stdout, as a table or as JSON; everything else on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, TypeVar

import click
import orjson

from regent.config.command_line import program

F = TypeVar("F", bound=Callable[..., Any])

_PLAIN_KEY = re.compile("(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_][a-z0-9_]*")
_NONE = "-"  # an empty cell
_GAP = 2  # between the columns of a table
_MIN_SENTENCE = 20  # columns of a terminal, to wrap it


class Output(StrEnum):
    """The values of ``-o`` that commands tell apart; ``yaml`` is another form of JSON."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"


_YAML: Final = "yaml"
_FORM: Final = "regent.output.form"  # in the meta data of the context
_IS_ONE_OF_MANY: Final = "regent.output.is_one_of_many"
_NO_HEADERS: Final = "regent.output.no_headers"


def output_option(command: F) -> F:
    """Add ``-o table|wide|json|yaml``, the argument ``output``, and ``--no-headers``.

    The command gets ``json`` for ``yaml``: ``print_json`` knows. A table without more columns is
    the same when it is wide.
    """
    headers = click.option(
        "--no-headers",
        is_flag=True,
        expose_value=False,
        callback=_note_no_headers,
        help="Print tables without their first line.",
    )
    form = click.option(
        "-o",
        "--output",
        type=click.Choice([output.value for output in Output] + [_YAML]),
        default=Output.TABLE.value,
        show_default=True,
        callback=_note_form,
        help="How to print the result; wide: with more columns, where there are any.",
    )
    return form(headers(command))


def _note_form(context: click.Context, _: click.Parameter, value: str) -> str:
    context.meta[_FORM] = value
    return Output.JSON.value if value == _YAML else value


def _note_no_headers(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_NO_HEADERS] = value


def _meta(name: str) -> object:
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(name)


def begin_documents() -> bool:
    """Let YAML begin each document with a line ---; return whether there are documents at all."""
    context = click.get_current_context(silent=True)
    if context is None:
        return False
    context.meta[_IS_ONE_OF_MANY] = True
    return context.meta.get(_FORM) in (Output.JSON.value, _YAML)


def examples(*lines: str) -> str:
    """Return the examples at the end of ``--help``: command lines, not wrapped."""
    return "\n".join(("\b", "Examples:", *(f"  {program()} {line}" for line in lines)))


def quoted(name: str) -> str:
    """Return a name that others chose as it is, or as a JSON string if a script could misread it.

    That is an empty name, ``-``, one that begins with a quotation mark or a space, ends with a
    space, or has control characters or two spaces in a row. The result is one line without two
    spaces in a row, and the first character says whether it is JSON.
    """
    is_plain = name.isprintable() and name == name.strip() and "  " not in name
    if is_plain and name not in ("", _NONE) and not name.startswith('"'):
        return name
    text = json.dumps(name, ensure_ascii=not name.isprintable())
    return text.replace("  ", r" \u0020")


def print_json(value: object) -> None:
    """Print one JSON document: indented for people, on one line for programs; or as YAML."""
    if _meta(_FORM) == _YAML:
        if _meta(_IS_ONE_OF_MANY):
            click.echo("---")
        for line in _yaml(orjson.loads(orjson.dumps(value))):
            click.echo(line)
        return
    option = orjson.OPT_INDENT_2 if sys.stdout.isatty() else None
    click.echo(orjson.dumps(value, option=option))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print an aligned table; without a terminal it is plain, so that programs can split it.

    On a terminal that is too narrow, each row is a block of names and values.
    """
    cells = [[_cell(value) for value in row] for row in rows]
    has_headers = not _meta(_NO_HEADERS)
    if sys.stdout.isatty():
        _print_rich(columns, cells, has_headers=has_headers)
        return
    headings = [[column.upper().replace(" ", "-") for column in columns]] if has_headers else []
    lines = [*headings, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns."""
    rows = [(name, _cell(value)) for name, value in facts]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name.ljust(width)}  {value}")


def print_wrapped(rows: Iterable[tuple[str, str]]) -> None:
    """Print short names, each with a sentence; on a terminal the sentence has lines of its own."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + _GAP
    columns = shutil.get_terminal_size().columns - _GAP - width
    for name, text in rows:
        line = _cell(text)
        is_wrapped = sys.stdout.isatty() and columns > _MIN_SENTENCE
        lines = textwrap.wrap(line, columns, break_on_hyphens=False) if is_wrapped else [line]
        for number, part in enumerate(lines):
            click.echo(f"{'':{_GAP}}{'' if number else name:{width}}{part}")


def note(message: str) -> None:
    """Print a message on stderr, if it can be written: it is not part of the result."""
    with suppress(OSError):
        click.echo(message, err=True)


def announce(line: str) -> None:
    """Print a line of a program that serves; it also serves if the line cannot be written."""
    try:
        click.echo(line)
    except OSError:
        # Else the line is tried again at the end of the process, which then counts as failed.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _cell(value: object) -> str:
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(_cell, value)) or _NONE
    text = str(value)
    return text if text.isprintable() else quoted(text)


def _yaml(value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of a JSON value as YAML in block style: its scalars are those of JSON."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            name = key if _PLAIN_KEY.fullmatch(key) else json.dumps(key)
            yield from _yaml_entry(f"{indent}{name}:", inner, f"{indent}  ")
    elif isinstance(value, list) and value:
        for inner in value:
            lines = list(_yaml(inner, f"{indent}  "))
            yield f"{indent}- {lines[0].removeprefix(indent + '  ')}"
            yield from lines[1:]
    else:
        yield f"{indent}{json.dumps(value, ensure_ascii=False)}"


def _yaml_entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield head
        yield from _yaml(value, indent)
    else:
        yield f"{head} {json.dumps(value, ensure_ascii=False)}"


def _print_rich(
    columns: Sequence[str], cells: Sequence[Sequence[str]], *, has_headers: bool
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(emoji=False)  # names may have :colons:
    headings = list(columns)
    if _table_width(headings, cells) > console.width:
        headings = [heading.replace(" ", "\n") for heading in columns]
    if _table_width(headings, cells) > console.width:
        for number, row in enumerate(cells):
            click.echo(nl=number > 0)
            print_facts(zip(columns, row, strict=True))
        return
    gap = (0, _GAP - 1, 0, 0)  # one more for the border, which this box lacks
    table = Table(
        *headings,
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=gap,
        show_header=has_headers,
    )
    for row in cells:
        table.add_row(*map(escape, row))
    console.print(table)


def _table_width(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, heading.split("\n"))) for heading in headings]
    for row in cells:
        widths = [max(width, len(cell)) for width, cell in zip(widths, row, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)
