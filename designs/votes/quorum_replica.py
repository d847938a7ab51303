"""A replica without a leader: it takes what a producer writes, in any sequence."""

from __future__ import annotations

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


class QuorumReplica(PooledActor):
    """A replica with its disk, whose log has no sequence that others share."""

    def __init__(
        self, dispatcher: VirtualTime, number: int, network: ModelNetwork, disk: ReplicaDisk
    ) -> None:
        super().__init__(dispatcher)
        self._number = number
        self._network = network
        self._disk = disk

    def on_start(self) -> None:
        """Ask for what the producer could not write while this replica was dead."""
        self._network.send(self._number, PRODUCER, Ready(0, self._number))

    def handle(self, message: WriteRecord) -> None:
        """See ``PooledActor.handle``."""
        if message.record not in self._disk.log:
            self._disk.log += (message.record,)
        acknowledgement = Acknowledged(message.record, self._number)
        self._network.send(self._number, PRODUCER, acknowledgement)
