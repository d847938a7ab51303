"""What commands that wait have in common: a limit, and progress shown on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

F = TypeVar("F", bound=Callable[..., Any])


def timeout_option(help_text: str) -> Callable[[F], F]:
    """Add ``--timeout-ms``, half a minute by default."""
    return click.option(
        "--timeout-ms",
        type=click.IntRange(min=0),
        default=30_000,
        show_default=True,
        help=help_text,
    )


class Progress:
    """A bar on stderr that fills as what is waited for becomes less; gone when the block ends.

    Where stderr is no terminal there is none.
    """

    def __init__(self, activity: str, total: int, nouns: str) -> None:
        self._activity = activity
        self._total = total
        self._nouns = nouns
        self._open = ExitStack()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
            )
            bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._bar = self._open.enter_context(bar)
            self._task: TaskID | None = bar.add_task(self._said(self._total), total=self._total)
        else:
            self._task = None
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def remain(self, remaining: int) -> None:
        """Say how much there is still to wait for."""
        if self._task is not None:
            done = self._total - remaining
            self._bar.update(self._task, completed=done, description=self._said(remaining))

    def _said(self, remaining: int) -> str:
        return f"{self._activity}: {remaining}/{self._total} {self._nouns} remain"
