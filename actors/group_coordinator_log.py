"""The partitions of ``__consumer_offsets`` as the group coordinator writes and reads them.

Implements ``core.coordinator.group.group_metadata_manager.GroupLog``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from regent.actors.coordinator_log import Appended, CoordinatorLog, Flush, Loaded, PartitionReader
from regent.core.coordinator.group.group_loading import GroupLoader, LoadedGroup
from regent.core.coordinator.group.group_metadata_manager import (
    ACKS_ALL,
    GroupLogSettings,
    RespondToAppend,
)
from regent.core.coordinator.group.group_records import Record, encode_key, encode_value
from regent.core.protocol.groups import VerifiedProducer
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.topic_validation import GROUP_METADATA_TOPIC
from regent.records.end_transaction_marker import decode_marker_type
from regent.records.record_batch import BatchHeader, KeyAndValue


class GroupCoordinatorLog(CoordinatorLog[Mapping[str, LoadedGroup]]):
    """Used on the coordinator's thread; ``tell`` sends a message to its actor, from any thread."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        settings: GroupLogSettings,
        tell: Callable[[Flush | Appended | Loaded], None],
    ) -> None:
        super().__init__(
            GROUP_METADATA_TOPIC,
            replica_manager,
            tell,
            append_timeout_ms=settings.offsets_commit_timeout_ms,
            load_buffer_size=settings.offsets_load_buffer_size,
            codec=settings.offsets_topic_compression_codec,
        )

    def append(
        self,
        partition: int,
        term: int,
        records: Sequence[Record],
        respond: RespondToAppend,
        *,
        acks: int = ACKS_ALL,
        producer: VerifiedProducer | None = None,
    ) -> None:
        """See ``GroupLog.append``."""
        encoded = [(encode_key(key), encode_value(value)) for key, value in records]
        self.append_encoded(partition, term, encoded, respond, acks=acks, producer=producer)

    def new_reader(self) -> PartitionReader[Mapping[str, LoadedGroup]]:
        """See ``CoordinatorLog.new_reader``."""
        return GroupReader()


class GroupReader:
    """Passes batches to a ``GroupLoader``, those of transactions and their markers, too."""

    def __init__(self) -> None:
        self._loader = GroupLoader()

    def add(self, header: BatchHeader, records: Iterable[KeyAndValue]) -> None:
        if not header.is_control:
            producer_id = header.producer_id if header.is_transactional else None
            self._loader.add_batch(header.base_offset, records, producer_id)
            return
        for key, _ in records:
            is_commit = decode_marker_type(key)
            if is_commit is not None:
                self._loader.add_marker(header.producer_id, is_commit=is_commit)

    def content(self) -> Mapping[str, LoadedGroup]:
        return self._loader.groups()
