"""Reads a JSON file with a list, such as the topics and brokers of a job."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from regent.jobs.command import InputError
from regent.jobs.files import JobFiles


def read_json_list(location: str, entry: str, files: JobFiles) -> Iterator[tuple[str, Any]]:
    """Yield the entries, at least one, each after its name in messages.

    ``entry`` says what an entry is. Raises ``InputError``.
    """
    try:
        entries = orjson.loads(files.read(location))
    except orjson.JSONDecodeError as error:
        raise InputError(f"{location} is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{location} must be a JSON list with at least one {entry}")
    for number, value in enumerate(entries):
        yield f"{location}: entry {number}", value


def field_of(
    row: Mapping[str, Any], name: str, where: str, expected: str, is_valid: Callable[[Any], bool]
) -> Any:
    """Return a field, None if it is missing. Raises ``InputError`` unless it is as expected."""
    value = row.get(name)
    if not is_valid(value):
        raise InputError(f"{where}: {name} must be {expected}, not {reprlib.repr(value)}")
    return value
