"""Sessions with a real ZooKeeper, and the events they reported."""

from __future__ import annotations

import queue
from contextlib import ExitStack

from regent.testing.waits import scaled
from regent.zk.client.connection import ConnectionState, SessionCredentials
from regent.zk.client.operations import WatchEvent, Znode
from regent.zk.client.zookeeper_client import ZooKeeperClient


class Session:
    """A started client and the events it reported."""

    def __init__(
        self, address: str, timeout_ms: int = 6000, credentials: SessionCredentials | None = None
    ) -> None:
        self.events: queue.Queue[WatchEvent] = queue.Queue()
        self.states: queue.Queue[ConnectionState] = queue.Queue()
        self.client = ZooKeeperClient(
            address,
            timeout_ms,
            on_watch=self.events.put,
            on_state=self.states.put,
            credentials=credentials,
        )
        self.client.start(timeout_s=scaled(10.0))
        assert self.states.get(timeout=scaled(5.0)) is ConnectionState.CONNECTED


class Connect:
    """Opens sessions that are closed after the test."""

    def __init__(self, stack: ExitStack, address: str) -> None:
        self._stack = stack
        self._address = address

    def __call__(
        self,
        address: str | None = None,
        timeout_ms: int = 6000,
        credentials: SessionCredentials | None = None,
    ) -> Session:
        session = Session(address or self._address, timeout_ms, credentials)
        self._stack.callback(session.client.close)
        return session


def read(client: ZooKeeperClient, path: str, *, watch: bool = False) -> Znode:
    znode = client.get(path, watch=watch)
    assert znode is not None
    return znode
