"""The internal topics of a broker, why one cannot be created, and the deletion of other topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from regent.config.settings import Settings
from regent.config.tables.groups import GroupsConfig
from regent.config.tables.transactions import TransactionsConfig
from regent.core.coordinator.partition_for import CoordinatorPartitions
from regent.core.model import TopicPartition
from regent.core.protocol.control import differ
from regent.core.protocol.messages.topics import CreatableTopic, CreatableTopicConfig
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.topic_validation import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC

COORDINATED_TOPICS = {
    GROUP_METADATA_TOPIC: ("groups", "offsets_topic_replication_factor"),
    TRANSACTION_STATE_TOPIC: ("transactions", "transaction_state_log_replication_factor"),
}
"""What the brokers that lead each internal topic coordinate, and the setting of its replicas."""


def deleted_partitions(before: MetadataSnapshot, now: MetadataSnapshot) -> Iterator[TopicPartition]:
    """Yield the partitions of topics that were deleted, also if others have their names now."""
    if before.topic_ids is now.topic_ids:
        return
    for topic, topic_id in before.topic_ids.items():
        if topic not in now.topic_ids or differ(topic_id, now.topic_ids[topic]):
            for number in range(max(before.topics[topic]) + 1):  # also of any gap
                yield TopicPartition(topic, number)


def is_news_of(topic: str, before: MetadataSnapshot, now: MetadataSnapshot) -> bool:
    """Whether more may be known of a topic than before."""
    return (
        before.topics.get(topic) is not now.topics.get(topic)
        or before.topic_ids is not now.topic_ids
        or before.coordinated_partitions is not now.coordinated_partitions
        or before.is_complete is not now.is_complete
    )


def metadata_warnings(
    cache: MetadataCache, coordinated: Iterable[CoordinatorPartitions]
) -> Sequence[str]:
    """Return a line for each internal topic that has grown, and one if topics are unknown yet."""
    lines = [line for partitions in coordinated for line in partitions.warnings]
    if not cache.snapshot.is_complete:
        lines.append(
            "no controller has told this broker all topics since it started: clients are sent to"
            " other brokers until one does"
        )
    return lines


def coordinator_obstacle(settings: Settings, topic: str, live_brokers: int, refusal: str) -> str:
    """Return why an internal topic does not exist, and what helps.

    ``refusal``: the controller's reason at the last attempt to create it.
    """
    coordinated, setting = COORDINATED_TOPICS[topic]
    needed = creatable_topic(settings, topic).replication_factor
    if needed > live_brokers:
        reason = (
            f"topic {topic} needs {needed} brokers, and {live_brokers} are live; start another"
            f" broker, or set {setting} to {live_brokers}"
        )
    else:
        reason = refusal
    return f"no coordinator for {coordinated}: {reason}"


def creatable_topic(settings: Settings, topic: str) -> CreatableTopic:
    """Return a topic to create on demand, with the settings of this broker."""
    if topic == TRANSACTION_STATE_TOPIC:
        return _transaction_state(settings.transactions)
    if topic == GROUP_METADATA_TOPIC:
        return _consumer_offsets(settings.groups)
    return CreatableTopic(name=topic)


def _consumer_offsets(config: GroupsConfig) -> CreatableTopic:
    return CreatableTopic(
        name=GROUP_METADATA_TOPIC,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=config.offsets_topic_replication_factor,
        configs=_configs(
            ("cleanup.policy", "compact"),
            ("compression.type", "producer"),
            ("segment.bytes", str(config.offsets_topic_segment_bytes)),
        ),
    )


def _transaction_state(config: TransactionsConfig) -> CreatableTopic:
    """A leader without the newest record must not decide about transactions."""
    return CreatableTopic(
        name=TRANSACTION_STATE_TOPIC,
        num_partitions=config.transaction_state_log_num_partitions,
        replication_factor=config.transaction_state_log_replication_factor,
        configs=_configs(
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


def _configs(*settings: tuple[str, str]) -> tuple[CreatableTopicConfig, ...]:
    return tuple(CreatableTopicConfig(name=name, value=value) for name, value in settings)
