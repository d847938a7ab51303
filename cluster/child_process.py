"""Children: programs that report when they serve, and that end when their parent ends.

The contract with such a program: it prints one line ``ready: …`` on standard output once it serves,
everything else on standard error, of which the last line says why it failed; SIGTERM ends it in
order, with status 0; and it ends by itself when the pipe it was handed reaches its end, which
happens when the process that started it is gone, however that came about.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol

from regent.core.errors import RegentError

READY = b"ready: "
_ERROR_PREFIX = "regent: "
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_MAX_OUTPUT_TAIL_BYTES = 64 * 1024


class ChildStartError(RegentError):
    """A process could not even be started."""


class Child(Protocol):
    """Something that has at most one process at a time, and can be launched again."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the last launch; None before the first."""
        ...

    @property
    def ready(self) -> str | None:
        """What the process said when it was ready; None while it has not."""
        ...

    @property
    def stdout(self) -> IO[bytes] | None:
        """What to wait on for ``read``, if it says anything; not blocking."""
        ...

    def launch(self) -> None:
        """Start the process without waiting for it; raises ``RegentError`` when that fails."""
        ...

    def read(self) -> bool:
        """Take in what it printed; False at the end of it."""
        ...

    def poll(self) -> int | None:
        """Return the exit status when the process has ended (negative: the signal), else None."""
        ...

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process lives."""
        ...

    def last_words(self) -> str | None:
        """Return the last line it printed on standard error, if it is known."""
        ...


class DeathPipe:
    """A pipe that ends when this process does, because nobody else holds its other end."""

    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        self._write_end = os.fdopen(write_fd, "wb", buffering=0)

    def feign_death(self) -> None:
        """Let the pipe end now: the children believe that this process is gone, and hurry."""
        self._write_end.close()

    def close(self) -> None:
        """Let go of both ends."""
        self._write_end.close()
        os.close(self.read_fd)


class ChildProcess:
    """A Python program of ours under the contract of this module, in a session of its own.

    ``command`` is asked at each launch. Standard error goes to the file ``output``, begun anew each
    time, so that no reader can block or end a child.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        *,
        output: Path,
        death_pipe: DeathPipe,
    ) -> None:
        self.name = name
        self.ready: str | None = None
        self._command = command
        self._output = output
        self._death_pipe = death_pipe
        self._process: subprocess.Popen[bytes] | None = None
        self._line = bytearray()

    @property
    def pid(self) -> int | None:
        """See ``Child.pid``."""
        return self._process.pid if self._process else None

    @property
    def stdout(self) -> IO[bytes] | None:
        """See ``Child.stdout``."""
        return self._process.stdout if self._process else None

    def launch(self) -> None:
        """See ``Child.launch``. Raises ``ChildStartError``."""
        self.ready = None
        self._line.clear()
        pipe = self._death_pipe.read_fd
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            with self._output.open("wb") as output:
                self._process = subprocess.Popen(
                    [*self._command(), "--death-pipe-fd", str(pipe)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    pass_fds=(pipe,),
                    start_new_session=True,  # Ctrl-C is for us: we end it in order
                )
        except OSError as error:
            raise ChildStartError(f"{self.name} cannot be started: {error}") from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def read(self) -> bool:
        """See ``Child.read``; of all it prints, the first line ``ready: …`` counts."""
        assert self.stdout is not None
        try:
            data = os.read(self.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        if self.ready is None:
            self._line += data
            *lines, self._line = self._line.split(b"\n")
            del self._line[:-_MAX_LINE_BYTES]
            said = next((line for line in lines if line.startswith(READY)), None)
            if said is not None:
                self.ready = said.removeprefix(READY).decode(errors="replace").strip()
        return bool(data)

    def poll(self) -> int | None:
        """See ``Child.poll``."""
        return self._process.poll() if self._process else None

    def send_signal(self, number: signal.Signals) -> None:
        """See ``Child.send_signal``."""
        if self._process is not None:
            self._process.send_signal(number)

    def last_words(self) -> str | None:
        """See ``Child.last_words``."""
        with suppress(OSError), self._output.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_OUTPUT_TAIL_BYTES))
            lines = output.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), None)
            return last and last.removeprefix(_ERROR_PREFIX)
        return None


def describe_exit(status: int) -> str:
    """Say how a process ended: ``with status 1``, ``by SIGKILL``."""
    if status >= 0:
        return f"with status {status}"
    with suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"
