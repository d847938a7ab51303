"""A running cluster with kills of brokers, and writes of tools to znodes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from regent.core.model import BrokerId
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.client.operations import ANY_VERSION, Create, Refused, SetData

REASSIGN = "/admin/reassign_partitions"
ELECT = "/admin/preferred_replica_election"

CONFIG = """
[broker]
isr_change_protocol = "{}"
[controller]
auto_leader_rebalance_enable = false
"""


class OperatedCluster(RegentCluster):
    """Three brokers that are killed and restarted, and Kafka's tools."""

    def __init__(self, directory: Path, isr_change_protocol: str) -> None:
        self._config = directory / "cluster.toml"
        self._config.write_text(CONFIG.format(isr_change_protocol))
        super().__init__(directory, "--no-placement-service", "--config", str(self._config))

    def roles(self) -> tuple[BrokerId, BrokerId, BrokerId]:
        """Return the active controller and the two other brokers."""
        rules = self.await_controller()
        first, second = sorted({0, 1, 2} - {rules})
        return rules, first, second

    def stop(self, broker_id: BrokerId, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill a broker and wait until its registration is gone."""
        pid = self.pid(broker_id)
        self.signal(broker_id, number)
        self.await_end(broker_id, pid)
        eventually(lambda: self.broker_epoch(broker_id) is None, "its registration is gone")

    def bring_back(self, *brokers: BrokerId) -> None:
        """Start brokers that have ended."""
        for broker_id in brokers:
            self.start_broker(broker_id, "--config", str(self._config))

    def create_as_tools_do(self, topic: str, *replicas: Sequence[BrokerId]) -> None:
        """Create a topic as ``kafka-topics --zookeeper`` does, and wait for its leaders."""
        partitions = ",".join(f'"{p}":{list(r)}' for p, r in enumerate(replicas))
        self.write(f"/config/topics/{topic}", '{"version":1,"config":{}}')
        self.write(f"/brokers/topics/{topic}", f'{{"version":1,"partitions":{{{partitions}}}}}')
        eventually(
            lambda: len(self.partition_states(topic)) == len(replicas), f"{topic} has leaders"
        )

    def write(self, path: str, data: str) -> None:
        """Create a znode; for a path that ends in "_" ZooKeeper appends a number."""
        sequential = path.endswith("_")
        done = self.zookeeper.multi([Create(path, data.encode(), sequential=sequential)])
        assert not isinstance(done, Refused), done

    def rewrite(self, path: str, data: str) -> None:
        """Set a znode, whatever its version."""
        done = self.zookeeper.multi([SetData(path, data.encode(), ANY_VERSION)])
        assert not isinstance(done, Refused), done

    def reassign(self, topic: str, replicas: Sequence[BrokerId]) -> None:
        """Move partition 0 as ``kafka-reassign-partitions`` does, and wait until it is done."""
        row = f'{{"topic":"{topic}","partition":0,"replicas":{list(replicas)}}}'
        self.write(REASSIGN, f'{{"version":1,"partitions":[{row}]}}')
        self.await_gone(REASSIGN)

    def await_gone(self, *paths: str) -> None:
        """Wait until znodes are deleted."""
        for path in paths:
            eventually(partial(self._is_gone, path), f"{path} is gone")

    def _is_gone(self, path: str) -> bool:
        return self.zookeeper.get(path) is None

    def await_state(self, topic: str, leader: BrokerId, isr: set[BrokerId]) -> None:
        """Wait for this leader and this ISR of partition 0."""

        def is_so() -> bool:
            found = self.partition_states(topic)[0].leader_and_isr
            return (found.leader, set(found.isr)) == (leader, isr)

        eventually(is_so, f"{topic}-0 is led by {leader}, ISR {isr}")
