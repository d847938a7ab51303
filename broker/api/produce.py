"""Produce, versions 0 to 11.

This module checks the lengths of record batches and their records; the log checks headers and CRCs.
Versions 0 to 2 bring records of the message formats 0 and 1, which are converted.
Checks that take long run on another thread. Later requests of the same connection for the same
partitions wait for them.
The log gets views of the request, patches them and writes from them, without a copy. The first
batch of a transaction in a partition waits until its coordinator has said that the partition is
part of the transaction (KIP-890). Mirrors ``kafka.server.KafkaApis.handleProduceRequest``,
``ReplicaManager.handleProduceAppend`` and ``ProduceRequest.validateRecords``.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar

from regent.broker.api.current_leaders import CurrentLeaders, NamedLeaders
from regent.broker.api.old_clients import replace_old_records
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.client import ACKS_NONE, ProducedPartition, RecordError, RecordRules
from regent.core.protocol.transactions import TransactionToVerify, TransactionVerifier
from regent.core.records import RecordBytes
from regent.core.replica_logs import NO_VERIFICATION, NOT_VERIFIED
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.produce import OF_CLIENT, AppendRules
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.topic_validation import INTERNAL_TOPICS
from regent.records.compression import (
    ZSTD,
    LargeBatchError,
    Unpack,
    Unpacker,
    unpacked_at_once,
)
from regent.records.legacy_records import is_old
from regent.records.record_batch import HEADER_SIZE, BatchHeader, read_header
from regent.records.record_validation import InvalidRecordsError, RecordTimes, is_quick, validate
from regent.transport.kafka.api import (
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
    UnansweredRequestError,
)
from regent.transport.kafka.primitives import MalformedRequestError, Writer
from regent.transport.kafka.replies import AwaitedReply, Replies, monotonic_ms

T = TypeVar("T")
_Batches: TypeAlias = dict[TopicPartition, memoryview]
_Refusals: TypeAlias = dict[TopicPartition, ProducedPartition]
_Check: TypeAlias = Callable[
    [_Batches, Mapping[TopicPartition, RecordRules], Unpack | None],
    tuple[_Refusals, list[TopicPartition]],
]

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_ABORTABLE: Final = 11
_FIRST_OF_MAGIC_2: Final = 3
_PARTITION: Final = struct.Struct(">ihq")  # index, error, base offset
_PARTITION_V2: Final = struct.Struct(">ihqq")  # and the log append time
_PARTITION_V5: Final = struct.Struct(">ihqqq")  # and the log start offset
_NO_REASONS: Final = b"\0\0\0\0\xff\xff"  # no refused records, no message
_NO_REASONS_OR_TAGS: Final = b"\x01\0\0"  # the same in the flexible form
_ENDINGS: Final = (*[b""] * 8, _NO_REASONS, *[_NO_REASONS_OR_TAGS] * 3)
"""How each version ends a partition without an error. Nearly all have none, so this is quicker."""
_MOST_BYTES_LEFT: Final = 32 * 1024 * 1024
_ADMIN_CLIENT: Final = "__admin_client"  # of Kafka's own tools
_INTERNAL_TOPIC: Final = ProducedPartition(
    Errors.INVALID_TOPIC_EXCEPTION, message="only brokers write to an internal topic"
)
_DENIED: Final = ProducedPartition(
    Errors.TOPIC_AUTHORIZATION_FAILED, message="the client may not write to this topic"
)
_NOT_ITS_TRANSACTIONAL_ID: Final = ProducedPartition(
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    message="the client may not use this transactional id",
)
_NO_TRANSACTIONAL_ID: Final = ProducedPartition(
    Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    message="records of a transaction need a transactional id",
)
_SEVERAL_PRODUCERS: Final = ProducedPartition(
    Errors.INVALID_PRODUCER_ID_MAPPING, message="the records are of more than one producer id"
)
_UNVERIFIED: Final = frozenset(
    {
        Errors.CONCURRENT_TRANSACTIONS,
        Errors.NETWORK_EXCEPTION,
        Errors.COORDINATOR_LOAD_IN_PROGRESS,
        Errors.COORDINATOR_NOT_AVAILABLE,
        Errors.NOT_COORDINATOR,
    }
)
"""Outcomes after which clients should send the records again, without looking for the leader."""


class ProduceTarget(Protocol):
    """Appends records; ``ReplicaManager`` implements it."""

    def produce(
        self,
        acks: int,
        records: Mapping[TopicPartition, RecordBytes],
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, ProducedPartition]], None],
        rules: AppendRules = ...,
    ) -> DelayedOperation | None:
        """Append records; respond when ``acks`` is satisfied."""
        ...

    def begin_verifications(
        self, batches: Mapping[TopicPartition, RecordBytes]
    ) -> Mapping[TopicPartition, int]:
        """Return guards of transactional batches, see ``ReplicaManager``."""
        ...

    def record_rules(self, topic_partition: TopicPartition) -> RecordRules:
        """Return what the topic of a partition asks of records."""
        ...

    def expire(self, operation: DelayedOperation, now_ms: int) -> None:
        """Make an operation respond now."""
        ...

    def current_leader(self, topic_partition: TopicPartition) -> tuple[BrokerId, int]:
        """Return the leader of a partition and its leader epoch; -1 if unknown."""
        ...


class _ProduceRequest(NamedTuple):
    """One request without its records; its partitions in their original sequence."""

    version: int
    answer: Writer
    transactional_id: str | None
    is_admin: bool
    acks: int
    timeout_ms: int
    topics: Sequence[tuple[str, Sequence[TopicPartition]]]
    throttle_time_ms: int
    connection: Hashable
    listener: str


def produce_apis(
    target: ProduceTarget,
    cache: MetadataCache,
    checker: Executor,
    verifier: TransactionVerifier | None = None,
    large_batches: tuple[Executor, Executor] | None = None,
) -> Sequence[KafkaApi]:
    """Return the API Produce, which calls ``target``.

    ``checker`` checks and converts records beside the event loop. ``large_batches`` are one thread
    that checks compressed batches with many records, so that others do not wait for them, and one
    that decompresses them piece by piece; without them ``checker`` does both at once. Without a
    ``verifier`` transactions are not verified.
    """
    leaders = CurrentLeaders(target.current_leader, cache)
    checks = _Checks(checker, large_batches)
    return [
        KafkaApi(KafkaApiKey.PRODUCE, 0, 11, _Produce(target, leaders, checks, verifier).handle)
    ]


class _RequestSequence:
    """Keeps the requests of one connection for one partition in their original sequence.

    Other connections do not wait: a batch may take long to check. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[Hashable, TopicPartition], asyncio.Future[None]] = {}

    def has_any(self, connection: Hashable, partitions: Collection[TopicPartition]) -> bool:
        """Whether a request for one of these partitions is in progress."""
        last = self._last
        return bool(last) and any((connection, name) in last for name in partitions)

    @contextmanager
    def begin(
        self, connection: Hashable, partitions: Collection[TopicPartition]
    ) -> Iterator[Collection[asyncio.Future[None]]]:
        """Begin a request; it ends with the ``with`` block.

        Yields futures that complete when the earlier requests for these partitions end.
        """
        keys = [(connection, topic_partition) for topic_partition in partitions]
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        earlier = {self._last[key] for key in keys if key in self._last}
        self._last.update(dict.fromkeys(keys, ended))
        try:
            yield earlier
        finally:
            for key in keys:
                if self._last.get(key) is ended:
                    del self._last[key]
            ended.set_result(None)


