"""What ``topics config`` and ``brokers config`` have in common: changing and showing overrides."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import click

from regent.cli.new_topics import parse_config
from regent.cli.output import Output, note, print_json, print_table
from regent.core.errors import RegentError
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation

F = TypeVar("F", bound=Callable[..., Any])


_NEXT_SETTING = re.compile(r",(?![^\[]*\])(?=\s*[^\s=,]+\s*=)")


class NotOverriddenError(RegentError):
    """A setting is to be removed that is not set."""


def _changes_options(function: F) -> F:
    for option in (
        click.option(
            "--delete-config", "also_removed", metavar="NAME,…", multiple=True, hidden=True
        ),
        click.option(
            *("--add-config", "also_set"), metavar="NAME=VALUE,…", multiple=True, hidden=True
        ),
        click.option(
            *("--unset", "removed"), metavar="NAME", multiple=True, help="Remove an override."
        ),
        click.option(
            *("--set", "--config", "settings"),
            metavar="NAME=VALUE",
            multiple=True,
            help="Set an override.",
        ),
    ):
        function = option(function)
    return function


def changes_options(command: F) -> F:
    """Add ``--set`` and ``--unset``, and the options of ``kafka-configs.sh`` with its notation.

    There commas separate settings, and brackets enclose a value that has commas. The command gets
    all as ``settings`` and ``removed``.
    """

    @functools.wraps(command)
    def with_all(
        *args: Any,
        settings: Sequence[str],
        removed: Sequence[str],
        also_set: Sequence[str],
        also_removed: Sequence[str],
        **kwargs: Any,
    ) -> Any:
        added = [_without_brackets(row) for text in also_set for row in _NEXT_SETTING.split(text)]
        names = [name.strip() for text in also_removed for name in text.split(",")]
        return command(*args, settings=[*settings, *added], removed=[*removed, *names], **kwargs)

    return cast("F", _changes_options(with_all))


def _without_brackets(setting: str) -> str:
    name, separator, value = setting.partition("=")
    value = value.strip()
    if value.startswith("[") and value.endswith("]"):
        value = value[1:-1]
    return f"{name}{separator}{value}"


def config_changes(settings: Sequence[str], removed: Sequence[str]) -> list[AlterableConfig]:
    """Return the changes that the options ask for; raises ``click.UsageError``."""
    try:
        values = parse_config(settings)
    except ValueError as error:
        raise click.UsageError(f"--set {error}") from None
    for name, count in Counter((*values, *removed)).items():
        if count > 1:
            raise click.UsageError(f"{name} is both set and unset, or unset twice")
    return [
        *(AlterableConfig(name=name, value=value) for name, value in values.items()),
        *(AlterableConfig(name=n, config_operation=AlterOperation.DELETE) for n in removed),
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


def show_config(
    kind: str, name: object, current: Mapping[str, str], unusable: Mapping[str, str], output: str
) -> None:
    """Print the overrides of an owner, a topic for instance.

    ``unusable`` has the reasons why some of them are not in force.
    """
    usable = {n: value for n, value in sorted(current.items()) if n not in unusable}
    if output == Output.JSON:
        ignored = {n: current[n] for n in sorted(unusable)}
        print_json({kind: name, "config": usable, **({"ignored": ignored} if ignored else {})})
    elif usable:
        print_table(["name", "value"], usable.items())
    else:
        note(f"{kind} {name} overrides nothing")
    for setting, problem in sorted(unusable.items()):
        note(f"{kind} {name} config {setting} {problem}; it is ignored, remove it with --unset")
