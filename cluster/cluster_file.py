"""``cluster.json``: how the other commands find a cluster that runs on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from regent.config.addresses import keyed_endpoint, tcp_endpoint
from regent.config.cluster_location import CLUSTER_FILE
from regent.core.errors import RegentError
from regent.core.model import BrokerId, EndPoint
from regent.core.security.session import SecurityProtocol
from regent.storage.files import write_atomically
from regent.zk.codecs.json_fields import MAX_INT64, JsonObject, bad_field, decode_object

_MAX_BYTES: Final = 16 * 1024 * 1024
_MAX_PORT: Final = 65_535
_LISTENER: Final = re.compile(r"([A-Z_]+)://([^/]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class ZooKeeperEntry:
    """A ZooKeeper server that the cluster started itself."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class BrokerEntry:
    """A broker as it announced itself; ``port`` is the first one for Kafka's clients.

    ``listeners`` are where Kafka's clients and brokers find it: ``PROTOCOL://host:port``.
    ``ended`` says how its process ended, and ``ended_ms`` when (wall clock); empty: it runs.
    """

    id: BrokerId
    pid: int
    host: str
    port: int
    control_port: int
    replication_port: int
    metrics_port: int
    control_key: str = ""
    listeners: tuple[str, ...] = ()
    ended: str = ""
    ended_ms: int = 0

    def endpoint_for(self, protocol: SecurityProtocol) -> EndPoint | None:
        """Return where it listens for clients with a security protocol."""
        if not self.listeners and protocol is SecurityProtocol.PLAINTEXT:
            return EndPoint(protocol.value, self.host, self.port)
        for found in filter(None, map(_LISTENER.fullmatch, self.listeners)):
            if found[1] == protocol.value:
                return EndPoint(found[1], found[2].strip("[]"), int(found[3]), found[1])
        return None

    @property
    def control_peer(self) -> str:
        """The ZeroMQ endpoint for control requests, with the broker's public key."""
        return keyed_endpoint(tcp_endpoint(self.host, self.control_port), self.control_key)

    @classmethod
    def decode(cls, text: str) -> BrokerEntry:
        """Decode what a broker prints when it is ready; raises ``BadDataError``."""
        return _broker(decode_object(text.encode(), "the announcement of a broker"))


@dataclass(frozen=True, slots=True)
class PlacementEntry:
    """The placement service, and the ZeroMQ endpoint it answers at, with its public key.

    ``pid`` 0: it does not run. ``message`` says why it has failed; empty: it has not.
    """

    pid: int = 0
    endpoint: str = ""
    message: str = ""

    @property
    def state(self) -> str:
        """``idle``, ``starting``, ``running`` or ``failed``; while it runs it tells more itself."""
        if self.pid:
            return "running" if self.endpoint else "starting"
        return "failed" if self.message else "idle"


class ClusterFileError(RegentError):
    """A ``cluster.json`` that cannot be opened."""


@dataclass(slots=True)
class ClusterFile:
    """What ``cluster.json`` holds; ``zookeeper`` is a connect string, port 0: no console.

    A broker that crashed stays listed, so that commands report it as missing. A broker that shut
    down normally is removed.
    """

    path: Path
    zookeeper: str
    zookeeper_nodes: list[ZooKeeperEntry] = field(default_factory=list)
    brokers: dict[BrokerId, BrokerEntry] = field(default_factory=dict)
    placement: PlacementEntry | None = None
    console_port: int = 0

    @classmethod
    def read(cls, path: Path) -> ClusterFile | None:
        """Read a file; None when there is none. Raises ``RegentError`` for a bad one."""
        try:
            with path.open("rb") as file:
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ClusterFileError(f"{path}: {error.strerror}") from None
        json = decode_object(data, str(path))
        brokers = map(_broker, json.objects("brokers"))
        return cls(
            path,
            json.string("zookeeper"),
            brokers={broker.id: broker for broker in brokers},
            zookeeper_nodes=[
                ZooKeeperEntry(node.integer("pid"), node.integer("port", maximum=_MAX_PORT))
                for node in json.objects("zookeeper_nodes")
            ],
            placement=None if json.values.get("placement") is None else _placement(json),
            console_port=json.integer("console_port", maximum=_MAX_PORT, default=0),
        )

    def write(self) -> None:
        """Replace the file atomically; raises ``StorageError``."""
        content: Mapping[str, Any] = {
            "zookeeper": self.zookeeper,
            "zookeeper_nodes": [asdict(node) for node in self.zookeeper_nodes],
            "brokers": [_row(self.brokers[broker_id]) for broker_id in sorted(self.brokers)],
            "placement": None if self.placement is None else asdict(self.placement),
            **({"console_port": self.console_port} if self.console_port else {}),
        }
        write_atomically(self.path, (json.dumps(content, indent=2) + "\n").encode())

    def remove(self) -> None:
        """Remove the file when the cluster has stopped."""
        self.path.unlink(missing_ok=True)


def listed_processes(data_dir: Path) -> list[int]:
    """Return who runs by the ``cluster.json`` of a directory; nobody if it cannot be read."""
    file = _read_if_valid(data_dir / CLUSTER_FILE)
    if file is None:
        return []
    running = [broker for broker in file.brokers.values() if not broker.ended]
    entries = [*file.zookeeper_nodes, *running, file.placement]
    return [entry.pid for entry in entries if entry is not None and entry.pid]


def placement_entry(path: Path) -> PlacementEntry | None:
    """Return the placement service in a ``cluster.json``; None without one."""
    file = _read_if_valid(path)
    return None if file is None else file.placement


def _read_if_valid(path: Path) -> ClusterFile | None:
    try:
        return ClusterFile.read(path)
    except RegentError:
        return None


def _row(entry: BrokerEntry) -> dict[str, object]:
    row = asdict(entry)
    return row if entry.ended else {k: v for k, v in row.items() if not k.startswith("ended")}


def _placement(json: JsonObject) -> PlacementEntry:
    placement = json.nested("placement")
    message = placement.optional_string("message") or ""
    return PlacementEntry(placement.integer("pid"), placement.string("endpoint"), message)


def _broker(json: JsonObject) -> BrokerEntry:
    identity = json.integer("id"), json.integer("pid"), json.string("host")
    names = ("port", "control_port", "replication_port", "metrics_port")
    port, control, replication, metrics = (json.integer(name, maximum=_MAX_PORT) for name in names)
    key = json.optional_string("control_key") or ""
    listeners = tuple(json.array("listeners")) if "listeners" in json.values else ()
    for text in listeners:
        if not isinstance(text, str) or _LISTENER.fullmatch(text) is None:
            raise bad_field(json.node, "listeners", "PROTOCOL://HOST:PORT", text)
    end = (
        json.optional_string("ended") or "",
        json.integer("ended_ms", maximum=MAX_INT64, default=0),
    )
    return BrokerEntry(*identity, port, control, replication, metrics, key, listeners, *end)
