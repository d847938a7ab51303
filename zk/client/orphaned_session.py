"""Closes the ZooKeeper session of a process that has ended. As a program: a broker's guardian.

The guardian waits for years and acts once, so it must be small: this module uses nothing but
Python's standard library, and runs without ``site``. It takes 10 MB; with kazoo it took 40 MB.

    python -I -S orphaned_session.py guardian --pid PID --zookeeper HOSTS
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress
from io import BufferedRWPair
from typing import Any, BinaryIO

GUARDIAN = (sys.executable, "-I", "-S", __file__, "guardian")
"""The start of the guardian's command line."""

DISMISS = b"dismiss\n"

_DEFAULT_PORT = 2181
_CLOSE_TIMEOUT_S = 5.0
_PAUSE_S = 0.05  # before the servers are tried again
_ALIVE_POLL_S = 60.0

_SIZE = struct.Struct(">i")  # before each frame
# ConnectRequest: protocol version, newest zxid, timeout in ms, session id, password, read-only.
_CONNECT = struct.Struct(">iqiqi")
_GRANTED_MS = struct.Struct(">ii")  # the start of ConnectResponse; no time: the session is over
_HEADER = struct.Struct(">ii")  # of a request: xid and operation
_XID = 1
_CLOSE_SESSION = -11


def session_line(session_id: int, password: bytes) -> bytes:
    """Return the line that hands a session to the guardian."""
    return b"session %d %s\n" % (session_id, password.hex().encode())


def watch_over(pid: int, hosts: str, commands: BinaryIO) -> None:
    """Wait for the end of process ``pid`` and close its session; the guardian's main loop.

    ``commands`` is the guardian's standard input. Returns when dismissed, or when the session is
    closed or could not be closed in time.
    """
    pidfd = _open_pidfd(pid)
    session: tuple[int, bytes] | None = None
    for line in iter(commands.readline, b""):
        if line == DISMISS:
            return
        if not line.endswith(b"\n"):
            break  # the broker ended while it wrote the line
        session_id, password = line.split()[1:]
        session = int(session_id), bytes.fromhex(password.decode())
    if pidfd is not None:  # the pipe is closed: the process has ended, or will soon
        while not select.select([pidfd], [], [], _ALIVE_POLL_S)[0]:
            sys.stderr.write(f"Process {pid} closed its pipe but is still alive\n")
    if session is not None:
        with suppress(ConnectionError):  # then the session times out by itself
            close_session(hosts, session, _CLOSE_TIMEOUT_S)


def close_session(hosts: str, credentials: tuple[int, bytes], timeout_s: float) -> bool:
    """Close a session by its id and password: its ephemeral znodes go, and their watches fire.

    ``hosts`` is ``host:port[,host:port...][/chroot]``. Returns False when the session is over
    already. Raises ``ConnectionError`` when no server answers in time.
    """
    deadline = time.monotonic() + timeout_s
    servers = hosts.partition("/")[0].split(",")
    closing_was_sent = False
    while True:
        for server in servers:
            with (
                suppress(OSError),
                _connect(server, deadline, len(servers)) as connection,
                connection.makefile("rwb") as stream,
            ):
                if not _attach(stream, *credentials):
                    return closing_was_sent
                closing_was_sent = True
                _ask(stream, _HEADER.pack(_XID, _CLOSE_SESSION))
                return True
        if time.monotonic() + _PAUSE_S > deadline:
            raise ConnectionError(
                f"session {credentials[0]:#x} may not have been closed: no server of {hosts}"
                f" answers within {timeout_s:g} s"
            )
        time.sleep(_PAUSE_S)


def _connect(server: str, deadline: float, servers: int) -> socket.socket:
    """Connect to ``host:port``; one silent server does not use up the time for the others."""
    host, colon, port = server.strip().rpartition(":")
    if not colon or port.endswith("]"):  # no port; a bracket ends an IPv6 address
        host, port = server.strip(), str(_DEFAULT_PORT)
    timeout_s = max((deadline - time.monotonic()) / servers, _PAUSE_S)
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)


def _attach(stream: BufferedRWPair[Any, Any], session_id: int, password: bytes) -> bool:
    """Attach the connection to a session; return False when the session is over."""
    timeout_ms = int(_CLOSE_TIMEOUT_S * 1000)
    request = _CONNECT.pack(0, 0, timeout_ms, session_id, len(password)) + password + b"\0"
    _, granted_ms = _GRANTED_MS.unpack_from(_ask(stream, request))
    return bool(granted_ms > 0)


def _ask(stream: BufferedRWPair[Any, Any], request: bytes) -> bytes:
    """Send a frame and return the next one. Raises ``ConnectionError`` at the end of the stream."""
    stream.write(_SIZE.pack(len(request)) + request)
    stream.flush()
    head = stream.read(_SIZE.size)
    answer = stream.read(*_SIZE.unpack(head)) if len(head) == _SIZE.size else b""
    if len(answer) < _GRANTED_MS.size:
        raise ConnectionError("the server closed the connection")
    return answer


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd of the parent; None if it has ended (its pid may be reused by now)."""
    if os.getppid() != pid:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    return pidfd if os.getppid() == pid else None


def _main() -> None:
    blocked_by_the_broker = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked_by_the_broker)
    _, _, _, pid, _, hosts = sys.argv
    watch_over(int(pid), hosts, sys.stdin.buffer)


if __name__ == "__main__":
    _main()
