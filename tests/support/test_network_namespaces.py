from __future__ import annotations

import socket

import pytest

from regent.testing.waits import scaled
from tests.support.network_namespaces import HostNetwork, NamespacesUnavailableError


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_cut_loses_one_direction_until_it_is_restored(family: socket.AddressFamily) -> None:
    try:
        network = HostNetwork(2)
    except NamespacesUnavailableError as error:
        pytest.skip(str(error))
    with network:
        sender, receiver = network.hosts
        address = (receiver.ipv4 if family is socket.AF_INET else receiver.ipv6, 5000)
        with receiver.inside():
            listening = socket.create_server(address, family=family)
        with sender.inside():
            sending = socket.create_connection(address, scaled(5))
        receiving, _ = listening.accept()
        with listening, sending, receiving:
            receiving.settimeout(0.3)
            sending.settimeout(scaled(5))
            with network.cut(sender, [receiver]):
                sending.send(b"lost, for now")
                with pytest.raises(TimeoutError):
                    receiving.recv(100)
                with sender.inside(), pytest.raises(OSError, match="Invalid argument"):
                    socket.create_connection(address, scaled(5))
                receiving.send(b"the other way")
                assert sending.recv(100) == b"the other way"
            receiving.settimeout(scaled(5))
            assert receiving.recv(100) == b"lost, for now"
