"""``groups``: the group of commands about consumer groups."""

from __future__ import annotations

import click

from regent.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "list": LazyCommand("regent.cli.groups_list", "list_groups", "List the consumer groups."),
    "describe": LazyCommand(
        "regent.cli.groups_describe", "describe", "Show offsets, lag, members and states."
    ),
    "reset-offsets": LazyCommand(
        "regent.cli.groups_reset", "reset_offsets", "Change what a group reads next."
    ),
    "delete": LazyCommand("regent.cli.groups_delete", "delete", "Delete groups without members."),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def groups() -> None:
    """List, describe, reset and delete consumer groups."""
