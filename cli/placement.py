"""Options for the placement of new partitions, and the state of the placement service."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any, Final

import click

from regent.cluster.cluster_file import PlacementEntry
from regent.core.protocol.messages.topics import PlacementOptions
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
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


def placement_status(service: PlacementEntry, *, timeout_s: float) -> tuple[str, str] | None:
    """Return the state of the service and a message; None when it does not answer."""
    from regent.cli.remote_actors import actor_at
    from regent.transport.control.client import RequestError
    from regent.transport.control.remote_ref import ask

    try:
        with actor_at(service.endpoint) as actor:
            request = PlacementStatusRequest()
            status = ask(actor, request, PlacementStatusResponse, timeout_s=timeout_s)
            return status.state, status.message
    except RequestError:
        return None
