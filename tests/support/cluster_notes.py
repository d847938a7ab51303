"""The cluster id and zxid that logs in memory store."""

from __future__ import annotations

from regent.core.errors import ForeignDirectoryError
from regent.core.replica_logs import SeenOfCluster


class NotesInMemory:
    """Implements ``core.replica_logs.ClusterNotes``."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.seen = SeenOfCluster()

    def note_seen(self, *, controller_epoch: int = 0, zxid: int = 0, mark: int = 0) -> None:
        """Store the newest zxid."""
        noted = (controller_epoch, zxid, mark)
        self.seen = SeenOfCluster(*map(max, zip(self.seen, noted, strict=True)))

    def check_cluster(self, cluster_id: str | None) -> None:
        """Refuse a cluster with another id."""
        if self.cluster_id not in (None, cluster_id):
            raise ForeignDirectoryError(f"the logs are of {self.cluster_id}, not of {cluster_id}")

    def check_not_older(self, zxid: int, mark: int | None) -> None:
        """Refuse a ZooKeeper with older data."""
        if zxid < self.seen.zxid or (mark is not None and mark < self.seen.mark):
            raise ForeignDirectoryError(f"{self.seen} was seen, this is {zxid} with mark {mark}")
