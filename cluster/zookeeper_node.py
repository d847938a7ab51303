"""An embedded ZooKeeper server as a supervised child."""

from __future__ import annotations

import os
import signal
from typing import IO

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper


class ZooKeeperNode:
    """A server that has been started. When it is launched again it keeps its port and its data.

    It prints no ready line: the caller that starts it first waits until it answers. See
    ``cluster.child_process.Child`` for the rest.
    """

    ready: str | None = None
    stdout: IO[bytes] | None = None

    def __init__(self, name: str, server: EmbeddedZooKeeper) -> None:
        self.name = name
        self.server = server

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self.server.pid

    def launch(self) -> None:
        """Start it again; raises ``ZooKeeperStartError`` and ``JavaNotFoundError``."""
        self.server.launch()

    def read(self) -> bool:
        """There is nothing to read."""
        return False

    def poll(self) -> int | None:
        """Return the exit status once it has ended."""
        return self.server.poll()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal if it is running."""
        if self.server.poll() is None:
            os.kill(self.pid, number)

    def last_line(self) -> str | None:
        """Return the last error in its log."""
        return self.server.last_line()
