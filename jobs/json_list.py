"""Reads a JSON file with a list, such as the topics and brokers of a job."""

from __future__ import annotations

from typing import Any

import orjson

from regent.jobs.command import InputError
from regent.jobs.files import JobFiles


def read_json_list(location: str, entry: str, files: JobFiles) -> list[Any]:
    """Return the entries, at least one; ``entry`` is their name in messages.

    Raises ``InputError``.
    """
    try:
        entries = orjson.loads(files.read(location))
    except orjson.JSONDecodeError as error:
        raise InputError(f"{location} is not JSON: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{location} must be a JSON list with at least one {entry}")
    return entries
