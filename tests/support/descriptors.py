"""A process that has no file descriptor left, for tests of what it does then."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OPENS = ("open", "os.listdir", "os.scandir")  # audit events: all that takes a descriptor


class Shortage:
    """Lets so many files be opened below a directory, and none after them."""

    def __init__(self) -> None:
        self._directory = ""
        self._left = 0
        self.is_met = False
        """Whether a file could not be opened."""
        sys.addaudithook(self._on_event)  # there is no way back

    @contextmanager
    def after(self, opened: int, directory: Path) -> Iterator[None]:
        """Have no descriptor left after so many files were opened."""
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
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
