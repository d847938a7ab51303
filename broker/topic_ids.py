"""Topic ids for a broker's controller."""

from __future__ import annotations

from regent.core.protocol.control import TopicId
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.metadata_cache import MetadataCache
from regent.zk.codecs.topic_znodes import random_uuid


class RandomTopicIds:
    """Implements ``core.ports.TopicIds`` with random UUIDs, the metadata cache and the logs."""

    def __init__(self, cache: MetadataCache, logs: ReplicaLogs | None = None) -> None:
        self._cache = cache
        self._logs = logs

    def new_topic_id(self) -> TopicId:
        """Return a new id."""
        return random_uuid()

    def last_known(self, topic: str) -> TopicId | None:
        """Return the id in the metadata cache; while the cache is empty, the id in a log."""
        heard_of = self._cache.snapshot.topic_ids.get(topic)
        if heard_of is not None or self._logs is None:
            return heard_of
        ids = (
            id_
            for topic_partition, id_ in self._logs.hosted().items()
            if topic_partition.topic == topic
        )
        return next((topic_id for topic_id in ids if topic_id is not None), None)
