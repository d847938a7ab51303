"""What the actors of the model tell each other, and the network that delays it.

A death loses everything that the dead one had sent and that has not arrived yet: what a follower
has not appended is lost with its leader.
"""

from __future__ import annotations

import random
from typing import Any, Final, NamedTuple, TypeAlias

import pykka

from regent.designs.virtual_time import VirtualTime
from regent.designs.votes.replication_model import ModelTimes

PRODUCER: Final = -1
CONTROLLER: Final = -2

Log: TypeAlias = tuple[int, ...]
"""The numbers of the records. A message has all of a log: any later one replaces those before."""

_TICKS_IN_A_MS: Final = 1000  # virtual time counts whole numbers: here of microseconds


class WriteRecord(NamedTuple):
    """The producer's record."""

    record: int


class Acknowledged(NamedTuple):
    """A record is committed; without a leader, one more replica has it."""

    record: int
    sender: int


class Replicate(NamedTuple):
    """The log of the leader, to a follower."""

    epoch: int
    log: Log
    sender: int


class Replicated(NamedTuple):
    """A follower's log is as long as this."""

    epoch: int
    length: int
    sender: int


class SignOfLife(NamedTuple):
    """A replica lives: to the controller, or from a leader to its voters."""

    epoch: int
    sender: int


class Lead(NamedTuple):
    """The controller's word to a leader: it leads, and these replicas are in sync."""

    epoch: int
    isr: frozenset[int]


class Lagging(NamedTuple):
    """The leader's word to the controller: these replicas have not kept up."""

    epoch: int
    replicas: frozenset[int]


class AskForVote(NamedTuple):
    """A candidate asks for a vote and for the voter's log."""

    epoch: int
    sender: int


class Vote(NamedTuple):
    """A vote: the voter ignores earlier epochs from now on.

    Of two logs, that of the later ``accepted_epoch`` is the more complete one, else the longer one.
    """

    epoch: int
    accepted_epoch: int
    log: Log
    sender: int


class Ready(NamedTuple):
    """A replica takes records: a leader of this epoch, or, without a leader, any that started."""

    epoch: int
    sender: int


class ModelNetwork:
    """Delays messages, and loses those from and to the dead."""

    def __init__(self, time: VirtualTime, times: ModelTimes, seed: int) -> None:
        self.times = times
        self.dice = random.Random(seed)
        self.slow: set[int] = set()
        self.stalled: set[int] = set()
        """Replicas that live, but append nothing."""
        self._time = time
        self._living: dict[int, pykka.ActorRef[Any]] = {}

    def now_ms(self) -> float:
        """Return the virtual time."""
        return self._time.now_ms() / _TICKS_IN_A_MS

    def run_for(self, duration_ms: float) -> None:
        """Let time pass."""
        self._time.run_for(round(duration_ms * _TICKS_IN_A_MS))

    def connect(self, number: int, actor: pykka.ActorRef[Any]) -> None:
        """Let an actor send and receive."""
        self._living[number] = actor

    def kill(self, number: int) -> None:
        """Stop an actor at once: what it has not handled is lost, too."""
        self._living.pop(number).stop(block=False)

    def living(self) -> set[int]:
        """Return the replicas that live."""
        return {number for number in self._living if number >= 0}

    def send(self, sender: int, receiver: int, message: object) -> None:
        """Deliver a message after one trip."""
        self._deliver(sender, receiver, message, self.times.trip_ms)

    def send_to_append(self, sender: int, receiver: int, message: object) -> None:
        """Deliver records after one trip and the time that the receiver takes to append them."""
        if receiver not in self.stalled:
            factor = self.times.slow_factor if receiver in self.slow else 1.0
            append_ms = self.dice.expovariate(1 / (self.times.append_ms * factor))
            self._deliver(sender, receiver, message, self.times.trip_ms + append_ms)

    def remind(self, actor: int, message: object, after_ms: float) -> None:
        """Deliver an actor's message to itself."""
        self._deliver(actor, actor, message, after_ms)

    def _deliver(self, sender: int, receiver: int, message: object, after_ms: float) -> None:
        sending = self._living.get(sender)

        def arrive() -> None:
            receiving = self._living.get(receiver)
            if sending and receiving and sending is self._living.get(sender):
                receiving.tell(message)

        self._time.later(round(after_ms * _TICKS_IN_A_MS), arrive)
