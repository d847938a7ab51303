"""Options that several commands have; importing this module does not import Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from regent.core.placement.replica_placer import IndexScope, Strategy

F = TypeVar("F", bound=Callable[..., Any])

_AT_LEAST_ONE: Final = click.IntRange(min=1)


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds options of click, which ``--help`` shows in this sequence."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def number_option(
    *names: str,
    text: str,
    default: float | None = None,
    kind: click.ParamType[Any] = _AT_LEAST_ONE,
) -> Callable[[F], F]:
    """Return an option for a number: at least one, or what ``kind`` says."""
    return click.option(*names, type=kind, default=default, show_default=True, help=text)


seed_option: Final = number_option(
    "--seed",
    kind=click.IntRange(0, 2**63 - 1),
    default=0,
    text="The same seed gives the same result.",
)

strategy_options: Final = with_options(
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
)
"""Adds ``--strategy``, ``--start-index`` and ``--index`` to a command."""
