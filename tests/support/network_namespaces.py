"""Machines on a network of their own: network namespaces connected by a bridge in another one.

A namespace here has no name: it exists through a descriptor and the processes in it, so that it is
always removed when this process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from regent.testing.waits import scaled

_CLONE_NEWNET = 0x40000000
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_IPV4 = "10.213.7.{}"
_IPV6 = "fd00:213:7::{}"
_FIRST_HOST = 10
_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x0002 | 0x1000  # IFF_TAP, IFF_NO_PI
_MAX_FRAME = 65_536

_libc = ctypes.CDLL(None, use_errno=True)


class NamespacesUnavailableError(Exception):
    """This process may not create network namespaces, or the kernel does not support them."""


class Namespace:
    """A network namespace."""

    def __init__(self) -> None:
        """Create one; raises ``NamespacesUnavailableError``."""
        with _returning_home():
            if _libc.unshare(_CLONE_NEWNET):
                raise NamespacesUnavailableError(
                    f"no network namespace can be created: {os.strerror(ctypes.get_errno())}"
                )
            self._fd = os.open(_OWN_NAMESPACE, os.O_RDONLY)
        self.ip("link", "set", "lo", "up")

    @property
    def path(self) -> str:
        """Its name for the command ``ip``."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Move this thread, and the threads and processes it starts, into the namespace."""
        with _returning_home():
            _enter(self._fd)
            yield

    def ip(self, *arguments: str) -> None:
        """Run the command ``ip`` inside; raises ``NamespacesUnavailableError``."""
        with self.inside():
            try:
                ended = subprocess.run(
                    ["ip", *arguments],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=scaled(20),
                )
            except FileNotFoundError as error:
                raise NamespacesUnavailableError("there is no command ip") from error
        if ended.returncode:
            raise NamespacesUnavailableError(f"ip {' '.join(arguments)}: {ended.stderr.strip()}")

    def tap(self, name: str) -> int:
        """Make a network device whose frames this process carries; it ends with the descriptor.

        Raises ``NamespacesUnavailableError``.
        """
        with self.inside():
            try:
                fd = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", name.encode(), _TAP_WITHOUT_HEADER))
            except OSError as error:
                raise NamespacesUnavailableError(f"{_TUN}: {error.strerror}") from error
        return fd

    def close(self) -> None:
        """Close the descriptor; the namespace ends with the last process in it."""
        os.close(self._fd)


class Host(Namespace):
    """A machine with an IPv4 and an IPv6 address."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.port = f"port{number}"
        self.mac = f"02:00:00:00:00:{_FIRST_HOST + number:02x}"
        self.ipv4 = _IPV4.format(_FIRST_HOST + number)
        self.ipv6 = _IPV6.format(_FIRST_HOST + number)


class HostNetwork:
    """Hosts that reach each other; a context that removes them at the end.

    Raises ``NamespacesUnavailableError``.
    """

    def __init__(self, hosts: int) -> None:
        with ExitStack() as undo:
            self._bridge = Namespace()
            undo.callback(self._bridge.close)
            self._bridge.ip("link", "add", "bridge", "type", "bridge")
            self._bridge.ip("link", "set", "bridge", "up")
            self.hosts: list[Host] = []
            for number in range(hosts):
                host = Host(number)
                undo.callback(host.close)
                self._plug_in(host)
                self.hosts.append(host)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _plug_in(self, host: Host) -> None:
        peer = ("peer", "name", "eth0", "netns", host.path)
        self._bridge.ip("link", "add", host.port, "type", "veth", *peer)
        self._connect(host)

    def _connect(self, host: Host) -> None:
        """Bring both ends of a link up."""
        self._bridge.ip("link", "set", host.port, "master", "bridge", "up")
        host.ip("link", "set", "eth0", "address", host.mac)
        host.ip("address", "add", f"{host.ipv4}/24", "dev", "eth0")
        # The address is unique: do not wait for duplicate address detection.
        host.ip("address", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
        host.ip("link", "set", "eth0", "up")

    @contextmanager
    def losing(self, host: Host, share: float) -> Iterator[None]:
        """Lose this share of the frames to and from a host; connections stay."""
        with ExitStack() as undo:
            host.ip("link", "delete", "eth0")
            undo.callback(self._plug_in, host)
            ends = []
            for namespace, name in ((host, "eth0"), (self._bridge, host.port)):
                ends.append(namespace.tap(name))
                undo.callback(os.close, ends[-1])
            is_over = threading.Event()
            wire = threading.Thread(target=_carry, args=(ends, share, is_over), name="lossy wire")
            wire.start()
            undo.callback(wire.join, scaled(5))
            undo.callback(is_over.set)
            self._connect(host)
            yield

    @contextmanager
    def cut(self, sender: Host, receivers: Sequence[Host]) -> Iterator[None]:
        """Lose packets from ``sender`` to ``receivers``; the other direction works."""
        addresses = [a for receiver in receivers for a in (receiver.ipv4, receiver.ipv6)]
        for address in addresses:
            sender.ip("route", "add", "blackhole", address)
        try:
            yield
        finally:
            for address in addresses:
                with suppress(NamespacesUnavailableError):
                    sender.ip("route", "delete", "blackhole", address)


def _carry(ends: Sequence[int], share: float, is_over: threading.Event) -> None:
    """Carry frames between two devices, and lose some."""
    chance = random.Random(7)
    others = dict(zip(ends, reversed(ends), strict=True))
    while not is_over.is_set():
        for fd in select.select(ends, (), (), 0.1)[0]:
            with suppress(OSError):  # the other device is not up yet, or its queue is full
                frame = os.read(fd, _MAX_FRAME)
                if chance.random() >= share:
                    os.write(others[fd], frame)


@contextmanager
def _returning_home() -> Iterator[None]:
    home = os.open(_OWN_NAMESPACE, os.O_RDONLY)
    try:
        yield
    finally:
        _enter(home)
        os.close(home)


def _enter(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
