"""Changes of the overrides of a topic or a broker, as clients ask for them.

Mirrors ``kafka.server.ConfigAdminManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from regent.core.errors import Errors
from regent.core.protocol.topics import AlterOperation, ConfigAlteration
from regent.core.setting import ConfigType, Setting


class ConfigRefusedError(Exception):
    """A change that is refused; the message is a sentence that names the setting."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


def check_form(owner: str, alterations: Sequence[ConfigAlteration]) -> None:
    """Check what needs no knowledge of the settings; raises ``ConfigRefusedError``.

    ``owner`` is the first word or words of the message, as "topic t".
    """
    for name, count in Counter(row.name for row in alterations).items():
        if count > 1:
            message = f"{owner} config {name} is named {count} times"
            raise ConfigRefusedError(Errors.INVALID_REQUEST, message)
    for name, operation, value in alterations:
        if value is None and operation != AlterOperation.DELETE:
            message = f"{owner} config {name} has no value"
            raise ConfigRefusedError(Errors.INVALID_REQUEST, message)
        if operation not in set(AlterOperation):
            message = f"{owner} config {name} cannot be changed: unknown operation {operation}"
            raise ConfigRefusedError(Errors.INVALID_REQUEST, message)


def altered(
    owner: str,
    alterations: Sequence[ConfigAlteration],
    current: Mapping[str, str],
    *,
    replaces: bool,
    settings: Mapping[str, Setting],
    defaults: Mapping[str, str],
    problem: Callable[[str, str], ConfigRefusedError | None],
) -> dict[str, str | None]:
    """Return the new overrides, None for those to remove.

    ``replaces``: all other overrides are removed. ``defaults`` has the values of settings without
    an override: items are appended to them. ``problem`` is asked about each new value. Raises
    ``ConfigRefusedError``.
    """
    check_form(owner, alterations)
    changes: dict[str, str | None] = dict.fromkeys(current) if replaces else {}
    for row in alterations:
        old = current.get(row.name, defaults.get(row.name, ""))
        value = changes[row.name] = _new_value(owner, row, old, settings)
        refusal = None if value is None else problem(row.name, value)
        if refusal is not None:
            raise refusal
    return changes


def _new_value(
    owner: str, alteration: ConfigAlteration, old: str, settings: Mapping[str, Setting]
) -> str | None:
    """Return the new value of a setting, None to remove it; ``old`` is the value in effect."""
    name, operation, value = alteration
    if operation == AlterOperation.DELETE or value is None:
        return None
    if operation == AlterOperation.SET:
        return value
    row = settings.get(name)
    if row is not None and row.type is not ConfigType.LIST:
        raise ConfigRefusedError(Errors.INVALID_CONFIG, f"{owner} config {name} is not a list")
    present, given = [item for item in old.split(",") if item], value.split(",")
    if operation == AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    return ",".join(item for item in present if item not in given)
