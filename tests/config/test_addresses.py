"""Names, IPv4 and IPv6 as people and ZeroMQ write them."""

from __future__ import annotations

import socket

import pytest

from regent.config.addresses import (
    Address,
    host_of,
    is_every_address,
    listening_socket,
    port_of,
    resolve,
    tcp_endpoint,
)
from regent.testing.waits import scaled
from tests.support.ipv6 import needs_ipv6


@pytest.mark.parametrize(
    ("host", "endpoint"),
    [
        ("127.0.0.1", "tcp://127.0.0.1:9092"),
        ("::1", "tcp://[::1]:9092"),
        ("broker-1.example", "tcp://broker-1.example:9092"),
    ],
)
def test_an_endpoint_is_read_as_it_was_written(host: str, endpoint: str) -> None:
    assert tcp_endpoint(host, 9092) == endpoint
    assert (host_of(endpoint), port_of(endpoint)) == (host, 9092)


def test_numbers_are_not_looked_up() -> None:
    assert resolve("192.0.2.1") == Address("192.0.2.1", is_ipv6=False)
    assert resolve("2001:db8::1") == Address("2001:db8::1", is_ipv6=True)


def test_of_a_name_with_several_addresses_everybody_chooses_the_ipv4_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_up(*_args: object, **_kwargs: object) -> list[object]:
        stream = (socket.SOCK_STREAM, 6, "")
        return [
            (socket.AF_INET6, *stream, ("2001:db8::1", 0, 0, 0)),
            (socket.AF_INET, *stream, ("192.0.2.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert resolve("both.example") == Address("192.0.2.1", is_ipv6=False)


@pytest.mark.parametrize("name", ["nobody.invalid", "x" * 64 + ".example", "a\0b", ""])
def test_an_invalid_host_name_is_an_error_of_the_system(name: str) -> None:
    with pytest.raises(OSError, match=r"not known|not the name|No address|resolution"):
        resolve(name)


@pytest.mark.parametrize(
    ("host", "clients"),
    [
        pytest.param("::", ["::1", "127.0.0.1"], marks=needs_ipv6),
        ("0.0.0.0", ["127.0.0.1"]),
    ],
)
def test_all_addresses_of_ipv6_are_those_of_ipv4_too(host: str, clients: list[str]) -> None:
    with listening_socket(host, 0) as listening:
        for client in clients:
            socket.create_connection((client, listening.getsockname()[1]), scaled(5)).close()


@pytest.mark.parametrize(
    ("host", "is_every"), [("0.0.0.0", True), ("::", True), ("0::0", True), ("::1", False)]
)
def test_addresses_of_every_interface_are_recognized(host: str, is_every: bool) -> None:
    assert is_every_address(host) is is_every
