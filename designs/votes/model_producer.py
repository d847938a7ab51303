"""The producer: it writes to the leader, or to all replicas, until its records are acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field

from regent.designs.pooled_actor import PooledActor
from regent.designs.virtual_time import VirtualTime
from regent.designs.votes.log_replica import ReplicaDisk
from regent.designs.votes.model_network import (
    PRODUCER,
    Acknowledged,
    ModelNetwork,
    Ready,
    WriteRecord,
)
from regent.designs.votes.replication_model import ReplicationScheme


@dataclass
class ProducerJournal:
    """What the producer has seen: by record times in milliseconds, and the newest leader.

    ``copies`` is the number of disks that had a record when it was acknowledged.
    """

    disks: list[ReplicaDisk]
    written_ms: dict[int, float] = field(default_factory=dict)
    acknowledged_ms: dict[int, float] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    leader: int | None = None
    epoch: int = -1

    def acknowledge(self, record: int, now_ms: float) -> None:
        """Note an acknowledgement."""
        self.acknowledged_ms[record] = now_ms
        self.copies[record] = sum(record in disk.log for disk in self.disks)


class ModelProducer(PooledActor):
    """Writes each record that it is told to write; none is written after its acknowledgement."""

    def __init__(
        self,
        dispatcher: VirtualTime,
        scheme: ReplicationScheme,
        network: ModelNetwork,
        journal: ProducerJournal,
    ) -> None:
        super().__init__(dispatcher)
        self._scheme = scheme
        self._network = network
        self._journal = journal
        self._needed = 1 if scheme.has_leader else scheme.acknowledgements
        self._waiting: dict[int, set[int]] = {}
        """For each record that is not acknowledged, the replicas that have it."""

    def handle(self, message: WriteRecord | Acknowledged | Ready) -> None:
        """See ``PooledActor.handle``."""
        match message:
            case WriteRecord(record):
                self._journal.written_ms[record] = self._network.now_ms()
                self._waiting[record] = set()
                for replica in self._receivers():
                    self._network.send_to_append(PRODUCER, replica, message)
            case Acknowledged(record, sender):
                self._note(record, sender)
            case Ready(epoch, sender):
                self._write_again(epoch, sender)

    def _receivers(self) -> list[int]:
        if not self._scheme.has_leader:
            return list(range(self._scheme.replicas))
        return [] if self._journal.leader is None else [self._journal.leader]

    def _note(self, record: int, sender: int) -> None:
        if record in self._waiting:
            self._waiting[record].add(sender)
            if len(self._waiting[record]) >= self._needed:
                del self._waiting[record]
                self._journal.acknowledge(record, self._network.now_ms())

    def _write_again(self, epoch: int, replica: int) -> None:
        if epoch >= self._journal.epoch:
            self._journal.epoch, self._journal.leader = epoch, replica
            for record in self._waiting:
                self._network.send_to_append(PRODUCER, replica, WriteRecord(record))
