"""Sessions and a proxy that are closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from tests.support.connected_sessions import Connect
from tests.support.tcp_proxy import TcpProxy
from tests.support.zookeeper_sessions import (
    Ensemble,
    fake_ensemble,
    lagging_ensemble,
    real_ensemble,
)


@pytest.fixture
def connect(zookeeper_address: str) -> Iterator[Connect]:
    with ExitStack() as stack:
        yield Connect(stack, zookeeper_address)


@pytest.fixture
def proxy(zookeeper_server: EmbeddedZooKeeper) -> Iterator[TcpProxy]:
    with TcpProxy(zookeeper_server.address) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper_address: str) -> str:
    """The address of the same chroot through the proxy."""
    return proxy.address + zookeeper_address[zookeeper_address.index("/") :]


@pytest.fixture(params=["fake", "lagging", pytest.param("real", marks=pytest.mark.zookeeper)])
def ensemble(request: pytest.FixtureRequest) -> Iterator[Ensemble]:
    if request.param == "fake":
        ensemble = fake_ensemble()
    elif request.param == "lagging":
        ensemble = lagging_ensemble()
    else:
        ensemble = real_ensemble(request.getfixturevalue("zookeeper_address"))
    yield ensemble
    ensemble.close()
