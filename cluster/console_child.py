"""The console of a local cluster: its port is open from the start, its process begins when asked.

``cluster`` listens, and starts ``regent console`` with the first connection. So a console that
nobody opens costs no process and no memory, and the cluster starts no later.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

from regent.cluster.child_process import Child, ChildProcess, DeathPipe
from regent.cluster.cluster_plan import HOST, ClusterPlan
from regent.cluster.process_supervisor import ProcessSupervisor
from regent.config.addresses import listening_socket
from regent.config.private_files import write_private
from regent.core.errors import RegentError

TOKEN: Final = "token"
"""The part of the address that has the token."""

LISTENING_FD: Final = "--listening-fd"
"""The option by which the process inherits the port."""

_TOKEN_FILE: Final = "console.token"


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(24)


def address_with(token: str, port: int) -> str:
    """Return the address to open in a browser."""
    return f"http://{HOST}:{port}/?{TOKEN}={quote(token)}"


class ConsoleChild:
    """The port of the console, and the process that serves it after the first connection.

    Everything happens on the thread of the supervisor. ``say`` gets a line about what is wrong.
    """

    def __init__(
        self,
        plan: ClusterPlan,
        processes: ProcessSupervisor,
        death_pipe: DeathPipe,
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._processes = processes
        self._say = say
        self._listener: socket.socket | None = None
        self._has_run = False
        self.child: Child = ChildProcess(
            "console",
            self._command,
            output=plan.data_dir.absolute() / "console.out",
            death_pipe=death_pipe,
            inherited=lambda: () if self._listener is None else (self._listener.fileno(),),
        )

    @property
    def port(self) -> int:
        """The port that is open; 0: none."""
        return 0 if self._listener is None else int(self._listener.getsockname()[1])

    def open(self) -> str | None:
        """Listen; return the address with the token. None: it cannot be served, which is said."""
        wanted = self._plan.console_port or 0
        try:
            try:
                self._listener = listening_socket(HOST, wanted)
            except OSError:
                self._listener = listening_socket(HOST, 0)
                self._say(f"port {wanted} for the console is in use; it is on {self.port}")
            token = new_token()
            write_private(self._token_file, token)
        except OSError as error:
            self._say(f"the console is not served: {error}")
            self.close()
            return None
        self._processes.watch(self._listener, self._launch)
        return address_with(token, self.port)

    def close(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._processes.forget(self._listener)
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                self._token_file.unlink()

    def ended(self) -> None:
        """Wait for the next connection, if the process has served; else it would end again."""
        if self._listener is None:
            return
        if self.child.ready is not None:
            self._processes.watch(self._listener, self._launch)
        else:
            self.close()

    def _launch(self) -> None:
        assert self._listener is not None
        self._processes.forget(self._listener)
        try:
            if self._has_run:
                self._processes.start_again(self.child)
            else:
                self._processes.start(self.child)
                self._has_run = True
        except RegentError as error:
            self._say(str(error))
            self.close()

    @property
    def _token_file(self) -> Path:
        return self._plan.data_dir.absolute() / _TOKEN_FILE

    def _command(self) -> list[str]:
        assert self._listener is not None
        options: list[object] = ["--data-dir", self._plan.data_dir.absolute()]
        options += [LISTENING_FD, self._listener.fileno(), "--token-file", self._token_file]
        options += ["--console-write"] if self._plan.console_write else []
        return [*self._plan.program, "console", *map(str, options)]
