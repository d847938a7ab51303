"""The new leader of a partition, for clients that asked a broker that does not lead it (KIP-951).

With it they need no Metadata request. Mirrors ``kafka.server.KafkaApis.getCurrentLeader``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from regent.core.model import BrokerId, TopicPartition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import alive_endpoint
from regent.transport.kafka.primitives import Writer

_NODE_ENDPOINTS: Final = 0  # its tag, in the responses to Produce and Fetch
_NO_FIELDS: Final[Mapping[int, bytes]] = {}


class CurrentLeaders:
    """Knows the leaders, and where the clients of each listener reach them.

    ``current_leader`` returns the leader of a partition and its leader epoch; -1 if unknown.
    """

    def __init__(
        self,
        current_leader: Callable[[TopicPartition], tuple[BrokerId, int]],
        cache: MetadataCache,
    ) -> None:
        self.of = current_leader
        self._cache = cache

    def node_endpoints(self, leaders: set[BrokerId], listener: str) -> Mapping[int, bytes]:
        """Return the tagged field NodeEndpoints, as clients of ``listener`` see the cluster.

        Leaders that are not alive, or do not have that listener, have no endpoint.
        """
        snapshot = self._cache.snapshot
        reachable = [
            (snapshot.brokers[leader], endpoint)
            for leader in sorted(leaders)
            if (endpoint := alive_endpoint(snapshot, leader, listener)) is not None
        ]
        if not reachable:
            return _NO_FIELDS
        writer = Writer(is_flexible=True)
        writer.array_length(len(reachable))
        for broker, endpoint in reachable:
            writer.int32(broker.broker_id)
            writer.string(endpoint.host)
            writer.int32(endpoint.port)
            writer.nullable_string(broker.rack)
            writer.end_struct()
        return {_NODE_ENDPOINTS: writer.whole()}


class NamedLeaders:
    """The leaders that one response names to a client of ``listener``."""

    __slots__ = ("_leaders", "_listener", "_named")

    def __init__(self, leaders: CurrentLeaders, listener: str) -> None:
        self._leaders = leaders
        self._listener = listener
        self._named: set[BrokerId] | None = None

    def name(self, topic_partition: TopicPartition) -> bytes:
        """Return the field CurrentLeader of a partition."""
        leader, leader_epoch = self._leaders.of(topic_partition)
        self._named = (self._named or set()) | {leader}
        writer = Writer(is_flexible=True)
        writer.int32(leader)
        writer.int32(leader_epoch)
        writer.end_struct()
        return writer.whole()

    def node_endpoints(self) -> Mapping[int, bytes]:
        """Return the tagged field that ends the response."""
        if self._named is None:
            return _NO_FIELDS
        return self._leaders.node_endpoints(self._named, self._listener)
