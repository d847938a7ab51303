"""A replica that leads or follows, in all schemes with a leader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from regent.designs.pooled_actor import PooledActor
from regent.designs.virtual_time import VirtualTime
from regent.designs.votes.model_network import (
    CONTROLLER,
    PRODUCER,
    Acknowledged,
    AskForVote,
    Lagging,
    Lead,
    Log,
    ModelNetwork,
    Ready,
    Replicate,
    Replicated,
    SignOfLife,
    Vote,
    WriteRecord,
)
from regent.designs.votes.replication_model import ElectedBy, ReplicationScheme


@dataclass
class ReplicaDisk:
    """What a replica still has after its death.

    ``epoch`` is the newest that it has heard of, ``accepted_epoch`` that of the leader whose log
    it has.
    """

    epoch: int = 0
    accepted_epoch: int = 0
    log: Log = ()


class _SignOfLifeDue(NamedTuple):
    pass


class _LagCheckDue(NamedTuple):
    pass


class _ElectionDue(NamedTuple):
    signs_heard: int


_Reminder: TypeAlias = _SignOfLifeDue | _LagCheckDue | _ElectionDue
_Message: TypeAlias = (
    WriteRecord | Replicate | Replicated | Lead | SignOfLife | AskForVote | Vote | _Reminder
)


class LogReplica(PooledActor):
    """A replica with its disk. It is a follower until a Lead, or enough votes, make it leader.

    Simpler than Kafka's and Raft's: the leader sends its whole log, and a replica that has left
    the ISR does not come back.
    """

    def __init__(
        self,
        dispatcher: VirtualTime,
        number: int,
        scheme: ReplicationScheme,
        network: ModelNetwork,
        disk: ReplicaDisk,
    ) -> None:
        super().__init__(dispatcher)
        self._number = number
        self._scheme = scheme
        self._network = network
        self._disk = disk
        self._others = frozenset(range(scheme.replicas)) - {number}
        self._votes: dict[int, Vote] = {}
        self._signs_heard = 0
        # A leader's:
        self._leads = False
        self._members: frozenset[int] = frozenset()
        self._lengths: dict[int, int] = {}
        self._appended_ms: list[float] = []
        self._committed = 0

    def on_start(self) -> None:
        """Begin to give, and to expect, signs of life."""
        times = self._network.times
        self._remind(_SignOfLifeDue(), self._network.dice.uniform(0, times.sign_of_life_ms))
        if self._scheme.shrinks:
            self._remind(_LagCheckDue(), self._network.dice.uniform(0, times.lag_ms / 2))
        self._wait_for_signs()

    def handle(self, message: _Message) -> None:  # noqa: C901  one match over every message
        """See ``PooledActor.handle``."""
        match message:
            case WriteRecord(record):
                self._write(record)
            case Replicate():
                self._follow(message)
            case Replicated(epoch, length, sender):
                if self._leads and epoch == self._disk.epoch:
                    self._lengths[sender] = max(length, self._lengths.get(sender, 0))
                    self._commit()
            case Lead(epoch, isr):
                if epoch >= self._disk.epoch:
                    self._lead(epoch, isr)
            case SignOfLife(epoch, _):
                if epoch >= self._disk.epoch:
                    self._wait_for_signs()
            case AskForVote(epoch, sender):
                self._vote(epoch, sender)
            case Vote():
                self._count(message)
            case _SignOfLifeDue():
                self._give_sign_of_life()
            case _LagCheckDue():
                self._check_lag()
            case _ElectionDue(signs_heard):
                if signs_heard == self._signs_heard and not self._leads:
                    self._stand()

    # --- the leader ---

    def _lead(self, epoch: int, members: frozenset[int]) -> None:
        self._members = members
        if not (self._leads and epoch == self._disk.epoch):
            self._leads = True
            self._disk.epoch = self._disk.accepted_epoch = epoch
            self._lengths, self._committed = {}, 0
            self._appended_ms = [self._network.now_ms()] * len(self._disk.log)
            self._network.send(self._number, PRODUCER, Ready(epoch, self._number))
            self._show_leadership()
        self._commit()

    def _write(self, record: int) -> None:
        # The producer may write a record again that an earlier leader has appended.
        if self._leads and record not in self._disk.log:
            self._disk.log += (record,)
            self._appended_ms.append(self._network.now_ms())
            self._replicate()
            self._commit()

    def _show_leadership(self) -> None:
        """Give a sign of life, and the log to those that were dead."""
        for voter in sorted(self._others):
            sign = SignOfLife(self._disk.epoch, self._number)
            self._network.send(self._number, voter, sign)
        self._replicate()

    def _replicate(self) -> None:
        message = Replicate(self._disk.epoch, self._disk.log, self._number)
        for follower in sorted(self._others):
            self._network.send_to_append(self._number, follower, message)

    def _commit(self) -> None:
        lengths = {**self._lengths, self._number: len(self._disk.log)}
        longest_first = sorted((lengths.get(m, 0) for m in self._members), reverse=True)
        needed = self._scheme.acknowledgements_of(len(self._members))
        for record in self._disk.log[self._committed : longest_first[needed - 1]]:
            self._network.send(self._number, PRODUCER, Acknowledged(record, self._number))
            self._committed += 1

    def _check_lag(self) -> None:
        others = self._members - {self._number}
        lagging = frozenset(member for member in others if self._is_late(member))
        if self._leads and lagging:
            self._network.send(self._number, CONTROLLER, Lagging(self._disk.epoch, lagging))
        self._remind(_LagCheckDue(), self._network.times.lag_ms / 2)

    def _is_late(self, follower: int) -> bool:
        missing_since = self._appended_ms[self._lengths.get(follower, 0) :][:1]
        late_ms = self._network.now_ms() - self._network.times.lag_ms
        return bool(missing_since) and missing_since[0] < late_ms

    def _give_sign_of_life(self) -> None:
        if self._scheme.has_controller:
            sign = SignOfLife(self._disk.epoch, self._number)
            self._network.send(self._number, CONTROLLER, sign)
        if self._leads:
            self._show_leadership()
        self._remind(_SignOfLifeDue(), self._network.times.sign_of_life_ms)

    # --- a follower ---

    def _follow(self, message: Replicate) -> None:
        disk = self._disk
        if message.epoch < disk.epoch:
            return
        if message.epoch > disk.accepted_epoch or len(message.log) > len(disk.log):
            disk.log = message.log
        disk.epoch = disk.accepted_epoch = message.epoch
        self._leads = False
        answer = Replicated(disk.epoch, len(disk.log), self._number)
        self._network.send(self._number, message.sender, answer)

    # --- elections by votes ---

    def _wait_for_signs(self) -> None:
        """Stand for election after a silence; its length is random, so that few stand at once."""
        if self._scheme.elected_by is ElectedBy.VOTES:
            self._signs_heard += 1
            silence_ms = self._network.times.silence_ms * self._network.dice.uniform(1, 2)
            self._remind(_ElectionDue(self._signs_heard), silence_ms)

    def _stand(self) -> None:
        # Each replica has epochs of its own, so that two candidates never share one.
        replicas = self._scheme.replicas
        epoch = (self._disk.epoch // replicas + 1) * replicas + self._number
        self._votes = {}
        for voter in sorted(self._others):
            self._network.send(self._number, voter, AskForVote(epoch, self._number))
        self._vote(epoch, self._number)

    def _vote(self, epoch: int, candidate: int) -> None:
        disk = self._disk
        if epoch > disk.epoch:
            disk.epoch = epoch
            self._leads = False
            self._wait_for_signs()
            vote = Vote(epoch, disk.accepted_epoch, disk.log, self._number)
            self._network.send(self._number, candidate, vote)

    def _count(self, vote: Vote) -> None:
        if vote.epoch != self._disk.epoch or self._leads:
            return
        self._votes[vote.sender] = vote
        if len(self._votes) == self._scheme.quorum:
            best = max(self._votes.values(), key=lambda v: (v.accepted_epoch, len(v.log)))
            self._disk.log = best.log
            self._lead(vote.epoch, self._others | {self._number})

    def _remind(self, message: object, after_ms: float) -> None:
        self._network.remind(self._number, message, after_ms)
