"""Options for the placement of new partitions, and the state of the placement service."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import click

from regent.cluster.cluster_file import PlacementEntry
from regent.core.placement.replica_placer import IndexScope, Strategy
from regent.core.protocol.placement import PlacementStatusRequest, PlacementStatusResponse
from regent.core.protocol.topics import PlacementOptions

PLACEMENT_TIMEOUT_MS: Final = 60_000

F = TypeVar("F", bound=Callable[..., Any])


def service_options(command: F) -> F:
    """Add the options about the service: ``placement_service`` and ``placement_timeout_ms``."""
    with_timeout = click.option(
        "--placement-timeout-ms",
        type=click.IntRange(min=0),
        default=PLACEMENT_TIMEOUT_MS,
        show_default=True,
        help="Time to wait for the placement service to start; then Spark is not used.",
    )(command)
    return click.option(
        "--placement-service/--no-placement-service",
        default=True,
        help="Place with the Spark session of the placement service, or without Spark.",
    )(with_timeout)


def placement_options(command: F) -> F:
    """Add the options of the placement: ``placement`` and ``placement_timeout_ms``."""
    options = [
        click.option(
            "--strategy",
            type=click.Choice([strategy.value for strategy in Strategy]),
            default=Strategy.RING.value,
            show_default=True,
            help="How replicas are spread. ring: over neighbouring brokers. kafka: as Kafka does"
            " without racks. rack-aware: as Kafka does with racks. copyset: over few sets of"
            " brokers.",
        ),
        click.option(
            "--start-index",
            metavar="N|random|least-loaded",
            default="0",
            show_default=True,
            help="The index of the first replica of the first partition.",
        ),
        click.option(
            "--index",
            type=click.Choice([scope.value for scope in IndexScope]),
            default=IndexScope.BATCH.value,
            show_default=True,
            help="Whether partitions are counted over all topics of a file, or from 0 in each.",
        ),
        service_options,
    ]

    @functools.wraps(command)
    def with_placement(*args: Any, **kwargs: Any) -> Any:
        options = PlacementOptions(
            kwargs.pop("strategy"),
            kwargs.pop("start_index"),
            kwargs.pop("index"),
            seed=secrets.randbits(63),
            use_service=kwargs.pop("placement_service"),
        )
        return command(*args, placement=options, **kwargs)

    decorated: Any = with_placement
    for option in reversed(options):
        decorated = option(decorated)
    return cast("F", decorated)


def placement_status(
    service: PlacementEntry, *, timeout_s: float
) -> PlacementStatusResponse | None:
    """Return the status of the service; None when it does not answer."""
    from regent.cli.remote_actors import actor_at
    from regent.transport.client import RequestError
    from regent.transport.remote_ref import ask

    try:
        with actor_at(service.endpoint) as actor:
            return ask(
                actor, PlacementStatusRequest(), PlacementStatusResponse, timeout_s=timeout_s
            )
    except RequestError:
        return None
