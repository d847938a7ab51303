"""``cluster.json``: how the other commands find a cluster that runs on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from regent.config.cluster_location import CLUSTER_FILE
from regent.core.errors import BadDataError
from regent.core.model import BrokerId
from regent.storage.atomic_file import write_atomically


@dataclass(frozen=True, slots=True)
class ZooKeeperEntry:
    """A ZooKeeper server that the cluster started itself."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A broker as it announced itself; ``port`` is the one for Kafka's clients."""

    id: BrokerId
    pid: int
    host: str
    port: int
    control_port: int
    replication_port: int
    metrics_port: int

    @classmethod
    def decode(cls, text: str) -> BrokerEntry:
        """Decode what a broker prints when it is ready; raises ``BadDataError``."""
        try:
            values = json.loads(text)
            wrong = [
                name
                for name, kind in get_type_hints(cls).items()
                if type(values[name]) is not (str if kind is str else int)
            ]
            if not wrong:
                return cls(**values)
        except (ValueError, TypeError, KeyError) as error:
            wrong = [str(error)]
        raise BadDataError(f"{text[:200]!r} does not announce a broker: wrong {', '.join(wrong)}")


@dataclass(frozen=True, slots=True)
class PlacementEntry:
    """The placement service and the ZeroMQ endpoint it answers at."""

    pid: int
    endpoint: str


@dataclass(slots=True)
class ClusterFile:
    """What ``cluster.json`` holds; ``zookeeper`` is a connect string.

    A broker that crashed stays listed, so that commands report it as missing. A broker that shut
    down normally is removed.
    """

    path: Path
    zookeeper: str
    zookeeper_nodes: list[ZooKeeperEntry] = field(default_factory=list)
    brokers: dict[BrokerId, BrokerEntry] = field(default_factory=dict)
    placement: PlacementEntry | None = None

    def write(self) -> None:
        """Replace the file atomically; raises ``StorageError``."""
        content: Mapping[str, Any] = {
            "zookeeper": self.zookeeper,
            "zookeeper_nodes": [asdict(node) for node in self.zookeeper_nodes],
            "brokers": [asdict(self.brokers[broker_id]) for broker_id in sorted(self.brokers)],
            "placement": None if self.placement is None else asdict(self.placement),
        }
        write_atomically(self.path, (json.dumps(content, indent=2) + "\n").encode())

    def remove(self) -> None:
        """Remove the file when the cluster has stopped."""
        self.path.unlink(missing_ok=True)


def listed_processes(data_dir: Path) -> list[int]:
    """Return the process ids in the ``cluster.json`` of a directory; none if it cannot be read."""
    try:
        content = json.loads((data_dir / CLUSTER_FILE).read_bytes())
        entries = [*content["zookeeper_nodes"], *content["brokers"], content["placement"]]
        return [int(entry["pid"]) for entry in entries if entry is not None]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def placement_endpoint(path: Path) -> str | None:
    """Return the endpoint of the placement service in a ``cluster.json``; None without one."""
    try:
        placement = json.loads(path.read_bytes())["placement"]
        return None if placement is None else str(placement["endpoint"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
