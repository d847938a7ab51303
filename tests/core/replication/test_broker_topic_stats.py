"""What clients have written and read, by topic."""

from __future__ import annotations

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.replication.broker_topic_stats import BrokerTopicStats
from tests.core.replication.record_stage import RecordBroker
from tests.core.replication.stage import T0, T1
from tests.support.record_batches import batch

OTHER = TopicPartition("other", 0)


def test_records_and_bytes_are_counted_by_topic() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, T0, T1, OTHER, isr=(1,), replicas=(1,))
    one, two = batch(b"a"), batch(b"b", b"c")
    leader.produce_to({T0: one, T1: two})
    leader.produce_to({OTHER: one})
    leader.consume({T0: 0, T1: 0})
    topics = leader.manager.topic_stats.by_topic()
    stats = topics[T0.topic]
    assert (stats.messages_in, stats.bytes_in) == (3, len(one) + len(two))
    assert (stats.total_produce_requests, stats.total_fetch_requests) == (2, 2)
    assert (stats.bytes_out, topics["other"].bytes_out) == (len(one) + len(two), 0)
    assert leader.manager.topic_stats.all_topics().messages_in == 4


def test_a_topic_that_is_gone_stays_in_the_sums() -> None:
    stats = BrokerTopicStats()
    for topic in ("gone", "here"):
        stats.of(topic).messages_in += 1
    stats.keep_only(["here"])
    assert set(stats.by_topic()) == {"here"}
    stats.of("gone").messages_in += 1
    assert stats.all_topics().messages_in == 3


def test_refused_records_and_errors_in_responses_are_counted() -> None:
    leader = RecordBroker()
    leader.apply(1, 1, T0, isr=(1,), replicas=(1,))
    stats = leader.manager.topic_stats
    leader.produce_to({T0: batch(b"a")})
    leader.produce_to({T0: batch(b"a")[:-1], OTHER: batch(b"a")})
    leader.consume({OTHER: 0})
    assert stats.by_topic()[T0.topic].failed_produce_requests == 1
    assert stats.produce_errors.without_error == 1
    assert stats.produce_errors.by_code == {
        Errors.CORRUPT_MESSAGE: 1,
        Errors.UNKNOWN_TOPIC_OR_PARTITION: 1,
    }
    assert stats.fetch_errors.by_code == {Errors.UNKNOWN_TOPIC_OR_PARTITION: 1}
