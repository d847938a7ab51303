"""Fetch, versions 0 to 17, for consumers and for followers.

Fetch sessions (KIP-227) of consumers are not supported: a client that requests one gets session 0,
and continues to send full requests. A replica that does not lead answers only Kafka's
ReplicaVerificationTool (replica id -2), not consumers (KIP-392). Readers of committed records get
them up to the last stable offset, with those of aborted transactions, and a list of these
transactions: the clients skip their records. Clients of the versions 0 to 3 get records in the
message formats 0 and 1. Mirrors ``kafka.server.KafkaApis.handleFetchRequest``.

Followers fetch from version 9 on, with sessions and epochs. A waiting fetch of a follower is
answered by the call that completes it, an append for instance, and no task runs for it. When a wait
is over, the others that have lasted for more than half of their time end with it. So idle
followers, each of which asks again at once, wake the event loop together.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import cache, partial
from itertools import filterfalse
from typing import Final, NamedTuple, Protocol, TypeVar

from regent.broker.api.current_leaders import CurrentLeaders, NamedLeaders
from regent.broker.api.old_clients import converted_records
from regent.broker.api.registered_followers import RegisteredFollowers
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import (
    READ_COMMITTED,
    ConsumedPartition,
    ConsumerFetch,
    ConsumerPosition,
)
from regent.core.protocol.control import TopicId
from regent.core.replica_logs import AbortedTransactionStart
from regent.core.replication.all_partitions import AllPartitions
from regent.core.replication.delayed_operation import DelayedOperation
from regent.core.replication.follower_times import TICK_S, FollowerTimes
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.security.acls import AclOperation, ResourceType
from regent.core.setting import INT_MAX
from regent.transport.kafka.api import (
    FIRST_FLEXIBLE_VERSION,
    Answering,
    KafkaAnswer,
    KafkaApi,
    KafkaApiKey,
    KafkaRequest,
)
from regent.transport.kafka.follower_fetch import (
    FollowerFetch,
    decode_request,
    encode_response,
    seems_of_follower,
    with_unknown,
)
from regent.transport.kafka.primitives import Reader, Writer
from regent.transport.kafka.replies import AwaitedReply, Replies, monotonic_ms

T = TypeVar("T")

MAX_WAIT_MS: Final = 3_000
"""The longest wait of a fetch, even if the follower asks for more."""
_SHORTEST_WAIT: Final = 0.5  # the part of a wait after which it may end together with others
MAX_RESPONSE_BYTES: Final = 57_671_680  # Kafka's fetch.max.bytes
NO_SESSION: Final = 0

_FIRST_OF_MAGIC_1, _FIRST_OF_MAGIC_2 = 2, 4
_LIMITS: Final = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation
_LIMITS_V3: Final = struct.Struct(">iii")  # without the isolation
_LIMITS_V0: Final = struct.Struct(">ii")  # without the max bytes
_SESSION: Final = struct.Struct(">ii")
_FULL_REQUESTS: Final = (0, -1)  # session epochs: begin a session, no session
_PARTITION: Final = {
    0: struct.Struct(">iqi"),  # index, fetch offset, max bytes
    5: struct.Struct(">iqqi"),  # and the log start offset before the last
    9: struct.Struct(">iiqqi"),  # and the leader epoch after the index
    12: struct.Struct(">iiqiqi"),  # and the last fetched epoch after the fetch offset
}
_CONSUMER, _DEBUGGING_CONSUMER = -1, -2
_CONSUMED: Final = struct.Struct(">ihq")  # index, error, high watermark
_CONSUMED_V4: Final = struct.Struct(">ihqq")  # and the last stable offset
_CONSUMED_V5: Final = struct.Struct(">ihqqq")  # and the log start offset
_ABORTED: Final = struct.Struct(">qq")  # producer id, first offset
_NO_PREFERRED_REPLICA: Final = -1
_EPOCH_END: Final = struct.Struct(">iqb")  # leader epoch, end offset, no tagged fields
_REPLICA_STATE: Final = 1  # tags: of the request,
_DIVERGING_EPOCH, _CURRENT_LEADER = 0, 1  # of a partition in the response
_LED_ELSEWHERE: Final = (Errors.NOT_LEADER_OR_FOLLOWER, Errors.FENCED_LEADER_EPOCH)
_UNKNOWN_ID: Final = ConsumedPartition(Errors.UNKNOWN_TOPIC_ID)
_DENIED: Final = ConsumedPartition(Errors.TOPIC_AUTHORIZATION_FAILED)
_OF_FOLLOWER: Final = ConsumedPartition(Errors.CLUSTER_AUTHORIZATION_FAILED)


class FetchSource(Protocol):
    """Reads records; ``ReplicaManager`` implements it."""

    def fetch(
        self, request: FetchRequest, now_ms: int, respond: Callable[[FetchResponse], None]
    ) -> DelayedOperation | None:
        """Note the follower's positions, and respond when there are records or the wait is over."""
        ...

    def expire(self, operation: DelayedOperation, now_ms: int, *, is_early: bool = False) -> None:
        """Make an operation respond now; ``is_early``: its wait is not over."""
        ...

    @property
    def follower_times(self) -> FollowerTimes:
        """How soon followers ask again."""
        ...

    @property
    def has_proposals(self) -> bool:
        """Whether an ISR proposal waits or is in flight."""
        ...

    def exclusively(self, act: Callable[[AllPartitions], T]) -> T:
        """Run ``act`` with the hosted replicas."""
        ...

    def fetch_for_consumer(
        self,
        request: ConsumerFetch,
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, ConsumedPartition]], None],
        *,
        waits: bool = True,
    ) -> DelayedOperation | None:
        """Respond when there are ``min_bytes``, or at once if ``waits`` is false."""
        ...

    def current_leader(self, topic_partition: TopicPartition) -> tuple[BrokerId, int]:
        """Return the leader of a partition and its leader epoch; -1 if unknown."""
        ...

    def converts_records(self, topic_partition: TopicPartition) -> bool:
        """Whether old clients get the records (``message.downconversion.enable``)."""
        ...


