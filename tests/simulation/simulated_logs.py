"""The interface of a broker's disk, with logs in memory or in files.

``tests.simulation.disk`` has logs in memory, ``tests.simulation.file_disk`` has files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeAlias

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.replica_logs import PartitionLog, ReplicaLogs
from regent.core.replication.replica_manager import ReplicaManager
from tests.simulation.records import RecordObserver
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import Record

LostBatches: TypeAlias = Callable[[], int]
"""How many batches the next log loses with the power; disks with files ignore it."""


IsElsewhere: TypeAlias = "Callable[[SimulatedLog, StoredBatch], bool]"
"""Whether another in-sync replica has an undamaged copy of a batch."""


class NamedLog(Protocol):
    """A log, even an unreadable one."""

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the log."""
        ...

    @property
    def topic_id(self) -> TopicId | None:
        """The topic for which it was created."""
        ...


class SimulatedLog(PartitionLog, NamedLog, Protocol):
    """A log whose contents tests can read."""

    @property
    def batches(self) -> Sequence[StoredBatch]:
        """The written batches, including those below the log start offset that are still there."""
        ...

    @property
    def damaged(self) -> AbstractSet[int]:
        """The base offsets of batches that have changed on disk."""
        ...

    @property
    def damageable(self) -> Sequence[StoredBatch]:
        """The batches that ``damage`` accepts."""
        ...

    def damage(self, base_offset: int) -> None:
        """Change the bytes of a batch."""
        ...

    def records(self) -> list[Record]:
        """Return every record from the log start offset on."""
        ...


class SimulatedDisk(ReplicaLogs, Protocol):
    """The logs of one process, on a machine that exists longer.

    Methods that end a process, or run between two, return the disk of the next process.
    """

    observer: RecordObserver
    on_out_of_service: Callable[[], None]
    has_threads: Callable[[], bool]  # beside the one that has the lock of the replicas
    on_unlocked: Callable[[], None]  # before records are appended without the lock of the replicas
    clock_ms: int  # the monotonic clock at the beginning
    wall_clock_ahead_ms: int

    @property
    def broker_id(self) -> BrokerId:
        """The broker of the disk."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether one of its directories has failed."""
        ...

    def get(self, topic_partition: TopicPartition) -> SimulatedLog | None:
        """Return a log that exists and is in service."""
        ...

    def log(self, topic_partition: TopicPartition) -> SimulatedLog:
        """Return a log that must exist, usable or not."""
        ...

    def find(self, topic_partition: TopicPartition) -> SimulatedLog | None:
        """Return an existing log, usable or not."""
        ...

    def batch_count(self, topics_left_out: Collection[str]) -> int:
        """Return the number of batches in all logs but those of some topics."""
        ...

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the configurations of some topics."""
        ...

    def join_cluster(self, cluster_id: str) -> None:
        """Store the cluster id."""
        ...

    # --- the process and the machine ---

    def ended(self, *, is_clean: bool, lost_batches: LostBatches | None) -> SimulatedDisk:
        """End the process cleanly or at once, and perhaps its machine."""
        ...

    def fragile(self, directory: int = 0) -> list[TopicPartition]:
        """Return the logs in one of the directories; the first may fail at a start, too."""
        ...

    def fail_directory(self, directory: int = 0) -> None:
        """Let one of the directories fail with its logs."""
        ...

    def changed(self, is_elsewhere: IsElsewhere, note: Callable[[str], None]) -> SimulatedDisk:
        """Sometimes change its files; ``note`` writes the history."""
        ...

    def start_broken(self) -> SimulatedDisk:
        """Start with an unreadable directory: the logs in it are unknown."""
        ...

    def repair(self, *, has_its_data: bool = False) -> SimulatedDisk:
        """Replace the failed directory by an empty one, or by itself."""
        ...

    def kept_topic_id(self, name: TopicPartition) -> TopicId | str | None:
        """Return the topic id of a log, readable or not; "none": there is none but a stray one."""
        ...

    # --- damage ---

    def check_damaged_logs(self, is_refused: Callable[[], bool]) -> None:
        """Check damaged logs as at a broker's start; files are checked when they are opened."""
        ...

    def find_damage(self) -> Mapping[TopicPartition, DamagedRecordsError]:
        """Read all logs and return the damage."""
        ...

    def damaged_logs(self) -> Iterable[TopicPartition]:
        """Return the damaged logs, in service or not."""
        ...

    def restore(self, name: TopicPartition) -> bool:
        """Undo the damage of a log; return whether the process must restart for it."""
        ...

    # --- in the background ---

    def start_maintenance(self, replica_manager: ReplicaManager) -> None:
        """Do some of the periodic tasks."""
        ...
