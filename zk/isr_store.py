"""ISRs written by the leaders themselves, and how the controller hears of it.

Mirrors ``kafka.server.ZkIsrManager`` and ``kafka.utils.ReplicationUtils``: the protocol before
Kafka 2.7. The condition on the partition epoch is all that protects such a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from core.errors import BadDataError, Errors
from core.model import (
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)
from core.ports import WriteError
from core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from zk.admin_znodes import IsrChangeNotificationSequenceZNode
from zk.fenced_writes import WriteRefused, write_unfenced
from zk.operations import Create, SetData, ZnodeStat, ZooKeeper
from zk.requests import RequestRefusedError
from zk.store import read_partition_states
from zk.znodes import TopicPartitionStateZNode

MAX_PARTITIONS = 1000  # of one notification, so that the longest names fit into a znode


class ZkIsrStore:
    """Does for one leader what a controller would do with its AlterPartition requests."""

    def __init__(self, zookeeper: ZooKeeper) -> None:
        self._zookeeper = zookeeper

    def alter_partitions(
        self, request: AlterPartitionRequest, controller_epochs: Mapping[TopicPartition, int]
    ) -> AlterPartitionResponse:
        """Write the proposed ISRs, each on condition of its partition epoch, and tell the outcome.

        ``controller_epochs`` has the epoch each leadership was ordered with; a partition without
        one is answered UNKNOWN_TOPIC_OR_PARTITION. A refused write may have been our own first
        attempt whose answer was lost: what is stored tells. Raises ``SessionExpiredError``.
        """
        wanted = {
            row.topic_partition: _proposed(request, row, controller_epochs[row.topic_partition])
            for row in request.partitions
            if row.topic_partition in controller_epochs
        }
        outcomes = self._write(wanted)
        contested = [p for p, outcome in outcomes.items() if outcome is WriteError.BAD_VERSION]
        stored = read_partition_states(self._zookeeper, contested) if contested else {}
        altered = []
        for row in request.partitions:
            partition = row.topic_partition
            outcome = outcomes.get(partition, WriteError.NO_NODE)
            if isinstance(outcome, int):
                leadership = wanted[partition].leader_and_isr.with_partition_epoch(outcome)
                altered.append(_altered(partition, Errors.NONE, leadership))
            elif partition in stored:
                altered.append(_contested(partition, wanted[partition], stored[partition]))
            else:
                altered.append(AlteredPartition(*partition, Errors.UNKNOWN_TOPIC_OR_PARTITION))
        return AlterPartitionResponse(Errors.NONE, tuple(altered))

    def announce(self, partitions: Sequence[TopicPartition]) -> None:
        """Create the sequential node that tells the controller to read these again.

        After a lost answer there may be two, which is harmless.
        """
        path = IsrChangeNotificationSequenceZNode.PATH_PREFIX
        chunks = [
            partitions[at : at + MAX_PARTITIONS] for at in range(0, len(partitions), MAX_PARTITIONS)
        ]
        writes = [
            [Create(path, IsrChangeNotificationSequenceZNode.encode(chunk), sequential=True)]
            for chunk in chunks
        ]
        for outcome in write_unfenced(self._zookeeper, writes):
            if isinstance(outcome, WriteRefused):
                raise RequestRefusedError(f"cannot create {path}…: {outcome.error.name}")

    def _write(
        self, states: Mapping[TopicPartition, LeaderIsrAndControllerEpoch]
    ) -> dict[TopicPartition, int | WriteError]:
        """Return the new partition epoch of each, or why it was refused."""
        writes = [
            [
                SetData(
                    TopicPartitionStateZNode.path(partition),
                    TopicPartitionStateZNode.encode(state),
                    state.leader_and_isr.partition_epoch,
                )
            ]
            for partition, state in states.items()
        ]
        found: dict[TopicPartition, int | WriteError] = {}
        for partition, outcome in zip(states, write_unfenced(self._zookeeper, writes), strict=True):
            if isinstance(outcome, WriteRefused):
                found[partition] = outcome.error
            else:
                stat = outcome[0]
                assert isinstance(stat, ZnodeStat)
                found[partition] = stat.version
        return found


def _proposed(
    request: AlterPartitionRequest, row: AlterPartitionRow, controller_epoch: int
) -> LeaderIsrAndControllerEpoch:
    leadership = LeaderAndIsr(
        request.broker_id,
        row.new_isr,
        row.leader_epoch,
        row.partition_epoch,
        LeaderRecoveryState(row.leader_recovery_state),
    )
    return LeaderIsrAndControllerEpoch(leadership, controller_epoch)


def _contested(
    partition: TopicPartition,
    wanted: LeaderIsrAndControllerEpoch,
    stored: LeaderIsrAndControllerEpoch | BadDataError,
) -> AlteredPartition:
    """Answer a proposal whose condition failed by what is stored instead."""
    if isinstance(stored, BadDataError):
        return AlteredPartition(*partition, Errors.UNKNOWN_SERVER_ERROR)
    found = stored.leader_and_isr
    proposed = wanted.leader_and_isr
    if stored == wanted._replace(
        leader_and_isr=proposed.with_partition_epoch(found.partition_epoch)
    ):
        return _altered(partition, Errors.NONE, found)
    if found.leader_epoch > proposed.leader_epoch:
        return _altered(partition, Errors.FENCED_LEADER_EPOCH, found)
    return _altered(partition, Errors.INVALID_UPDATE_VERSION, found)


def _altered(
    partition: TopicPartition, error: Errors, leadership: LeaderAndIsr
) -> AlteredPartition:
    return AlteredPartition(
        *partition,
        error,
        leadership.leader,
        leadership.leader_epoch,
        leadership.isr,
        leadership.leader_recovery_state,
        leadership.partition_epoch,
    )
