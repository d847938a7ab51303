"""The sockets on which processes of this machine wait for others, from Linux's ``/proc``."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")

_LISTENS: Final = "0A"  # the state of a TCP socket
_ACCEPTS: Final = 1 << 16  # the flag of a listening Unix socket
_DATAGRAM: Final = 2  # the type of a Unix socket that receives from everybody when it has a name
_PARENT: Final = 1  # in /proc/PID/stat, after the name of the program
_SESSION: Final = 3
_ABSTRACT: Final = "@"  # the first character of a Unix socket's name that is no path
_Found = Mapping[str, tuple[str, str, int]]


class ListeningSocket(NamedTuple):
    """A TCP or UDP socket (``port``) or a Unix socket of a process."""

    pid: int
    kind: str  # tcp, udp, unix
    address: str  # the IP address, or the path
    port: int = 0

    def __str__(self) -> str:
        if self.kind == "unix":
            return self.address
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}" if self.kind == "tcp" else f"{self.kind} {host}:{self.port}"

    @property
    def is_on_loopback(self) -> bool:
        """Whether an IP address is one that only processes of this machine reach."""
        return ip_address(self.address).is_loopback

    @property
    def has_no_path(self) -> bool:
        """Whether a Unix socket has a name that is no path: every process may use it."""
        return not self.address or self.address.startswith(_ABSTRACT)

    def is_of_the_owner(self, below: Path) -> bool:
        """Whether the modes of a Unix socket, or of a directory of it, let only its owner in.

        Directories above ``below`` do not count: they are the user's. Raises ``OSError`` for a
        path that does not exist.
        """
        path = Path(self.address)
        if path.is_relative_to("/proc/self"):  # bound by a descriptor of the directory
            path = below / path.name
        directories = [parent for parent in path.parents if parent.is_relative_to(below)]
        modes = [directory.stat().st_mode for directory in directories]
        is_closed = not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return is_closed or any(not mode & (stat.S_IXGRP | stat.S_IXOTH) for mode in modes)


def process_tree(root: int) -> dict[int, str]:
    """Return the command lines of a process, its descendants, and the others of its session."""
    found: dict[int, tuple[int, int, str]] = {}
    for entry in PROC.iterdir():
        with suppress(ValueError, OSError):  # not a process, or one that has ended
            parent, session = _parent_and_session(int(entry.name))
            found[int(entry.name)] = parent, session, " ".join(command_line(int(entry.name)))
    tree = {pid for pid, (_, session, _) in found.items() if root in (pid, session)}
    while more := {pid for pid, (parent, *_) in found.items() if parent in tree} - tree:
        tree |= more
    return {pid: found[pid][2] for pid in tree}


def command_line(pid: int) -> list[str]:
    """Return the arguments of a process; none of one that has ended. Raises ``OSError``."""
    arguments = (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    return [os.fsdecode(argument) for argument in arguments if argument]


def user_of(pid: int) -> int:
    """Return the id of a process's user. Raises ``OSError`` when it has ended."""
    return (PROC / str(pid)).stat().st_uid


def may_be_examined(pid: int) -> bool:
    """Whether this user may see the sockets of a process: root, and the user of the process."""
    try:
        os.listdir(PROC / str(pid) / "fd")
    except PermissionError:
        return False
    except OSError:
        return True  # it has ended
    return True


def listening_sockets(pids: Collection[int]) -> Iterator[ListeningSocket]:
    """Yield the sockets of these processes; one that they share belongs to each.

    A process that has ended, or of another user, has none.
    """
    known: dict[str, _Found] = {}  # by network namespace
    for pid in sorted(pids):
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            network = os.readlink(PROC / str(pid) / "ns" / "net")
            if network not in known:
                known[network] = {**_internet_sockets(pid), **_unix_sockets(pid)}
            names = {target_of(entry) for entry in (PROC / str(pid) / "fd").iterdir()}
            for name in sorted(names & known[network].keys()):
                yield ListeningSocket(pid, *known[network][name])


def _parent_and_session(pid: int) -> tuple[int, int]:
    fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[_PARENT]), int(fields[_SESSION])


def target_of(descriptor: Path) -> str:
    """Return what an open descriptor is of, below ``/proc/PID/fd``; "" if it is closed now."""
    with suppress(OSError):
        return os.readlink(descriptor)
    return ""


def _internet_sockets(pid: int) -> _Found:
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in _table(pid, kind):
            fields = line.split()
            address, _, port = fields[1].partition(":")
            if kind.startswith("udp") or fields[3] == _LISTENS:
                found[f"socket:[{fields[9]}]"] = kind[:3], _readable(address), int(port, 16)
    return found


def _readable(address: str) -> str:
    """Return an address as people write it; /proc/net has words in the machine's order."""
    words = [int(address[first : first + 8], 16) for first in range(0, len(address), 8)]
    data = struct.pack(f"={len(words)}I", *words)
    mapped = data.removeprefix(bytes(10) + b"\xff\xff") if len(data) > 4 else data
    return socket.inet_ntop(socket.AF_INET if len(mapped) == 4 else socket.AF_INET6, mapped)


def _unix_sockets(pid: int) -> _Found:
    found = {}
    for line in _table(pid, "unix"):
        fields = line.split(maxsplit=7)
        name = fields[7] if len(fields) > 7 else ""
        if int(fields[3], 16) & _ACCEPTS or (int(fields[4], 16) == _DATAGRAM and name):
            found[f"socket:[{fields[6]}]"] = "unix", name, 0
    return found


def _table(pid: int, name: str) -> list[str]:
    try:
        text = (PROC / str(pid) / "net" / name).read_text(errors="surrogateescape")
    except FileNotFoundError:
        return []  # a kernel without IPv6 has no such file
    return text.splitlines()[1:]
