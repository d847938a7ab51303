"""Fetch between brokers: the connection of a follower, and the bytes on both sides.

Followers use version 17, which names topics by their ids and has the follower's broker epoch in a
tagged field (KIP-903), or the newest that the leader knows, which may be a broker of Kafka. Where a
topic of the session has no id, they use version 12. To Kafka 2.4 to 2.6 they use version 11, after
``epoch_ends`` has found where their logs must be truncated. So do brokers of Kafka whose
``inter.broker.protocol.version`` is below 2.7: they use the versions 9 to 11. A request or response
for one partition takes a few microseconds. Fetches of consumers are in ``api.fetch``.

With OFFSET_OUT_OF_RANGE Kafka's response says nothing about the leader's log. A follower asks for
its start and end with ListOffsets, as Kafka's ``RemoteLeaderEndPoint`` does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, BrokerId, TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from regent.core.protocol.control import TopicId
from regent.core.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from regent.core.records import NO_RECORDS, MemoryRecords
from regent.core.replica_logs import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from regent.transport.control.client import RequestFailedError
from regent.transport.kafka.api import (
    FIRST_FLEXIBLE_VERSION,
    KafkaAnswer,
    KafkaApiKey,
    KafkaRequest,
)
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.epoch_ends import EpochEnds, Refused, refusals, without
from regent.transport.kafka.kafka_releases import OLDEST_RELEASE
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import INT32, MalformedRequestError, Reader, Writer

if TYPE_CHECKING:
    from regent.transport.kafka.client_security import ClientSecurity

FIRST_WITH_LAST_EPOCH: Final = 12
"""The first version that names the epoch of the last fetched record (KIP-595)."""
FIRST_ASKED: Final = 11
"""The version that the oldest leaders that can be followed know, those of Kafka 2.4."""
FIRST_SERVED: Final = 9
"""The first version in which a follower names its leader epoch (KIP-320)."""
FIRST_WITH_IDS: Final = 13
LAST_VERSION: Final = 17
MAX_SESSION_PARTITIONS: Final = 2_000_000
"""Most partitions in a response: those of a session, which several requests may have listed."""

_LIST_OFFSETS_VERSION: Final = 7
_FIRST_WITH_RACK: Final = 11
_FIRST_WITH_STATE: Final = 15
_REPLICA_STATE, _DIVERGING_EPOCH = 1, 0  # tags
_REPLICA: Final = struct.Struct(">iqb")  # id, broker epoch, no tagged fields
_END_WITH_STATE: Final = bytes((_REPLICA_STATE, _REPLICA.size))  # a request ends with these
_LIMITS: Final = struct.Struct(">iiibii")  # max wait, min and max bytes, isolation; session, epoch
_POSITION: Final = struct.Struct(">iiqiqi")
_OLD_POSITION: Final = struct.Struct(">iiqqi")  # without the last fetched epoch
_PLAIN_POSITION: Final = struct.Struct(">iiqiqib")  # with the number of tagged fields
_RESPONSE: Final = struct.Struct(">ihi")  # throttle time, error, session
_FETCHED: Final = struct.Struct(">ihqqq")  # index, error, high watermark, stable, start
_ABORTED: Final = struct.Struct(">qq")  # a transaction: its producer, and its first offset
_EPOCH_END: Final = struct.Struct(">iqb")  # leader epoch, end offset, no tagged fields
_NO_STABLE_OFFSET, _NO_PREFERRED_REPLICA, _READ_UNCOMMITTED = -1, -1, 0
# Between the numbers of a partition and its records: no list of transactions, no other replica.
_NO_TRANSACTIONS: Final = b"\0" + INT32.pack(_NO_PREFERRED_REPLICA)
_OLD_NO_TRANSACTIONS: Final = INT32.pack(-1)
_ERROR_CODES: Final = {int(error): error for error in Errors}


class FollowerFetch(NamedTuple):
    """A fetch of a follower, and what it lists of topics whose ids are not known here."""

    request: FetchRequest
    unknown: Sequence[FetchTopic]


# --- the leader ---


def seems_of_follower(request: KafkaRequest) -> bool:
    """Whether a request is probably of a follower, of a version that ``decode_request`` knows.

    From version 15 on the replica id is in the last of the tagged fields at the end.
    """
    version, body = request.api_version, request.body
    if version < FIRST_SERVED or len(body) <= _REPLICA.size + 2:
        return False
    if version < _FIRST_WITH_STATE:
        return body[0] < 0x80  # the sign of the replica id
    return body[-_REPLICA.size - 2 : -_REPLICA.size] == _END_WITH_STATE


def decode_request(request: KafkaRequest, names: Mapping[TopicId | None, str]) -> FollowerFetch:
    """Return a follower's fetch; ``names`` has the topics by id.

    Raises ``MalformedRequestError``.
    """
    version, reader = request.api_version, request.reader()
    replica_id = reader.int32() if version < _FIRST_WITH_STATE else -1
    replica_epoch = UNKNOWN_BROKER_EPOCH
    max_wait_ms, min_bytes, max_bytes, _, session_id, session_epoch = reader.unpack(_LIMITS)
    topics: list[FetchTopic] = []
    unknown: list[FetchTopic] = []
    for _ in range(reader.array_length()):
        name, topic_id = _topic(reader, version, names)
        position = _position if version >= FIRST_WITH_LAST_EPOCH else _old_position
        rows = tuple([position(reader) for _ in range(reader.array_length())])
        reader.end_struct()
        if name is None:
            unknown.append(FetchTopic("", topic_id, rows))
        else:
            topics.append(FetchTopic(name, topic_id, rows))
    forgotten: list[ForgottenTopic] = []
    for _ in range(reader.array_length()):
        name, topic_id = _topic(reader, version, names)
        forgotten.append(ForgottenTopic(name, tuple(reader.array(reader.int32)), topic_id))
        reader.end_struct()
    if version >= _FIRST_WITH_RACK:
        reader.string()
    state = reader.end_struct().get(_REPLICA_STATE)
    if version >= _FIRST_WITH_STATE and state is not None:
        replica_id, replica_epoch, _ = Reader(state).unpack(_REPLICA)
    fetch = FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        tuple(topics),
        session_id,
        session_epoch,
        tuple(forgotten),
        min_bytes,
        max_bytes,
        names_topics=version < FIRST_WITH_IDS,
    )
    return FollowerFetch(fetch, unknown)


def _topic(
    reader: Reader, version: int, names: Mapping[TopicId | None, str]
) -> tuple[str | None, TopicId | None]:
    if version < FIRST_WITH_IDS:
        return reader.string(), None
    topic_id = reader.uuid()
    return names.get(topic_id), topic_id


def _position(reader: Reader) -> FetchPartition:
    index, leader_epoch, offset, last_epoch, start, max_bytes = reader.unpack(_POSITION)
    reader.end_struct()
    return FetchPartition(index, leader_epoch, offset, last_epoch, start, max_bytes)


def _old_position(reader: Reader) -> FetchPartition:
    index, leader_epoch, offset, start, max_bytes = reader.unpack(_OLD_POSITION)
    return FetchPartition(index, leader_epoch, offset, NO_EPOCH, start, max_bytes)


def encode_response(request: KafkaRequest, response: FetchResponse) -> KafkaAnswer:
    """Return the response to a follower's fetch, in the version of its request."""
    version, writer = request.api_version, request.answer_writer()
    has_ids = version >= FIRST_WITH_IDS
    no_transactions = _NO_TRANSACTIONS
    if version < FIRST_WITH_LAST_EPOCH:
        has_preferred = version >= _FIRST_WITH_RACK
        no_transactions = _OLD_NO_TRANSACTIONS * (2 if has_preferred else 1)
    writer.pack(_RESPONSE, request.throttle_time_ms, response.error_code, response.session_id)
    writer.array_length(len(response.topics))
    for topic in response.topics:
        if has_ids:
            writer.uuid(topic.topic_id)
        else:
            writer.string(topic.topic_name)
        writer.array_length(len(topic.partitions))
        for row in topic.partitions:
            writer.pack(_FETCHED, *row[:3], _NO_STABLE_OFFSET, row.log_start_offset)
            writer.encoded(no_transactions)
            writer.records(row.records)
            if row.diverging_epoch == NO_EPOCH:
                writer.end_struct()
            else:
                end = _EPOCH_END.pack(row.diverging_epoch, row.diverging_end_offset, 0)
                writer.end_struct({_DIVERGING_EPOCH: end})
        writer.end_struct()
    writer.end_struct()
    return writer.pieces()


