"""Numbers and lists in messages."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice


def counted(number: int, noun: str) -> str:
    """Return "1 partition" or "2 partitions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(values: Collection[object], limit: int = 10, *, separator: str = ", ") -> str:
    """Return the first few values, and how many more there are."""
    shown = separator.join(map(str, islice(values, limit)))
    return f"{shown} and {len(values) - limit} more" if len(values) > limit else shown
