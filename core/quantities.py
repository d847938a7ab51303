"""Bytes and durations as people read them, in warnings of brokers and in the output of commands."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_STEP: Final = 1000
_TEN: Final = 10
_SPANS: Final = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))


def bytes_text(number: float) -> str:
    """Return for example "1.5 GB", in powers of 1000 as disks are sold; "?" below 0: unknown."""
    if number < 0:
        return "?"
    size, unit = float(number), 0
    while size >= _STEP - 0.5 and unit < len(_UNITS) - 1:
        size, unit = size / _STEP, unit + 1
    digits = 1 if unit and size < _TEN else 0
    return f"{size:.{digits}f} {_UNITS[unit]}"


def span_text(seconds: float) -> str:
    """Return for example "2 min" or "3.5 h": a duration that is at least a second, rounded."""
    for length, unit in _SPANS:
        if seconds >= length:
            many = seconds / length
            return f"{many:.1f} {unit}" if unit != "min" and many < _TEN else f"{many:.0f} {unit}"
    return f"{seconds:.0f} s"
