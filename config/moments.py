"""Moments as users give them: a time such as 2026-01-31T23:59:00, or how long ago: 10m.

Without a zone they are in UTC, as those of events and records are shown.

Durations are 10m, too, or in ISO 8601's form, as Kafka's tools take them: PT10M.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(rf"(\d{{1,9}})([{''.join(_UNITS_MS)}])")
_DATE_DIGITS = 8  # of 20260131
_ISO_DURATION = re.compile(
    r"P(?=[\dT])(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?"
)


def parse_moment(text: str) -> int:
    """Return a moment in milliseconds since 1970; raises ``ValueError`` of one line."""
    ago = _AGO.fullmatch(text.removesuffix(" ago"))
    if ago is not None:
        return time.time_ns() // 1_000_000 - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time such as 2026-01-31T23:59:00 or 10m ago (30s, 10m, 2h, 1d)"
        ) from None


def parse_timestamp(text: str) -> int:
    """Return the time of a record, in UTC; a number that is no date is in milliseconds itself."""
    is_number = re.fullmatch(r"[0-9]{1,18}", text) and len(text) != _DATE_DIGITS
    return int(text) if is_number else parse_moment(text)


def parse_duration(text: str) -> int:
    """Return a duration in milliseconds; raises ``ValueError`` of one line."""
    short = _AGO.fullmatch(text)
    if short is not None:
        return int(short[1]) * _UNITS_MS[short[2]]
    iso = _ISO_DURATION.fullmatch(text.upper())
    if iso is None:
        raise ValueError(f"{text!r} is not a duration such as PT1H, P1DT30M, or 10m")
    return round(
        sum(float(n or 0) * _UNITS_MS[u] for n, u in zip(iso.groups(), "dhms", strict=True))
    )
