"""``python -m regent.testing.janitor FOLDER``: cleans up after a cluster, also of a killed test.

When its standard input ends, the test process has ended the cluster, or is dead. Then every process
whose command line names a path in the folder is killed, and the folder is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from regent.cluster.child_process import DeathPipe
from regent.testing.waits import await_end, scaled

_REMOVAL_S = 20.0
_POLL_S = 0.1


class Janitor:
    """The side of the test process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pipe = DeathPipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regent.testing.janitor", str(folder)],
            stdin=self._pipe.read_fd,
            text=True,
            start_new_session=True,
        )

    def clean_up(self) -> None:
        """Kill the processes that still run, remove the folder, and wait for that."""
        self._pipe.close()
        await_end(self._process, f"the process that removes {self._folder}", 2 * _REMOVAL_S)


def clean_up(folder: Path) -> None:
    """Kill the processes that use a folder, and remove it, until there are none and it is gone.

    A process that has just been started creates its part of the folder again.
    """
    deadline = monotonic() + scaled(_REMOVAL_S)
    while monotonic() < deadline:
        users = list(processes_with(f"{folder}/"))
        for process in users:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
        if not users and not folder.exists():
            return
        sleep(_POLL_S)


def processes_with(text: str) -> Iterator[int]:
    """Yield the processes that have ``text`` in their command lines."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test process, which decides
    sys.stdin.read()
    clean_up(Path(sys.argv[1]))
