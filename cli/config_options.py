"""What ``topics config`` and ``brokers config`` have in common: changing and showing overrides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from regent.cli.new_topics import parse_config
from regent.cli.output import Output, note, print_json, print_table
from regent.core.errors import RegentError
from regent.core.protocol.topics import AlterOperation, ConfigAlteration

F = TypeVar("F", bound=Callable[..., Any])


class NotOverriddenError(RegentError):
    """A setting is to be removed that is not set."""


def changes_options(function: F) -> F:
    """Add the options ``--set`` and ``--unset``; the second names are those of Kafka's tools."""
    for option in (
        click.option(
            *("--unset", "--delete-config", "removed"),
            metavar="NAME",
            multiple=True,
            help="Remove an override.",
        ),
        click.option(
            *("--set", "--config", "--add-config", "settings"),
            metavar="NAME=VALUE",
            multiple=True,
            help="Set an override.",
        ),
    ):
        function = option(function)
    return function


def config_changes(settings: Sequence[str], removed: Sequence[str]) -> list[ConfigAlteration]:
    """Return the changes that the options ask for; raises ``click.UsageError``."""
    try:
        values = parse_config(settings)
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from None
    for name, count in Counter((*values, *removed)).items():
        if count > 1:
            raise click.UsageError(f"{name} is both set and unset, or unset twice")
    return [
        *(ConfigAlteration(name, AlterOperation.SET, value) for name, value in values.items()),
        *(ConfigAlteration(name, AlterOperation.DELETE) for name in removed),
    ]


def check_removed(owner: str, current: Mapping[str, str], removed: Sequence[str]) -> None:
    """Check that everything to remove is set; raises ``NotOverriddenError``."""
    overridden = ", ".join(sorted(current)) or "none"
    problems = [
        f"{owner} config {name} is not overridden; the overrides are {overridden}"
        for name in removed
        if name not in current
    ]
    if problems:
        raise NotOverriddenError("\n".join(problems))


def show_config(kind: str, name: object, current: Mapping[str, str], output: str) -> None:
    """Print the overrides of an owner, a topic for instance."""
    if output == Output.JSON:
        print_json({kind: name, "config": dict(sorted(current.items()))})
    elif current:
        print_table(["name", "value"], sorted(current.items()))
    else:
        note(f"{kind} {name} overrides nothing")
