"""The controller of a partition: it knows who lives and who is in sync, and names the leader."""

from __future__ import annotations

from typing import NamedTuple

from regent.designs.pooled_actor import PooledActor
from regent.designs.virtual_time import VirtualTime
from regent.designs.votes.model_network import (
    CONTROLLER,
    Lagging,
    Lead,
    ModelNetwork,
    SignOfLife,
)
from regent.designs.votes.replication_model import ElectedBy, ReplicationScheme


class _SessionDue(NamedTuple):
    replica: int
    signs_heard: int


class IsrController(PooledActor):
    """Removes the dead and the late from the ISR; the last member stays. It does not die."""

    def __init__(
        self, dispatcher: VirtualTime, scheme: ReplicationScheme, network: ModelNetwork
    ) -> None:
        super().__init__(dispatcher)
        self._scheme = scheme
        self._network = network
        self._epoch = 0
        self._leader: int | None = 0
        self._isr = frozenset(range(scheme.replicas))
        self._living = set(self._isr)
        self._signs_heard = dict.fromkeys(self._isr, 0)

    def handle(self, message: SignOfLife | Lagging | _SessionDue) -> None:
        """See ``PooledActor.handle``."""
        match message:
            case SignOfLife(_, sender):
                self._hear(sender)
            case Lagging(epoch, replicas):
                if epoch == self._epoch:
                    self._remove(replicas)
            case _SessionDue(replica, signs_heard):
                if signs_heard == self._signs_heard[replica]:
                    self._notice_death(replica)

    def _hear(self, replica: int) -> None:
        self._living.add(replica)
        self._signs_heard[replica] += 1
        due = _SessionDue(replica, self._signs_heard[replica])
        self._network.remind(CONTROLLER, due, self._network.times.silence_ms)
        if self._leader is None:
            self._elect()

    def _notice_death(self, replica: int) -> None:
        self._living.discard(replica)
        if replica == self._leader:
            self._elect()
        else:
            self._remove(frozenset({replica}))

    def _elect(self) -> None:
        candidates = self._isr & self._living
        if not candidates and self._scheme.elected_by is ElectedBy.CONTROLLER_UNCLEAN:
            candidates = frozenset(self._living)
        self._leader = min(candidates, default=None)
        if self._leader is not None:
            self._epoch += 1
            if self._scheme.shrinks:
                self._isr = candidates
            self._tell_leader()

    def _remove(self, replicas: frozenset[int]) -> None:
        # The leader stays, and with it the last member.
        remaining = self._isr - replicas
        if self._scheme.shrinks and self._leader in remaining and remaining != self._isr:
            self._isr = remaining
            self._tell_leader()

    def _tell_leader(self) -> None:
        if self._leader is not None:
            self._network.send(CONTROLLER, self._leader, Lead(self._epoch, self._isr))
