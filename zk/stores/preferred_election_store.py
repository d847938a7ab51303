"""``/admin/preferred_replica_election``."""

from __future__ import annotations

from regent.core.errors import BadDataError
from regent.core.model import TopicPartition
from regent.zk.client.operations import ANY_VERSION, Delete
from regent.zk.codecs.admin_znodes import PreferredReplicaElectionZNode
from regent.zk.stores.watching_store import WatchingStore


class ZkPreferredElectionStore(WatchingStore):
    """Implements ``core.ports.PreferredElectionStore``."""

    def read_preferred_elections(self) -> tuple[TopicPartition, ...] | BadDataError | None:
        """Read which elections are wished and watch the node."""
        node = self._watch_node(PreferredReplicaElectionZNode.PATH)
        if node is None:
            return None
        try:
            return PreferredReplicaElectionZNode.decode(node.data)
        except BadDataError as error:
            return error

    def delete_preferred_elections(self, epoch_zk_version: int) -> None:
        """Delete the node."""
        delete = Delete(PreferredReplicaElectionZNode.PATH, ANY_VERSION)
        self._write_fenced([[delete]], epoch_zk_version)