class _Checks:
    """Checks records beside the event loop, first the small batches."""

    def __init__(self, checker: Executor, large_batches: tuple[Executor, Executor] | None) -> None:
        self._checker = self._large_checker = checker
        self._unpack = unpacked_at_once
        if large_batches is not None:
            self._large_checker, unpacker = large_batches
            self._unpack = Unpacker(unpacker).unpack

    async def run(
        self, check: _Check, records: _Batches, rules: Mapping[TopicPartition, RecordRules]
    ) -> _Refusals:
        """Return the partitions whose records are refused."""
        run = asyncio.get_running_loop().run_in_executor
        refused, large = await run(self._checker, check, records, rules, None)
        if large:
            few = {topic_partition: records[topic_partition] for topic_partition in large}
            others, _ = await run(self._large_checker, check, few, rules, self._unpack)
            refused.update(others)
            records.update(few)
        return refused


class _Produce:
    """Belongs to one event loop."""

    def __init__(
        self,
        target: ProduceTarget,
        leaders: CurrentLeaders,
        checks: _Checks,
        verifier: TransactionVerifier | None,
    ) -> None:
        self._target = target
        self._leaders = leaders
        self._checks = checks
        self._verifier = verifier
        self._replies = Replies()
        self._order = _RequestSequence()
        self._bytes_left = 0  # of clients that have disconnected

    # Not a coroutine: while it waited for replicas it would keep the records in memory.
    def handle(self, request: KafkaRequest) -> Awaitable[KafkaAnswer]:
        """Check and append the records; the response follows when replicas have them."""
        if request.throttle is not None:
            request.throttle.on_produce()
        asked, records = _decode(request)
        refused = _refused(request, asked, records)
        accepted = _without(records, refused)
        rules = {name: self._target.record_rules(name) for name in accepted}
        if (
            asked.version < _FIRST_OF_MAGIC_2
            or self._order.has_any(asked.connection, accepted)
            or not is_quick(tuple(accepted.values()))
        ):
            return self._check_elsewhere(asked, refused, accepted, rules)
        refused.update(_invalid(accepted, rules, None)[0])
        guards = self._begin_verifications(asked, _without(accepted, refused))
        if _to_verify(guards):
            return self._check_elsewhere(asked, refused, accepted, None)
        return self._append(asked, refused, accepted, guards)

    async def _check_elsewhere(
        self,
        asked: _ProduceRequest,
        refused: dict[TopicPartition, ProducedPartition],
        records: dict[TopicPartition, memoryview],
        rules: Mapping[TopicPartition, RecordRules] | None,
    ) -> KafkaAnswer:
        """``rules``: what the topics ask of records; None: all were checked."""
        with self._order.begin(asked.connection, records) as earlier:
            size = sum(map(len, records.values())) if asked.acks == ACKS_NONE else None
            if rules is not None:
                check = _invalid if asked.version >= _FIRST_OF_MAGIC_2 else _convert
                checked = self._checks.run(check, records, rules)
                invalid = await self._wait(asyncio.ensure_future(checked), size)
                refused.update(invalid)
            if earlier:
                await self._wait(asyncio.ensure_future(asyncio.wait(earlier)), size)
            guards = self._begin_verifications(asked, _without(records, refused))
            partitions = _to_verify(guards)
            if partitions:
                verified = self._verify(asked, records, partitions)
                unverified = await self._wait(asyncio.ensure_future(verified), size)
                refused.update(unverified)
            answered = self._append(asked, refused, records, guards)
        records.clear()
        return await answered

    def _begin_verifications(
        self, asked: _ProduceRequest, records: Mapping[TopicPartition, memoryview]
    ) -> Mapping[TopicPartition, int]:
        """Return the guards of the batches of a transaction, if transactions are verified."""
        if self._verifier is None or asked.transactional_id is None:
            return {}
        return self._target.begin_verifications(
            {name: data for name, data in records.items() if _is_transactional(_header_of(data))}
        )

    async def _verify(
        self,
        asked: _ProduceRequest,
        records: Mapping[TopicPartition, memoryview],
        partitions: tuple[TopicPartition, ...],
    ) -> Mapping[TopicPartition, ProducedPartition]:
        """Return the partitions that are not part of the transaction, or may not be."""
        assert self._verifier is not None
        assert asked.transactional_id is not None
        first = read_header(records[partitions[0]])
        reply: AwaitedReply[Mapping[TopicPartition, Errors]] = self._replies.new()
        self._verifier.verify(
            TransactionToVerify(
                asked.transactional_id, first.producer_id, first.producer_epoch, partitions
            ),
            reply.give,
        )
        errors = await reply
        return {
            topic_partition: _not_verified(error, asked.version)
            for topic_partition, error in errors.items()
            if error is not Errors.NONE
        }

    async def _wait(self, result: asyncio.Future[T], unanswered_bytes: int | None) -> T:
        """Wait for a result, with acks=0 also after the client has disconnected.

        Such a client may close its connection as soon as it has sent its records. Like Kafka, the
        broker appends them, up to a limit of memory. ``unanswered_bytes`` None: other acks.
        """
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            left = _MOST_BYTES_LEFT - self._bytes_left
            if unanswered_bytes is None or unanswered_bytes > left:
                result.cancel()
                raise
            self._bytes_left += unanswered_bytes
            try:
                return await result
            finally:
                self._bytes_left -= unanswered_bytes
        finally:
            del result  # its exception refers to this frame

    def _append(
        self,
        asked: _ProduceRequest,
        refused: Mapping[TopicPartition, ProducedPartition],
        records: Mapping[TopicPartition, memoryview],
        guards: Mapping[TopicPartition, int],
    ) -> Awaitable[KafkaAnswer]:
        reply = self._replies.new()
        accepted = _without(records, refused)
        rules = AppendRules(guards=guards) if guards else OF_CLIENT
        operation = self._target.produce(asked.acks, accepted, monotonic_ms(), reply.give, rules)
        return self._answer(asked, refused, reply, operation)

    async def _answer(
        self,
        asked: _ProduceRequest,
        refused: Mapping[TopicPartition, ProducedPartition],
        reply: AwaitedReply[Mapping[TopicPartition, ProducedPartition]],
        operation: DelayedOperation | None,
    ) -> KafkaAnswer:
        produced = await reply.wait_for(operation, asked.timeout_ms, self._target.expire)
        if refused:
            produced = {**refused, **produced}
        if asked.acks == ACKS_NONE:
            _raise_first_error(produced)
            return None
        return _encode(asked, produced, NamedLeaders(self._leaders, asked.listener))


