"""``designs``: the designs that came before the controller, beside it."""

from __future__ import annotations

import click

from regent.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "compare": LazyCommand(
        "regent.cli.designs_compare", "compare", "Measure what failures cost in each design."
    ),
}


@click.group(cls=LazyGroup, commands=COMMANDS)
def designs() -> None:
    """Run the designs that came before the controller, and measure them beside it."""
