"""The internal topics of a broker: their creation, and the deletion of other topics.

Mirrors ``kafka.server.AutoTopicCreationManager``, as far as it creates internal topics.
"""

from __future__ import annotations

from collections.abc import Iterator

from regent.config.settings import Settings
from regent.core.admin.admin_requests import RespondToClient, TopicService
from regent.core.admin.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from regent.core.model import TopicPartition
from regent.core.protocol.topics import (
    ConfigEntry,
    CreatableTopic,
    CreateTopicsRequest,
    TopicsResponse,
)
from regent.core.replication.log_reads import differ
from regent.core.replication.metadata_cache import MetadataSnapshot

_CREATION_TIMEOUT_MS = 30_000


def deleted_partitions(before: MetadataSnapshot, now: MetadataSnapshot) -> Iterator[TopicPartition]:
    """Yield the partitions of topics that were deleted, also if others have their names now."""
    if before.topic_ids is now.topic_ids:
        return
    for topic, topic_id in before.topic_ids.items():
        if topic not in now.topic_ids or differ(topic_id, now.topic_ids[topic]):
            for number in range(before.partition_count(topic)):
                yield TopicPartition(topic, number)


class InternalTopics:
    """Creates internal topics when they are first needed, with the settings of this broker.

    Used on one thread.
    """

    def __init__(self, service: TopicService, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._being_created: set[str] = set()

    def create(self, topic: str) -> None:
        """Ask for the topic, unless a request for it is in flight."""
        if topic not in self._being_created:
            self._being_created.add(topic)
            request = CreateTopicsRequest((self._creatable(topic),), _CREATION_TIMEOUT_MS)
            self._service.ask(request, self._on_created(topic))

    def _on_created(self, topic: str) -> RespondToClient:
        def note(response: TopicsResponse) -> None:
            self._being_created.discard(topic)

        return note

    def _creatable(self, topic: str) -> CreatableTopic:
        if topic == TRANSACTION_STATE_TOPIC:
            return self._transaction_state()
        assert topic == GROUP_METADATA_TOPIC
        groups = self._settings.groups
        return CreatableTopic(
            topic,
            groups.offsets_topic_num_partitions,
            groups.offsets_topic_replication_factor,
            config=(
                ConfigEntry("cleanup.policy", "compact"),
                ConfigEntry("compression.type", "producer"),
                ConfigEntry("segment.bytes", str(groups.offsets_topic_segment_bytes)),
            ),
        )

    def _transaction_state(self) -> CreatableTopic:
        """A leader without the newest record must not decide about transactions."""
        config = self._settings.transactions
        return CreatableTopic(
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            config=(
                ConfigEntry("cleanup.policy", "compact"),
                ConfigEntry("compression.type", "uncompressed"),
                ConfigEntry("min.insync.replicas", str(config.transaction_state_log_min_isr)),
                ConfigEntry("segment.bytes", str(config.transaction_state_log_segment_bytes)),
                ConfigEntry("unclean.leader.election.enable", "false"),
            ),
        )
