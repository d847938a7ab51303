"""The partitions of ``__consumer_offsets`` as the group coordinator writes and reads them.

Records that the coordinator appends while it handles queued messages go into one batch for each
partition. Answers come back to the coordinator's actor as messages. Partitions are read on one
thread, one after the other. Implements ``core.coordinator.group.group_metadata_manager.GroupLog``.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from regent.actors.timer import monotonic_ms
from regent.core.admin.topic_validation import GROUP_METADATA_TOPIC
from regent.core.coordinator.group.group_loading import GroupLoader, LoadedGroup
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    GroupLogSettings,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import Record, encode_key, encode_value
from regent.core.errors import Errors, RegentError
from regent.core.model import TopicPartition
from regent.core.protocol.client import ProducedPartition
from regent.core.protocol.groups import ProducerIdAndEpoch
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.replica_manager import ReplicaManager
from regent.storage.record_batch import batches
from regent.storage.record_batch_builder import KeyAndValue, build_batch, keys_and_values

log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 64 * 1024  # of several appends together
_TRANSACTIONS_SEQUENCE: Final = 0


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
    """A partition was read; None: it could not be."""

    partition: int
    term: int
    groups: Mapping[str, LoadedGroup] | None


class _Target(NamedTuple):
    partition: int
    term: int
    acks: int
    producer: ProducerIdAndEpoch | None


class _StagedBatch:
    """Records of one or several appends."""

    def __init__(self) -> None:
        self.records: list[KeyAndValue] = []
        self.responds: list[tuple[int, RespondToAppend]] = []
        self.size = 0

    def add(self, records: Sequence[KeyAndValue], size: int, respond: RespondToAppend) -> None:
        self.responds.append((len(self.records), respond))
        self.records += records
        self.size += size


class GroupCoordinatorLog:
    """Used on the coordinator's thread; ``tell`` sends a message to its actor, from any thread."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        settings: GroupLogSettings,
        tell: Callable[[Flush | Appended | Loaded], None],
    ) -> None:
        self._replica_manager = replica_manager
        self._settings = settings
        self._tell = tell
        self._staged: dict[_Target, list[_StagedBatch]] = {}
        self._waiting: deque[tuple[int, DelayedOperation]] = deque()  # with their deadlines
        self._loader = ThreadPoolExecutor(1, "group-metadata-loader")

    def stop(self) -> None:
        """Read no more partitions."""
        self._loader.shutdown(wait=False, cancel_futures=True)

    # --- appends ---

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: ProducerIdAndEpoch | None = None,
    ) -> None:
        """See ``GroupLog.append``."""
        if not self._staged:
            self._tell(Flush())
        encoded = [(encode_key(key), encode_value(value)) for key, value in records]
        size = sum(len(key) + len(value or b"") for key, value in encoded)
        staged = self._staged.setdefault(_Target(partition, term, acks, producer), [])
        if not staged or producer is not None or staged[-1].size + size > _BATCH_BYTES:
            staged.append(_StagedBatch())
        staged[-1].add(encoded, size, respond)

    def flush(self) -> None:
        """Append what was staged."""
        staged, self._staged = self._staged, {}
        for target, targets in staged.items():
            for batch in targets:
                self._append(target, batch)

    def _append(self, target: _Target, batch: _StagedBatch) -> None:
        topic_partition = TopicPartition(GROUP_METADATA_TOPIC, target.partition)
        producer = target.producer or ProducerIdAndEpoch(-1, -1)
        data = build_batch(
            batch.records,
            time.time_ns() // 1_000_000,
            codec=self._settings.offsets_topic_compression_codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=-1 if target.producer is None else _TRANSACTIONS_SEQUENCE,
        )

        def respond(produced: Mapping[TopicPartition, ProducedPartition]) -> None:
            outcome = produced[topic_partition]
            self._tell(Appended(outcome.error_code, outcome.base_offset, batch.responds))

        operation = self._replica_manager.append_in_term(
            topic_partition, target.term, target.acks, data, monotonic_ms(), respond
        )
        if operation is not None:
            deadline_ms = monotonic_ms() + self._settings.offsets_commit_timeout_ms
            self._waiting.append((deadline_ms, operation))

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
        """See ``GroupLog.load``."""
        self._loader.submit(self._load, partition, term)

    def _load(self, partition: int, term: int) -> None:
        began = time.monotonic()
        groups: Mapping[str, LoadedGroup] | None = None
        try:
            loader = self._read(partition, term)
            groups = None if loader is None else loader.groups()
        except (RegentError, OSError, ValueError, IndexError) as error:
            log.error("%s-%d cannot be loaded: %s", GROUP_METADATA_TOPIC, partition, error)
        except Exception:  # the partition must not stay in the state of loading
            log.exception("%s-%d cannot be loaded", GROUP_METADATA_TOPIC, partition)
        if groups:
            log.info(
                "%s-%d: loaded %d groups in %.0f ms",
                GROUP_METADATA_TOPIC,
                partition,
                len(groups),
                (time.monotonic() - began) * 1000,
            )
        self._tell(Loaded(partition, term, groups))

    def _read(self, partition: int, term: int) -> GroupLoader | None:
        """Read a partition to its end; None: this broker does not lead it any more."""
        loader, offset = GroupLoader(), 0
        topic_partition = TopicPartition(GROUP_METADATA_TOPIC, partition)
        read = partial(self._replica_manager.read_in_term, topic_partition, term)
        while True:
            part = read(offset, self._settings.offsets_load_buffer_size)
            if part.error_code is not Errors.NONE:
                return None
            if not part.records.size:
                return loader
            data = memoryview(part.records.read())
            for position, header in batches(data):
                if not header.is_control:
                    records = keys_and_values(header, data[position : position + header.size])
                    producer_id = header.producer_id if header.is_transactional else None
                    loader.add_batch(header.base_offset, records, producer_id)
                offset = header.next_offset
