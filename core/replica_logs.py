"""The partition data of one broker, as the replica manager sees it.

``storage.log_manager`` implements this on disk. Offsets are of records; an offset range excludes
its end. Every method of a log may raise ``StorageError``: its directory failed and is offline from
then on. A ``ShortageError`` is temporary: the next attempt may succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
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
EARLIEST_LOCAL_TIMESTAMP = -4
LATEST_TIERED_TIMESTAMP = -5
NO_VERIFICATION = 0
NOT_VERIFIED = -1
"""Stands for a guard if a batch should have been verified and was not: it is not appended."""


class EpochEndOffset(NamedTuple):
    """Where a leader epoch ends in a log: the first offset after it; -1, -1 if unknown."""

    leader_epoch: int
    end_offset: int


NO_EPOCH_END_OFFSET = EpochEndOffset(-1, -1)


class AppendedRecords(NamedTuple):
    """The outcome of an append; a duplicate of an idempotent producer gets the original's.

    ``data`` is what the log has now; empty for a duplicate.
    """

    first_offset: int
    last_offset: int
    log_append_time_ms: int  # -1: the records keep the timestamps of their producer
    is_duplicate: bool = False
    data: RecordBytes = b""


class SeenOfCluster(NamedTuple):
    """The newest cluster metadata a broker has seen, also before its restarts.

    ``controller_epoch`` is the highest one accepted, ``zxid`` the newest transaction seen, ``mark``
    the zxid of the newest write of ``/regent/progress_mark``.
    """

    controller_epoch: int = 0
    zxid: int = 0
    mark: int = 0


class OffsetOfTimestamp(NamedTuple):
    """The first record at or after a time: its timestamp, offset and leader epoch."""

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


class AppendOrigin(Enum):
    """Who wrote the records that a leader appends."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # of groups or of transactions


class AbortedTransactionStart(NamedTuple):
    """A transaction that was aborted: readers skip its records from here to its marker."""

    producer_id: int
    first_offset: int


