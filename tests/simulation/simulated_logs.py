"""What the simulation asks of a broker's disk: one that has logs in memory, or one with files.

``tests.simulation.disk`` is the one, ``tests.simulation.file_disk`` the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, TypeAlias

from regent.core.errors import DamagedRecordsError
from regent.core.log_config import LogConfig
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.replica_logs import PartitionLog, ReplicaLogs
from tests.simulation.records import RecordObserver
from tests.support.memory_logs import StoredBatch
from tests.support.record_batches import Record

LostBatches: TypeAlias = Callable[[], int]
"""How many batches the next log loses with the power, of a disk that cannot tell by itself."""


IsElsewhere: TypeAlias = "Callable[[SimulatedLog, StoredBatch], bool]"
"""Whether another replica in sync has a batch, whole."""


class NamedLog(Protocol):
    """A log, be it one that nobody can read."""

    @property
    def topic_partition(self) -> TopicPartition:
        """Which partition it is of."""
        ...

    @property
    def topic_id(self) -> TopicId | None:
        """The topic it was created for."""
        ...


class SimulatedLog(PartitionLog, NamedLog, Protocol):
    """A log whose contents can be seen from outside."""

    @property
    def batches(self) -> Sequence[StoredBatch]:
        """What was written, in order; also what is below the log start offset and still there."""
        ...

    @property
    def damaged(self) -> AbstractSet[int]:
        """The base offsets of batches with other bytes than were written."""
        ...

    @property
    def damageable(self) -> Sequence[StoredBatch]:
        """The batches that ``damage`` may name."""
        ...

    def damage(self, base_offset: int) -> None:
        """Let a batch have other bytes than were written."""
        ...

    def records(self) -> list[Record]:
        """Return every record from the log start offset on."""
        ...


class SimulatedDisk(ReplicaLogs, Protocol):
    """The logs that one process has, on a machine that outlives it.

    What ends a process, or happens while none runs, returns the disk of the next one.
    """

    observer: RecordObserver
    on_condemned: Callable[[], None]
    clock_ms: int  # what the monotonic clock said at the beginning
    wall_clock_ahead_ms: int

    @property
    def broker_id(self) -> BrokerId:
        """Whose disk it is."""
        ...

    @property
    def has_failed(self) -> bool:
        """Whether one of its directories has."""
        ...

    def get(self, topic_partition: TopicPartition) -> SimulatedLog | None:
        """Return a log that is there and works."""
        ...

    def log(self, topic_partition: TopicPartition) -> SimulatedLog:
        """Return a log that must exist, usable or not."""
        ...

    def find(self, topic_partition: TopicPartition) -> SimulatedLog | None:
        """Return a log that is there, usable or not."""
        ...

    @property
    def batch_count(self) -> int:
        """How many batches all its logs have."""
        ...

    def configure(self, configs: Mapping[str, LogConfig]) -> None:
        """Set the settings of some topics."""
        ...

    def join_cluster(self, cluster_id: str) -> None:
        """Belong to a cluster from now on."""
        ...

    # --- what happens to it ---

    def ended(self, *, is_clean: bool, lost_batches: LostBatches | None) -> SimulatedDisk:
        """End the process: in an orderly way, or at once, and perhaps its machine with it."""
        ...

    def fragile(self, directory: int = 0) -> list[TopicPartition]:
        """Return the logs in one of the directories; the first may fail at a start, too."""
        ...

    def fail_directory(self, directory: int = 0) -> None:
        """Lose one of the directories and the logs in it."""
        ...

    def changed(self, is_elsewhere: IsElsewhere, note: Callable[[str], None]) -> SimulatedDisk:
        """Have something happen to its files, now and then, of which ``note`` is told."""
        ...

    def start_broken(self) -> SimulatedDisk:
        """Start with a directory that cannot be read: which logs are in it is unknown."""
        ...

    def repair(self, *, has_its_data: bool = False) -> SimulatedDisk:
        """Put a directory in the place of the failed one, which is empty or the same."""
        ...

    def kept_topic_id(self, name: TopicPartition) -> TopicId | str | None:
        """Return the topic id of a log, be it out of sight; "none": there is no log."""
        ...

    # --- damage ---

    def check_damaged_logs(self, is_refused: Callable[[], bool]) -> None:
        """Look at damaged logs as when a broker starts, if the disk does not do so by itself."""
        ...

    def find_damage(self) -> Mapping[TopicPartition, DamagedRecordsError]:
        """Read everything there is."""
        ...

    def damaged_logs(self) -> Iterable[TopicPartition]:
        """Return the logs that are damaged, in use or not."""
        ...

    def restore(self, name: TopicPartition) -> bool:
        """Undo the damage of a log; return whether the process must start again for it."""
        ...

    # --- in the background ---

    def look_after(self, is_known_topic: Callable[[TopicId], bool]) -> None:
        """Do some of what is done every now and then."""
        ...
