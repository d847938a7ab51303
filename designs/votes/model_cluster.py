"""One partition of the model, with its replicas, its controller and its producer."""

from __future__ import annotations

import random
from typing import Any, Final, Self

import pykka

from regent.designs.virtual_time import VirtualTime
from regent.designs.votes.isr_controller import IsrController
from regent.designs.votes.log_replica import LogReplica, ReplicaDisk
from regent.designs.votes.model_network import (
    CONTROLLER,
    PRODUCER,
    Lead,
    ModelNetwork,
    WriteRecord,
)
from regent.designs.votes.model_producer import ModelProducer, ProducerJournal
from regent.designs.votes.quorum_replica import QuorumReplica
from regent.designs.votes.replication_model import ModelTimes, ReplicationScheme

_A_MOMENT_MS: Final = 0.01


class ModelCluster:
    """Runs in virtual time. Replica 0 is the first leader."""

    def __init__(self, scheme: ReplicationScheme, times: ModelTimes, seed: int) -> None:
        self.scheme = scheme
        self.dice = random.Random(f"{seed} cluster")
        self._time = VirtualTime(seed)
        self.network = ModelNetwork(self._time, times, seed)
        self.disks = [ReplicaDisk() for _ in range(scheme.replicas)]
        self.journal = ProducerJournal(self.disks)
        self._producer = ModelProducer.start(self._time, scheme, self.network, self.journal)
        self._actors: list[pykka.ActorRef[Any]] = []

    def __enter__(self) -> Self:
        self._connect(PRODUCER, self._producer)
        if self.scheme.has_controller:
            controller = IsrController.start(self._time, self.scheme, self.network)
            self._connect(CONTROLLER, controller)
        for number in range(self.scheme.replicas):
            self.start(number)
        if self.scheme.has_leader:
            everyone = frozenset(range(self.scheme.replicas))
            self.network.send(PRODUCER, 0, Lead(0, everyone))
        self.network.run_for(self.network.times.silence_ms)
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            if actor.is_alive():
                actor.stop(block=False)
        self._time.run_for(0)

    def start(self, number: int) -> None:
        """Start a replica, with the disk that it had."""
        disk = self.disks[number]
        if self.scheme.has_leader:
            actor: pykka.ActorRef[Any] = LogReplica.start(
                self._time, number, self.scheme, self.network, disk
            )
        else:
            actor = QuorumReplica.start(self._time, number, self.network, disk)
        self._connect(number, actor)

    def kill_one(self) -> int:
        """Kill a replica that the dice choose, and return its number."""
        victim = self.dice.choice(sorted(self.network.living()))
        self.network.kill(victim)
        return victim

    def write(self, wait_ms: float) -> int:
        """Write the next record, let time pass, and return the record's number."""
        record = len(self.journal.written_ms)
        self._producer.tell(WriteRecord(record))
        self.network.run_for(wait_ms)
        return record

    def is_acknowledged_within(self, record: int, limit_ms: float) -> bool:
        """Let time pass until the moment in which a record is acknowledged, or to a limit."""
        end_ms = self.network.now_ms() + limit_ms
        while not (done := record in self.journal.acknowledged_ms):
            if self.network.now_ms() >= end_ms:
                break
            self.network.run_for(_A_MOMENT_MS)
        return done

    def wait_of(self, record: int) -> float | None:
        """Return how long a record waited for its acknowledgement; None if it still waits."""
        if record not in self.journal.acknowledged_ms:
            return None
        return self.journal.acknowledged_ms[record] - self.journal.written_ms[record]

    def lost(self) -> int | None:
        """Count the acknowledged records that cannot be read; None while nothing can be read.

        Without a leader, a read asks any ``quorum`` of the living replicas.
        """
        living = self.network.living()
        if len(living) < self.scheme.quorum:
            return None
        if not self.scheme.has_leader:
            logs = [self.disks[number].log for number in living]
            lacking = (sum(r not in log for log in logs) for r in self.journal.acknowledged_ms)
            return sum(lack >= self.scheme.quorum for lack in lacking)
        leader = self.journal.leader
        if leader is None or leader not in living:
            return None
        return len(self.journal.acknowledged_ms.keys() - set(self.disks[leader].log))

    def missing_on_living(self) -> int:
        """Count the acknowledged records that no living replica has."""
        logs = (self.disks[number].log for number in self.network.living())
        return len(self.journal.acknowledged_ms.keys() - set().union(*logs))

    def _connect(self, number: int, actor: pykka.ActorRef[Any]) -> None:
        self._actors.append(actor)
        self.network.connect(number, actor)
