"""Lists of JSON, such as the topics and brokers of a job, and rows of JSON lines: what is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import orjson

from regent.jobs.command import InputError
from regent.jobs.files import JobFiles

Given: TypeAlias = str | Sequence[Any]
"""Where a list is: the location of a file, or the entries themselves."""

Fields: TypeAlias = Mapping[str, Callable[[object], bool]]
"""The fields that a row needs, and whether a value can be that of the field."""


def read_json_list(given: Given, entry: str, files: JobFiles) -> Iterator[tuple[str, Any]]:
    """Yield the entries, at least one, each after its name in messages.

    ``entry`` says what an entry is. Raises ``InputError``.
    """
    where, entries = (
        (given, _read(given, files)) if isinstance(given, str) else (f"{entry}s", given)
    )
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise InputError(f"{where} must be a JSON list with at least one {entry}")
    for number, value in enumerate(entries):
        yield f"{where}: entry {number}", value


def _read(location: str, files: JobFiles) -> Any:
    try:
        return orjson.loads(files.read(location))
    except orjson.JSONDecodeError as error:
        raise InputError(f"{location} is not JSON: {error}") from None


def field_of(
    row: Mapping[str, Any], name: str, where: str, expected: str, is_valid: Callable[[Any], bool]
) -> Any:
    """Return a field, None if it is missing. Raises ``InputError`` unless it is as expected."""
    value = row.get(name)
    if not is_valid(value):
        raise InputError(f"{where}: {name} must be {expected}, not {reprlib.repr(value)}")
    return value


def problem_of_line(line: bytes, fields: Fields) -> str | None:
    """Return what is wrong with a line of JSON lines, to follow its name; None if nothing is."""
    try:
        return problem_of_row(orjson.loads(line), fields)
    except orjson.JSONDecodeError as error:
        return f"is not JSON: {str(error).partition(': line ')[0]}"


def problem_of_row(row: object, fields: Fields) -> str | None:
    """Return what is wrong with a row, to follow its name; None if nothing is."""
    if not isinstance(row, dict):
        return f"is not an object: {reprlib.repr(row)}"
    for name, is_valid in fields.items():
        if row.get(name) is None:
            return f"has no {name}"
        if not is_valid(row[name]):
            return f"has an impossible {name}: {reprlib.repr(row[name])}"
    return None
