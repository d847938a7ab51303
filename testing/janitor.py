"""``python -m regent.testing.janitor``: cleans up after a test process that was killed.

It reads lines from standard input: ``process PID`` and ``folder PATH`` name what to clean up, and
``done`` ends it without an action. When the input ends without ``done``, the test process is dead:
it kills the processes and removes the folders.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO

_REMOVAL_S = 20.0  # brokers need a moment to end after their parent; until then they write
_POLL_S = 0.1


class Janitor:
    """The side of the test process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regent.testing.janitor"],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def process(self, pid: int) -> None:
        """Register a process to kill if this process is killed."""
        self._say(f"process {pid}")

    def folder(self, path: Path) -> None:
        """Register a folder to remove if this process is killed."""
        self._say(f"folder {path}")

    def dismiss(self) -> None:
        """End the janitor: everything was cleaned up."""
        with suppress(BrokenPipeError):
            self._say("done")
        self._process.communicate()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def clean_up(lines: IO[str]) -> None:
    """Read the registrations; clean up at the end of the input."""
    processes: list[int] = []  # pidfds: a process id may be reused
    folders: list[Path] = []
    for line in lines:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "done":
            return
        if word == "process":
            with suppress(ProcessLookupError):
                processes.append(os.pidfd_open(int(rest)))
        elif word == "folder":
            folders.append(Path(rest))
    for process in processes:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, signal.SIGKILL)
    deadline = monotonic() + _REMOVAL_S
    while any(folder.exists() for folder in folders) and monotonic() < deadline:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        sleep(_POLL_S)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process, which decides
    clean_up(sys.stdin)
