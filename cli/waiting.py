"""Waiting in commands: the option of the limit, and progress on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from regent.cli.output import note
from regent.core.errors import RegentError

if TYPE_CHECKING:
    from rich.progress import TaskID

MAX_INT32: Final = 2**31 - 1
"""The largest number in requests, for times and for partitions."""

F = TypeVar("F", bound=Callable[..., Any])


def timeout_option(help_text: str) -> Callable[[F], F]:
    """Add ``--timeout-ms``, half a minute by default."""
    return click.option(
        "--timeout-ms",
        type=click.IntRange(0, MAX_INT32),
        default=30_000,
        show_default=True,
        help=help_text,
    )


class Waiting:
    """Shows on stderr what the command waits for, and how long, after a moment.

    On a terminal one line counts the seconds and disappears at the end of the block. Elsewhere a
    line is printed first, when the message changes, and every five seconds.
    """

    def __init__(self, *, first_s: float = 0.5, line_every_s: float = 5.0) -> None:
        self._first_s = first_s
        self._line_every_s = line_every_s
        self._message = ""
        self._started = time.monotonic()
        self._wake = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._show, name="waiting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._wake:
            self._is_over = True
            self._wake.notify()
        self._thread.join()

    def say(self, message: str) -> None:
        """Set what the command waits for."""
        with self._wake:
            if message != self._message:
                self._message = message
                self._wake.notify()

    def _show(self) -> None:
        is_terminal = sys.stderr.isatty()
        every_s = 1.0 if is_terminal else self._line_every_s
        shown = None
        with self._wake, suppress(OSError, ValueError):  # stderr may be closed
            self._wake.wait_for(lambda: self._is_over, self._first_s)
            self._wake.wait_for(lambda: self._is_over or self._message)
            while not self._is_over:
                shown = self._message
                waited_s = time.monotonic() - self._started
                line = f"{shown} ({waited_s:.0f} s)"
                click.echo(f"\r\x1b[K{line}" if is_terminal else line, err=True, nl=not is_terminal)
                self._wake.wait_for(partial(self._is_outdated, shown), every_s)
            if shown is not None and is_terminal:
                click.echo("\r\x1b[K", err=True, nl=False)

    def _is_outdated(self, shown: str) -> bool:
        return self._is_over or self._message != shown


class Explained:
    """Says on stderr why nothing happens: after a moment, and when the reason has changed.

    ``explain`` returns the reasons; it is called at most once in ``every_s`` seconds.
    """

    def __init__(
        self,
        what: str,
        explain: Callable[[], Sequence[str]],
        *,
        first_s: float = 2.0,
        every_s: float = 5.0,
    ) -> None:
        self._what = what
        self._explain = explain
        self._every_s = every_s
        self._first_s = first_s
        self._due = time.monotonic() + first_s
        self._said: Sequence[str] = ()

    def heard(self) -> None:
        """Something has happened."""
        self._due = time.monotonic() + self._first_s

    def check(self) -> None:
        """Say the reason if it is time to."""
        if time.monotonic() < self._due:
            return
        reasons = self.reasons()
        self._due = time.monotonic() + self._every_s
        if reasons and reasons != self._said:
            self._said = reasons
            note(f"regent: {self._what}: {'; '.join(reasons)}")

    def reasons(self) -> Sequence[str]:
        """Return the reasons now; none if they cannot be found out."""
        try:
            return self._explain()
        except RegentError:
            return ()

    def because(self) -> str:
        """Return the reasons now, as the end of an error message."""
        return "".join(f"; {reason}" for reason in self.reasons())


class Progress:
    """A progress bar on stderr, which disappears at the end of the block.

    Without a terminal there is none.
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
        """Set the remaining amount."""
        if self._task is not None:
            done = self._total - remaining
            self._bar.update(self._task, completed=done, description=self._said(remaining))

    def _said(self, remaining: int) -> str:
        return f"{self._activity}: {remaining}/{self._total} {self._nouns} remain"
