"""Addresses to listen on and to connect to: names, IPv4 and IPv6.

The endpoint ``tcp://host:port#key`` also has the public key of who listens there, in hexadecimal.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple


class Address(NamedTuple):
    """The IP address of a host."""

    number: str
    is_ipv6: bool


def bracketed(host: str) -> str:
    """Return a host as it stands before ``:port``: an IPv6 address in brackets (RFC 3986)."""
    return f"[{host}]" if ":" in host else host


def tcp_endpoint(host: str, port: int) -> str:
    """Return the endpoint ``tcp://host:port``."""
    return f"tcp://{bracketed(host)}:{port}"


def keyed_endpoint(endpoint: str, key: str) -> str:
    """Return ``tcp://host:port#key``."""
    return f"{without_key(endpoint)}#{key}"


def without_key(endpoint: str) -> str:
    """Return ``tcp://host:port`` of an endpoint with or without a key."""
    return endpoint.partition("#")[0]


def key_of(endpoint: str) -> str:
    """Return the key of an endpoint; empty for one without a key."""
    return endpoint.partition("#")[2]


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint, without brackets."""
    host = without_key(endpoint).removeprefix("tcp://").rpartition(":")[0]
    return host.removeprefix("[").removesuffix("]")


def port_of(endpoint: str) -> int:
    """Return the port of an endpoint."""
    return int(without_key(endpoint).rpartition(":")[2])


def resolve(host: str) -> Address:
    """Return the address of a host; of a name with several, IPv4 before IPv6.

    The listener and its peers must choose the same one. A name is looked up by the system's
    resolver, which may take seconds. Raises ``OSError`` for an unknown name.
    """
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        return _looked_up(host)
    return Address(host, number.version == 6)


def _looked_up(name: str) -> Address:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except ValueError as error:  # a label that is too long, a NUL
        raise OSError(f"{name!r} is not the name of a host: {error}") from error
    addresses = [Address(str(at[0]), family == socket.AF_INET6) for family, *_, at in found]
    return min(addresses, key=lambda address: address.is_ipv6)


def listening_socket(host: str, port: int, backlog: int | None = None) -> socket.socket:
    """Return a TCP socket that listens; on ``::`` it takes IPv4 too. Raises ``OSError``."""
    address = resolve(host)
    return socket.create_server(
        (address.number, port),
        family=socket.AF_INET6 if address.is_ipv6 else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=address.is_ipv6 and is_every_address(host),
    )


def is_loopback(host: str) -> bool:
    """Whether a host is reached from this machine only. False for an unknown name."""
    try:
        return ipaddress.ip_address(resolve(host).number).is_loopback
    except OSError:
        return False


def is_every_address(host: str) -> bool:
    """Whether a host means all addresses of this machine: ``0.0.0.0``, ``::``."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