def _decode(request: KafkaRequest) -> tuple[_ProduceRequest, dict[TopicPartition, memoryview]]:
    reader = request.reader()
    version, answer = request.api_version, request.answer_writer()
    transactional_id = reader.nullable_string() if version >= _FIRST_OF_MAGIC_2 else None
    acks, timeout_ms = reader.unpack(_ACKS_AND_TIMEOUT)
    records: dict[TopicPartition, memoryview] = {}
    topics: list[tuple[str, list[TopicPartition]]] = []
    for _ in range(reader.array_length()):
        topic, partitions = reader.string(), list[TopicPartition]()
        for _ in range(reader.array_length()):
            topic_partition = TopicPartition(topic, reader.int32())
            if topic_partition in records:
                raise MalformedRequestError(f"{topic_partition} is twice in one request")
            records[topic_partition] = reader.nullable_bytes() or memoryview(b"")
            reader.end_struct()
            partitions.append(topic_partition)
        reader.end_struct()
        topics.append((topic, partitions))
    reader.end_struct()
    is_admin = request.client_id == _ADMIN_CLIENT
    asked = _ProduceRequest(
        version,
        answer,
        transactional_id,
        is_admin,
        acks,
        timeout_ms,
        topics,
        request.throttle_time_ms,
        request.connection,
        request.session.listener_name,
    )
    return asked, records


