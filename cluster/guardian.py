"""A small process for each broker that closes the broker's ZooKeeper session after a crash.

Without it the controller notices a crash seconds later, when the session times out. It acts only
when the kernel reports that the broker's process has ended (pidfd). Its side is
``zk.client.orphaned_session``; this is the side of the broker.

The broker writes the credentials of each session to the guardian's standard input, before it
creates a znode in that session. After a clean shutdown it dismisses the guardian.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from regent.config.threads import NamedThread
from regent.zk.client.connection import SessionCredentials
from regent.zk.client.orphaned_session import DISMISS, GUARDIAN, session_line

logger = logging.getLogger(__name__)

_END_TIMEOUT_S = 5.0
_FIRST_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 30.0
_SOUND_AFTER_S = 60.0  # a guardian that ran for longer is replaced without a pause


class Guardian:
    """The side of the broker: keeps a guardian running, sends it sessions, dismisses it.

    A guardian that ends is replaced at once and gets the current session. If guardians end
    repeatedly, a pause before each replacement grows to half a minute. The broker continues
    meanwhile; if it crashed then, its session would have to time out.
    """

    def __init__(self, hosts: str, program: Sequence[str] = GUARDIAN) -> None:
        self._command = [*program, "--pid", str(os.getpid()), "--zookeeper", hosts]
        self._lock = threading.Lock()  # guards the process and the credentials sent to it
        self._process: subprocess.Popen[bytes] | None = None
        self._credentials: SessionCredentials | None = None
        self._dismissed = threading.Event()
        self._thread = NamedThread(self._keep, "guardian")
        self.replacements = 0

    def start(self) -> None:
        """Start the process, in its own process session: signals to the broker do not reach it."""
        self._launch()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether a guardian process is running."""
        process = self._process
        return process is not None and process.returncode is None

    def watch_session(self, credentials: SessionCredentials) -> None:
        """Send a new session, which replaces the previous one."""
        with self._lock:
            self._credentials = credentials
            self._tell(session_line(*credentials))

    def dismiss(self) -> None:
        """End the process; it does not close the session."""
        with self._lock:
            self._dismissed.set()
            self._tell(DISMISS)
            process = self._process
        self._thread.join(_END_TIMEOUT_S)
        if self._thread.is_alive() and process is not None:
            process.kill()
            self._thread.join(_END_TIMEOUT_S)

    # --- the thread that waits for the end of the process ---

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
                    bufsize=0,  # so that no bytes are left to flush when the process has ended
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            except OSError as error:
                logger.error("The guardian cannot be started: %s", error)
                self._process = None
            if self._credentials is not None:
                self._tell(session_line(*self._credentials))

    def _tell(self, line: bytes) -> None:
        """Write a line; if the guardian has ended, its replacement gets the credentials."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError, ValueError):
                self._process.stdin.write(line)
