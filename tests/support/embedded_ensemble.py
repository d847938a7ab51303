"""Three ZooKeeper servers that are started and stopped together."""

from __future__ import annotations

from pathlib import Path

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper, start_ensemble


class EmbeddedEnsemble:
    """Keeps its ports after a restart; each server's data are in ``version-2``."""

    def __init__(self, directory: Path) -> None:
        self.data_dirs = [directory / f"zookeeper-{number}" for number in (1, 2, 3)]
        self._servers: list[EmbeddedZooKeeper] = []

    @property
    def address(self) -> str:
        """The address for clients; known after the first start."""
        return ",".join(server.address for server in self._servers)

    def start(self) -> None:
        """Start all servers and wait until they serve."""
        ports = [server.port for server in self._servers] or [0, 0, 0]
        self._servers = start_ensemble(self.data_dirs, ports)

    def stop(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.stop()
