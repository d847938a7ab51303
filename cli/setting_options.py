"""An option for each setting of a broker: for ``broker``, and for commands that examine files."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import click

from regent.config.settings import SETTING_OPTIONS

PREFIX: Final = "REGENT_"
"""What the names of variables of the environment begin with."""


def setting_options(command: Any, shown: Collection[str] = ()) -> Any:
    """Add an option for each setting; the help text lists those that are ``shown``."""
    for name, (_, row) in reversed(SETTING_OPTIONS.items()):
        # What is off by default may also be given without a value: --no-replicas.
        alone: dict[str, Any] = (
            {"is_flag": False, "flag_value": True} if row.default is False else {}
        )
        option = click.option(
            f"--{name.replace('_', '-')}",
            type=type(row.default),
            metavar=row.type.name,
            help=row.meaning,
            hidden=name not in shown,
            envvar=f"{PREFIX}{name.upper()}",
            **alone,
        )
        command = option(command)
    return command


def given_settings(options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the settings that the command line or the environment has, by table and name."""
    given: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if value is not None:
            table, row = SETTING_OPTIONS[name]
            given.setdefault(table, {})[row.name] = value
    return given
