"""A running cluster with faults of processes, machines and disks, and the contents of its disks."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.model import BrokerId, TopicPartition
from regent.storage.log_names import STRAY
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled
from tests.support.cluster_security import OPERATOR, ClientSettings, ClusterSecurity
from tests.support.embedded_ensemble import EmbeddedEnsemble
from tests.support.histories import Logs
from tests.support.record_batches import Record, records_of

BROKERS = (0, 1, 2)
ALONE = "zookeeper-alone"
TIMEOUT_S = scaled(60.0)
SMALL_DISK = "small"
SMALL_SEGMENTS = {"segment.bytes": "65536"}
SAFE = {"min.insync.replicas": "2", **SMALL_SEGMENTS}
CRC_AT = 17  # in a batch: the checksum covers what follows it

_CONFIG = f"""
[controller]
auto_leader_rebalance_enable = false
[groups]
group_initial_rebalance_delay_ms = 0
[log]
log_dirs = "log,{SMALL_DISK}"
log_segment_bytes = 1048576
log_dir_min_free_bytes = 0
[broker]
controlled_shutdown_max_retries = 1
"""


class BreakableCluster(RegentCluster):
    """Three brokers with two log directories each, on a ZooKeeper that can be stopped.

    ZooKeeper is one server, whose data are in the directory ``ALONE``, or the ensemble ``server``.

    With ``is_secured`` everybody must log in, and ACLs say who may do what: ``ClusterSecurity``.

    ``[SMALL_DISK]`` in a broker's directory is an ordinary directory, unless a test mounts a file
    system there before the cluster starts.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        server: EmbeddedEnsemble | None = None,
        is_secured: bool = False,
    ) -> None:
        self._security = ClusterSecurity(directory, BROKERS) if is_secured else None
        login = self._security.zookeeper_login() if self._security else None
        self.server = server or EmbeddedZooKeeper(directory / ALONE, login=login)
        self.server.start()
        self._config = directory / "cluster.toml"
        arguments = ["--no-placement-service", "--no-internal-topics"]
        arguments += ["--config", str(self._config), *options]
        try:
            self._config.write_text(_CONFIG)
            if self._security is not None:
                self._security.prepare(self.server.address)
                self._config.write_text(_CONFIG + self._security.settings())
                arguments += self._security.cluster_options()
            super().__init__(directory, *arguments, "--zookeeper", self.server.address)
        except BaseException:
            self.server.stop()
            raise
        if self._security is not None:
            for broker in self.description["brokers"]:
                self._security.use_ports(broker["id"], broker["listeners"])

    @property
    def security(self) -> ClusterSecurity:
        """What a secured cluster has; others have none."""
        assert self._security is not None, "this cluster was started without is_secured"
        return self._security

    def client_settings(self, user: str) -> ClientSettings:
        """Return what a client needs beside the addresses; nothing if the cluster is not secured.

        ``user`` is one of ``ClusterSecurity``.
        """
        return {} if self._security is None else self._security.client_settings(user)

    def close(self) -> None:
        """Stop everything, also after a failure."""
        super().close()
        self.server.stop()

    # --- brokers ---

    def revive(self, broker_id: BrokerId) -> None:
        """Start a broker that has ended, at its former address."""
        self.start_broker(broker_id, *self.broker_arguments(broker_id))
        eventually(lambda: self.broker_epoch(broker_id) is not None, "it is registered")

    def mend(self) -> None:
        """Continue and start every broker that does not run; wait until all are ready."""
        for broker_id in BROKERS:
            with suppress(ValueError):  # it does not run
                self.signal(broker_id, signal.SIGCONT)
            if not self._runs(broker_id):
                self.revive(broker_id)
        self.await_ready()

    def broker_arguments(self, broker_id: BrokerId) -> list[str]:
        """Return the options of a broker's command line, except for its address."""
        if self._security is None:
            own = ["--port", str(self._ports[broker_id])]
        else:
            own = self._security.broker_arguments(broker_id)
        return ["--config", str(self._config), *own]

    # --- topics ---

    def create_safe_topic(self, topic: str, partitions: int) -> list[TopicPartition]:
        """Create a topic with three replicas, min.insync.replicas 2 and small segments."""
        wanted = NewTopic(topic, partitions, 3, config=SAFE)
        admin = self._admin()
        admin.create_topics([wanted])[topic].result(TIMEOUT_S)
        eventually(lambda: len(self.partition_states(topic)) == partitions, f"{topic} is led")
        return [TopicPartition(topic, number) for number in range(partitions)]

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until its znode is gone."""
        admin = self._admin()
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        eventually(lambda: self.zookeeper.get(f"/brokers/topics/{topic}") is None, "it is gone")

    def _admin(self) -> AdminClient:
        settings: dict[str, str | int | float | bool] = {**self.client_settings(OPERATOR)}
        settings |= {"bootstrap.servers": self.bootstrap_servers, "log_level": 0}
        return AdminClient(settings)

    # --- disks ---

    def log_directories(self, broker_id: BrokerId) -> list[Path]:
        """Return the log directories of a broker."""
        folder = self.data_dir / f"broker-{broker_id}"
        return [folder / "log", folder / SMALL_DISK]

    def log_of(self, partition: TopicPartition, broker_id: BrokerId) -> Path:
        """Return the directory of one replica; raises ``LookupError``."""
        for directory in self.log_directories(broker_id):
            log = directory / f"{partition.topic}-{partition.partition}"
            if log.is_dir():
                return log
        raise LookupError(f"broker {broker_id} has no {partition}")

    def await_replacement(self, partition: TopicPartition, broker_id: BrokerId) -> None:
        """Wait until a broker has set a log aside, to fetch it again."""
        aside = f"{partition.topic}-{partition.partition}.*{STRAY}"

        def is_replaced() -> bool:
            folders = self.log_directories(broker_id)
            return any(any(folder.glob(aside)) for folder in folders)

        eventually(is_replaced, f"broker {broker_id} has set {partition} aside")

    def agreed_logs(self, partitions: Sequence[TopicPartition]) -> Logs:
        """Wait until the logs of all replicas are equal; return their records.

        After the time limit return the records although they differ.
        """
        self.await_isr(partitions[0].topic, set(BROKERS))

        def is_agreed() -> bool:
            logs = self.logs(partitions)
            return all(
                log == replicas[0] for replicas in logs.values() for log in replicas.values()
            )

        try:
            eventually(is_agreed, "all replicas have the same")
        except AssertionError:
            return self.logs(partitions)
        return self.logs(partitions)

    def logs(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        """Return the records on the disks, read without the brokers."""
        return {
            partition: {broker: read_log(self.log_of(partition, broker)) for broker in BROKERS}
            for partition in partitions
        }


def read_log(directory: Path) -> list[Record]:
    """Return the records of a log, by segment, without a partly written batch at its end."""
    found: list[Record] = []
    for segment in sorted(directory.glob("*.log")):
        found += records_of(whole_batches(segment.read_bytes()))
    return found


def whole_batches(data: bytes) -> bytes:
    """Return data without a partly written batch at its end."""
    position = 0
    while position + 12 <= len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if end > len(data):
            break
        position = end
    return data[:position]


def flip_a_bit(segment: Path, chance: random.Random) -> None:
    """Flip one bit that a checksum covers, in any batch of a file."""
    data = segment.read_bytes()
    starts = [0]
    while (end := starts[-1] + 12 + int.from_bytes(data[starts[-1] + 8 :][:4], "big")) < len(data):
        starts.append(end)
    start = chance.choice(starts)
    size = 12 + int.from_bytes(data[start + 8 : start + 12], "big")
    position = chance.randrange(start + CRC_AT, start + size)
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ (1 << chance.randrange(8))]))


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[None]:
    """Mount a small file system on a directory; raises ``PermissionError``."""
    directory.mkdir(parents=True, exist_ok=True)
    if os.geteuid() != 0:
        raise PermissionError("only root mounts file systems")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if mounted.returncode:
        raise PermissionError(mounted.stderr.strip())
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True, timeout=TIMEOUT_S)
