"""Fetches from a leader with Kafka's own requests.

With OFFSET_OUT_OF_RANGE Kafka's response says nothing about the leader's log. A follower asks for
its start and end with ListOffsets, as Kafka's ``RemoteLeaderEndPoint`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from regent.config.closing import Closing
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.broker import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from regent.core.protocol.control import TopicId
from regent.core.protocol.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from regent.core.replica_logs import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from regent.transport.kafka.api import KafkaApiKey
from regent.transport.kafka.broker_connection import BrokerConnection
from regent.transport.kafka.follower_fetch import (
    decode_response,
    encode_request,
    request_version,
)
from regent.transport.kafka.message_codec import decoded, encoded
from regent.transport.kafka.primitives import MalformedRequestError

_LIST_OFFSETS_VERSION: Final = 7


class FetchChannel:
    """The connection of one follower to one leader; one thread uses and closes it.

    Only ``hurry`` may be called by any thread.
    """

    def __init__(self, endpoint: str, *, client_id: str) -> None:
        self._connection = BrokerConnection(endpoint, client_id=client_id)
        self._names: dict[TopicId | None, str] = {}  # of the topics in the session

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
        version = request_version(body)
        view = self._connection.exchange(
            KafkaApiKey.FETCH,
            version,
            encode_request(body),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        try:
            response = decode_response(view, version, self._names)
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
        view = self._connection.exchange(
            KafkaApiKey.LIST_OFFSETS,
            _LIST_OFFSETS_VERSION,
            encoded(request, _LIST_OFFSETS_VERSION, is_flexible=True),
            timeout_ms=timeout_ms,
            closing=closing,
        )
        listed = decoded(ListOffsetsResponse, view, _LIST_OFFSETS_VERSION, is_flexible=True)
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
