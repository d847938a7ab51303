"""Whether clients should use this broker: ``/ready`` and ``/controller`` of the metrics port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from regent.actors.broker import BrokerState, BrokerStatus
from regent.core.model import TopicPartition
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.replication.replica_manager import ReplicaManager

_RUNNING = (BrokerState.RUNNING_AS_BROKER, BrokerState.RUNNING_AS_CONTROLLER)
_NAMED = 3


class LogsBeingLoaded(Protocol):
    """The logs of a broker that starts."""

    @property
    def progress(self) -> tuple[int, int]:
        """How many logs are loaded, and how many have been found."""
        ...


class Starting:
    """A broker that starts; ``broker.metrics.metrics_server.Probes``."""

    def __init__(self, logs: LogsBeingLoaded) -> None:
        self._logs = logs

    def why_not_ready(self) -> str:
        """Return how far the broker is."""
        return "the broker starts: {} of {} logs are loaded".format(*self._logs.progress)

    def is_controller(self) -> bool:
        """Return False: it does not stand for election yet."""
        return False


class Readiness:
    """Implements ``broker.metrics.metrics_server.Probes``.

    A broker is ready when it is registered, knows all partitions, and is in the ISR of each one of
    which it is a replica. What is being moved to it does not count. The partitions are looked at
    once for each UpdateMetadata: a probe may come every second, and there may be 20,000.
    """

    def __init__(
        self,
        replicas: ReplicaManager,
        status: BrokerStatus,
        cache: MetadataCache,
        is_controller: Callable[[], bool],
    ) -> None:
        self._replicas = replicas
        self._status = status
        self._cache = cache
        self.is_controller = is_controller
        self._seen: tuple[MetadataSnapshot, str] | None = None

    def why_not_ready(self) -> str:
        """Return why clients should use other brokers; empty: this one serves them fully."""
        if self._status.state not in _RUNNING:
            return f"the broker is in the state {self._status.state.value}"
        snapshot = self._cache.snapshot
        if not snapshot.is_complete:
            return "the broker does not know all partitions yet"
        seen = self._seen
        if seen is None or seen[0] is not snapshot:
            seen = self._seen = snapshot, self._why_behind(snapshot)
        return seen[1]

    def _why_behind(self, snapshot: MetadataSnapshot) -> str:
        behind = sorted(self._behind(snapshot))
        if not behind:
            return ""
        named = ", ".join(map(str, behind[:_NAMED]))
        more = f" and {len(behind) - _NAMED} more" if len(behind) > _NAMED else ""
        return f"the broker is not in sync yet: {named}{more}"

    def _behind(self, snapshot: MetadataSnapshot) -> Iterator[TopicPartition]:
        own = self._replicas.broker_id
        for topic, rows in snapshot.topics.items():
            for partition, row in rows.items():
                if own in row.replicas and own not in row.isr:
                    name = TopicPartition(topic, partition)
                    hosted = self._replicas.partitions.get(name)
                    if hosted is None or own not in hosted.assignment.adding_replicas:
                        yield name
