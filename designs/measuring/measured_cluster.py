"""What the harness needs of a running cluster of any design."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from regent.cluster.embedded_zookeeper import EmbeddedZooKeeper
from regent.core.errors import RegentError
from regent.core.model import BrokerId

TOPIC: Final = "measured"
REPLICATION_FACTOR: Final = 3
"""Of the topic, if there are so many brokers."""

SESSION_TIMEOUT_MS: Final = 6_000
"""Of brokers. A guardian ends the session of a dead broker at once; a pause shall not end one."""


class MeasuringError(RegentError):
    """A cluster did not do what was to be measured; the message names it."""


class DisturbedError(MeasuringError):
    """Something else happened meanwhile, such as a pause of the machine: measure again."""


@dataclass(frozen=True, slots=True)
class LeaderTimes:
    """How long partitions were without a leader, in milliseconds since ``kill -9``.

    ``led_ms``: until the new leader of the last partition was written to ZooKeeper. ``known_ms``:
    until every surviving broker knew every leader. Partitions that no survivor can lead are
    excepted.
    """

    led_ms: float
    known_ms: float


@dataclass(frozen=True, slots=True)
class BrokerCounts:
    """What brokers counted.

    ``requests``: those received from other brokers, without the fetches of replicas and without
    questions of the harness. ``listeners_called``: the actors that were told of a change in
    ZooKeeper; None: they are not counted.
    """

    requests: int
    listeners_called: int | None


@dataclass(frozen=True, slots=True)
class Believers:
    """What a leader that was stopped, and lost its session, does when it continues.

    ``leaders``: the replicas of one partition that believe at that moment that they lead.
    ``has_acknowledged``: whether the former leader then acknowledged a record that had to be on all
    in-sync replicas, and that the new leader does not have.
    """

    leaders: int
    has_acknowledged: bool


@dataclass(frozen=True, slots=True)
class StateChangeCost:
    """What it takes to tell one broker one change of a replica's state.

    ``zookeeper_operations``: reads, writes and watch events. ``requests``: requests between
    brokers.
    """

    zookeeper_operations: int
    requests: int


class MeasuredCluster(Protocol):
    """A running cluster of one design, on a ZooKeeper server of its own.

    No other client than its brokers has a session there once ``create_partitions`` has returned.
    """

    @property
    def zookeeper(self) -> EmbeddedZooKeeper:
        """The server, which is running."""
        ...

    @property
    def brokers(self) -> Sequence[BrokerId]:
        """All brokers, in ascending order; dead ones, too."""
        ...

    @property
    def period_s(self) -> float:
        """What brokers do regularly, without a reason, repeats after so many seconds."""
        ...

    def create_partitions(self, count: int) -> None:
        """Create one topic, placed in a ring, with min(3, brokers) replicas of each partition.

        Returns when every broker knows every leader.
        """
        ...

    def controller(self) -> BrokerId | None:
        """Return the broker that decides for all; None: there is none in this design."""
        ...

    def leader_of(self, partition: int) -> BrokerId:
        """Return the leader of a partition; the harness asks before it kills."""
        ...

    def pid(self, broker_id: BrokerId) -> int:
        """Return the process id of a running broker; the harness kills it."""
        ...

    def await_leaders(self, dead: Collection[BrokerId], since: float) -> LeaderTimes:
        """Wait until every surviving broker knows every leader.

        ``since`` is the instant of the kill, of ``time.monotonic``. ZooKeeper must not be asked
        meanwhile, because its requests are counted. Raises ``MeasuringError``.
        """
        ...

    def partitions_led_by(self, broker_ids: Collection[BrokerId]) -> int:
        """Return how many partitions these brokers lead; the harness asks before it kills."""
        ...

    def broker_counts(self, broker_ids: Collection[BrokerId]) -> BrokerCounts:
        """Return what these brokers counted since their start, added up."""
        ...

    def believers(self) -> Believers | None:
        """Stop the leader of partition 0, see ``Believers``; the cluster is not used after that.

        None: this is not measured.
        """
        ...

    def state_change_cost(self) -> StateChangeCost | None:
        """Measure ``StateChangeCost``; None: this is not measured."""
        ...

    def close(self) -> None:
        """End all processes, in any state."""
        ...


Factory: TypeAlias = Callable[[Path, int], MeasuredCluster]
"""Starts a cluster, with its data in a folder and so many brokers."""