class ActiveProducer(NamedTuple):
    """What a log knows of an idempotent producer; -1: unknown, or none.

    ``coordinator_epoch`` and ``transaction_start_offset`` are of transactions.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int


class ProducerSummary(NamedTuple):
    """How many idempotent producers a log knows, and whether one has a late transaction.

    It is open longer than any coordinator allows: its coordinator has lost it.
    """

    producers: int
    has_late_transaction: bool


class PartitionLog(Protocol):
    """One log. Mirrors ``kafka.log.UnifiedLog``."""

    @property
    def topic_id(self) -> TopicId | None:
        """The id of the topic that the log was created for; None: it has none."""
        ...

    @property
    def config(self) -> LogConfig:
        """The settings of its topic."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The offset of the first record in the log."""
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
    def stray_high_watermark(self) -> int:
        """The high watermark of a log when it was renamed as stray; -1: it never was."""
        ...

    # --- leader epochs ---

    @property
    def latest_epoch(self) -> int:
        """The newest leader epoch in the log; -1 when there is none. Raises ``StorageError``.

        It is that of a whole log. Read it before offsets that must fit to it: if a truncation was
        interrupted, the log is opened again, and they change.
        """
        ...

    def epoch_for(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``; -1: unknown.

        At the log end offset it is the latest epoch. Raises ``StorageError``.
        Mirrors ``LeaderEpochFileCache.epochForOffset``.
        """
        ...

    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset:
        """Return the newest epoch up to ``leader_epoch`` and where it ends.

        An epoch before the first one ends where the first one begins; an epoch after the latest
        one is unknown.
        Mirrors ``LeaderEpochFileCache.endOffsetFor``.
        """
        ...

    def assign_epoch(self, leader_epoch: int) -> None:
        """Note durably that a leader epoch begins at the end of the log, and ``fence`` followers.

        A new leader does this before it serves any request in the epoch, even if no record follows
        (KAFKA-7415).
        """
        ...

    # --- writing ---

    def last_of_producer(self, producer_id: int) -> LastOfProducer | None:
        """Return the last batch of an idempotent producer; None: the producer is unknown.

        Any batch of an unknown producer is accepted as its first.
        """
        ...

    def active_producers(self) -> Sequence[ActiveProducer]:
        """Return all idempotent producers that are known. Thread-safe."""
        ...

    def producer_summary(self, max_timeout_ms: int) -> ProducerSummary:
        """Count the idempotent producers. Thread-safe, takes no lock."""
        ...

    def append_as_leader(
        self,
        records: RecordBytes,
        leader_epoch: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        guard: int | None = None,
    ) -> AppendedRecords:
        """Check batches from a producer, give them offsets and the epoch, and append them.

        ``records`` is patched in place when it is writable. Only coordinators write transaction
        markers; their batches have no sequence. ``guard``: the transaction was verified under it,
        see ``begin_verification``; None: it need not be. Raises ``RecordsRefusedError`` with
        Kafka's error code when they are corrupt, too large, too old, not of magic 2, out of an
        idempotent producer's sequence, or not part of its transaction; nothing is appended then.
        """
        ...

    def begin_verification(self, records: RecordBytes) -> int:
        """Begin to verify that a batch is part of a transaction (KIP-890); return a guard.

        ``NO_VERIFICATION``: the transaction is open here already. An append is refused if a marker
        or another batch of the producer was appended since its verification began.
        """
        ...

    def fence(self, leader_epoch: int) -> None:
        """Refuse records that were fetched in another leader epoch, from now on."""
        ...

    def append_as_follower(self, records: RecordBytes, leader_epoch: int | None = None) -> None:
        """Append the leader's batches unchanged; they must begin at the log end offset.

        ``leader_epoch``: in which they were fetched; None: they are a copy of another log. Raises
        ``RecordsRefusedError``: FENCED_LEADER_EPOCH if it is not that of ``fence``, other codes
        when a batch is corrupt or does not follow the one before it. The batches before that one
        may have been appended.
        """
        ...

    def truncate_to(self, offset: int) -> None:
        """Drop the records from ``offset`` on, and their epochs and sequences.

        An offset beyond the end drops nothing. A batch with ``offset`` in its middle is dropped as
        a whole, so the log may end before ``offset``.
        """
        ...

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next record will have ``offset``."""
        ...

    def advance_log_start_offset(self, offset: int) -> None:
        """Raise the log start offset. No-op if it is not raised.

        The caller has checked that it is not above the high watermark.
        """
        ...

    # --- reading ---

    def read(self, offset: int, max_bytes: int, limit: int, *, at_least_one: bool) -> Records:
        """Return the whole batches from the one that holds ``offset`` to before ``limit``.

        They fit in ``max_bytes``, except that ``at_least_one`` allows a first batch that does not.
        The caller has checked that ``offset`` is in log_start_offset..log_end_offset. Only
        batches before the first damaged one are returned; raises ``DamagedRecordsError`` if there
        are none.
        """
        ...

    def prefetch(self, offset: int, max_bytes: int) -> Callable[[], None] | None:
        """Return the work after which ``read`` does not wait for the disk; None: it would not.

        The work may run on any thread, without a lock, at any time: it changes nothing. It does not
        raise ``StorageError``; a read of the same records does.
        """
        ...

    def end_of_segment(self, offset: int) -> int:
        """Return the offset at which the segment ends that ``read`` reads from.

        The log end offset for the active segment.
        """
        ...

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of a transaction that may still end either way; None: none.

        Its marker is missing, or is not below the high watermark.
        """
        ...

    def aborted_transactions(
        self, offset: int, records: Records
    ) -> Sequence[AbortedTransactionStart]:
        """Return the aborted transactions among ``records``, which were read from ``offset`` on.

        There may be others, too.
        """
        ...

    def offset_of_timestamp(
        self, timestamp_ms: int, limit: int, from_offset: int = 0
    ) -> OffsetOfTimestamp | None:
        """Return the first record at or after a time, before offset ``limit``; None: there is none.

        ``MAX_TIMESTAMP`` asks for the record with the greatest timestamp. Records before
        ``from_offset`` do not count. A batch is not decoded: the answer is the first offset in its
        batch, unless its header tells the offset of the record. Raises ``DamagedRecordsError``
        when the answer may be among damaged records.
        """
        ...

    def offsets_before(self, timestamp_ms: int, count: int) -> Sequence[int]:
        """Return offsets at which segments begin that were last written to up to a time.

        Newest first, up to ``count``. The end of the log is among them if the time is not past.
        """
        ...


class ClusterNotes(Protocol):
    """What a broker has noted in its log directories about its cluster."""

    @property
    def seen(self) -> SeenOfCluster:
        """The newest cluster metadata this broker has seen."""
        ...

    def note_seen(self, *, controller_epoch: int = 0, zxid: int = 0, mark: int = 0) -> None:
        """Note newer cluster metadata durably; lower values change nothing."""
        ...

    def check_cluster(self, cluster_id: str | None) -> None:
        """Check that these are logs of the cluster whose id ZooKeeper holds (None: it holds none).

        Raises ``ForeignDirectoryError``. Logs of no cluster yet may join any.
        """
        ...

    def check_not_older(self, zxid: int, mark: int | None) -> None:
        """Check that ZooKeeper, whose newest transaction is ``zxid``, was not set back.

        ``mark`` is the zxid of the last write of ``/regent/progress_mark``; 0: there is none, None:
        it cannot be read. Raises ``ForeignDirectoryError``. Later checks then fail with any
        ``zxid``, because every attempt to start makes transactions, which raise it.
        """
        ...


class DeletedReplicaLogs(Protocol):
    """Deleted logs whose files are still there; ``hold`` may raise ``StorageError``."""

    def hold(self, topic_partition: TopicPartition, topic_id: TopicId) -> bool:
        """Keep the log that a replica had when its topic was deleted; return whether it is kept.

        It is kept until ``get_or_create`` uses it again, and a loss of power does not change it.
        Idempotent.
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

    @property
    def deleted(self) -> DeletedReplicaLogs:
        """The logs of deleted topics that are still there."""
        ...

    def get_or_create(
        self, topic_partition: TopicPartition, topic_id: TopicId | None, *, is_new: bool
    ) -> PartitionLog:
        """Return a log; create it if it does not exist. It may have another topic id.

        Unless ``is_new``, a deleted log with the topic id is used again if it is still there. A log
        that is created although its replica is not new lacks records until ``mark_whole``: it is
        not held. A log without an id is given ``topic_id``. Raises ``StorageError`` when the
        directory of the log failed, or when a failed directory may have the log and ``is_new`` is
        false.
        """
        ...

    def delete(
        self, topic_partition: TopicPartition, *, deleted_topic: TopicId | None = None
    ) -> None:
        """Remove a log at once and delete its files later. No-op if absent.

        ``deleted_topic``: the topic itself is deleted, so its stray logs are deleted as well.
        Raises ``StorageError``.
        """
        ...

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Rename a log as stray and keep it: it is not assigned to this broker, or is damaged.

        ``get_or_create`` uses it again for the same topic id, unless it is damaged. If the replica
        of a damaged log was marked as suspect, it stays so. A log in a failed directory stays.
        Raises ``StorageError``.
        """
        ...

    def mark_whole(self, topic_partition: TopicPartition) -> None:
        """Note that a log that was created for a replica that is not new has every record now.

        Never raises: a directory that fails goes offline.
        """
        ...

    def mark_damaged(self, topic_partition: TopicPartition, reason: str) -> None:
        """Take a log with damaged records out of use. No-op if absent.

        Call only if other replicas have the records. Its directory stays online; the replica is
        reported like one in a failed directory.
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

        Such a directory could not be read at start. False for a log that was known and is gone.
        """
        ...

    def topic_id(self, topic_partition: TopicPartition) -> TopicId | None:
        """Return the topic a log was created for, also one that cannot be used; None: unknown.

        Raises ``ShortageError``.
        """
        ...

    def checkpointed_high_watermark(self, topic_partition: TopicPartition) -> int:
        """Return the checkpointed high watermark of a log; 0 if there is none."""
        ...

    # --- replicas that may have lost committed records ---

    @property
    def knows_all(self) -> bool:
        """Whether all earlier logs are known: false while a directory is new or failed."""
        ...

    @property
    def has_suspects(self) -> bool:
        """Whether any replica is suspect."""
        ...

    @property
    def suspect_changes(self) -> int:
        """How often the set of suspect replicas changed.

        Unless it ``knows_all``, every replica not listed as sound is suspect.
        """
        ...

    def suspects(self) -> SuspectReplicas:
        """Return which replicas may have lost committed records, and where their logs end."""
        ...

    def is_suspect(self, topic_partition: TopicPartition) -> bool:
        """Whether a replica may have lost committed records."""
        ...

    def note_lost(
        self, topic_partitions: Collection[TopicPartition], *, are_all: bool = True
    ) -> None:
        """Mark these replicas as suspect: their logs are missing.

        ``are_all``: no other log is missing. No-op while a directory is offline.
        """
        ...

    def mark_suspect(self, topic_partition: TopicPartition) -> None:
        """Mark a replica with a log as suspect. No-op if it is marked, or has none.

        Durable when ``save_suspects`` returns.
        """
        ...

    def mark_sound(self, topic_partition: TopicPartition) -> None:
        """Clear the suspicion of a replica. Durable when ``save_suspects`` returns."""
        ...

    def save_suspects(self) -> None:
        """Write the suspects to disk. Never raises: a directory that fails goes offline."""
        ...

    def note_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Set high watermarks for the next checkpoint; logs not given keep theirs."""
        ...

    def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Checkpoint the high watermarks of all logs: a file per directory, replaced atomically."""
        ...
