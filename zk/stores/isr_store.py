"""Lets leaders write their ISRs to ZooKeeper directly and notify the controller.

Mirrors ``kafka.server.ZkIsrManager`` and ``kafka.utils.ReplicationUtils``: the protocol before
Kafka 2.7, in which only the condition on the partition epoch protects such a write. Here the broker
epochs of the ISR's members are compared with their registrations right before the write, as a
controller does for an AlterPartition request (KIP-903): a follower may have been added because of a
fetch that it sent before it lost records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from regent.core.errors import BadDataError, Errors
from regent.core.model import (
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)
from regent.core.ports import WriteError
from regent.core.protocol.controller import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionRow,
)
from regent.zk.client.operations import UnreadableZnode, Znode
from regent.zk.stores.controller_store import partition_state_writes
from regent.zk.stores.fenced_writes import version_or_error, write_unfenced
from regent.zk.stores.request_store import notify_controller
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import BrokerIdZNode, IsrChangeNotificationSequenceZNode

MAX_PARTITIONS = 1000  # per notification, so that the longest names fit into a znode


class ZkIsrStore(ZnodeStore):
    """Handles the AlterPartition requests of one leader without the controller."""

    def alter_partitions(
        self, request: AlterPartitionRequest, controller_epochs: Mapping[TopicPartition, int]
    ) -> AlterPartitionResponse:
        """Write the proposed ISRs, each conditional on its partition epoch; return the outcomes.

        ``controller_epochs`` has the controller epoch of each LeaderAndIsr request; a partition
        without one is answered UNKNOWN_TOPIC_OR_PARTITION. A partition with an ISR member that is
        not registered with the broker epoch that the leader saw is not written, and answered
        INELIGIBLE_REPLICA if nothing has changed its state. A write may be refused, or a member may
        have restarted, although the first attempt, whose answer was lost, was applied: the stored
        state is read to find out. Raises ``SessionExpiredError``.
        """
        ineligible = self._with_members_of_other_epochs(request)
        wanted = {
            row.topic_partition: _proposed(request, row, controller_epochs[row.topic_partition])
            for row in request.partitions
            if row.topic_partition in controller_epochs
        }
        writable = {name: state for name, state in wanted.items() if name not in ineligible}
        written = write_unfenced(self._zookeeper, partition_state_writes(writable))
        outcomes = dict(zip(writable, map(version_or_error, written), strict=True))
        contested = [
            topic_partition
            for topic_partition in wanted
            if outcomes.get(topic_partition, WriteError.BAD_VERSION) is WriteError.BAD_VERSION
        ]
        stored = self.read_partition_states(contested) if contested else {}
        altered = []
        for row in request.partitions:
            topic_partition = row.topic_partition
            outcome = outcomes.get(topic_partition, WriteError.NO_NODE)
            if isinstance(outcome, int):
                leadership = wanted[topic_partition].leader_and_isr.with_partition_epoch(outcome)
                altered.append(_altered(topic_partition, Errors.NONE, leadership))
            elif topic_partition in stored:
                altered.append(
                    _contested(topic_partition, wanted[topic_partition], stored[topic_partition])
                )
            elif outcome is WriteError.NO_NODE:
                altered.append(
                    AlteredPartition(*topic_partition, Errors.UNKNOWN_TOPIC_OR_PARTITION)
                )
            else:  # refused by its ACL: the leader tries again
                altered.append(AlteredPartition(*topic_partition, Errors.UNKNOWN_SERVER_ERROR))
        return AlterPartitionResponse(Errors.NONE, tuple(altered))

    def announce(self, partitions: Sequence[TopicPartition]) -> None:
        """Create the sequential node that makes the controller read these partitions again.

        Raises what ``notify_controller`` raises.
        """
        znode = IsrChangeNotificationSequenceZNode
        chunks = (
            partitions[at : at + MAX_PARTITIONS] for at in range(0, len(partitions), MAX_PARTITIONS)
        )
        notify_controller(self._zookeeper, znode.PATH_PREFIX, list(map(znode.encode, chunks)))

    def _with_members_of_other_epochs(self, request: AlterPartitionRequest) -> set[TopicPartition]:
        """Return the partitions with a member that is not registered with its broker epoch."""
        members = sorted({member for row in request.partitions for member in _seen_epochs(row)})
        if not members:
            return set()
        self._zookeeper.sync()  # a server that lags behind has registrations of earlier epochs
        nodes = self._zookeeper.get_many(
            [BrokerIdZNode.path(broker_id) for broker_id, _ in members]
        )
        others = {
            member
            for member, node in zip(members, nodes, strict=True)
            if not _may_be_registered_with(node, member[1])
        }
        return {
            row.topic_partition
            for row in request.partitions
            if not others.isdisjoint(_seen_epochs(row))
        }


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


def _seen_epochs(row: AlterPartitionRow) -> list[tuple[BrokerId, int]]:
    """Return the ISR members with the broker epoch of their last fetch, where it is known."""
    members = zip(row.new_isr, row.isr_broker_epochs, strict=True)
    return [member for member in members if member[1] != UNKNOWN_BROKER_EPOCH]


def _may_be_registered_with(node: Znode | None, broker_epoch: int) -> bool:
    """Whether a registration has that broker epoch; an unreadable one counts as having it."""
    if isinstance(node, UnreadableZnode):
        return True
    return node is not None and node.stat.czxid == broker_epoch


def _contested(
    topic_partition: TopicPartition,
    wanted: LeaderIsrAndControllerEpoch,
    stored: LeaderIsrAndControllerEpoch | BadDataError,
) -> AlteredPartition:
    """Return the answer to a proposal that was not written now: a newer state, if there is one."""
    if isinstance(stored, BadDataError):
        return AlteredPartition(*topic_partition, Errors.UNKNOWN_SERVER_ERROR)
    found = stored.leader_and_isr
    proposed = wanted.leader_and_isr
    if found.partition_epoch == proposed.partition_epoch:  # not written: a member has restarted
        return AlteredPartition(*topic_partition, Errors.INELIGIBLE_REPLICA)
    if stored == wanted._replace(
        leader_and_isr=proposed.with_partition_epoch(found.partition_epoch)
    ):
        return _altered(topic_partition, Errors.NONE, found)
    if found.leader_epoch > proposed.leader_epoch:
        return _altered(topic_partition, Errors.FENCED_LEADER_EPOCH, found)
    return _altered(topic_partition, Errors.INVALID_UPDATE_VERSION, found)


def _altered(
    topic_partition: TopicPartition, error: Errors, leadership: LeaderAndIsr
) -> AlteredPartition:
    return AlteredPartition(
        *topic_partition,
        error,
        leadership.leader,
        leadership.leader_epoch,
        leadership.isr,
        leadership.leader_recovery_state,
        leadership.partition_epoch,
    )
