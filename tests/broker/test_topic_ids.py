"""Where a broker's controller gets topic ids."""

from __future__ import annotations

from regent.broker.topic_ids import RandomTopicIds
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache
from tests.support.memory_logs import MemoryLogs

HEADER = ControlHeader(0, 1, -1)


def test_new_ids_are_different():
    ids = RandomTopicIds(MetadataCache(), MemoryLogs())
    assert len({ids.new_topic_id() for _ in range(100)}) == 100


def test_the_topic_id_of_a_log_is_known_after_a_restart():
    cache, logs = MetadataCache(), MemoryLogs()
    logs.get_or_create(TopicPartition("orders", 0), None, is_new=True)
    logs.get_or_create(TopicPartition("orders", 1), "id-of-orders", is_new=True)
    ids = RandomTopicIds(cache, logs)
    assert ids.last_known("orders") == "id-of-orders"
    assert ids.last_known("order") is None


def test_the_id_sent_by_the_controller_has_priority_over_the_log():
    cache, logs = MetadataCache(), MemoryLogs()
    logs.get_or_create(TopicPartition("orders", 0), "id-of-old-orders", is_new=True)
    row = UpdateMetadataPartition(0, 1, 1, 0, (1,), 0, (1,), ())
    topic = UpdateMetadataTopic("orders", "id-of-new-orders", (row,))
    cache.update(HEADER, UpdateMetadataRequest((topic,), ()))
    assert RandomTopicIds(cache, logs).last_known("orders") == "id-of-new-orders"
