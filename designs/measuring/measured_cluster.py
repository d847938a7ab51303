"""A running cluster of any design, on a ZooKeeper server of its own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.errors import RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.core.placement.replica_placer import place_ring
from regent.designs.measuring.zookeeper_counts import ZooKeeperCounts
from regent.zk.client.operations import Znode
from regent.zk.client.zookeeper_client import ZooKeeperClient

TOPIC: Final = "measured"
REPLICATION_FACTOR: Final = 3
"""Of the topic, if there are so many brokers."""

SESSION_TIMEOUT_MS: Final = 30_000
"""Of brokers. A guardian ends the session of a dead broker at once; a pause shall not end one."""

_TIMEOUT_S: Final = 600.0
_POLL_S: Final = 0.02


class MeasuringError(RegentError):
    """A cluster did not do what was to be measured; the message names it."""


class LeaderTimes(NamedTuple):
    """How long partitions were without a leader, in milliseconds since ``kill -9``.

    ``known_ms``: until every surviving broker knew every leader that it has to know.
    """

    led_ms: float
    known_ms: float


class MeasuredCluster(ABC):
    """The brokers, and what they know.

    No other client than its brokers has a session at ZooKeeper once ``create_partitions`` has
    returned: requests are counted there. What waits raises ``MeasuringError`` when it is too late.
    """

    zookeeper: EmbeddedZooKeeper
    brokers: Sequence[BrokerId]
    """All brokers, in ascending order; dead ones, too."""
    replicas: Sequence[tuple[BrokerId, ...]] = ()
    """Of each partition of the only topic."""

    def create_partitions(self, count: int) -> None:
        """Create the topic, placed in a ring, with min(3, brokers) replicas of each partition.

        Returns when all replicas are in sync and every broker knows every leader.
        """
        ring, factor = self._ring(), min(REPLICATION_FACTOR, len(self.brokers))
        self.replicas = [place_ring(ring, number, factor) for number in range(count)]
        partitions = [TopicPartition(TOPIC, number) for number in range(count)]
        with self._session() as session:
            self._create(session)
            paths = [self._isr_path(topic_partition) for topic_partition in partitions]

            def are_in_sync() -> bool:
                znodes = session.get_many(paths)
                return all(z is not None and len(self._isr_in(z)) == factor for z in znodes)

            self._await(are_in_sync, "not every replica is in sync")
        self._await(lambda: self._are_led(()), "not every partition is led")

    def _ring(self) -> Sequence[BrokerId]:
        """Return the brokers in the sequence in which they are preferred leaders."""
        return self.brokers

    @abstractmethod
    def _create(self, session: ZooKeeperClient) -> None:
        """Create the partitions with their replicas."""

    @abstractmethod
    def _isr_path(self, topic_partition: TopicPartition) -> str:
        """Return where the in-sync replicas of a partition are."""

    @abstractmethod
    def _isr_in(self, znode: Znode) -> Collection[BrokerId]:
        """Return the in-sync replicas that a znode names."""

    @abstractmethod
    def leaders(self) -> Mapping[int, BrokerId]:
        """Return the leader of each partition."""

    def controller(self) -> BrokerId | None:
        """Return the broker that decides for all; None: there is none in this design."""
        return None

    @abstractmethod
    def pid(self, broker_id: BrokerId) -> int:
        """Return the process id of a broker that runs."""

    @abstractmethod
    def await_leaders(
        self, dead: Collection[BrokerId], led: int, before: ZooKeeperCounts, killed: float
    ) -> LeaderTimes:
        """Wait until every surviving broker knows every leader.

        ``killed`` is the instant of the kill, of ``time.monotonic``, ``before`` what ZooKeeper had
        counted then, ``led`` how many partitions need another leader.
        """

    @abstractmethod
    def _are_led(self, dead: Collection[BrokerId]) -> bool:
        """Whether every live broker knows a live leader of every partition."""

    @abstractmethod
    def counts(self, broker_ids: Collection[BrokerId]) -> Mapping[str, int]:
        """Return what these brokers counted since their start, added up, by name."""

    @abstractmethod
    def close(self) -> None:
        """End all processes, in any state."""

    @contextmanager
    def _session(self) -> Iterator[ZooKeeperClient]:
        session = ZooKeeperClient(self.zookeeper.address, 30_000, on_watch=lambda _: None)
        session.start(_TIMEOUT_S)
        try:
            yield session
        finally:
            session.close()

    def _await(self, is_reached: Callable[[], bool], otherwise: str) -> None:
        """Wait for a state of the brokers. Between two looks there is as much time as one took."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            looked = time.monotonic()
            if is_reached():
                return
            if looked > deadline:
                raise MeasuringError(f"{otherwise} after {_TIMEOUT_S:g} s")
            time.sleep(max(_POLL_S, time.monotonic() - looked))


def milliseconds_since(killed: float) -> float:
    """Return the time since an instant of ``time.monotonic``."""
    return (time.monotonic() - killed) * 1000
