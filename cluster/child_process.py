"""Children: programs that report when they serve, and that end when their parent ends.

Such a program prints one line ``ready: …`` on standard output when it serves, and everything else
on standard error, where the last line has the reason of a failure. It may also print a line
``ended: …`` with that reason on standard output: no full disk stops that. SIGTERM ends it with
status 0.
It ends by itself when the pipe that it inherited reaches its end, because then its parent process
has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Protocol
from weakref import WeakSet

from regent.config.threads import NamedThread
from regent.core.errors import RegentError

READY = b"ready: "
ENDED = b"ended: "
_ERROR_PREFIX = "regent: "
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 64 * 1024
_MAX_OUTPUT_TAIL_BYTES = 64 * 1024


class ChildStartError(RegentError):
    """A process could not be started."""


class Child(Protocol):
    """A program with at most one process at a time. It can be launched again."""

    @property
    def name(self) -> str:
        """The name used in messages."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the last launch; None before the first."""
        ...

    @property
    def ready(self) -> str | None:
        """The text of the line ``ready: …`` that the process printed; None before that."""
        ...

    @property
    def stdout(self) -> IO[bytes] | None:
        """The non-blocking pipe that ``read`` reads; None if the process prints nothing."""
        ...

    def launch(self) -> None:
        """Start the process without waiting for it; raises ``RegentError`` when that fails."""
        ...

    def read(self) -> bool:
        """Read what the process printed; False at the end of the output."""
        ...

    def poll(self) -> int | None:
        """Return the exit status when the process has ended (negative: the signal), else None."""
        ...

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if the process is running."""
        ...

    def last_line(self) -> str | None:
        """Return the reason of its end, or the last line on standard error; None: unknown."""
        ...


class DeathPipe:
    """A pipe that ends when this process ends: only this process has its write end open.

    Processes that this one forks close it, for example those of ``multiprocessing``.
    """

    def __init__(self) -> None:
        self.read_fd, write_fd = os.pipe()
        self._read_end = os.fdopen(self.read_fd, "rb", buffering=0)
        self._write_end = os.fdopen(write_fd, "wb", buffering=0)
        _death_pipes.add(self)

    def close_write_end(self) -> None:
        """Close the write end: the children react as if this process had ended, and end fast."""
        self._write_end.close()

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self._write_end.close()
        self._read_end.close()


_death_pipes: WeakSet[DeathPipe] = WeakSet()


def _close_write_ends() -> None:
    for pipe in _death_pipes:
        pipe.close_write_end()


os.register_at_fork(after_in_child=_close_write_ends)


def when_parent_ends(pipe: int, act: Callable[[], None]) -> None:
    """In a child: call ``act`` on a thread of its own when the inherited pipe ends."""

    def wait() -> None:
        while os.read(pipe, _READ_BYTES):
            pass
        act()

    NamedThread(wait, "death-pipe").start()


class ChildProcess:
    """A Regent program that follows the contract of this module, in its own process session.

    ``command`` is called at each launch, and so is ``inherited``, which returns descriptors that
    the program gets beside those of this contract. Standard error goes to the file ``output``,
    because a slow or closed reader of a pipe would block or end the child. Each launch truncates
    the file.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[], Sequence[str]],
        *,
        output: Path,
        death_pipe: DeathPipe,
        inherited: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        self.name = name
        self.ready: str | None = None
        self._command = command
        self._output = output
        self._death_pipe = death_pipe
        self._inherited = inherited
        self._process: subprocess.Popen[bytes] | None = None
        self._line = bytearray()
        self._reason = ""  # of its end, as it said itself

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
        self.ready, self._reason = None, ""
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
                    pass_fds=(pipe, *self._inherited()),
                    start_new_session=True,  # Ctrl-C reaches only the parent, which stops the child
                )
        except OSError as error:
            raise ChildStartError(f"{self.name} cannot be started: {error}") from error
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def read(self) -> bool:
        """See ``Child.read``; only the first ``ready: …`` and the last ``ended: …`` are used."""
        assert self.stdout is not None
        try:
            data = os.read(self.stdout.fileno(), _READ_BYTES)
        except BlockingIOError:
            return True
        self._line += data
        *lines, self._line = self._line.split(b"\n")
        del self._line[:-_MAX_LINE_BYTES]
        for line in lines:
            if self.ready is None and line.startswith(READY):
                self.ready = _text(line, READY)
            elif line.startswith(ENDED):
                self._reason = _text(line, ENDED)
        return bool(data)

    def poll(self) -> int | None:
        """See ``Child.poll``."""
        return self._process.poll() if self._process else None

    def send_signal(self, number: signal.Signals) -> None:
        """See ``Child.send_signal``."""
        if self._process is not None:
            self._process.send_signal(number)

    def last_line(self) -> str | None:
        """See ``Child.last_line``."""
        if self._reason:
            return self._reason
        with suppress(OSError), self._output.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _MAX_OUTPUT_TAIL_BYTES))
            lines = output.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), None)
            return last and last.removeprefix(_ERROR_PREFIX)
        return None


def _text(line: bytes | bytearray, prefix: bytes) -> str:
    return line.removeprefix(prefix).decode(errors="replace").strip()


def describe_exit(status: int) -> str:
    """Say how a process ended: ``with status 1``, ``by SIGKILL``."""
    if status >= 0:
        return f"with status {status}"
    with suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"