def with_unknown(response: FetchResponse, unknown: Sequence[FetchTopic]) -> FetchResponse:
    """Return a response that also refuses topics whose ids are not known."""
    if response.error_code is not Errors.NONE:
        return response
    refused = tuple(
        FetchedTopic(
            topic.topic_name,
            tuple(
                FetchedPartition(row.partition_index, Errors.UNKNOWN_TOPIC_ID, -1, -1)
                for row in topic.partitions
            ),
            topic.topic_id,
        )
        for topic in unknown
    )
    return FetchResponse(response.error_code, response.topics + refused, response.session_id)


# --- the follower ---


class FetchChannel:
    """The connection of one follower to one leader; one thread uses and closes it.

    Only ``hurry`` may be called by any thread.
    """

    def __init__(
        self, endpoint: str, *, client_id: str, security: ClientSecurity | None = None
    ) -> None:
        self._connection = BrokerConnection(endpoint, client_id=client_id, security=security)
        self._names: dict[TopicId | None, str] = {}  # of the topics in the session
        self._epoch_ends = EpochEnds(self._connection)

    def request(
        self, body: FetchRequest, *, timeout_ms: int, closing: Closing | None = None
    ) -> FetchResponse:
        """Fetch; the next call overwrites the records of the response.

        Raises a ``RequestError``.
        """
        if not body.is_incremental:
            self._names = {}
        for topic in body.topics:
            self._names[topic.topic_id] = topic.topic_name
        known = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        _, newest = known.get(KafkaApiKey.FETCH, (0, -1))
        if newest < FIRST_ASKED:
            reason = f"a leader that cannot be followed: Kafka {OLDEST_RELEASE} or later is needed"
            raise RequestFailedError(self._connection.endpoint, Errors.UNSUPPORTED_VERSION, reason)
        refused: Refused = {}
        if newest < FIRST_WITH_LAST_EPOCH:
            refused = self._epoch_ends.refused(body, timeout_ms=timeout_ms, closing=closing)
        try:
            if refused:
                response = self._fetch_beside(refused, body, newest, timeout_ms, closing)
            else:
                response = self._fetch(body, newest, timeout_ms, closing)
            outside = _out_of_range(body, response)
            return self._with_offsets(body, response, outside, timeout_ms, closing)
        except MalformedRequestError as error:
            raise self._connection.failed(error) from error

    def hurry(self) -> None:
        """Let the leader answer the present fetch, or else the next one, without a further wait."""
        self._connection.hurry()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._connection.close()

    def _fetch(
        self, body: FetchRequest, newest: int, timeout_ms: int, closing: Closing | None
    ) -> FetchResponse:
        version = request_version(body, newest)
        view = self._connection.exchange(
            KafkaApiKey.FETCH,
            version,
            encode_request(body, version),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        return decode_response(view, version, self._names)

    def _fetch_beside(
        self,
        refused: Refused,
        body: FetchRequest,
        newest: int,
        timeout_ms: int,
        closing: Closing | None,
    ) -> FetchResponse:
        """Fetch the other positions: the leader must not hear of the refused ones.

        There is no session then; the next fetch begins one.
        """
        rest, fetched = without(body, refused), FetchResponse(Errors.NONE)
        if rest.topics:
            fetched = self._fetch(rest, newest, timeout_ms, closing)
        topics = (*fetched.topics, *refusals(body, refused))
        return FetchResponse(fetched.error_code, topics)

    def _with_offsets(
        self,
        body: FetchRequest,
        response: FetchResponse,
        outside: Mapping[TopicPartition, FetchPartition],
        timeout_ms: int,
        closing: Closing | None,
    ) -> FetchResponse:
        """Add the start and the end of the leader's logs to the answers without an offset."""
        if not outside:
            return response
        self._connection.keep_response()  # with the records of other partitions
        starts, ends = (
            self._list_offsets(body.replica_id, outside, timestamp, timeout_ms, closing)
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        topics = tuple(
            FetchedTopic(
                topic.topic_name,
                tuple(
                    _between(row, starts.get(name), ends.get(name)) if name in outside else row
                    for row in topic.partitions
                    for name in [TopicPartition(topic.topic_name, row.partition_index)]
                ),
                topic.topic_id,
            )
            for topic in response.topics
        )
        return FetchResponse(response.error_code, topics, response.session_id)

    def _list_offsets(
        self,
        replica_id: BrokerId,
        positions: Mapping[TopicPartition, FetchPartition],
        timestamp: int,
        timeout_ms: int,
        closing: Closing | None,
    ) -> Mapping[TopicPartition, int]:
        """Return the offsets that the leader knows."""
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, index), row in positions.items():
            asked = ListOffsetsPartition(
                partition_index=index,
                current_leader_epoch=row.current_leader_epoch,
                timestamp=timestamp,
            )
            topics.setdefault(topic, []).append(asked)
        request = ListOffsetsRequest(
            replica_id=replica_id,
            topics=tuple(
                ListOffsetsTopic(name=name, partitions=tuple(rows)) for name, rows in topics.items()
            ),
        )
        key = KafkaApiKey.LIST_OFFSETS
        known = self._connection.versions(timeout_ms=timeout_ms, closing=closing)
        version = min(_LIST_OFFSETS_VERSION, known[key][1])
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]
        view = self._connection.exchange(
            key,
            version,
            encoded(request, version, is_flexible=is_flexible),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        listed = decoded(ListOffsetsResponse, view, version, is_flexible=is_flexible)
        return {
            TopicPartition(topic.name, row.partition_index): row.offset
            for topic in listed.topics
            for row in topic.partitions
            if row.error_code == Errors.NONE
        }


def _out_of_range(
    request: FetchRequest, response: FetchResponse
) -> Mapping[TopicPartition, FetchPartition]:
    """Return the positions that the leader refused."""
    names = [
        topic_partition
        for topic_partition, row in response.partitions()
        if row.error_code is Errors.OFFSET_OUT_OF_RANGE
    ]
    if not names:
        return {}
    listed: Iterable[tuple[TopicPartition, FetchPartition]] = request.partitions()
    positions = dict(listed)
    return {name: positions[name] for name in names if name in positions}


def _between(row: FetchedPartition, start: int | None, end: int | None) -> FetchedPartition:
    if start is None or end is None:
        return row._replace(error_code=Errors.UNKNOWN_SERVER_ERROR)
    return row._replace(log_start_offset=start, log_end_offset=end)


def request_version(request: FetchRequest, newest: int = LAST_VERSION) -> int:
    """Return the version of a request to a leader that knows ``newest``."""
    last = FIRST_WITH_LAST_EPOCH if request.names_topics else LAST_VERSION
    return min(newest, last)


def encode_request(request: FetchRequest, version: int) -> bytes:
    """Return the body of a request; ``version`` is one of ``request_version``."""
    by_name, has_state = version < FIRST_WITH_IDS, version >= _FIRST_WITH_STATE
    has_last_epoch = version >= FIRST_WITH_LAST_EPOCH
    writer = Writer(is_flexible=has_last_epoch)
    if not has_state:
        writer.int32(request.replica_id)
    writer.pack(
        _LIMITS,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        _READ_UNCOMMITTED,
        request.session_id,
        request.session_epoch,
    )
    writer.array_length(len(request.topics))
    for topic in request.topics:
        _write_topic(writer, topic.topic_name if by_name else None, topic.topic_id)
        writer.array_length(len(topic.partitions))
        for row in topic.partitions:
            if has_last_epoch:
                writer.pack(_PLAIN_POSITION, *row, 0)
            else:
                writer.pack(_OLD_POSITION, *row[:3], *row[4:])
        writer.end_struct()
    forgotten_topics = _forgotten_by_name(request) if by_name else request.forgotten_topics
    writer.array_length(len(forgotten_topics))
    for forgotten in forgotten_topics:
        _write_topic(writer, forgotten.topic_name if by_name else None, forgotten.topic_id)
        writer.array(forgotten.partitions, writer.int32)
        writer.end_struct()
    writer.string("")  # the rack
    if not has_state:
        writer.end_struct()
    else:
        state = _REPLICA.pack(request.replica_id, request.replica_epoch, 0)
        writer.end_struct({_REPLICA_STATE: state})
    return writer.whole()


def _forgotten_by_name(request: FetchRequest) -> Sequence[ForgottenTopic]:
    """Return what the leader forgets; not what the request lists under another id."""
    if not request.forgotten_topics:
        return ()
    listed = {name for name, _ in request.partitions()}
    left = [
        (topic, tuple(n for n in topic.partitions if (topic.topic_name, n) not in listed))
        for topic in request.forgotten_topics
    ]
    return [
        ForgottenTopic(topic.topic_name, numbers, topic.topic_id)
        for topic, numbers in left
        if numbers
    ]


def _write_topic(writer: Writer, name: str | None, topic_id: TopicId | None) -> None:
    if name is None:
        writer.uuid(topic_id)
    else:
        writer.string(name)


def decode_response(
    body: memoryview, version: int, names: Mapping[TopicId | None, str]
) -> FetchResponse:
    """Return a leader's response; records are views of ``body``.

    ``names`` has the topics of the session by id; others are left out. Raises
    ``MalformedRequestError``.
    """
    is_flexible = version >= FIRST_WITH_LAST_EPOCH
    reader = Reader(body, is_flexible=is_flexible, max_elements=MAX_SESSION_PARTITIONS)
    _, error, session_id = reader.unpack(_RESPONSE)
    topics: list[FetchedTopic] = []
    for _ in range(reader.array_length()):
        name, topic_id = _topic(reader, version, names)
        rows = tuple([_fetched(reader) for _ in range(reader.array_length())])
        reader.end_struct()
        if name is not None:
            topics.append(FetchedTopic(name, rows, topic_id))
    reader.end_struct()
    return FetchResponse(_error(error), tuple(topics), session_id)


def _fetched(reader: Reader) -> FetchedPartition:
    index, error, high_watermark, _, start = reader.unpack(_FETCHED)
    for _ in range(reader.nullable_array_length() or 0):
        reader.unpack(_ABORTED)
        reader.end_struct()
    reader.int32()  # the preferred replica
    records = reader.nullable_bytes()
    diverging = reader.end_struct().get(_DIVERGING_EPOCH)
    epoch, end_offset = (NO_EPOCH, -1)
    if diverging is not None:
        epoch, end_offset, _ = Reader(diverging).unpack(_EPOCH_END)
    return FetchedPartition(
        index,
        _error(error),
        high_watermark,
        start,
        epoch,
        end_offset,
        records=MemoryRecords(records) if records else NO_RECORDS,
    )


def _error(code: int) -> Errors:
    return _ERROR_CODES.get(code, Errors.UNKNOWN_SERVER_ERROR)
