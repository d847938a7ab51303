"""A broker's disk: logs that outlive the process, in directories that may fail."""

from __future__ import annotations

from core.errors import StorageError
from core.model import TopicPartition
from core.protocol.control import TopicId
from storage.empty_logs import EmptyLogs


class Disk(EmptyLogs):
    """Two directories; every other log is in the one that may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.has_failed = False
        self._lost: set[TopicPartition] = set()

    def fail(self) -> None:
        """Lose a directory and the logs in it."""
        self.has_failed = True
        self._lost = {p for p in self.hosted() if p.partition % 2 == 0}

    def repair(self) -> None:
        """Put an empty directory in the place of the failed one."""
        for partition in self._lost:
            super().delete(partition)
        self.has_failed = False
        self._lost = set()

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> TopicId | None:
        """Create the log unless it exists, or may exist where nobody can look."""
        may_be_lost = topic_partition not in self.hosted() and not is_new
        if topic_partition in self._lost or (self.has_failed and may_be_lost):
            raise StorageError(f"{topic_partition}: its log directory has failed")
        return super().get_or_create(topic_partition, topic_id, is_new=is_new)

    def delete(self, topic_partition: TopicPartition) -> None:
        """Forget the log, if it can be reached."""
        if topic_partition in self._lost:
            raise StorageError(f"{topic_partition}: its log directory has failed")
        super().delete(topic_partition)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Forget the log, if it can be reached."""
        if topic_partition not in self._lost:
            super().delete(topic_partition)

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether the log was in the directory that failed."""
        return topic_partition in self._lost
