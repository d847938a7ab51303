from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from kafka.protocol.admin.topics import DeleteRecordsRequest

from regent.broker.api.delete_records import delete_records_apis
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import DeletedRecords
from regent.core.replication.delayed_operation import DelayedOperation
from tests.broker.api.canned_replicas import Held
from tests.transport.kafka.wire import ask

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


class Deleter:
    """Returns prepared results at once or when the request expires."""

    def __init__(self, *, waits: bool = False) -> None:
        self.asked: dict[TopicPartition, int] = {}
        self.deleted = {T0: DeletedRecords(Errors.NONE, 7)}
        self.expired: list[DelayedOperation] = []
        self._waits = waits

    def delete_records(
        self,
        offsets: Mapping[TopicPartition, int],
        now_ms: int,
        respond: Callable[[Mapping[TopicPartition, DeletedRecords]], None],
    ) -> DelayedOperation | None:
        self.asked = dict(offsets)
        if self._waits:
            late = {
                topic_partition: DeletedRecords(Errors.REQUEST_TIMED_OUT)
                for topic_partition in offsets
            }
            return Held(offsets.keys(), lambda: respond(late))
        respond(self.deleted)
        return None

    def expire(self, operation: DelayedOperation, now_ms: int) -> None:
        self.expired.append(operation)
        operation.answer()()


def request_for(offsets: Mapping[TopicPartition, int], timeout_ms: int) -> DeleteRecordsRequest:
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    by_topic: dict[str, list[object]] = {}
    for (name, number), offset in offsets.items():
        row = topic.DeleteRecordsPartition(partition_index=number, offset=offset)
        by_topic.setdefault(name, []).append(row)
    topics = [topic(name=name, partitions=rows) for name, rows in by_topic.items()]
    return DeleteRecordsRequest(topics=topics, timeout_ms=timeout_ms)


@pytest.mark.parametrize("version", range(3))
def test_every_partition_has_a_result_in_the_sequence_of_the_request(version: int):
    deleter = Deleter()
    deleter.deleted[U0] = DeletedRecords(Errors.OFFSET_OUT_OF_RANGE)
    offsets = {T1: -1, T0: 7, U0: 1_000}

    answer = ask(delete_records_apis(deleter), request_for(offsets, 1_000), version)

    assert deleter.asked == offsets
    rows = [
        (topic.name, row.partition_index, row.low_watermark, row.error_code)
        for topic in answer.topics
        for row in topic.partitions
    ]
    assert rows == [
        ("t", 1, -1, Errors.UNKNOWN_TOPIC_OR_PARTITION),
        ("t", 0, 7, Errors.NONE),
        ("u", 0, -1, Errors.OFFSET_OUT_OF_RANGE),
    ]


def test_records_of_internal_topics_are_not_deleted():
    deleter = Deleter()
    internal = TopicPartition("__consumer_offsets", 0)

    answer = ask(delete_records_apis(deleter), request_for({internal: 7, T0: 7}, 1_000), 1)

    assert deleter.asked == {T0: 7}
    errors = [row.error_code for topic in answer.topics for row in topic.partitions]
    assert errors == [Errors.INVALID_TOPIC_EXCEPTION, Errors.NONE]


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1])
def test_a_request_that_is_not_complete_in_time_times_out(timeout_ms: int):
    deleter = Deleter(waits=True)

    answer = ask(delete_records_apis(deleter), request_for({T0: 7}, timeout_ms), 1)

    (topic,) = answer.topics
    assert [row.error_code for row in topic.partitions] == [Errors.REQUEST_TIMED_OUT]
    assert len(deleter.expired) == 1