def _refused(
    request: KafkaRequest, asked: _ProduceRequest, records: Mapping[TopicPartition, memoryview]
) -> dict[TopicPartition, ProducedPartition]:
    """Return the partitions whose records are refused, with the reasons."""
    headers = {topic_partition: _header_of(data) for topic_partition, data in records.items()}
    transactional = [header for header in headers.values() if _is_transactional(header)]
    name = asked.transactional_id
    if transactional and name is None:
        return dict.fromkeys(records, _NO_TRANSACTIONAL_ID)
    needed = AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID
    if transactional and name is not None and not request.may(*needed, name):
        return dict.fromkeys(records, _NOT_ITS_TRANSACTIONAL_ID)
    if len({(header.producer_id, header.producer_epoch) for header in transactional}) > 1:
        return dict.fromkeys(records, _SEVERAL_PRODUCERS)
    denied = request.denied(
        AclOperation.WRITE, ResourceType.TOPIC, (row[0] for row in asked.topics)
    )
    refused = {}
    for topic_partition, data in records.items():
        refusal = _refusal(data, headers[topic_partition], asked.version)
        if topic_partition.topic in INTERNAL_TOPICS and not asked.is_admin:
            refusal = _INTERNAL_TOPIC
        if topic_partition.topic in denied:
            refusal = _DENIED
        if refusal is not None:
            refused[topic_partition] = refusal
    return refused


def _refusal(
    data: memoryview, header: BatchHeader | None, version: int
) -> ProducedPartition | None:
    """Return why records are refused, or None. The log checks whether they are complete."""
    if header is None:
        if version < _FIRST_OF_MAGIC_2 and is_old(data):
            return None
        return ProducedPartition(
            Errors.INVALID_RECORD, message="there must be one record batch of magic 2"
        )
    if header.size < len(data):
        return ProducedPartition(
            Errors.INVALID_RECORD, message="there must be one record batch and no more"
        )
    if header.compression == ZSTD and version < _FIRST_WITH_ZSTD:
        return ProducedPartition(
            Errors.UNSUPPORTED_COMPRESSION_TYPE, message="zstd needs Produce version 7"
        )
    return None


def _header_of(data: memoryview) -> BatchHeader | None:
    """Return the header of a batch; None: the records are of an old format, or too short."""
    if len(data) < HEADER_SIZE:
        return None
    header = read_header(data)
    return None if header.magic in (0, 1) else header


def _is_transactional(header: BatchHeader | None) -> TypeGuard[BatchHeader]:
    return header is not None and header.is_transactional


