"""The partitions of an internal topic as a coordinator writes and reads them.

Records that the coordinator appends while it handles queued messages go into one batch for each
partition. Answers come back to the coordinator's actor as messages. Partitions are read on one
thread, one after the other.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from regent.actors.scheduler import monotonic_ms
from regent.config.threads import named_executor
from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.client import ACKS_ALL, ProducedPartition
from regent.core.protocol.groups import VerifiedProducer
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.replica_manager import ReplicaManager
from regent.records.record_batch import (
    BatchHeader,
    KeyAndValue,
    batches,
    build_batch,
    keys_and_values,
)

log = logging.getLogger(__name__)

L = TypeVar("L")
L_co = TypeVar("L_co", covariant=True)

RespondToAppend = Callable[[Errors, int], None]
"""Takes the outcome, and the offset of the first record."""

_BATCH_BYTES: Final = 64 * 1024  # of several appends together
_TRANSACTIONS_SEQUENCE: Final = 0
_NOTED_LOADS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Flush:
    """Append what was staged: nothing that was queued before needs to be handled first."""


@dataclass(frozen=True, slots=True)
class Appended:
    """The outcome of an append, and the calls that take it."""

    error_code: Errors
    base_offset: int
    responds: Sequence[tuple[int, RespondToAppend]]  # with the position of the first record


@dataclass(frozen=True, slots=True)
class Loaded:
    """A partition was read; ``content`` None: it could not be."""

    partition: int
    term: int
    content: Any


class Load(NamedTuple):
    """A partition was read: when that ended, by the monotonic clock, and how long it took."""

    ended_s: float
    took_ms: float


class PartitionReader(Protocol[L_co]):
    """Takes the batches of a partition, in the order of the log."""

    def add(self, header: BatchHeader, records: Iterable[KeyAndValue]) -> None:
        """Take the records of a batch."""
        ...

    def content(self) -> L_co:
        """Return what the batches say. May raise ``BadDataError``."""
        ...


class _Target(NamedTuple):
    partition: int
    term: int
    acks: int
    producer: VerifiedProducer | None


class _StagedBatch:
    """Records of one or several appends."""

    def __init__(self, target: _Target) -> None:
        self.target = target
        self.records: list[KeyAndValue] = []
        self.responds: list[tuple[int, RespondToAppend]] = []
        self.size = 0

    def add(self, records: Sequence[KeyAndValue], size: int, respond: RespondToAppend) -> None:
        self.responds.append((len(self.records), respond))
        self.records += records
        self.size += size


def begin_verification(
    replica_manager: ReplicaManager, topic_partition: TopicPartition, producer: VerifiedProducer
) -> int:
    """Begin to verify that a partition is part of a producer's transaction; return the guard."""
    batch = build_batch(
        (), 0, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch
    )
    return replica_manager.begin_verifications({topic_partition: batch})[topic_partition]


