"""Machines on a network of their own: network namespaces connected by a bridge in another one.

A namespace here has no name: it exists through a descriptor and the processes in it, so that it is
always removed when this process ends.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Self

from regent.testing.waits import scaled

_CLONE_NEWNET = 0x40000000
_OWN_NAMESPACE = "/proc/thread-self/ns/net"
_IPV4 = "10.213.7.{}"
_IPV6 = "fd00:213:7::{}"
_FIRST_HOST = 10

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

    def close(self) -> None:
        """Close the descriptor; the namespace ends with the last process in it."""
        os.close(self._fd)


class Host(Namespace):
    """A machine with an IPv4 and an IPv6 address."""

    def __init__(self, number: int) -> None:
        super().__init__()
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
                self._plug_in(host, f"port{number}")
                self.hosts.append(host)
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._undo.close()

    def _plug_in(self, host: Host, port: str) -> None:
        peer = ("peer", "name", "eth0", "netns", host.path)
        self._bridge.ip("link", "add", port, "type", "veth", *peer)
        self._bridge.ip("link", "set", port, "master", "bridge", "up")
        host.ip("address", "add", f"{host.ipv4}/24", "dev", "eth0")
        # The address is unique: do not wait for duplicate address detection.
        host.ip("address", "add", f"{host.ipv6}/64", "dev", "eth0", "nodad")
        host.ip("link", "set", "eth0", "up")

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
