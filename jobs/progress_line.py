"""Progress of a long job on stderr: a changing line on a terminal, one line a minute elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from typing import Final, Self

import click

_HEARTBEAT_S: Final = 60.0
_ERASE: Final = "\r\x1b[K"


class ProgressLine:
    """The last line of a terminal, which disappears at the end; elsewhere, a line a minute."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal:
            click.echo(_ERASE, nl=False, err=True)

    def show(self, text: str) -> None:
        """Replace the line by ``text``; without a terminal, print one line a minute."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            click.echo(_ERASE + text[:width], nl=False, err=True)
        elif time.monotonic() >= self._next_heartbeat:
            self.say(text)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        click.echo((_ERASE if self._is_terminal else "") + text, err=True)
        self._next_heartbeat = time.monotonic() + _HEARTBEAT_S
