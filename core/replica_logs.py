"""The partition data of one broker, as the replica manager sees it.

``storage.log_manager`` implements this on disk. Offsets are of records; an offset range excludes
its end. Every method of a log may raise ``StorageError``: its directory failed, and is offline from
then on; or, a ``ShortageError``, nothing failed, and the next attempt may do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from regent.core.log_config import LogConfig
from regent.core.model import SuspectReplicas, TopicPartition
from regent.core.protocol.control import TopicId
from regent.core.records import RecordBytes, Records

UNKNOWN_OFFSET = -1
NO_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2
LATEST_TIMESTAMP = -1
MAX_TIMESTAMP = -3


class EpochEndOffset(NamedTuple):
    """Where a leader epoch ends in a log: the first offset that is not of it; -1, -1 if unknown."""

    leader_epoch: int
    end_offset: int


NO_EPOCH_END_OFFSET = EpochEndOffset(-1, -1)


class AppendedRecords(NamedTuple):
    """What an append did. Of a duplicate (idempotent producers) it tells what the first one did."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: the records keep the time they came with
    is_duplicate: bool = False


class SeenOfCluster(NamedTuple):
    """How far a broker has seen the cluster's metadata come, in all its lives.

    ``controller_epoch`` is the highest one obeyed; ``zxid`` the newest transaction heard of;
    ``mark`` that of the newest write of ``/regent/progress_mark``.
    """

    controller_epoch: int = 0
    zxid: int = 0
    mark: int = 0


class OffsetOfTimestamp(NamedTuple):
    """The first record at or after a time: where it is, when it is from, and of which epoch."""

    timestamp_ms: int
    offset: int
    leader_epoch: int  # -1: unknown


class LastOfProducer(NamedTuple):
    """The last batch of an idempotent producer: its last sequence number and its last offset.

    ``sequence`` is -1 when the batches of its ``epoch`` are gone.
    """

    epoch: int
    sequence: int
    offset: int


