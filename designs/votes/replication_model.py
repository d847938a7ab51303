"""The schemes of replication, and the times of the model."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class ElectedBy(StrEnum):
    """How a partition gets another leader."""

    VOTES = "votes"
    CONTROLLER = "controller, from the ISR"
    CONTROLLER_UNCLEAN = "controller, else from any"
    NOBODY = "nobody"


@dataclass(frozen=True)
class ReplicationScheme:
    """One way to survive failures.

    A commit waits for ``acknowledgements``, the leader's included, while all replicas are members.
    ``quorum`` replicas are asked in an election or, without a leader, in a read: any so many of
    them have every acknowledged record among them. If it ``shrinks``, a member that is late or
    dead leaves the set that a commit waits for.
    """

    name: str
    replicas: int
    acknowledgements: int
    quorum: int
    elected_by: ElectedBy
    shrinks: bool = False

    @property
    def has_leader(self) -> bool:
        """Whether one replica decides the sequence of records."""
        return self.elected_by is not ElectedBy.NOBODY

    @property
    def has_controller(self) -> bool:
        """Whether a controller, which is not a replica, knows who is in sync."""
        return self.elected_by in (ElectedBy.CONTROLLER, ElectedBy.CONTROLLER_UNCLEAN)

    def acknowledgements_of(self, members: int) -> int:
        """Return how many acknowledgements a commit waits for when so many are members."""
        return max(1, self.acknowledgements - (self.replicas - members))


@dataclass(frozen=True)
class ModelTimes:
    """The times of the model, in milliseconds.

    A message travels for ``trip_ms``. A replica appends a record in ``append_ms`` on average,
    exponentially distributed; one that is slow takes ``slow_factor`` times as long. Replicas give
    a sign of life three times in ``silence_ms``, the silence after which one counts as dead. A
    replica that lacks a record for ``lag_ms`` leaves the ISR, at a check every half of it.
    """

    trip_ms: float = 0.5
    append_ms: float = 1.0
    slow_factor: float = 20.0
    silence_ms: float = 18_000.0  # zookeeper.session.timeout.ms
    lag_ms: float = 30_000.0  # replica.lag.time.max.ms

    @property
    def sign_of_life_ms(self) -> float:
        """The time between two signs of life."""
        return self.silence_ms / 3


DEFAULT_TIMES: Final = ModelTimes()


def schemes_for(failures: int) -> tuple[ReplicationScheme, ...]:
    """Return the schemes that lose no acknowledged record when ``failures`` replicas die."""
    few, many = failures + 1, 2 * failures + 1
    return (
        ReplicationScheme("majority vote", many, failures + 1, failures + 1, ElectedBy.VOTES),
        ReplicationScheme("ISR", few, few, 1, ElectedBy.CONTROLLER, shrinks=True),
        ReplicationScheme("ISR, unclean", few, few, 1, ElectedBy.CONTROLLER_UNCLEAN, shrinks=True),
        ReplicationScheme("all replicas", few, few, 1, ElectedBy.CONTROLLER),
        ReplicationScheme("leaderless", many, failures + 1, failures + 1, ElectedBy.NOBODY),
    )
