"""Simulates a process without free file descriptors."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENS = ("open", "os.listdir", "os.scandir")  # audit events of calls that need a descriptor


class Shortage:
    """Allows a number of files to be opened below a directory, and none after them."""

    def __init__(self) -> None:
        self._directory = ""
        self._left = 0
        self.is_met = False
        """Whether a file could not be opened."""
        sys.addaudithook(self._on_event)  # hooks cannot be removed

    @contextmanager
    def after(self, opened: int, directory: Path) -> Iterator[None]:
        """Allow this number of files to be opened."""
        self._directory, self._left, self.is_met = str(directory), opened, False
        try:
            yield
        finally:
            self._directory = ""

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._directory and event in _OPENS and str(arguments[0]).startswith(self._directory):
            self._left -= 1
            if self._left < 0:
                self.is_met = True
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(arguments[0]))


SHORTAGE = Shortage()


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Let this process open no file at all."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
