"""The names of topics by their ids, which newer requests have in place of names (KIP-516)."""

from __future__ import annotations

from collections.abc import Mapping

from regent.core.protocol.control import TopicId
from regent.core.replication.metadata_cache import MetadataCache


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
