"""The sockets on which processes listen, and what a stranger is answered there; from ``/proc``."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from regent.testing.waits import scaled

LOOPBACK: Final = "127.0.0.1"

_LISTENS: Final = "0A"  # the state of a TCP socket
_ACCEPTS: Final = 1 << 16  # the flag of a listening Unix socket
_PARENT: Final = 1  # in /proc/PID/stat, after the name of the program
_SESSION: Final = 3
_TIMEOUT_S: Final = scaled(20.0)

_RPC_REQUEST: Final = 3  # kinds of Spark's frames
_RPC_RESPONSE: Final = 4
_REQUEST_ID: Final = 7
_HEADER: Final = struct.Struct(">qbqi")  # length of the frame, kind, request, length of the body
_KIND: Final = slice(8, 9)
_JAVA_STRING: Final = b"\xac\xed\x00\x05t\x00\x01x"  # "x", serialised
_NOBODY: Final = b"\0\0"  # no address of a sender, none of a receiver


class ListeningSocket(NamedTuple):
    """A TCP or UDP socket (``port``) or a Unix socket (``path``) of a process."""

    pid: int
    kind: str  # tcp, udp, unix
    address: str  # the IP address, or the path
    port: int = 0

    def is_of_the_owner(self, below: Path) -> bool:
        """Whether the modes of a Unix socket, or of a directory of it, let only its owner in.

        Directories above ``below`` do not count: they are the user's.
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
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):  # not a process, or one that has ended
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            found[int(entry.name)] = int(fields[_PARENT]), int(fields[_SESSION]), command
    tree = {pid for pid, (_, session, _) in found.items() if root in (pid, session)}
    while more := {pid for pid, (parent, *_) in found.items() if parent in tree} - tree:
        tree |= more
    return {pid: found[pid][2] for pid in tree}


def listening_sockets(pids: Collection[int]) -> Iterator[ListeningSocket]:
    """Yield the sockets of these processes; one that they share belongs to each."""
    known = _internet_sockets() | _unix_sockets()
    for pid in pids:
        with suppress(FileNotFoundError):  # the process has ended
            names = {_target(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()}
            for name in sorted(names & known.keys()):
                yield ListeningSocket(pid, *known[name])


def _target(descriptor: Path) -> str:
    with suppress(OSError):
        return os.readlink(descriptor)
    return ""


def _internet_sockets() -> dict[str, tuple[str, str, int]]:
    found = {}
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]:
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


def _unix_sockets() -> dict[str, tuple[str, str, int]]:
    found = {}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _ACCEPTS:
            found[f"socket:[{fields[6]}]"] = "unix", fields[7] if len(fields) > 7 else "", 0
    return found


# --- a stranger --------------------------------------------------------------------------


def answers_of_spark(port: int) -> list[bytes]:
    """Return the answers of a port of Spark that a client without a secret gets.

    One request is for an endpoint that every driver has, the other asks a block manager for no
    block. A refusal is no answer, and neither is a port of another protocol.
    """
    endpoint = _NOBODY + _utf("endpoint-verifier") + _JAVA_STRING
    no_blocks = b"\0" + _text("app") + _text("driver") + struct.pack(">i", 0)
    return [answer for body in (endpoint, no_blocks) if (answer := _ask(port, body)) is not None]


def asks_for_token(port: int) -> bool:
    """Return whether Py4J listens at a port, and refuses a command before it has the token."""
    with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as connection:
        connection.sendall(b"r\nu\njava.lang.Runtime\nrj\ne\n\n")
        with connection.makefile("rb") as stream, suppress(ConnectionResetError):
            return b"Authentication error" in stream.readline()
    return False


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _text(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def _ask(port: int, body: bytes) -> bytes | None:
    length = _HEADER.size + len(body)
    header = _HEADER.pack(length, _RPC_REQUEST, _REQUEST_ID, len(body))
    with socket.create_connection((LOOPBACK, port), _TIMEOUT_S) as connection:
        connection.sendall(header + body + b"\n\n")  # Py4J reads lines
        try:
            with connection.makefile("rb") as stream, suppress(ConnectionResetError):
                answer = stream.read(_HEADER.size)
                if answer[_KIND] == bytes([_RPC_RESPONSE]):
                    return stream.read(_HEADER.unpack(answer)[-1])
        except TimeoutError:
            return b"it has not refused"
    return None
