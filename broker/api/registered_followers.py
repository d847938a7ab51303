"""Whom a listener for both clients and brokers believes that it is a follower, or a broker.

Anybody can claim a replica id there. A position that a stranger claims would make records count as
replicated, and a broker epoch that no broker has yet would keep the real follower out. The epoch of
a coordinator that a stranger claims would fence the real one.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Collection
from concurrent.futures import Executor, Future
from typing import Final

from regent.core.errors import Errors
from regent.core.model import UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.security.authorizer import ALLOW_ALL
from regent.core.security.roles import KeyOwner
from regent.core.security.session import ANONYMOUS
from regent.transport.kafka.api import KafkaRequest

_KNOWN_S: Final = 10.0  # addresses of a host are looked up again after that


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


class BrokerSenders:
    """Tells the requests of brokers from those of clients, where they do not name the broker.

    ``user``: as whom this broker logs in to others, and so do brokers of Kafka with its file.
    ``executor`` looks names up: one that answers clients, because they make us do that.
    """

    def __init__(self, cache: MetadataCache, user: str, executor: Executor) -> None:
        self._cache = cache
        self._user = user
        self._executor = executor
        self._looked_up: dict[str, Future[tuple[float, Collection[str]]]] = {}  # by host

    async def has_sent(self, request: KafkaRequest) -> bool:
        """Whether a broker sent a request.

        Without a login it must come from the address of a registered broker. With one its user may
        act as a broker; where nothing says who may, it is that of a broker, or our own.
        """
        principal, brokers = request.session.principal, self._cache.snapshot.brokers
        if principal == ANONYMOUS:
            hosts = {e.host for broker in brokers.values() for e in broker.endpoints}
            return await self._is_one_of(request.session.client_host, hosts)
        if request.authorizer is not ALLOW_ALL:
            to_act = AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER
            return request.may(*to_act, is_logged=False)
        is_named = KeyOwner.named(principal.name).broker_id in brokers
        return is_named or (bool(self._user) and principal.name == self._user)

    async def _is_one_of(self, address: str, hosts: Collection[str]) -> bool:
        """Whether an address is that of a host. However many ask, a host is looked up once."""
        self._looked_up = {h: found for h, found in self._looked_up.items() if h in hosts}
        if address in hosts:
            return True
        for host in hosts:
            found = self._looked_up.get(host)
            if found is None or (found.done() and time.monotonic() > found.result()[0]):
                found = self._looked_up[host] = self._executor.submit(_addresses, host)
            _, addresses = await asyncio.shield(asyncio.wrap_future(found))
            if address in addresses:
                return True
        return False


def _addresses(host: str) -> tuple[float, Collection[str]]:
    """Return until when they are taken as known, and the addresses of a host."""
    try:
        found = {str(row[4][0]) for row in socket.getaddrinfo(host, None)}
    except (OSError, ValueError):  # it is not known here, or no name
        found = set()
    return time.monotonic() + _KNOWN_S, found