class TopicNamesById:
    """Follows the metadata cache; the names are sorted by id once for each change of topics."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache
        self._ids: Mapping[str, TopicId | None] = {}
        self._names: dict[TopicId | None, str] = {}

    def current(self) -> Mapping[TopicId | None, str]:
        """Return the names of all topics by id; None is no id."""
        ids = self._cache.snapshot.topic_ids
        if ids is not self._ids:
            self._ids = ids
            self._names = {topic_id: name for name, topic_id in ids.items()}
            self._names.pop(None, None)
        return self._names


class _Topic(NamedTuple):
    """A topic of a request; ``name`` is None if no topic has the ``topic_id``."""

    name: str | None
    topic_id: TopicId | None
    partitions: Sequence[TopicPartition]


class _Fetch(NamedTuple):
    """One request; its partitions in their original sequence."""

    max_wait_ms: int
    is_full: bool  # not only the changes in a session
    topics: Sequence[_Topic]
    request: ConsumerFetch
    replica_id: int  # negative: of a consumer


def _nothing() -> None:
    """Do nothing."""


def fetch_apis(
    source: FetchSource,
    cache: MetadataCache,
    reader: Executor,
    max_response_bytes: int = MAX_RESPONSE_BYTES,
    on_proposals: Callable[[], None] = _nothing,
    *,
    serves_followers: bool = True,
    registered: RegisteredFollowers | None = None,
) -> Sequence[KafkaApi]:
    """Return the API Fetch, which calls ``source``.

    ``reader`` converts records for old clients beside the event loop. ``on_proposals`` is called
    after a fetch of a follower, while ISR proposals wait. Without ``serves_followers`` they are
    refused: a stranger's position would make records count as replicated. With ``registered``
    only those followers are served. Who logs in as a broker is served as that one.
    """
    replies, names = Replies(), TopicNamesById(cache)
    leaders = CurrentLeaders(source.current_leader, cache)
    followers = FollowerFetchHandler(source, names, on_proposals, registered)

    def handle(request: KafkaRequest) -> Answering:
        fetch = followers.decode(request) if serves_followers else None
        if fetch is not None and _may_follow(request, fetch.request.replica_id):
            return followers.answer(request, fetch)
        return consume(request)

    async def consume(request: KafkaRequest) -> KafkaAnswer:
        asked = _decode(request, names, max_response_bytes)
        denied = _denied(request, asked, serves_followers=serves_followers)
        if denied and (asked.replica_id >= 0 or len(denied) == len(asked.request.positions)):
            return _encode(request, asked, denied, leaders)
        if not asked.is_full:
            return _without_topics(request, Errors.FETCH_SESSION_ID_NOT_FOUND)
        asked = _without(asked, denied)
        reply, waits = replies.new(), asked.max_wait_ms > 0
        fetched = asked.request, monotonic_ms(), reply.give
        operation = source.fetch_for_consumer(*fetched, waits=waits)
        consumed = await reply.wait_for(operation, asked.max_wait_ms, source.expire)
        if (version := request.api_version) < _FIRST_OF_MAGIC_2:
            kept = frozenset(filterfalse(source.converts_records, consumed))
            convert = partial(converted_records, asked.request, consumed, kept)
            loop, magic = asyncio.get_running_loop(), int(version >= _FIRST_OF_MAGIC_1)
            consumed = await loop.run_in_executor(reader, convert, magic)
        size = sum(partition.records.size for partition in consumed.values())
        if request.throttle and not request.throttle.may_fetch(size):
            return _without_topics(request, Errors.NONE)
        return _encode(request, asked, {**consumed, **denied}, leaders)

    return [KafkaApi(KafkaApiKey.FETCH, 0, 17, handle)]


def _may_follow(request: KafkaRequest, replica_id: BrokerId) -> bool:
    is_itself = request.may_act_as(replica_id)
    return is_itself and request.may(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)


def _denied(
    request: KafkaRequest, asked: _Fetch, *, serves_followers: bool
) -> Mapping[TopicPartition, ConsumedPartition]:
    """Return the answers to partitions that the client may not read."""
    positions = asked.request.positions
    if asked.replica_id >= 0:
        if not (serves_followers and request.may_act_as(asked.replica_id)):
            return dict.fromkeys(positions, _OF_FOLLOWER)
        may_follow = _may_follow(request, asked.replica_id)
        return {} if may_follow else dict.fromkeys(positions, _DENIED)
    names = (topic.name for topic in asked.topics if topic.name is not None)
    denied = request.denied(AclOperation.READ, ResourceType.TOPIC, names)
    return {p: _DENIED for p in positions if p.topic in denied} if denied else {}


def _without(asked: _Fetch, denied: Collection[TopicPartition]) -> _Fetch:
    """Return a request that does not fetch what is denied, but still lists it."""
    if not denied:
        return asked
    allowed = {p: position for p, position in asked.request.positions.items() if p not in denied}
    return asked._replace(request=replace(asked.request, positions=allowed))


def _decode(request: KafkaRequest, names: TopicNamesById, max_response_bytes: int) -> _Fetch:
    version, reader = request.api_version, request.reader()
    if request.throttle is not None:
        max_response_bytes = min(max_response_bytes, request.throttle.max_fetch_bytes)
    replica_id = reader.int32() if version < 15 else _CONSUMER
    max_wait_ms, min_bytes, max_bytes, isolation = _decode_limits(reader, version)
    session_epoch = reader.unpack(_SESSION)[1] if version >= 7 else -1
    topics, positions = _decode_topics(reader, version, names)
    if version >= 7:
        _skip_forgotten_topics(reader, version)
    if version >= 11:
        reader.string()  # the rack
    replica_state = reader.end_struct().get(_REPLICA_STATE)
    if version >= 15 and replica_state is not None:
        replica_id = Reader(replica_state).int32()
    return _Fetch(
        max_wait_ms,
        session_epoch in _FULL_REQUESTS,
        topics,
        ConsumerFetch(
            positions,
            min_bytes,
            min(max_bytes, max_response_bytes),
            from_followers=replica_id == _DEBUGGING_CONSUMER,
            is_read_committed=isolation == READ_COMMITTED,
        ),
        replica_id,
    )


def _decode_limits(reader: Reader, version: int) -> tuple[int, int, int, int]:
    """Return the longest wait, the least and most bytes, and the isolation level."""
    if version >= 4:
        max_wait_ms, min_bytes, max_bytes, isolation = reader.unpack(_LIMITS)
        return max_wait_ms, min_bytes, max_bytes, isolation
    if version == 3:
        return (*reader.unpack(_LIMITS_V3), 0)
    return (*reader.unpack(_LIMITS_V0), INT_MAX, 0)


def _decode_topics(
    reader: Reader, version: int, names: TopicNamesById
) -> tuple[Sequence[_Topic], Mapping[TopicPartition, ConsumerPosition]]:
    topics: list[_Topic] = []
    positions: dict[TopicPartition, ConsumerPosition] = {}
    layout = _PARTITION[max(first for first in _PARTITION if first <= version)]
    for _ in range(reader.array_length()):
        topic_id = reader.uuid() if version >= 13 else None
        name = names.current().get(topic_id) if version >= 13 else reader.string()
        partitions: list[TopicPartition] = []
        for _ in range(reader.array_length()):
            values = reader.unpack(layout)
            reader.end_struct()
            if version >= 12:
                index, epoch, offset, last_epoch, _, max_bytes = values
            else:
                index, max_bytes, last_epoch = values[0], values[-1], NO_EPOCH
                epoch, offset = values[1:3] if version >= 9 else (NO_EPOCH, values[1])
            topic_partition = TopicPartition(name or "", index)
            partitions.append(topic_partition)
            if name is not None:
                positions[topic_partition] = ConsumerPosition(
                    offset, max_bytes, epoch, last_epoch, topic_id
                )
        reader.end_struct()
        topics.append(_Topic(name, topic_id, partitions))
    return topics, positions


def _skip_forgotten_topics(reader: Reader, version: int) -> None:
    for _ in range(reader.array_length()):
        if version >= 13:
            reader.uuid()
        else:
            reader.string()
        reader.array(reader.int32)
        reader.end_struct()


def _without_topics(request: KafkaRequest, error: Errors) -> KafkaAnswer:
    writer = request.answer_writer()
    _write_head(writer, request, error)
    writer.array_length(0)
    writer.end_struct()
    return writer.pieces()


def _encode(
    request: KafkaRequest,
    asked: _Fetch,
    consumed: Mapping[TopicPartition, ConsumedPartition],
    current: CurrentLeaders,
) -> KafkaAnswer:
    version, writer = request.api_version, request.answer_writer()
    leaders = NamedLeaders(current, request.session.listener_name)
    is_read_committed = asked.request.is_read_committed
    no_transactions = _no_transactions(version, is_read_committed)
    _write_head(writer, request, Errors.NONE)
    writer.array_length(len(asked.topics))
    for name, topic_id, partitions in asked.topics:
        if version >= 13:
            writer.uuid(topic_id)
        else:
            writer.string(name or "")
        writer.array_length(len(partitions))
        for topic_partition in partitions:
            index = topic_partition.partition
            partition = _UNKNOWN_ID if name is None else consumed[topic_partition]
            error, watermark, start, records, diverging_epoch, _, stable, aborted = partition
            if version >= 6:
                writer.pack(_CONSUMED_V5, index, error, watermark, stable, start)
            else:
                _write_old_numbers(writer, version, index, partition)
            if aborted:
                _write_transactions(writer, version, aborted)
            else:
                writer.encoded(no_transactions)
            writer.records(records)
            if error in _LED_ELSEWHERE and version >= 16:
                writer.end_struct({_CURRENT_LEADER: leaders.name(topic_partition)})
            elif diverging_epoch != NO_EPOCH:
                writer.end_struct({_DIVERGING_EPOCH: _EPOCH_END.pack(*partition[4:6], 0)})
            else:
                writer.end_struct()
        writer.end_struct()
    writer.end_struct(leaders.node_endpoints())
    return writer.pieces()


def _write_head(writer: Writer, request: KafkaRequest, error: Errors) -> None:
    version = request.api_version
    if version >= 1:
        writer.int32(request.throttle_time_ms)
    if version >= 7:
        writer.int16(error)
        writer.int32(NO_SESSION)


def _write_old_numbers(
    writer: Writer, version: int, index: int, partition: ConsumedPartition
) -> None:
    error, watermark, start, stable = *partition[:3], partition.last_stable_offset
    if error is Errors.KAFKA_STORAGE_ERROR:
        error = Errors.NOT_LEADER_OR_FOLLOWER  # these clients look for the new leader after this
    if version >= 5:
        writer.pack(_CONSUMED_V5, index, error, watermark, stable, start)
    elif version >= 4:
        writer.pack(_CONSUMED_V4, index, error, watermark, stable)
    else:
        writer.pack(_CONSUMED, index, error, watermark)


@cache
def _no_transactions(version: int, is_read_committed: bool) -> bytes:
    """Return what is between the numbers of a partition and its records, the same for all."""
    if version < 4:
        return b""
    writer = Writer(is_flexible=version >= FIRST_FLEXIBLE_VERSION[KafkaApiKey.FETCH])
    if is_read_committed:
        _write_transactions(writer, version, ())
    else:
        writer.null_array()
        _write_preferred_replica(writer, version)
    return writer.whole()


def _write_transactions(
    writer: Writer, version: int, aborted: Sequence[AbortedTransactionStart]
) -> None:
    writer.array_length(len(aborted))
    for producer_id, first_offset in aborted:
        writer.pack(_ABORTED, producer_id, first_offset)
        writer.end_struct()
    _write_preferred_replica(writer, version)


def _write_preferred_replica(writer: Writer, version: int) -> None:
    if version >= 11:
        writer.int32(_NO_PREFERRED_REPLICA)


# --- followers ---


class FollowerFetchHandler:
    """Answers the fetches of followers; ``on_proposals`` is called while ISR proposals wait.

    With ``registered`` it refuses those of others.
    """

    def __init__(
        self,
        source: FetchSource,
        names: TopicNamesById,
        on_proposals: Callable[[], None],
        registered: RegisteredFollowers | None,
    ) -> None:
        self._source = source
        self._names = names
        self._on_proposals = on_proposals
        self._registered = registered
        self._replies = Replies()
        self._waiting: dict[_FetchAnswer, None] = {}
        self._ticks = False

    def answer(self, request: KafkaRequest, fetch: FollowerFetch) -> AwaitedReply[KafkaAnswer]:
        """Answer at once or later; on the event loop."""
        answer = _FetchAnswer(request, fetch, self._replies, self._waiting)
        asked = fetch.request
        if self._registered is not None:
            refusal = self._registered.refusal(asked.replica_id, asked.replica_epoch)
            if refusal is not None:
                answer.respond(FetchResponse(refusal))
                return answer
        request.exempt_from_quotas()
        answer.measure(self._source.follower_times)
        if not self._ticks:
            self._tick()
        longest_ms = 0 if fetch.unknown else MAX_WAIT_MS
        if asked.max_wait_ms > longest_ms:
            asked = replace(asked, max_wait_ms=longest_ms)
        operation = self._source.fetch(asked, monotonic_ms(), answer.respond)
        if operation is not None:
            answer.wait(asked.max_wait_ms, partial(self._expire, operation))
        if self._source.has_proposals:
            self._on_proposals()
        return answer

    def _tick(self) -> None:
        """Notice the pauses of this process, as long as followers fetch."""
        loop = self._replies.loop()
        self._ticks = self._source.follower_times.tick(loop.time())
        if self._ticks:
            loop.call_later(TICK_S, self._tick)

    def decode(self, request: KafkaRequest) -> FollowerFetch | None:
        """Return the fetch in a request; None: it is of no follower.

        Raises ``MalformedRequestError``.
        """
        if not seems_of_follower(request):
            return None
        names = self._names.current()
        fetch = decode_request(request, names)
        if fetch.request.replica_id < 0:
            return None
        if fetch.unknown or any(t.topic_name is None for t in fetch.request.forgotten_topics):
            hosted = self._source.exclusively(lambda partitions: partitions.topics_by_id())
            return decode_request(request, {**hosted, **names})
        return fetch

    def _expire(self, operation: DelayedOperation, is_early: bool) -> None:
        self._source.expire(operation, monotonic_ms(), is_early=is_early)


class _FetchAnswer(AwaitedReply[KafkaAnswer]):
    """The answer to one fetch."""

    __slots__ = (
        "_end_wait",
        "_fetch",
        "_loop",
        "_may_end_at",
        "_request",
        "_timer",
        "_times",
        "_waiting",
    )

    def __init__(
        self,
        request: KafkaRequest,
        fetch: FollowerFetch,
        replies: Replies,
        waiting: dict[_FetchAnswer, None],
    ) -> None:
        super().__init__(replies)
        self._request = request
        self._fetch = fetch
        self._loop = replies.loop()
        self._waiting = waiting
        self._may_end_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._end_wait: Callable[[bool], None] | None = None  # gets whether it is early
        self._times: FollowerTimes | None = None

    def respond(self, response: FetchResponse) -> None:
        """Answer; on any thread."""
        self._replies.run(lambda: self._give(response))

    def measure(self, times: FollowerTimes) -> None:
        """Note when the fetch came, and when it is answered."""
        asked, self._times = self._fetch.request, times
        times.on_fetch(asked.replica_id, self._loop.time(), goes_on=asked.is_incremental)

    def wait(self, wait_ms: int, end_wait: Callable[[bool], None]) -> None:
        """Call ``end_wait`` after ``wait_ms``, or early, unless the answer is given by then."""
        if not self.is_given:
            self._end_wait = end_wait
            self._timer = self._loop.call_later(wait_ms / 1000, self._end_waits)
            self._may_end_at = self._timer.when() - wait_ms / 1000 * (1 - _SHORTEST_WAIT)
            self._waiting[self] = None

    def hurry(self) -> None:
        """Let the operation respond now."""
        self._end(is_early=True)

    def abandon(self) -> None:
        """Let the operation respond now: it may have been woken already."""
        self._end(is_early=True)

    def _end(self, *, is_early: bool) -> None:
        if self._end_wait is not None:
            self._end_wait(is_early)

    def _end_waits(self) -> None:
        """End this wait, which is over, and others with it."""
        now = self._loop.time()
        for other in [other for other in self._waiting if other._may_end_at <= now]:
            other._end(is_early=False)

    def _give(self, response: FetchResponse) -> None:
        self._waiting.pop(self, None)
        # Otherwise timer, operation and answer would form a cycle until garbage is collected.
        timer, self._timer, self._end_wait = self._timer, None, None
        if timer is not None:
            timer.cancel()
        if self._times is not None:
            self._times.on_answer(self._fetch.request.replica_id, self._loop.time())
        if self._fetch.unknown:
            response = with_unknown(response, self._fetch.unknown)
        self._take(encode_response(self._request, response))
