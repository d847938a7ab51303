"""JSON files that people write: no key is unknown, and none is there twice.

A key that is not read would have no effect, and its author would not know.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import orjson

from regent.core.admin.topic_settings import similar_names
from regent.core.errors import BadDataError


def decode_file(data: bytes, source: str) -> Any:
    """Parse JSON; an object that has a key twice is a ``BadDataError`` that names ``source``.

    ``data`` may begin with a byte order mark, as editors of Windows write.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadDataError(f"{source}: not JSON: {error}") from None
    repeated: list[str] = []

    def keys_of(pairs: list[tuple[str, Any]]) -> None:
        repeated.extend(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)

    json.loads(data, object_pairs_hook=keys_of)
    if repeated:
        raise BadDataError(f"{source}: the key {repeated[0][:60]!r} is there twice in one object")
    return parsed


def unknown_keys(found: Iterable[str], keys: Collection[str]) -> list[str]:
    """Return a problem for each key that is none of ``keys``."""
    return [
        f"unknown key {key[:60]!r}; {similar_names(key, keys)}" for key in found if key not in keys
    ]
