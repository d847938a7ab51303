"""Whom a listener for both clients and brokers believes that it is a follower.

Anybody can claim a replica id there. A position that a stranger claims would make records count as
replicated, and a broker epoch that no broker has yet would keep the real follower out.
"""

from __future__ import annotations

from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.replication.metadata_cache import MetadataCache


class RegisteredFollowers:
    """The brokers that are registered, each with its current broker epoch."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def refusal(self, replica_id: BrokerId, broker_epoch: int) -> Errors | None:
        """Return why a fetch is refused as a whole; None: it is of a registered broker.

        A follower that has registered again meanwhile tries again until this broker is told. Two
        kinds of brokers are believed without an epoch, as in Kafka: a broker of Kafka before 3.5
        does not send its own, and a controller of Kafka tells nobody those of others.
        """
        broker = self._cache.snapshot.brokers.get(replica_id)
        if broker is None:
            return Errors.CLUSTER_AUTHORIZATION_FAILED
        if broker_epoch == UNKNOWN_BROKER_EPOCH:
            is_of_kafka = broker.control_endpoint is None
            return None if is_of_kafka else Errors.CLUSTER_AUTHORIZATION_FAILED
        if broker.broker_epoch == UNKNOWN_BROKER_EPOCH:
            return None
        return None if broker_epoch == broker.broker_epoch else Errors.STALE_BROKER_EPOCH

    def refusal_by_controller(self, broker_id: BrokerId, broker_epoch: int) -> Errors:
        """Return why a controller refuses a request of a broker in Kafka's protocol, or NONE.

        Brokers of this project ask at the control port, where they prove with a key who they are.
        """
        refusal = self.refusal(broker_id, broker_epoch)
        broker = self._cache.snapshot.brokers.get(broker_id)
        if refusal is None and (broker is None or broker.control_endpoint is not None):
            return Errors.CLUSTER_AUTHORIZATION_FAILED
        return refusal or Errors.NONE

    def may_read(self, replica_id: BrokerId, topic_partition: TopicPartition) -> bool:
        """Whether the offsets of a partition may be told: the broker has a replica of it."""
        snapshot = self._cache.snapshot
        row = snapshot.partitions.get(topic_partition)
        return replica_id in snapshot.brokers and row is not None and replica_id in row.replicas
