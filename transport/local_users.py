"""Refuses other users of this machine at the ports that listen on loopback.

Loopback keeps other machines out, but not other users of this one. So before a byte of a connection
is read, Linux is asked which user has the socket at its other end (``sock_diag``, some 8 µs, no
privilege needed). Clients of the broker's own user need no setting. Where Linux cannot be asked,
``problem`` says so and everybody is admitted.

To refuse costs little, but strangers may connect without end. So a port that refused some rests
(``rest_after_strangers``).
"""

from __future__ import annotations

import errno
import logging
import os
import pwd
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection
from typing import Final

from regent.config.addresses import is_loopback
from regent.core.errors import RegentError

logger = logging.getLogger(__name__)

SAME: Final = "same"
ANY: Final = "any"

_LOG_INTERVAL_S: Final = 10.0
_REST: Final = 19  # times the work before it, as in ``control.pace``
_LONGEST_REST_S: Final = 0.05
# The kernel answers at once; a broker must never wait for it for ever.
_TIMEOUT: Final = struct.pack("@ll", 1, 0)  # timeval: seconds, microseconds

# From Linux's linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h.
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_REQUEST: Final = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, two, states
_SOCKET_ID: Final = struct.Struct("!HH16s16s")  # ports and addresses in network order
_ANY_INTERFACE_NO_COOKIE: Final = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_OWNER: Final = struct.Struct("=II")  # uid, inode
_OWNER_AT: Final = _HEADER.size + 4 + _SOCKET_ID.size + 12 + 12
_ANSWER_BYTES: Final = 4096
_ALL_STATES: Final = 0xFFFFFFFF
_MAPPED: Final = bytes(10) + b"\xff\xff"
"""How the address of an IPv4 peer of a socket for IPv6 begins (``::ffff:127.0.0.1``)."""


class LocalUsers:
    """The users of this machine that may connect on loopback: a set of user ids, None: all.

    Counts refusals by the name of the port. Thread-safe.
    """

    def __init__(self, allowed: Collection[int] | None) -> None:
        self._allowed = None if allowed is None else frozenset(allowed)
        self._log_at = 0.0
        self.refused: Counter[str] = Counter()
        """How many connections were refused, by the name of the port."""
        self.problem = "" if self._allowed is None else self._find_problem()
        """Why other users cannot be told from this one; empty if they can."""

    @property
    def are_limited(self) -> bool:
        """Whether some processes are refused."""
        return self._allowed is not None and not self.problem

    @property
    def admitted(self) -> frozenset[int] | None:
        """The ids of the users that may connect; None: everybody may."""
        return self._allowed if self.are_limited else None

    def at(self, host: str) -> LocalUsers:
        """Return whom a listener at ``host`` admits; beyond loopback: everybody."""
        return self if is_loopback(host) else EVERYBODY

    def admits(self, connection: socket.socket, port_name: str) -> bool:
        """Whether the process at the other end of an accepted connection may use it.

        An end that is closed already, or that belongs to no process any more, is a stranger.
        """
        if self._allowed is None or self.problem:
            return True
        try:
            owner = _owner_of_other_end(connection)
        except OSError as error:
            owner, why = None, str(error)
        else:
            why = "its process is gone" if owner is None else f"it belongs to user {_name(owner)}"
        if owner in self._allowed:
            return True
        self.refused[port_name] += 1
        now = time.monotonic()
        if now >= self._log_at:
            self._log_at = now + _LOG_INTERVAL_S
            logger.warning(
                "%s closed a connection from this machine: %s (%d so far); the setting local_users"
                " names who may connect",
                port_name,
                why,
                self.refused[port_name],
            )
        return False

    def _find_problem(self) -> str:
        """Ask for the two ends of a connection of our own."""
        if not sys.platform.startswith("linux"):
            return f"{sys.platform} does not tell who has the other end of a connection"
        try:
            with (
                socket.create_server(("127.0.0.1", 0)) as listening,
                socket.create_connection(listening.getsockname()),
            ):
                accepted, _ = listening.accept()
                with accepted:
                    owner = _owner_of_other_end(accepted)
        except OSError as error:
            return f"Linux does not tell who has the other end of a connection: {error}"
        if owner != os.geteuid():
            return f"Linux names user {owner} for a connection of user {os.geteuid()}"
        return ""


