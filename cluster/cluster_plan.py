"""The parts of a local cluster: ports, folders and command lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from regent.cluster.embedded_zookeeper import HEAP_MB
from regent.config.cluster_location import CLUSTER_FILE, KEYS_DIR
from regent.core.model import BrokerId
from regent.transport.local_users import SAME
from regent.zk.client.login import SECRET_FILE

HOST = "127.0.0.1"
PORT_SPACING = 1_000
PLACEMENT_IDLE_MS = 600_000
_BELOW_KAFKA = 9_092 - 2_181  # how far ZooKeeper's port is below that of broker 0
_FIRST_PORT_OF_USERS = 1_024


class BrokerPorts(NamedTuple):
    """The ports of one broker; 0: any free port."""

    port: int
    control_port: int
    replication_port: int
    metrics_port: int


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The processes to start, and their options.

    ``program`` is the command line of this program without the command. ``zookeeper`` is the
    connect string of external servers. ``defaults`` are settings of all brokers, and
    ``broker_settings`` are options of single ones. ``names_listeners``: ``config`` has Kafka's
    ``listeners``, which say the ports for clients and followers. ``console_port`` None: there is
    no console; 0: on any free port. ``placement_idle_ms``: how long the placement service runs
    without topics to place; -1: it does not end by itself. The ids of the brokers begin at
    ``first_id``, which has the base port. Brokers listen on ``host`` unless they have settings.
    ``local_users``: who may connect to ZooKeeper's servers, as the setting of brokers.
    """

    program: tuple[str, ...]
    data_dir: Path
    broker_count: int
    base_port: int
    zookeeper: str | None
    zookeeper_nodes: int
    session_timeout_ms: int
    config: Path | None
    placement_service: bool
    restart: bool
    first_id: BrokerId = 0
    host: str = HOST
    placement_at_once: bool = False
    placement_idle_ms: int = PLACEMENT_IDLE_MS
    zookeeper_login: bool = True
    local_users: str = SAME
    zookeeper_heap_mb: int = HEAP_MB
    connection_timeout_ms: int = 18_000
    names_listeners: bool = False
    console_port: int | None = None
    console_write: bool = False
    restart_backoff_s: float = 1.0
    broker_stop_timeout_s: float = 30.0
    defaults: Mapping[str, int] = field(default_factory=dict)
    broker_settings: Mapping[BrokerId, Mapping[str, str]] = field(default_factory=dict)

    @property
    def broker_ids(self) -> range:
        """The ids of the brokers."""
        return range(self.first_id, self.first_id + self.broker_count)

    def broker_ports(self, broker_id: BrokerId) -> BrokerPorts:
        """Return the ports of a broker: 1,000 apart from each other, unless it has settings.

        With the default base port, 9092, broker N has 9092 + N for Kafka's clients, 10092 + N for
        control requests, 11092 + N for followers, and 12092 + N for metrics. All of them are below
        32768, where the ephemeral ports of Linux begin.
        """
        ports = BrokerPorts(0, 0, 0, 0)
        if self.base_port:
            port = self.base_port + broker_id - self.first_id
            ports = BrokerPorts(*range(port, port + 4 * PORT_SPACING, PORT_SPACING))
        settings = self.broker_settings.get(broker_id, {})
        ports = ports._replace(
            **{name: int(settings[name]) for name in ports._fields if name in settings}
        )
        return self._without_ports_of_listeners(broker_id, ports)

    def _without_ports_of_listeners(self, broker_id: BrokerId, ports: BrokerPorts) -> BrokerPorts:
        if self.names_listeners or "listeners" in self.broker_settings.get(broker_id, {}):
            return ports._replace(port=0, replication_port=0)
        return ports

    def broker_host(self, broker_id: BrokerId) -> str:
        """Return the address that a broker listens on."""
        return self.broker_settings.get(broker_id, {}).get("host", self.host)

    def broker_command(self, broker_id: BrokerId, ports: BrokerPorts, zookeeper: str) -> list[str]:
        """Return the command line of a broker."""
        ports = self._without_ports_of_listeners(broker_id, ports)
        options: dict[str, object] = {
            "id": broker_id,
            "zookeeper": zookeeper,
            "data-dir": self.broker_dir(broker_id),
            "host": self.host,
            **{name.replace("_", "-"): port for name, port in ports._asdict().items()},
            "session-timeout-ms": self.session_timeout_ms,
            "connection-timeout-ms": self.connection_timeout_ms,
            **{name.replace("_", "-"): value for name, value in self.defaults.items()},
        }
        if self.zookeeper is None and self.zookeeper_login:
            options["secret-file"] = self.secret_file
        if self.placement_service:
            options["placement-service"] = self.data_dir.absolute() / CLUSTER_FILE
        if self.zookeeper is None:
            options["broker-keys"] = "allowed"
        if self.config is not None:
            options["config"] = self.config.absolute()
        for name, value in self.broker_settings.get(broker_id, {}).items():
            options[name.replace("_", "-")] = value
        return self._command("broker", options)

    def placement_service_command(self) -> list[str]:
        """Return the command line of the placement service."""
        options = {
            "work-dir": self.placement_service_dir,
            "keys-dir": self.keys_dir,
            "idle-ms": self.placement_idle_ms,
        }
        return self._command("placement-service", options)

    def _command(self, name: str, options: Mapping[str, object]) -> list[str]:
        arguments = (part for key, value in options.items() for part in (f"--{key}", str(value)))
        return [*self.program, name, *arguments]

    def broker_dir(self, broker_id: BrokerId) -> Path:
        """Return the folder of a broker's files."""
        return self.data_dir.absolute() / f"broker-{broker_id}"

    @property
    def secret_file(self) -> Path:
        """Return the file with the login for the ZooKeeper servers to start."""
        return self.data_dir.absolute() / SECRET_FILE

    @property
    def keys_dir(self) -> Path:
        """Return the directory of keys, in which brokers and the placement service look too."""
        return self.data_dir.absolute() / KEYS_DIR

    @property
    def placement_service_dir(self) -> Path:
        """Return the folder of the placement service's log and of Spark's files."""
        return self.data_dir.absolute() / "placement-service"

    def zookeeper_dirs(self) -> list[Path]:
        """Return the folders of the ZooKeeper servers to start."""
        nodes = range(0 if self.zookeeper is not None else self.zookeeper_nodes)
        return [self.data_dir.absolute() / f"zookeeper-{node}" for node in nodes]

    def zookeeper_ports(self) -> list[int]:
        """Return the client ports of the ZooKeeper servers to start; by default 2181 and the next.

        They move with the base port: 6,911 below it, or 4,000 above it where users may not listen.
        """
        first = self.base_port - _BELOW_KAFKA
        if first < _FIRST_PORT_OF_USERS:
            first = self.base_port + 4 * PORT_SPACING
        nodes = range(len(self.zookeeper_dirs()))
        return [first + node if self.base_port else 0 for node in nodes]
