"""What is known about one setting: its limits and its meaning, beside its name, type and default.

A table of settings is a dataclass whose fields are made by ``setting``. The loader, the example
files and the reference page read the same declarations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Final

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DAY_MS: Final = 86_400_000

_KEY = "setting"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a table.

    ``limits`` are the least and the greatest value of an integer. ``choices`` are the values that a
    string, or each string of a table, may have; empty: any. ``kafka_name`` is None for a
    setting that Kafka does not have.
    """

    name: str
    default: object
    meaning: str
    limits: tuple[int, int] | None
    choices: tuple[str, ...]
    kafka_name: str | None

    def problem(self, value: object) -> str | None:
        """Return what a value must be instead, as the rest of a sentence; None if it is valid."""
        expected = type(self.default)
        if type(value) is not expected:
            return f"must be of type {expected.__name__}: {value!r}"
        for one in value.values() if isinstance(value, dict) else (value,):
            if self.choices and one not in self.choices:
                return f"must be one of {sorted(self.choices)}: {one!r}"
        if self.limits is not None and isinstance(value, int):
            low, high = self.limits
            if not low <= value <= high:
                return f"must be in {low}..{high}: {value}"
        return None


@dataclass(frozen=True, slots=True)
class _Declared:
    meaning: str
    limits: tuple[int, int]
    choices: tuple[str, ...]
    is_kafkas: bool
    prefix: str


def setting(
    default: Any,
    meaning: str,
    *,
    limits: tuple[int, int] = (0, DAY_MS),
    choices: tuple[str, ...] = (),
    ours: bool = False,
    prefix: str = "",
) -> Any:
    """Return a field of a table.

    ``limits`` count for integers only. ``ours``: Kafka has no such setting. ``prefix`` is what
    Kafka's name has before the field's.
    """
    declared = _Declared(meaning, limits, choices, not ours, prefix)
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata={_KEY: declared})
    return field(default=default, metadata={_KEY: declared})


def settings_of(table: Any) -> Iterator[Setting]:
    """Yield the settings of a table, an instance with the default values, in their sequence."""
    for declaration in fields(table):
        declared: _Declared = declaration.metadata[_KEY]
        default = getattr(table, declaration.name)
        kafka_name = declared.prefix + declaration.name.replace("_", ".")
        yield Setting(
            declaration.name,
            default,
            declared.meaning,
            declared.limits if type(default) is int else None,
            declared.choices,
            kafka_name if declared.is_kafkas else None,
        )
