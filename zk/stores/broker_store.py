"""Creates, updates and reads the registrations of brokers below ``/brokers/ids``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from regent.core.errors import BadDataError, BrokerIdInUseError
from regent.core.model import NO_SUSPECTS, BrokerId, BrokerInfo, SuspectReplicas
from regent.zk import znodes
from regent.zk.client.operations import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Operation,
    Refused,
    SetData,
    UnreadableZnode,
    ZkError,
    Znode,
    why_uncreated,
)
from regent.zk.client.requests import RequestRefusedError
from regent.zk.client.zookeeper import ZooKeeper
from regent.zk.codecs.broker_znodes import SuspectZnodes
from regent.zk.stores.fenced_writes import apply
from regent.zk.stores.znode_store import WatchingStore

log = logging.getLogger(__name__)

MAX_REGISTRATION_ATTEMPTS = 5


class ZkBrokerStore(WatchingStore):
    """The part of ``core.ports.ControllerStore`` that is about brokers.

    ``check_cluster`` gets the id in ``/cluster/id`` (None: absent) and raises
    ``ForeignDirectoryError`` when it is another cluster's. None: any cluster is accepted.
    """

    def __init__(
        self, zookeeper: ZooKeeper, check_cluster: Callable[[str | None], None] | None = None
    ) -> None:
        super().__init__(zookeeper)
        self._check_cluster = check_cluster
        self._registering_session = 0  # the session that created our registration

    def create_persistent_paths(self) -> None:
        """Create the paths that every broker needs, parents first, if they are missing.

        Earlier versions created them with data of no bytes, which cannot be told from null here.
        They end a broker of Kafka before 3.0 that reads ``/latest_producer_id_block``. So that one
        is written once more, with null.
        """
        wanted: dict[str, None] = {}
        for path in znodes.PERSISTENT_PATHS:
            parts = path.split("/")[1:]
            wanted.update({"/" + "/".join(parts[: n + 1]): None for n in range(len(parts))})
        paths = list(wanted)
        for path, node in zip(paths, self._zookeeper.get_many(paths), strict=True):
            is_block = path == znodes.ProducerIdBlockZNode.PATH
            writes: list[Operation] = [SetData(path, b"", version=0)] if is_block else []
            if node is None:
                writes.insert(0, Create(path))
            elif isinstance(node, UnreadableZnode) or node.data or node.stat.version:
                continue
            if writes:
                apply(self._zookeeper, writes)

    def register_broker(self, info: BrokerInfo, suspects: SuspectReplicas = NO_SUSPECTS) -> int:
        """Create ``/brokers/ids/N`` and watch it; its czxid is the broker epoch (KIP-380).

        Mirrors ``KafkaZkClient.CheckedEphemeral``: a registration of this session stays as it is.
        Only data that cannot be decoded are replaced; the broker epoch stays.
        """
        path = znodes.BrokerIdZNode.path(info.broker_id)
        self._kept = {path}
        existing: Znode | None = None
        for _ in range(MAX_REGISTRATION_ATTEMPTS):
            fence = self._cluster_fence()
            self.create_persistent_paths()
            session = self._zookeeper.session_id
            # A registration of this session already names the list. Do not create it again here: if
            # it was just deleted, the new one would lack the list.
            if not suspects or not self._is_registered(info.broker_id, session):
                listed = self._list_suspects(info.broker_id, session, suspects, generation=0)
                result = apply(
                    self._zookeeper,
                    [
                        *fence,
                        Create(path, ephemeral=True),
                        SetData(path, znodes.BrokerIdZNode.encode(info, listed), 0),
                    ],
                )
                if isinstance(result, Refused):
                    if result.index < len(fence):
                        continue  # the cluster id has just changed
                    if result.error is not ZkError.NODE_EXISTS:
                        raise RequestRefusedError(why_uncreated(path, result.error))
            existing = self._zookeeper.get(path, watch=True)
            if existing is None:
                continue
            owner = existing.stat.ephemeral_owner
            if owner == session:  # our first attempt succeeded, but its answer was lost
                self._registering_session = session
                if _is_undecodable(existing, info.broker_id):
                    log.warning("%s cannot be decoded: writing it again", path)
                    self._update_registration(existing, info, suspects)
                return existing.stat.czxid
            if owner not in (0, self._registering_session):
                break
            # It is not ephemeral, or left over from our former session (ZOOKEEPER-2985, KAFKA-7165)
            apply(self._zookeeper, [Delete(path, existing.stat.version)])
        raise _id_in_use(info.broker_id, existing)

    def _cluster_fence(self) -> list[Operation]:
        """Return checks that make a transaction fail if the cluster id changes.

        Raises ``ForeignDirectoryError`` when ZooKeeper has the data of another cluster.
        """
        if self._check_cluster is None:
            return []
        node = self._zookeeper.get(znodes.ClusterIdZNode.PATH)
        self._check_cluster(None if node is None else znodes.ClusterIdZNode.decode(node.data))
        return [] if node is None else [Check(znodes.ClusterIdZNode.PATH, node.stat.version)]

    def renew_registration(self, broker_id: BrokerId) -> int | None:
        """Replace our registration by an equal one, and return its broker epoch.

        None: no controller of Kafka rules, or this session has no registration. After a lost answer
        the transaction is repeated, and may replace the new registration once more.
        """
        path = znodes.BrokerIdZNode.path(broker_id)
        node = self._zookeeper.get(path)
        is_ours = node is not None and node.stat.ephemeral_owner == self._zookeeper.session_id
        if node is None or not is_ours or not self._is_ruled_by_kafka():
            return None
        operations: list[Operation] = [
            Delete(path, node.stat.version),
            Create(path, ephemeral=True),
            SetData(path, node.data, 0),
        ]
        apply(self._zookeeper, operations)
        renewed = self._zookeeper.get(path, watch=True)
        return None if renewed is None else renewed.stat.czxid

    def _is_ruled_by_kafka(self) -> bool:
        node = self._zookeeper.get(znodes.ControllerZNode.PATH)
        if node is None:
            return False
        with suppress(BadDataError):
            ruler = znodes.ControllerZNode.decode(node.data)
            registration = self._zookeeper.get(znodes.BrokerIdZNode.path(ruler))
            if registration is not None:
                return znodes.BrokerIdZNode.decode(registration.data, ruler).is_of_kafka
        return False

    def publish_suspects(self, info: BrokerInfo, suspects: SuspectReplicas) -> bool:
        """Write a new list of suspect replicas, and change the registration to name it."""
        node = self._zookeeper.get(znodes.BrokerIdZNode.path(info.broker_id))
        if node is None or node.stat.ephemeral_owner != self._zookeeper.session_id:
            return False  # ``register_broker`` will list them
        self._update_registration(node, info, suspects)
        return True

    def _update_registration(
        self, node: Znode, info: BrokerInfo, suspects: SuspectReplicas
    ) -> None:
        """Write our registration, unless it already has these data.

        Raises ``RequestRefusedError`` when it has changed since it was read.
        """
        broker_id, session = info.broker_id, self._zookeeper.session_id
        former: list[str] = []
        path, version = znodes.BrokerIdZNode.path(broker_id), node.stat.version
        generation = version
        with suppress(BadDataError):
            before = SuspectZnodes.decode(node.data, znodes.BrokerIdZNode.PATH)
            generation = max(version, before.generation + 1)  # a renewal sets the version back
            if node.data == znodes.BrokerIdZNode.encode(info, before):
                former = znodes.suspect_paths(before, broker_id, session)
                if self._lists(former, suspects):
                    return
        listed = self._list_suspects(broker_id, session, suspects, generation=generation)
        data = znodes.BrokerIdZNode.encode(info, listed)
        written = apply(self._zookeeper, [SetData(path, data, version)])
        if isinstance(written, Refused):
            now = self._zookeeper.get(path)
            if now is None or now.data != data:  # otherwise the first attempt succeeded
                raise RequestRefusedError(f"cannot write {path}: {written.error.name}")
        for unlisted in sorted(set(former) - set(znodes.suspect_paths(listed, broker_id, session))):
            apply(self._zookeeper, [Delete(unlisted, ANY_VERSION)])

    def _lists(self, paths: Sequence[str], suspects: SuspectReplicas) -> bool:
        """Whether these znodes list exactly these replicas; raises ``UnreadableError``."""
        chunks = znodes.SuspectReplicasPartZNode.encode(suspects)
        if len(paths) != len(chunks):
            return False
        nodes = self._zookeeper.get_many(paths) if paths else []
        return [None if node is None else node.data for node in nodes] == chunks

    def _is_registered(self, broker_id: BrokerId, session_id: int) -> bool:
        """Whether this session has a registration, or had one until a moment ago."""
        node = self._zookeeper.get(znodes.BrokerIdZNode.path(broker_id))
        return node is not None and node.stat.ephemeral_owner == session_id

    def _list_suspects(
        self, broker_id: BrokerId, session_id: int, suspects: SuspectReplicas, generation: int
    ) -> SuspectZnodes:
        """Create the znodes that list suspect replicas; return their generation and number."""
        chunks = znodes.SuspectReplicasPartZNode.encode(suspects)
        listed = SuspectZnodes(generation, len(chunks))
        if chunks:
            parent = znodes.SuspectReplicasZNode.PATH
            made = apply(self._zookeeper, [Create(parent)])
            if isinstance(made, Refused) and made.error is not ZkError.NODE_EXISTS:
                raise RequestRefusedError(why_uncreated(parent, made.error))
        for path, data in zip(
            znodes.suspect_paths(listed, broker_id, session_id), chunks, strict=True
        ):
            created = apply(self._zookeeper, [Create(path, data, ephemeral=True)])
            if isinstance(created, Refused):  # an earlier attempt created it
                written = apply(self._zookeeper, [SetData(path, data, ANY_VERSION)])
                if isinstance(written, Refused):
                    raise RequestRefusedError(f"cannot write {path}: {written.error.name}")
        return listed


def _is_undecodable(node: Znode, broker_id: BrokerId) -> bool:
    """Whether a registration has data that cannot be decoded."""
    return _decoded(node, broker_id) is None


def _id_in_use(broker_id: BrokerId, node: Znode | None) -> BrokerIdInUseError:
    owner = 0 if node is None else node.stat.ephemeral_owner
    info = None if node is None else _decoded(node, broker_id)
    is_of_kafka = info is not None and info.is_of_kafka
    kind = ", a broker of Kafka" if is_of_kafka else ""
    return BrokerIdInUseError(
        f"broker id {broker_id} is registered by another process{kind} (session {owner:#x}). If it"
        " was killed, its session has not ended yet: start again later. If it runs, stop it, or"
        " choose another id, or for another cluster a chroot of its own (--zookeeper"
        " HOST:PORT/NAME)",
        is_of_kafka=is_of_kafka,
    )


def _decoded(node: Znode, broker_id: BrokerId) -> BrokerInfo | None:
    try:
        return znodes.BrokerIdZNode.decode(node.data, broker_id)
    except BadDataError:
        return None
