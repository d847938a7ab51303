"""Options for the placement of new partitions, and the state of the placement service."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any, Final

import click

from regent.core.protocol.messages.topics import PlacementOptions
from regent.jobs.options import strategy_options, with_options

PLACEMENT_TIMEOUT_MS: Final = 60_000


service_options: Final = with_options(
    click.option(
        "--placement-service/--no-placement-service",
        default=True,
        help="Place with the Spark session of the placement service, or without Spark.",
    ),
    click.option(
        "--placement-timeout-ms",
        type=click.IntRange(min=0),
        default=PLACEMENT_TIMEOUT_MS,
        show_default=True,
        help="Time to wait for the placement service to start.",
    ),
)
"""Adds the options about the service: ``placement_service`` and ``placement_timeout_ms``."""


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the placement: ``placement`` and ``placement_timeout_ms``."""

    @strategy_options
    @service_options
    @functools.wraps(command)
    def with_placement(*args: Any, **kwargs: Any) -> Any:
        options = PlacementOptions(
            strategy=kwargs.pop("strategy"),
            start_index=kwargs.pop("start_index"),
            index=kwargs.pop("index"),
            seed=secrets.randbits(63),
            use_service=kwargs.pop("placement_service"),
        )
        return command(*args, placement=options, **kwargs)

    return with_placement
