"""Bulk reads and writes for administrators; no write is fenced, no read is watched.

Mirrors ``kafka.zk.AdminZkClient`` and the reads of ``KafkaZkClient``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from regent.core.errors import BadDataError, BrokerNotFoundError, NoControlPortError
from regent.core.model import (
    HELD_BY_KRAFT,
    BrokerId,
    BrokerRegistration,
    TopicPartition,
)
from regent.core.ports import ControllerFailure, DeletedTopic
from regent.core.protocol.control import TopicId
from regent.core.security.acls import ResourcePattern
from regent.zk import znodes
from regent.zk.client.operations import (
    MAX_ATTEMPTS,
    AclEntry,
    Check,
    Committed,
    ConflictError,
    Create,
    Delete,
    Operation,
    SetData,
    UnreadableZnode,
    Znode,
)
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.admin_znodes import MovesPause
from regent.zk.codecs.broker_znodes import BrokerEnd, is_kraft_controller
from regent.zk.codecs.json_fields import decode_object
from regent.zk.stores.acl_store import ZkAclStore
from regent.zk.stores.broker_ends import read_ends
from regent.zk.stores.cluster_identity import read_cluster_id, read_mark
from regent.zk.stores.deleted_topic_store import read_deleted_topics
from regent.zk.stores.fenced_writes import apply, change_znodes
from regent.zk.stores.settings_store import ZkSettingsStore
from regent.zk.stores.topic_store import ZkTopicStore
from regent.zk.stores.tree_acls import read_tree, read_tree_data
from regent.zk.stores.tree_store import ZkTreeStore
from regent.zk.stores.znode_store import ZnodeStore
from regent.zk.znodes import (
    ConfigEntityChangeNotificationZNode,
    ControllerFailuresZNode,
    DeleteTopicsZNode,
    IsrChangeNotificationZNode,
    LogDirEventNotificationZNode,
    MovesPauseZNode,
    PreferredReplicaElectionZNode,
    ReassignPartitionsZNode,
)

_MIGRATION = "/migration"
_KRAFT_ID = "kraft_controller_id"
_KRAFT_EPOCH = "kraftControllerEpoch"

WATCHED_PATHS = (
    znodes.ClusterIdZNode.PATH,
    znodes.ControllerZNode.PATH,
    znodes.ControllerEpochZNode.PATH,
    ControllerFailuresZNode.PATH,
    znodes.BrokerIdsZNode.PATH,
    znodes.TopicsZNode.PATH,
    DeleteTopicsZNode.PATH,
    ReassignPartitionsZNode.PATH,
    PreferredReplicaElectionZNode.PATH,
    IsrChangeNotificationZNode.PATH,
    LogDirEventNotificationZNode.PATH,
    ConfigEntityChangeNotificationZNode.PATH,
)


@dataclass(frozen=True, slots=True)
class ActiveController:
    """The broker in ``/controller`` and its epoch; ``broker_id`` -1: the data is not valid.

    ``is_of_kraft``: it is no broker, but a KRaft controller that migrates the cluster.
    ``elected_ms``: by the clock of ZooKeeper; 0: unknown.
    """

    broker_id: BrokerId
    controller_epoch: int
    epoch_zk_version: int
    zk_version: int  # of `/controller` itself
    is_of_kraft: bool = False
    elected_ms: int = 0


class ZkAdminStore(ZnodeStore):
    """Reads and writes of an administrator, over one ZooKeeper session.

    ``topics``, ``configs``, ``settings`` and ``tree`` are the stores for topics, configurations,
    all settings beside those of topics, and the whole tree, over the same session.
    Every call raises ``SessionExpiredError`` when the session is over.
    """

    def __init__(self, zookeeper: ZooKeeper) -> None:
        super().__init__(zookeeper)
        self.topics = ZkTopicStore(zookeeper)
        self.configs = self.topics.configs
        self.settings = ZkSettingsStore(zookeeper)
        self.tree = ZkTreeStore(zookeeper)

    @property
    def tells_all(self) -> bool:
        """See ``ZooKeeper.tells_all``."""
        return self._zookeeper.tells_all

    def read_acls(self) -> Iterator[tuple[str, Sequence[AclEntry]]]:
        """Yield the path and the ACL of every znode, see ``tree_acls.read_tree``."""
        return read_tree(self._zookeeper)

    def read_data(self) -> Iterator[tuple[str, bytes | None]]:
        """Yield the path and the data of every znode; None for those that have secrets."""
        return read_tree_data(self._zookeeper)

    # --- controller ---

    def read_controller(self) -> ActiveController | None:
        """Read the active controller. Raises ``BadDataError`` for an invalid epoch."""
        path, epoch_path = znodes.ControllerZNode.PATH, znodes.ControllerEpochZNode.PATH
        for _ in range(MAX_ATTEMPTS):
            node, epoch, again = self._zookeeper.get_many([path, epoch_path, path])
            if node is None or epoch is None:
                return None
            # One transaction changes both nodes: if the controller is unchanged, this is its epoch.
            if again is not None and again.stat.czxid == node.stat.czxid:
                return _active_controller(again, epoch)
        raise ConflictError(f"{path} keeps changing; try again")

    def read_controller_epoch(self) -> int | None:
        """Read the controller epoch. Raises ``BadDataError``."""
        path = znodes.ControllerEpochZNode.PATH
        (node,) = self._zookeeper.get_many([path])
        return None if node is None else znodes.ControllerEpochZNode.decode(node.data)

    def read_controller_endpoint(self) -> str:
        """Return the controller's endpoint for requests.

        Raises ``BrokerNotFoundError`` when there is none, ``NoControlPortError`` when it is one
        of Kafka, ``NoClusterError`` when no broker has ever started, and ``BadDataError``.
        """
        controller = self.read_controller()
        if controller is None:
            self.topics.check_cluster()
            raise BrokerNotFoundError("there is no controller")
        if controller.is_of_kraft:
            raise NoControlPortError(HELD_BY_KRAFT.format(controller.broker_id))
        try:
            return control_endpoint(controller.broker_id, self.read_broker(controller.broker_id))
        except NoControlPortError:
            raise NoControlPortError(
                f"the controller is broker {controller.broker_id}, one of Kafka, without a control"
                " port: use Kafka's tools, or move the controller to a broker that has one"
            ) from None
        except BrokerNotFoundError as error:
            raise BrokerNotFoundError(f"the controller does not answer: {error}") from None

    def depose_controller(self, controller: ActiveController) -> bool:
        """Delete ``/controller`` if this controller still holds it.

        False: it was deleted before, perhaps by an attempt of this call whose answer was lost.
        """
        operations: list[Operation] = [
            Check(znodes.ControllerEpochZNode.PATH, controller.epoch_zk_version),
            Delete(znodes.ControllerZNode.PATH, controller.zk_version),
        ]
        return isinstance(apply(self._zookeeper, operations), Committed)

    def read_failures(self) -> tuple[ControllerFailure, ...]:
        """Read the failures that ended controllers, oldest first. Raises ``BadDataError``."""
        node = self._zookeeper.get(ControllerFailuresZNode.PATH)
        return () if node is None else ControllerFailuresZNode.decode(node.data)

    def forget_failures(self) -> list[str]:
        """Let the controller process the failed events again; return their names.

        Raises ``BadDataError`` and ``ConflictError``.
        """
        path = ControllerFailuresZNode.PATH

        def decide() -> tuple[list[str], list[Operation]]:
            node = self._zookeeper.get(path)
            if node is None:
                return [], []
            names = [failure.what for failure in ControllerFailuresZNode.decode(node.data)]
            return names, [SetData(path, ControllerFailuresZNode.encode(()), node.stat.version)]

        return change_znodes(self._zookeeper, decide, f"{path} keeps changing")

    def read_deleted_topics(self) -> dict[TopicId, DeletedTopic | BadDataError]:
        """Read the deleted topics that may come back."""
        return read_deleted_topics(self._zookeeper)

    # --- brokers ---

    def read_ends(self) -> Mapping[BrokerId, BrokerEnd] | None:
        """Return why brokers ended that have not registered since; None: nobody tells."""
        return read_ends(self._zookeeper) if self.tells_all else None

    # --- partitions ---

    def read_pending_reassignments(self) -> dict[TopicPartition, tuple[BrokerId, ...]]:
        """Read the incomplete reassignments that other tools wrote to ``/admin``.

        Raises ``BadDataError``.
        """
        node = self._zookeeper.get(ReassignPartitionsZNode.PATH)
        return {} if node is None else ReassignPartitionsZNode.decode(node.data)

    def read_moves_pause(self) -> MovesPause | None:
        """Read since when moves are paused; None: they are not; 0: since an unknown time."""
        return _pause(self._zookeeper.get(MovesPauseZNode.PATH))

    def change_moves_pause(
        self, change: Callable[[MovesPause | None], MovesPause | None]
    ) -> MovesPause | None:
        """Write what ``change`` makes of the present pause, and return it; None: there is none.

        ``change`` is called again if another process was faster. Raises ``ConflictError``, or
        ``RequestTooLargeError``.
        """
        path = MovesPauseZNode.PATH

        def decide() -> tuple[MovesPause | None, list[Operation]]:
            node, parent = self._zookeeper.get_many([path, znodes.RegentZNode.PATH])
            pause = change(_pause(node))
            if pause is None:
                return None, [] if node is None else [Delete(path, node.stat.version)]
            data = MovesPauseZNode.encode(pause)
            if node is not None:
                return pause, [SetData(path, data, node.stat.version)]
            above = [Create(znodes.RegentZNode.PATH)] if parent is None else []
            return pause, [*above, Create(path, data)]

        return change_znodes(self._zookeeper, decide, f"{path} keeps changing")

    # --- Kafka without ZooKeeper, and what Kafka's other tools wrote ---

    def has_migration(self) -> bool:
        """Whether a controller of KRaft has begun to take over the cluster (KIP-866)."""
        return self._zookeeper.get(_MIGRATION) is not None

    def read_migrating_controller(self) -> BrokerId | None:
        """Return the KRaft controller that has begun to take over the cluster; None: none has.

        A KRaft controller that only waits for brokers writes ``/migration`` with the id -1. Raises
        ``BadDataError``.
        """
        node = self._zookeeper.get(_MIGRATION)
        fields = None if node is None else decode_object(node.data, _MIGRATION)
        found = -1 if fields is None else fields.integer(_KRAFT_ID, -1, default=-1)
        return None if found == -1 else found

    def read_kraft_controller_epoch(self) -> int | None:
        """Return the epoch of a controller of KRaft in ``/controller``; None: it is none.

        Raises ``BadDataError``.
        """
        path = znodes.ControllerZNode.PATH
        node = self._zookeeper.get(path)
        fields = None if node is None else decode_object(node.data, path)
        epoch = -1 if fields is None else fields.integer(_KRAFT_EPOCH, -1, default=-1)
        return None if epoch == -1 else epoch

    def read_damaged_acls(self) -> list[ResourcePattern]:
        """Return the resources whose ACLs cannot be read. Raises ``UnreadableError``."""
        found = ZkAclStore(self._zookeeper).read_all()
        return [pattern for pattern, entries in found.items() if entries is None]

    # --- the cluster id, the age and the permissions of the data ---

    def count_delegation_tokens(self) -> int:
        """Return how many delegation tokens there are, expired ones included."""
        return len(self._zookeeper.children(znodes.DelegationTokensZNode.PATH) or ())

    def read_denied(self) -> list[str]:
        """Return a line for each znode that brokers watch for requests but cannot read."""
        nodes = self._zookeeper.get_many(WATCHED_PATHS)
        return [node.reason for node in nodes if isinstance(node, UnreadableZnode)]

    def read_cluster_id(self) -> str | None:
        """Return the cluster id; None when there is none. Raises ``BadDataError``."""
        return read_cluster_id(self._zookeeper)

    def latest_zxid(self) -> int:
        """Return the newest zxid."""
        return self._zookeeper.latest_zxid()

    def read_mark(self) -> int | None:
        """Return the zxid of the last write of ``/regent/progress_mark``; see ``read_mark``."""
        return read_mark(self._zookeeper)


def control_endpoint(
    broker_id: BrokerId, registration: BrokerRegistration | BadDataError | None
) -> str:
    """Return where a registered broker answers, and its key.

    Raises ``BrokerNotFoundError``, and ``NoControlPortError`` for a broker of Kafka.
    """
    if isinstance(registration, BadDataError):
        raise registration
    if registration is None:
        raise BrokerNotFoundError(f"broker {broker_id} is not registered")
    endpoint = registration.info.control_peer
    if endpoint is None:
        raise NoControlPortError(
            f"broker {broker_id} is one of Kafka, without a control port: use Kafka's tools"
        )
    return endpoint


def _pause(node: Znode | None) -> MovesPause | None:
    try:
        return None if node is None else MovesPauseZNode.decode(node.data)
    except BadDataError:
        return MovesPause(0)  # it ends as every other one; its throttle must be removed by hand


def _active_controller(node: Znode, epoch: Znode) -> ActiveController:
    try:
        broker_id = znodes.ControllerZNode.decode(node.data)
        is_of_kraft = is_kraft_controller(node.data)
    except BadDataError:
        broker_id, is_of_kraft = -1, False
    return ActiveController(
        broker_id,
        znodes.ControllerEpochZNode.decode(epoch.data),
        epoch.stat.version,
        node.stat.version,
        is_of_kraft,
        node.stat.ctime_ms,
    )
