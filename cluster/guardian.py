"""A small process beside every broker that ends its ZooKeeper session when the broker is dead.

Without it a crash is noticed when the session times out, seconds later; with it, at once. It acts
only when the kernel says that the process is gone (pidfd): silence alone proves nothing.

The broker hands it the credentials of every session before it creates anything in that session,
as lines on its standard input, and dismisses it at a clean end.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import threading
import time
from contextlib import suppress
from typing import BinaryIO

from regent.zk.client.operations import ConnectionLossError
from regent.zk.client.session import close_session
from regent.zk.client.zookeeper_client import SessionCredentials

logger = logging.getLogger(__name__)

_DISMISS = b"dismiss\n"
_CLOSE_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 5.0
_ALIVE_POLL_MS = 60_000
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 30.0
_SOUND_AFTER_S = 60.0  # a guardian that lived for so long is replaced at once when it dies


class Guardian:
    """The broker's side: keeps such a process running, hands it sessions, dismisses it.

    One that dies is replaced at once, and handed the present session; one that dies again and again
    after a pause that grows to half a minute. Meanwhile the broker goes on, and would only be
    found dead later.
    """

    def __init__(self, program: tuple[str, ...], hosts: str) -> None:
        self._command = [
            *program,
            "guardian",
            "--zookeeper",
            hosts,
            "--pid",
            str(os.getpid()),
        ]
        self._lock = threading.Lock()  # over the process, and what it has been told
        self._process: subprocess.Popen[bytes] | None = None
        self._credentials: SessionCredentials | None = None
        self._dismissed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="guardian", daemon=True)
        self.replacements = 0

    def start(self) -> None:
        """Start the process, in a session of its own: what kills the broker must not reach it."""
        self._launch()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that would notice the broker's death."""
        process = self._process
        return process is not None and process.returncode is None

    def watch_session(self, credentials: SessionCredentials) -> None:
        """Hand over a new session, which replaces the one before."""
        with self._lock:
            self._credentials = credentials
            self._tell(_session_line(credentials))

    def dismiss(self) -> None:
        """End the process: the session is closed, or must live on."""
        with self._lock:
            self._dismissed.set()
            self._tell(_DISMISS)
            process = self._process
        self._thread.join(_END_TIMEOUT_S)
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join(_END_TIMEOUT_S)

    # --- on the thread that waits for its end ---

    def _keep(self) -> None:
        backoff_s = 0.0
        while True:
            started = time.monotonic()
            ended = "could not be started" if self._process is None else self._await_end()
            if time.monotonic() - started > _SOUND_AFTER_S:
                backoff_s = 0.0
            if not self._dismissed.is_set():
                logger.warning("The guardian %s; starting another in %.1f s", ended, backoff_s)
            if self._dismissed.wait(backoff_s):
                return
            self._launch()
            self.replacements += 1
            backoff_s = min(max(2 * backoff_s, _FIRST_BACKOFF_S), _MAX_BACKOFF_S)

    def _await_end(self) -> str:
        """Wait for the end of the process; return how it ended."""
        assert self._process is not None
        status = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        return f"(process {self._process.pid}) ended with status {status}"

    def _launch(self) -> None:
        with self._lock:
            if self._dismissed.is_set():
                return
            try:
                self._process = subprocess.Popen(
                    self._command,
                    bufsize=0,  # nothing unwritten is left when it dies
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                logger.error("The guardian cannot be started: %s", error)
                self._process = None
            if self._credentials is not None:
                self._tell(_session_line(self._credentials))

    def _tell(self, line: bytes) -> None:
        """Write a line; a guardian that is dead is replaced, and its successor is told the same."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(line)


def _session_line(credentials: SessionCredentials) -> bytes:
    return b"session %d %s\n" % (credentials.session_id, credentials.password.hex().encode())


def watch_over(pid: int, hosts: str, orders: BinaryIO) -> None:
    """Wait for the end of process ``pid`` and close its session; the guardian's main loop.

    ``orders`` is its standard input. Returns when dismissed, or when the work is done.
    """
    pidfd = _open_pidfd(pid)
    credentials: SessionCredentials | None = None
    for line in iter(orders.readline, b""):
        if line == _DISMISS:
            return
        if not line.endswith(b"\n"):
            break  # it died while it wrote
        session_id, password = line.split()[1:]
        credentials = SessionCredentials(int(session_id), bytes.fromhex(password.decode()))
    if pidfd is not None:  # the pipe is closed: the process is dead, or about to be
        while not select.select([pidfd], [], [], _ALIVE_POLL_MS / 1000)[0]:
            logger.warning("Process %d closed its pipe but is still alive", pid)
    if credentials is None:
        return
    with suppress(ConnectionLossError):  # then the session times out by itself
        close_session(hosts, credentials, _CLOSE_TIMEOUT_S)


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd of our parent; None when it is gone (its number may be another's by now)."""
    if os.getppid() != pid:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    return pidfd if os.getppid() == pid else None
