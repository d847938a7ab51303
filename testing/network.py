"""The links between the brokers of a test cluster and ZooKeeper, which can be cut."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain

from regent.cluster.child_process import DeathPipe
from regent.core.model import BrokerId
from regent.testing.network_proxy import HOST, ZOOKEEPER, Member, NetworkPorts, ProxiedPorts
from regent.testing.waits import await_end, next_line


class Network:
    """The side of the test process; ``regent.testing.network_proxy`` forwards the bytes."""

    def __init__(self, brokers: int) -> None:
        self._brokers = range(brokers)
        self._death_pipe = DeathPipe()
        pipe = self._death_pipe.read_fd
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "regent.testing.network_proxy"),
                *(str(brokers), str(pipe)),
            ],
            pass_fds=(pipe,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.is_whole = True

    def open(self, zookeeper: str) -> tuple[str, ...]:
        """Begin to forward, to ZooKeeper at ``zookeeper``; return options of ``regent cluster``."""
        port, brokers = json.loads(next_line(self._process, "the ports of the network"))
        ports = NetworkPorts(port, [ProxiedPorts(*row) for row in brokers])
        host, _, number = zookeeper.rpartition(":")
        self._send("zookeeper", host, int(number))
        settings = (
            f"{broker_id}:{name}={value}"
            for broker_id, row in enumerate(ports.brokers)
            for name, value in row._asdict().items()
        )
        return (
            *("--zookeeper", f"{HOST}:{ports.zookeeper}"),
            *chain.from_iterable(("--broker-setting", setting) for setting in settings),
        )

    def links(self, broker_id: BrokerId, other: Member | None) -> list[tuple[BrokerId, Member]]:
        """Return the links of a broker to another member; None: to all.

        Raises ``ValueError`` for a member that does not exist.
        """
        members: list[Member] = [*self._brokers, ZOOKEEPER]
        if broker_id not in self._brokers:
            raise ValueError(f"there is no broker {broker_id!r}: the cluster has {self._known()}")
        if other is None:
            return [(broker_id, member) for member in members if member != broker_id]
        if other not in members or other == broker_id:
            raise ValueError(
                f"broker {broker_id} has no link to {other!r}: name another one of"
                f" {self._known()}, or {ZOOKEEPER!r}"
            )
        return [(broker_id, other)]

    def cut(self, links: list[tuple[BrokerId, Member]]) -> None:
        """Forward no byte on these links from now on."""
        self.is_whole = False
        for link in links:
            self._send("cut", *link)

    def restore(self, links: list[tuple[BrokerId, Member]]) -> None:
        """Forward again on these links."""
        for link in links:
            self._send("restore", *link)

    def restore_all(self) -> None:
        """Forward again on every link."""
        if not self.is_whole:
            for broker_id in self._brokers:
                self.restore(self.links(broker_id, None))
            self.is_whole = True

    def close(self) -> None:
        """End the process that forwards."""
        self._death_pipe.close()
        await_end(self._process, "the process of the network")

    def _known(self) -> str:
        return f"brokers 0 to {self._brokers[-1]}"

    def _send(self, *command: Member) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        next_line(self._process, f"the answer of the network to {command}")
