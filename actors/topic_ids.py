"""Where a broker's controller gets topic ids from."""

from __future__ import annotations

import uuid

from core.protocol.control import TopicId
from core.replication.metadata_cache import MetadataCache
from zk.znodes import encode_topic_id


class RandomTopicIds:
    """Implements ``core.ports.TopicIds`` with random UUIDs and the broker's metadata cache."""

    def __init__(self, cache: MetadataCache) -> None:
        self._cache = cache

    def new_topic_id(self) -> TopicId:
        """Return a new id."""
        return encode_topic_id(uuid.uuid4().bytes)

    def last_known(self, topic: str) -> TopicId | None:
        """Return the id the metadata cache has."""
        return self._cache.snapshot.topic_ids.get(topic)
