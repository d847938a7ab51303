"""Maps fired watches to controller events; each listener of ``kafka.controller`` is one line."""

from __future__ import annotations

from regent.core.controller.events import (
    BrokerChange,
    BrokerModifications,
    ControllerChange,
    ControllerEvent,
    ControllerFailuresChange,
    IsrChangeNotification,
    LogDirEventNotification,
    PartitionModifications,
    PartitionReassignmentIsrChange,
    PreferredReplicaElection,
    Reelect,
    RegistrationDeleted,
    TopicChange,
    TopicDeletion,
    ZkPartitionReassignment,
)
from regent.core.model import BrokerId
from regent.zk.client.operations import WatchEvent, WatchKind
from regent.zk.znodes import (
    BrokerIdsZNode,
    BrokerIdZNode,
    ControllerFailuresZNode,
    ControllerZNode,
    DeleteTopicsZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
    TopicsZNode,
    partition_of_state,
)

# Also when the node itself is created or deleted, so that the watch on its children is re-armed.
_OF_CHILDREN: dict[str, ControllerEvent] = {
    BrokerIdsZNode.PATH: BrokerChange(),
    TopicsZNode.PATH: TopicChange(),
    DeleteTopicsZNode.PATH: TopicDeletion(),
    IsrChangeNotificationZNode.PATH: IsrChangeNotification(),
    LogDirEventNotificationZNode.PATH: LogDirEventNotification(),
}

# A deletion is an event too: reading the node again arms the watch for the next creation.
_OF_NODES: dict[str, ControllerEvent] = {
    ControllerZNode.PATH: ControllerChange(),
    ReassignPartitionsZNode.PATH: ZkPartitionReassignment(),
    PreferredReplicaElectionZNode.PATH: PreferredReplicaElection(),
    ControllerFailuresZNode.PATH: ControllerFailuresChange(),
}


def controller_event(watch: WatchEvent, broker_id: BrokerId) -> ControllerEvent | None:
    """Return the event that ``watch`` triggers at broker ``broker_id``; None: no event."""
    kind, path = watch
    if path in _OF_CHILDREN:
        return None if kind is WatchKind.CHANGED else _OF_CHILDREN[path]
    if path == ControllerZNode.PATH and kind is WatchKind.DELETED:
        return Reelect()
    if path in _OF_NODES:
        return _OF_NODES[path]
    parent, _, name = path.rpartition("/")
    match kind, parent:
        case WatchKind.CHANGED, BrokerIdsZNode.PATH if name.isdecimal():
            return BrokerModifications(int(name))
        case WatchKind.DELETED, BrokerIdsZNode.PATH if path == BrokerIdZNode.path(broker_id):
            return RegistrationDeleted()
        # The parent's watch reports this too, but only if the ACL permits listing its children.
        case WatchKind.DELETED, BrokerIdsZNode.PATH:
            return BrokerChange()
        # A deletion too: the topic may exist again, and then the list of names is the same.
        case WatchKind.CHANGED | WatchKind.DELETED, TopicsZNode.PATH:
            return PartitionModifications(name)
        case WatchKind.CHANGED, _:
            topic_partition = partition_of_state(path)
            return (
                None if topic_partition is None else PartitionReassignmentIsrChange(topic_partition)
            )
        case _:
            return None