def _to_verify(guards: Mapping[TopicPartition, int]) -> tuple[TopicPartition, ...]:
    """Return the partitions to ask about; those that are not led are refused without it."""
    unasked = NO_VERIFICATION, NOT_VERIFIED
    return tuple(name for name, guard in guards.items() if guard not in unasked)


def _not_verified(error: Errors, version: int) -> ProducedPartition:
    message = f"the partition is not known to be part of the transaction: {error.name}"
    if error in _UNVERIFIED:
        error = Errors.NOT_ENOUGH_REPLICAS
    elif error is Errors.TRANSACTION_ABORTABLE and version < _FIRST_WITH_ABORTABLE:
        error = Errors.INVALID_TXN_STATE
    return ProducedPartition(error, message=message)


def _without(
    records: Mapping[TopicPartition, memoryview], refused: Collection[TopicPartition]
) -> dict[TopicPartition, memoryview]:
    return {
        topic_partition: data
        for topic_partition, data in records.items()
        if topic_partition not in refused
    }


def _invalid(
    records: Mapping[TopicPartition, memoryview],
    rules: Mapping[TopicPartition, RecordRules],
    unpack: Unpack | None,
) -> tuple[_Refusals, list[TopicPartition]]:
    """Return the partitions with records that are refused, and those with large batches.

    For any thread. With ``unpack`` large batches are checked, too.
    """
    refused, large = _Refusals(), []
    now_ms = time.time_ns() // 1_000_000
    for topic_partition, data in records.items():
        needs_keys, past_ms, future_ms, start_offset = rules[topic_partition]
        times = None
        if past_ms is not None and future_ms is not None:
            times = RecordTimes(now_ms - past_ms, now_ms + future_ms)
        try:
            validate(data, topic_partition, needs_keys=needs_keys, times=times, unpack=unpack)
        except LargeBatchError:
            large.append(topic_partition)
        except InvalidRecordsError as error:
            refused[topic_partition] = ProducedPartition(
                error.error_code,
                log_start_offset=start_offset,
                message=str(error),
                record_errors=error.record_errors,
            )
    return refused, large


def _convert(
    records: _Batches, rules: Mapping[TopicPartition, RecordRules], unpack: Unpack | None
) -> tuple[_Refusals, list[TopicPartition]]:
    """Replace records of old formats by batches; then as ``_invalid``."""
    refused, large = replace_old_records(records, unpack)
    invalid, others = _invalid(_without(records, {*refused, *large}), rules, unpack)
    return {**refused, **invalid}, large + others


def _raise_first_error(produced: Mapping[TopicPartition, ProducedPartition]) -> None:
    for topic_partition, partition in produced.items():
        if partition.error_code is not Errors.NONE:
            raise UnansweredRequestError(
                f"acks=0 to {topic_partition}:"
                f" {partition.error_code.name} {partition.message}".rstrip()
            )


def _encode(
    asked: _ProduceRequest,
    produced: Mapping[TopicPartition, ProducedPartition],
    leaders: NamedLeaders,
) -> KafkaAnswer:
    version, writer = asked.version, asked.answer
    ending = _ENDINGS[version]
    writer.array_length(len(asked.topics))
    for topic, partitions in asked.topics:
        writer.string(topic)
        writer.array_length(len(partitions))
        for topic_partition in partitions:
            index = topic_partition.partition
            error, base_offset, append_time_ms, start, message, reasons = produced[topic_partition]
            if version >= 5:
                writer.pack(_PARTITION_V5, index, error, base_offset, append_time_ms, start)
            elif version >= 2:
                writer.pack(_PARTITION_V2, index, error, base_offset, append_time_ms)
            else:
                writer.pack(_PARTITION, index, error, base_offset)
            if error is Errors.NONE:
                writer.encoded(ending)
                continue
            if version >= 8:
                _write_reasons(writer, reasons, message)
            names_leader = error is Errors.NOT_LEADER_OR_FOLLOWER and version >= 10
            writer.end_struct({0: leaders.name(topic_partition)} if names_leader else None)
        writer.end_struct()
    if version >= 1:
        writer.int32(asked.throttle_time_ms)
    writer.end_struct(leaders.node_endpoints())
    return writer.pieces()


def _write_reasons(writer: Writer, record_errors: Sequence[RecordError], message: str) -> None:
    writer.array_length(len(record_errors))
    for batch_index, record_message in record_errors:
        writer.int32(batch_index)
        writer.nullable_string(record_message)
        writer.end_struct()
    writer.nullable_string(message or None)