class CoordinatorLog(Generic[L]):
    """Used on the coordinator's thread; ``tell`` sends a message to its actor, from any thread.

    ``loads`` are the last partitions that were read; any thread may copy it.
    """

    def __init__(
        self,
        topic: str,
        replica_manager: ReplicaManager,
        tell: Callable[[Flush | Appended | Loaded], None],
        *,
        append_timeout_ms: int,
        load_buffer_size: int,
        codec: int = 0,
    ) -> None:
        self._topic = topic
        self._replica_manager = replica_manager
        self._tell = tell
        self._append_timeout_ms = append_timeout_ms
        self._load_buffer_size = load_buffer_size
        self._codec = codec
        self._staged: dict[int, list[_StagedBatch]] = {}  # by partition, in the order of the log
        self._waiting: deque[tuple[int, DelayedOperation]] = deque()  # with their deadlines
        self._loader = named_executor(1, f"{topic}-loader")
        self.loads: deque[Load] = deque(maxlen=_NOTED_LOADS)

    @abstractmethod
    def new_reader(self) -> PartitionReader[L]:
        """Return a reader of one partition."""

    def stop(self) -> None:
        """Read no more partitions."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    # --- appends ---

    def append_encoded(
        self,
        partition: int,
        term: int,
        records: Sequence[KeyAndValue],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        """Append records, all or none, in the leadership of ``term``.

        ``producer``: they are a batch of its transaction.
        """
        if not self._staged:
            self._tell(Flush())
        size = sum(len(key) + len(value or b"") for key, value in records)
        target = _Target(partition, term, acks, producer)
        staged = self._staged.setdefault(partition, [])
        joins = bool(staged) and producer is None and staged[-1].target == target
        if not joins or staged[-1].size + size > _BATCH_BYTES:
            staged.append(_StagedBatch(target))
        staged[-1].add(records, size, respond)

    def flush(self) -> None:
        """Append what was staged."""
        staged, self._staged = self._staged, {}
        with ExitStack() as calls:  # all of them, also if one fails
            for batch in reversed([batch for rows in staged.values() for batch in rows]):
                calls.callback(self._append, batch)

    def _append(self, batch: _StagedBatch) -> None:
        target = batch.target
        topic_partition = TopicPartition(self._topic, target.partition)
        producer = target.producer or VerifiedProducer(-1, -1)
        data = build_batch(
            batch.records,
            time.time_ns() // 1_000_000,
            codec=self._codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=-1 if target.producer is None else _TRANSACTIONS_SEQUENCE,
        )

        def respond(produced: Mapping[TopicPartition, ProducedPartition]) -> None:
            outcome = produced[topic_partition]
            self._tell(Appended(outcome.error_code, outcome.base_offset, batch.responds))

        operation = self._replica_manager.append_in_term(
            topic_partition,
            target.term,
            target.acks,
            data,
            monotonic_ms(),
            respond,
            producer.guard,
        )
        if operation is not None:
            self._waiting.append((monotonic_ms() + self._append_timeout_ms, operation))

    @property
    def next_deadline_ms(self) -> int | None:
        """When ``expire`` must be called; None: no append waits."""
        while self._waiting and self._waiting[0][1].is_completed:
            self._waiting.popleft()
        return self._waiting[0][0] if self._waiting else None

    def expire(self) -> None:
        """Answer the appends that wait too long."""
        now_ms = monotonic_ms()
        while (due_ms := self.next_deadline_ms) is not None and due_ms <= now_ms:
            self._replica_manager.expire(self._waiting.popleft()[1], now_ms)

    # --- loading ---

    def load(self, partition: int, term: int) -> None:
        """Begin to read a partition; ``Loaded`` is told at the end."""
        try:
            self._loader.submit(self._load, partition, term)
        except RuntimeError as error:  # no thread can be started, or this one stops
            log.error("%s-%d cannot be loaded: %s", self._topic, partition, error)
            self._tell(Loaded(partition, term, None))

    def _load(self, partition: int, term: int) -> None:
        began = time.monotonic()
        content: L | None = None
        try:
            reader = self._read(partition, term)
            content = None if reader is None else reader.content()
        except (RegentError, OSError, ValueError, IndexError) as error:
            log.error("%s-%d cannot be loaded: %s", self._topic, partition, error)
        except Exception:  # the partition must not stay in the state of loading
            log.exception("%s-%d cannot be loaded", self._topic, partition)
        if content:
            milliseconds = (time.monotonic() - began) * 1000
            log.info("%s-%d: loaded in %.0f ms", self._topic, partition, milliseconds)
        if content is not None:
            self.loads.append(Load(time.monotonic(), (time.monotonic() - began) * 1000))
        self._tell(Loaded(partition, term, content))

    def _read(self, partition: int, term: int) -> PartitionReader[L] | None:
        """Read a partition to its end; None: this broker does not lead it any more."""
        reader, offset = self.new_reader(), 0
        topic_partition = TopicPartition(self._topic, partition)
        read = partial(self._replica_manager.read_in_term, topic_partition, term)
        while True:
            part = read(offset, self._load_buffer_size)
            if part.error_code is not Errors.NONE:
                return None
            if not part.records.size:
                return reader
            data = memoryview(part.records.read())
            for position, header in batches(data):
                batch = data[position : position + header.size]
                reader.add(header, keys_and_values(header, batch))
                offset = header.next_offset
