"""Numbers, lists and times in messages."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from itertools import islice


def counted(number: int, noun: str) -> str:
    """Return "1 partition" or "2 partitions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def how_many(number: int, one: str, many: str) -> str:
    """Return "1 broker does" or "1,000 brokers do"."""
    return f"{number:,} {one if number == 1 else many}"


def listed(
    values: Collection[object], limit: int = 10, *, separator: str = ", ", total: int | None = None
) -> str:
    """Return the first few values, and how many more there are.

    ``total`` is their number if ``values`` has not all.
    """
    more = max(0, (len(values) if total is None else total) - min(limit, len(values)))
    shown = separator.join(map(str, islice(values, limit)))
    return f"{shown} and {more:,} more" if more else shown


def number_range(low: int, high: int) -> str:
    """Return both numbers, or one if they are equal."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def moment_text(timestamp_ms: int) -> str:
    """Return a time in UTC; a number that is no date, as it is."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
