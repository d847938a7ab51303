"""Groups whose commands are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import click

from regent.config.command_line import JOBS, pip_install
from regent.core.errors import RegentError


class LazyCommand(NamedTuple):
    """The module of a command; ``summary`` is None for an internal one."""

    module: str
    attribute: str
    summary: str | None


def load(module: str, command: str) -> ModuleType:
    """Import the module of a command; raises ``RegentError`` with the remedy if it cannot."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "regent":
            raise RegentError(f"the command {command} cannot be loaded: {error}") from error
        raise RegentError(
            f"the command {command} needs {error.name}, which is not installed: run"
            f" {pip_install(JOBS)}"
        ) from error
    except ImportError as error:
        raise RegentError(f"the command {command} cannot be loaded: {error}") from error


class HelpfulGroup(click.Group):
    """A group that names the commands that an unknown one may mean."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; for an unknown one name those that are meant, perhaps."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.public_commands(ctx)) if args else []
            if not close:
                raise
            meant = f"{error.message.rstrip('.')}: did you mean {' or '.join(close)}?"
            raise click.UsageError(meant, ctx) from None

    def public_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that the help lists."""
        del ctx
        return [name for name, command in self.commands.items() if not command.hidden]


class LazyGroup(HelpfulGroup):
    """A group whose commands are imported when they are called."""

    def __init__(self, *args: Any, commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = commands

    def public_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that the help lists, without importing them."""
        return [name for name, lazy in self._lazy.items() if lazy.summary]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the sequence of their declaration."""
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name."""
        lazy = self._lazy.get(cmd_name)
        if lazy is None:
            return None
        command = getattr(load(lazy.module, cmd_name), lazy.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, lazy.summary) for name, lazy in self._lazy.items() if lazy.summary]
            )
