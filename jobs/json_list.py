"""Reads a JSON file with a list, such as the topics and brokers of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from regent.jobs.command import InputError


def read_json_list(path: Path, entry: str) -> list[Any]:
    """Return the entries, at least one; ``entry`` is their name in messages.

    Raises ``InputError``.
    """
    try:
        entries = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path} must be a JSON list with at least one {entry}")
    return entries