EVERYBODY: Final = LocalUsers(None)
"""Admits every connection."""


def rest_after_strangers(worked_s: float) -> float:
    """Return for how many seconds a port accepts nobody, after ``worked_s`` that had strangers.

    So strangers who connect without end take a twentieth of the time of a thread, not all of it.
    Meanwhile others wait in the queue of the port, but not long.
    """
    return min(_REST * worked_s, _LONGEST_REST_S)


def local_users(setting: str) -> LocalUsers:
    """Return the users that the setting ``local_users`` names, with this process's own user.

    ``same``: no others; ``any``: all. Logs if users cannot be told apart. Raises ``RegentError``
    for a user that does not exist.
    """
    names = [name.strip() for name in setting.split(",") if name.strip()]
    if names == [ANY]:
        return EVERYBODY
    users = LocalUsers({os.geteuid(), *(_user_id(name) for name in names if name != SAME)})
    if users.problem:
        logger.warning("Other users of this machine are not refused: %s", users.problem)
    return users


def _user_id(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise RegentError(
            f"local_users: this machine has no user {name!r}: name users or user ids, {SAME!r}, or"
            f" {ANY!r}"
        ) from None


def _name(user_id: int) -> str:
    try:
        return f"{pwd.getpwuid(user_id).pw_name} ({user_id})"
    except KeyError:
        return str(user_id)


class _Kernel:
    """A socket that asks Linux who owns other sockets. Belongs to one thread."""

    def __init__(self, netlink: socket.socket) -> None:
        self._netlink = netlink

    def __del__(self) -> None:
        self._netlink.close()

    @classmethod
    def open(cls) -> _Kernel:
        """Raises ``OSError``."""
        kernel = cls(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG))
        kernel._netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEOUT)
        kernel._netlink.connect((0, 0))
        return kernel

    def owner(self, question: bytes) -> int | None:
        """Return the user id, or None if no process has the socket. Raises ``OSError``."""
        self._netlink.send(question)
        answer = self._netlink.recv(_ANSWER_BYTES)
        kind = _HEADER.unpack_from(answer)[1]
        if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _OWNER_AT + _OWNER.size:
            return None  # there is no such socket
        uid, inode = _OWNER.unpack_from(answer, _OWNER_AT)
        return uid if inode else None


class _OfThread(threading.local):
    """To open a socket takes as long as to ask, so each thread keeps one."""

    kernel: _Kernel | None = None


_of_thread: Final = _OfThread()


def _owner_of_other_end(connection: socket.socket) -> int | None:
    """Return the user id, or None if no process has the other end. Raises ``OSError``.

    ZeroMQ may have closed a connection whose descriptor it told us. Then the descriptor may be that
    of a socket of another family, whose names are no addresses.
    """
    theirs, ours = connection.getpeername(), connection.getsockname()
    if not all(isinstance(name, tuple) and isinstance(name[0], str) for name in (theirs, ours)):
        raise OSError(errno.ENOTCONN, "it has left")
    question = _question(theirs[0], theirs[1], ours[0], ours[1])
    # After an error a late answer to this question could be taken for that to the next one.
    kernel, _of_thread.kernel = _of_thread.kernel or _Kernel.open(), None
    owner = kernel.owner(question)
    _of_thread.kernel = kernel
    return owner


def _question(host: str, port: int, our_host: str, our_port: int) -> bytes:
    """Return the question about the one socket that is bound to an address and port of ours."""
    family, address = _address(host)
    socket_id = _SOCKET_ID.pack(port, our_port, address, _address(our_host)[1])
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES)
    body = request + socket_id + _ANY_INTERFACE_NO_COOKIE
    size = _HEADER.size + len(body)
    return _HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body


def _address(host: str) -> tuple[int, bytes]:
    """Return the family and the bytes of an address; IPv4 if it is mapped."""
    if ":" not in host:
        return socket.AF_INET, socket.inet_pton(socket.AF_INET, host)
    address = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if address.startswith(_MAPPED):
        return socket.AF_INET, address[len(_MAPPED) :]
    return socket.AF_INET6, address
