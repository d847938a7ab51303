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
import sys
from contextlib import suppress
from typing import BinaryIO

from zk.client import SessionCredentials
from zk.operations import ConnectionLossError
from zk.session import close_session

logger = logging.getLogger(__name__)

_DISMISS = b"dismiss\n"
_CLOSE_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 5.0
_ALIVE_POLL_MS = 60_000


class Guardian:
    """The broker's side: starts the process, hands it sessions, dismisses it."""

    def __init__(self, run_path: str, hosts: str) -> None:
        self._command = [
            sys.executable,
            run_path,
            "guardian",
            "--zookeeper",
            hosts,
            "--pid",
            str(os.getpid()),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process, in a session of its own: what kills the broker must not reach it."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def watch_session(self, credentials: SessionCredentials) -> None:
        """Hand over a new session, which replaces the one before.

        A guardian that died is replaced: the broker itself goes on either way, only slower to be
        found dead.
        """
        line = b"session %d %s\n" % (credentials.session_id, credentials.password.hex().encode())
        for _ in range(2):
            try:
                self._write(line)
            except OSError as error:
                logger.warning("The guardian is gone (%s); starting another", error)
                self.start()
            else:
                return

    def dismiss(self) -> None:
        """End the process: the session is closed, or must live on."""
        if self._process is None:
            return
        with suppress(OSError):
            self._write(_DISMISS)
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(_END_TIMEOUT_S)

    def _write(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


def watch_over(pid: int, hosts: str, orders: BinaryIO) -> None:
    """Wait for the end of process ``pid`` and close its session; the guardian's main loop.

    ``orders`` is its standard input. Returns when dismissed, or when the work is done.
    """
    pidfd = _open_pidfd(pid)
    credentials: SessionCredentials | None = None
    for line in iter(orders.readline, b""):
        if line == _DISMISS:
            return
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
