"""The declaration of a setting: its name, default, type, allowed values, scope and meaning.

A table of settings is a dataclass whose fields are made by ``setting``. Its instances have the
values that code reads; its fields have the declarations. The loader, the checks of values, the
answers to DescribeConfigs, the example files and the reference page read the same declarations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Final, TypeAlias

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308
DAY_MS: Final = 86_400_000

WITHOUT_EFFECT: Final = "Accepted from Kafka's tools. It has no effect."
NOT_HERE: Final = "A setting of Kafka's brokers. It has no effect here."

_KEY = "setting"
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_FRACTION = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


SettingValues: TypeAlias = Mapping[str, Any]
"""The values of settings by Kafka's names."""


class ConfigType(IntEnum):
    """The type of a setting's value. The numbers are DescribeConfigs'."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_WHOLE_NUMBERS = ConfigType.SHORT, ConfigType.INT, ConfigType.LONG
_NUMBERS = *_WHOLE_NUMBERS, ConfigType.DOUBLE
_CLASSES: Mapping[ConfigType, type] = {
    ConfigType.BOOLEAN: bool,
    ConfigType.DOUBLE: float,
    **dict.fromkeys(_WHOLE_NUMBERS, int),
}
"""The Python type of the values of a type; of others it is str."""


class Scope(Enum):
    """Where a setting can be set, and when it takes effect. Kafka's update modes, and topics."""

    READ_ONLY = "read-only"
    """For a broker, when it starts."""
    PER_BROKER = "per broker"
    """When a broker starts, or in ZooKeeper for one broker; a running broker follows."""
    CLUSTER_WIDE = "cluster-wide"
    """When a broker starts, or in ZooKeeper for one or all brokers; running brokers follow."""
    TOPIC = "per topic"
    """In ZooKeeper, for each topic; running brokers follow."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What the declaration of a setting adds to the name and the default of its field.

    ``limits`` are the least and the greatest value of a number. ``choices`` are the allowed
    values as text, or those of each item of a list or table; empty: any. A list may be empty.
    ``pattern`` is a regular expression that text must match; ``form`` describes it in words.
    ``type``: None where the default shows it. ``ours``: Kafka has no such setting. Kafka's name is
    ``prefix`` and the name
    of the field. ``broker_name`` is the broker's setting (Kafka's name) that is the default of a
    topic's.
    """

    meaning: str
    limits: tuple[float, float] = (0, DAY_MS)
    choices: tuple[str, ...] = ()
    pattern: str = ""
    form: str = ""
    type: ConfigType | None = None
    scope: Scope = Scope.READ_ONLY
    ours: bool = False
    prefix: str = ""
    broker_name: str | None = None

    @property
    def metadata(self) -> Mapping[str, Declaration]:
        """The metadata of a field that is a setting."""
        return {_KEY: self}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a table: the field's name and default, and its declaration."""

    name: str
    default: Any
    declared: Declaration

    @property
    def meaning(self) -> str:
        """What the setting does."""
        return self.declared.meaning

    @property
    def scope(self) -> Scope:
        """Where it can be set."""
        return self.declared.scope

    @property
    def dotted_name(self) -> str:
        """The name that clients know: Kafka's, or ours in the same style."""
        return self.declared.prefix + self.name.replace("_", ".")

    @property
    def kafka_name(self) -> str | None:
        """Kafka's name; None if Kafka does not have the setting."""
        return None if self.declared.ours else self.dotted_name

    @property
    def has_effect(self) -> bool:
        """Whether Regent reads the setting."""
        return self.declared.meaning not in (WITHOUT_EFFECT, NOT_HERE)

    @property
    def type(self) -> ConfigType:
        """The type of the value. A number that may exceed 2³¹ - 1 is a LONG."""
        if self.declared.type is not None:
            return self.declared.type
        if isinstance(self.default, bool):
            return ConfigType.BOOLEAN
        if isinstance(self.default, float):
            return ConfigType.DOUBLE
        if not isinstance(self.default, int):
            return ConfigType.STRING
        return ConfigType.LONG if self.declared.limits[1] > INT_MAX else ConfigType.INT

    @property
    def limits(self) -> tuple[float, float] | None:
        """The least and the greatest value of a number; None for other types."""
        return self.declared.limits if self.type in _NUMBERS else None

    @property
    def allowed(self) -> str:
        """The allowed values, in words that follow "must be"."""
        choices = self.declared.choices
        if self.declared.form:
            return self.declared.form
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.limits is not None:
            return f"a number from {self.limits[0]} to {self.limits[1]}"
        if isinstance(self.default, Mapping):
            return f"a table of names, each with one of {', '.join(choices)}"
        if self.type is ConfigType.LIST and len(choices) > 1:
            choices = (*choices, ",".join(choices))
        return f"one of {', '.join(choices)}" if choices else "a string"

    def problem(self, value: object) -> str | None:
        """Return why a value is not allowed, as the end of a sentence; None if it is allowed."""
        return None if self._accepts(value) else f"must be {self.allowed}, not {self._shown(value)}"

    def text_problem(self, text: str) -> str | None:
        """Return the same for a value that comes as text, from ZooKeeper or a Kafka client."""
        value = self.parsed(text)
        return None if self._accepts(value) else f"must be {self.allowed}, not {self._shown(text)}"

    def _shown(self, value: object) -> str:
        """Return a value as an error may show it."""
        return "this (it is secret)" if self.type is ConfigType.PASSWORD else repr(value)

    def change_problem(self, text: str) -> str | None:
        """Return why a running broker cannot get the value; None if it can."""
        if self.scope is Scope.READ_ONLY:
            return (
                "cannot be changed while the broker runs: set it in the file or on the command line"
                " of the broker, and restart the broker"
            )
        return self.text_problem(text)

    def parsed(self, text: str) -> Any:
        """Return the value that a text stands for; the text itself if it stands for none."""
        stripped = text.strip()
        if self.type is ConfigType.DOUBLE and _FRACTION.fullmatch(stripped):
            return float(stripped)
        if self.limits is not None and _NUMBER.fullmatch(stripped):
            return int(stripped)
        if self.type is ConfigType.BOOLEAN and stripped.lower() in ("true", "false"):
            return stripped.lower() == "true"
        return stripped

    def _accepts(self, value: object) -> bool:
        if self.type is ConfigType.DOUBLE and type(value) is int:
            value = float(value)
        expected = dict if isinstance(self.default, Mapping) else _CLASSES.get(self.type, str)
        if type(value) is not expected:
            return False
        if self.limits is not None:
            low, high = self.limits
            if not (isinstance(value, int | float) and low <= value <= high):
                return False
        if isinstance(value, str) and re.fullmatch(self.declared.pattern or ".*", value) is None:
            return False
        items: Any = [value]
        if isinstance(value, Mapping):
            items = value.values()
        elif isinstance(value, str) and self.type is ConfigType.LIST:
            items = [item.strip() for item in value.split(",")] if value else []
        choices = self.declared.choices
        return not choices or all(text_of(item) in choices for item in items)


def setting(default: Any, meaning: str, **declared: Any) -> Any:
    """Return a field of a table; ``declared`` has further fields of ``Declaration``."""
    declaration = Declaration(meaning, **declared)
    metadata = declaration.metadata
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(
        default=default, metadata=metadata, repr=declaration.type is not ConfigType.PASSWORD
    )


def settings_of(table: Any) -> Iterator[Setting]:
    """Yield the settings of ``table``, an instance with the default values, in their order."""
    for declaration in fields(table):
        default = getattr(table, declaration.name)
        yield Setting(declaration.name, default, declaration.metadata[_KEY])


def text_of(value: object) -> str:
    """Return a value as the text that clients are told."""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, float):
        return str(value).replace("e+", "E")  # as Java writes it
    return str(value).lower() if isinstance(value, bool) else str(value)
