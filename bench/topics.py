"""Many topics of a cluster, created and deleted by a client."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka.admin import NewTopic

from bench.clients import new_admin
from regent.testing.waits import eventually

TIMEOUT_S = 600.0


class Topics:
    """Topics of equal size, with names of their own."""

    def __init__(self, bootstrap: str, topics: int, partitions: int, replicas: int = 3) -> None:
        self.admin = new_admin(bootstrap)
        prefix = f"bench-{uuid.uuid4().hex[:8]}"
        self.names = [f"{prefix}-{number:05d}" for number in range(topics)]
        self._partitions = partitions
        self._replicas = replicas

    def create(self, config: Mapping[str, str] | None = None) -> None:
        """Create all in one request; return with its answer."""
        wanted = [
            NewTopic(name, self._partitions, self._replicas, config=dict(config or {}))
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
            and len(found[name].partitions) == self._partitions
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
