"""A client creates or deletes topics in one request, on any cluster.

Replication factor 3. ``answered_s`` is until the answer. ``cpu_s`` is the processor time of all
brokers until the end, if they are on this machine. ZooKeeper is not counted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import monotonic
from typing import Any

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from bench.clients import broker_ports, cluster_at, new_admin
from bench.frame import benchmark, sizes
from bench.processes import Usage
from bench.result import Case
from regent.testing.waits import eventually

TIMEOUT_S = 600.0


@benchmark(any_cluster=True)
@sizes(100, 10)
def create(bootstrap: str | None, topics: int, partitions: int) -> Iterator[Case]:
    """Create topics.

    ``seconds`` is until a broker's metadata has a leader and all replicas in sync for every
    partition.
    """
    with cluster_at(bootstrap) as servers:
        wanted = Topics(servers, topics, partitions)
        yield _timed(wanted, servers, wanted.create, wanted.await_led)
        wanted.delete()
        wanted.await_gone()


@benchmark(any_cluster=True)
@sizes(100, 10)
def delete(bootstrap: str | None, topics: int, partitions: int) -> Iterator[Case]:
    """Delete topics.

    ``seconds`` is until no topic is left in a broker's metadata. Files may be deleted later: Regent
    and Kafka do it after ``file.delete.delay.ms``.
    """
    with cluster_at(bootstrap) as servers:
        unwanted = Topics(servers, topics, partitions)
        unwanted.create()
        unwanted.await_led()
        yield _timed(unwanted, servers, unwanted.delete, unwanted.await_gone)


def _timed(topics: Topics, servers: str, ask: Callable[[], None], wait: Callable[[], None]) -> Case:
    count = len(topics.names) * topics.partitions
    usage, began = Usage.of_ports(broker_ports(servers)), monotonic()
    ask()
    answered_s = monotonic() - began
    wait()
    seconds = monotonic() - began
    figures = {
        "answered_s": round(answered_s, 3),
        "seconds": round(seconds, 3),
        "partitions_per_s": round(count / seconds),
        **usage.result(),
    }
    return Case({"topics": len(topics.names), "partitions": count}, figures)


class Topics:
    """Topics of equal size, with names of their own; ``settings`` are those of the client."""

    def __init__(
        self, bootstrap: str, topics: int, partitions: int, replicas: int = 3, **settings: Any
    ) -> None:
        self.admin = new_admin(bootstrap, **settings)
        prefix = f"bench-{uuid.uuid4().hex[:8]}"
        self.names = [f"{prefix}-{number:05d}" for number in range(topics)]
        self.partitions = partitions
        self._replicas = replicas

    def create(self, config: Mapping[str, str] | None = None) -> None:
        """Create all in one request; return with its answer."""
        wanted = [
            NewTopic(name, self.partitions, self._replicas, config=dict(config or {}))
            for name in self.names
        ]
        for done in self.admin.create_topics(wanted, request_timeout=TIMEOUT_S).values():
            done.result(TIMEOUT_S)

    def await_led(self) -> None:
        """Wait until a broker's metadata has a leader and all replicas in sync, for each."""
        eventually(self._are_led, "all is led", TIMEOUT_S)

    def delete(self) -> None:
        """Delete all in one request; return with its answer."""
        deleted = self.admin.delete_topics(self.names, request_timeout=TIMEOUT_S)
        for done in deleted.values():
            done.result(TIMEOUT_S)

    def await_gone(self) -> None:
        """Wait until no topic is left in a broker's metadata."""
        eventually(lambda: not self._present(), "all is gone", TIMEOUT_S)

    def _present(self) -> set[str]:
        return self.admin.list_topics(timeout=TIMEOUT_S).topics.keys() & set(self.names)

    def _are_led(self) -> bool:
        found = self.admin.list_topics(timeout=TIMEOUT_S).topics
        return all(
            name in found
            and len(found[name].partitions) == self.partitions
            and all(
                row.leader >= 0 and len(row.isrs) == self._replicas
                for row in found[name].partitions.values()
            )
            for name in self.names
        )


@contextmanager
def existing(topics: Topics, config: Mapping[str, str] | None = None) -> Iterator[Topics]:
    """Let topics exist for the block."""
    topics.create(config)
    topics.await_led()
    try:
        yield topics
    finally:
        topics.delete()
        topics.await_gone()


@contextmanager
def topic_of(bootstrap: str, partitions: int) -> Iterator[str]:
    """Let a topic exist for the block, of three replicas of which two must be in sync."""
    with existing(Topics(bootstrap, 1, partitions), {"min.insync.replicas": "2"}) as topics:
        yield topics.names[0]


def set_topic_config(admin: AdminClient, topic: str, name: str, value: str) -> None:
    """Set one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