class PartitionLog(Protocol):
    """One log. Mirrors ``kafka.log.Log``."""

    @property
    def topic_id(self) -> TopicId | None:
        """The topic it was created for."""
        ...

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record there is."""
        ...

    @property
    def log_end_offset(self) -> int:
        """The offset the next record will have."""
        ...

    @property
    def size(self) -> int:
        """How many bytes its records take."""
        ...

    @property
    def taken_back_to(self) -> int:
        """Up to where a log that had been set aside was committed then; -1: it was in use."""
        ...

    # --- leader epochs ---

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 when there is none."""
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return the newest epoch up to ``leader_epoch`` and where it ends.

        An epoch before the first one ends where that begins; one after the latest is unknown.
        Mirrors ``LeaderEpochFileCache.endOffsetFor``.
        """
        ...

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note durably that a leader epoch begins at the end of the log.

        Before anything is served in it, and although no record may ever be written (KAFKA-7415).
        """
        ...

    # --- writing ---

    def last_of_producer(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of an idempotent producer; None: it is not known, or not any more.

        Whatever batch such a one sends is taken as its first.
        """
        ...

    def append_as_leader(self, records: RecordBytes, leader_epoch: int) -> AppendedRecords:
        """Check batches from a producer, give them offsets and the epoch, and append them.

        ``records`` is patched in place when it is writable. Raises ``RecordsRefusedError`` with
        Kafka's error code when they are corrupt, too large, too old, not of magic 2, or out of an
        idempotent producer's sequence; nothing is appended then.
        """
        ...

    def append_as_follower(self, records: RecordBytes) -> None:
        """Append batches as a leader has them, from our log end offset on.

        Raises ``RecordsRefusedError`` when they are corrupt or do not follow; what comes before the
        first such batch may have been appended.
        """
        ...

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on, and their epochs and sequences.

        An offset beyond the end drops nothing. A batch that holds ``offset`` in its middle goes as
        a whole, so the end may be lower.
        """
        ...

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record will have ``offset``."""
        ...

    def advance_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset; lower than it is: nothing happens.

        The caller has checked that it is not above the high watermark.
        """
        ...

    # --- reading ---

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Records:
        """Return the whole batches from the one that holds ``offset`` to before ``limit``.

        They fit in ``max_bytes``, except that ``at_least_one`` allows a first batch that does not.
        The caller has checked that ``offset`` is in log_start_offset..log_end_offset. Nothing that
        is damaged is returned, only what comes before it; raises ``DamagedRecordsError`` when that
        is nothing.
        """
        ...

    def offset_of_timestamp(self, timestamp_ms: int, limit: int) -> OffsetOfTimestamp | None:
        """Return the first record at or after a time, before offset ``limit``; None: there is none.

        ``MAX_TIMESTAMP`` asks for the record with the greatest timestamp. A batch is not decoded:
        its first offset stands for the records in it unless its header says more. Raises
        ``DamagedRecordsError`` when nobody can tell.
        """
        ...


class ClusterNotes(Protocol):
    """What a broker's log directories know of the cluster they belong to."""

    @property
    def seen(self) -> SeenOfCluster:
        """How far this broker has seen the cluster come."""
        ...

    def note_seen(self, *, controller_epoch: int = 0, zxid: int = 0, mark: int = 0) -> None:
        """Note durably how far the cluster has come; what is less than is noted changes nothing."""
        ...

    def check_cluster(self, cluster_id: str | None) -> None:
        """Check that these are logs of the cluster whose id ZooKeeper holds (None: it holds none).

        Raises ``ForeignDirectoryError``. Logs of no cluster yet may join any.
        """
        ...

    def check_not_older(self, zxid: int, mark: int | None) -> None:
        """Check that ZooKeeper, which has come to ``zxid``, has not gone back.

        ``mark`` is the transaction that wrote ``/regent/progress_mark`` last; 0: there is none,
        None: it is not shown. Raises ``ForeignDirectoryError``, from then on whatever ZooKeeper has
        come to: attempts to start make transactions, too.
        """
        ...


class ReplicaLogs(ClusterNotes, Protocol):
    """The logs of one broker, in one or several directories. Mirrors ``kafka.log.LogManager``."""

    def hosted(self) -> Mapping[TopicPartition, TopicId | None]:
        """Return every partition with a log here and the topic id it was created for."""
        ...

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a log; None when there is none here, or its directory failed."""
        ...

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> PartitionLog:
        """Make sure a log exists and return it; see its ``topic_id``.

        A log without an id is given ``topic_id``. Raises ``StorageError`` when the partition's
        directory failed, or when it may live in a failed one and ``is_new`` is false.
        """
        ...

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Take a log away at once and delete its files later; absent is fine.

        ``deleted_topic``: the topic itself is deleted, so what was set aside of it goes as well.
        Raises ``StorageError``.
        """
        ...

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Move a log that nobody assigned to us, or that is damaged, out of the way, and keep it.

        ``get_or_create`` uses it again for the same topic id, unless it is damaged. One that cannot
        be reached stays. Raises ``StorageError``.
        """
        ...

    def condemn(self, topic_partition: TopicPartition, reason: str) -> None:
        """Take a log with damaged records out of use, as others have them; absent is fine.

        Its directory goes on working. It is told of like a directory that failed.
        """
        ...

    def is_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether there is a log that cannot be used: its directory failed, or it is damaged."""
        ...

    def is_damaged(self, topic_partition: TopicPartition) -> bool:
        """Whether there is a log that cannot be used although its directory works."""
        ...

    def may_be_offline(self, topic_partition: TopicPartition) -> bool:
        """Whether a log that is not known here may be in a directory that failed.

        Nobody could look there when the broker started. False for one that was known and is gone.
        """
        ...

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the topic a log was created for, also one that cannot be used; None: unknown."""
        ...

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the high watermark last noted of a log; 0 when none was."""
        ...

    # --- replicas that may have lost committed records ---

    @property
    def knows_all(self) -> bool:
        """Whether every log there was is known; not so in a directory that is new, or failed."""
        ...

    @property
    def has_suspects(self) -> bool:
        """Whether any replica is suspect."""
        ...

    @property
    def suspect_changes(self) -> int:
        """How often replicas have become suspect, or sound, or have gone being suspect.

        Unless it ``knows_all``, what is not listed as sound is suspect: a new log becomes sound.
        """
        ...

    def suspects(self) -> SuspectReplicas:
        """Return which replicas may have lost committed records, and how much they have."""
        ...

    def is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica is known to have lost records, or may have."""
        ...

    def note_lost(
        self, topic_partitions: Collection[TopicPartition], *, are_all: bool = True
    ) -> None:
        """Take these for suspect: they had logs.

        ``are_all``: every other missing log held nothing that counts. With a failed directory
        nothing more is known than before.
        """
        ...

    def absolve(self, topic_partition: TopicPartition) -> None:
        """Suspect a replica no longer. It is durable when ``save_suspects`` returns."""
        ...

    def save_suspects(self) -> None:
        """Write down which replicas are suspect. Raises nothing: a directory may fail."""
        ...

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Note high watermarks of all hosted logs: one file a directory, replaced atomically."""
        ...
