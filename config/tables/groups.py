"""The table ``[groups]``: groups of consumers."""

from __future__ import annotations

from dataclasses import dataclass

from regent.config.tables.ranges import LONG_INTERVAL_MS, NOT_NEGATIVE
from regent.core.coordinator.group.group_metadata_manager import GroupConfig, GroupLogSettings
from regent.core.setting import INT_MAX, LONG_MAX, ConfigType, setting


@dataclass(frozen=True)
class GroupsConfig:
    """The table ``[groups]``: groups of consumers, and the topic ``__consumer_offsets``."""

    group_min_session_timeout_ms: int = setting(
        GroupConfig.group_min_session_timeout_ms,
        "The shortest session timeout that a member of a group may have.",
        limits=NOT_NEGATIVE,
    )
    group_max_session_timeout_ms: int = setting(
        GroupConfig.group_max_session_timeout_ms,
        "The longest session timeout that a member of a group may have.",
        limits=NOT_NEGATIVE,
    )
    group_initial_rebalance_delay_ms: int = setting(
        GroupConfig.group_initial_rebalance_delay_ms,
        "How long an empty group waits for more members after the first has come, and again after"
        " each further one. The clusters of regent.testing do not wait.",
    )
    group_max_size: int = setting(
        GroupConfig.group_max_size, "How many members a group may have.", limits=(1, INT_MAX)
    )
    group_max_bytes: int = setting(
        GroupConfig.group_max_bytes,
        "How many bytes the members of a group may tell about their protocols and subscriptions."
        " A member beyond that is refused with GROUP_MAX_SIZE_REACHED.",
        limits=(1, INT_MAX),
        ours=True,
    )
    group_coordinator_max_bytes: int = setting(
        GroupConfig.group_coordinator_max_bytes,
        "The same of all groups of which this broker is the coordinator.",
        limits=(1, LONG_MAX),
        type=ConfigType.LONG,
        ours=True,
    )
    offset_metadata_max_bytes: int = setting(
        GroupConfig.offset_metadata_max_bytes,
        "How many characters of metadata a position may have.",
        limits=NOT_NEGATIVE,
    )
    offsets_topic_num_partitions: int = setting(
        50,
        "The number of partitions of __consumer_offsets, which is created when the first group"
        " comes, or before (internal_topics_at_start). Partitions that are added later are not"
        " used.",
        limits=(1, 1_000_000),
    )
    offsets_topic_replication_factor: int = setting(
        3,
        "The replication factor of __consumer_offsets. While fewer brokers live, it is not created,"
        " and groups have no coordinator, which `status` shows. `regent cluster` uses the number"
        " of its brokers if there are fewer than 3.",
        limits=(1, 32_767),
        type=ConfigType.SHORT,
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600, "The segment size of __consumer_offsets.", limits=(14, INT_MAX)
    )
    offsets_topic_compression_codec: int = setting(
        0,
        "How the records of __consumer_offsets are compressed: 0 not, 1 gzip, 2 snappy, 3 lz4,"
        " 4 zstd.",
        limits=(0, 4),
    )
    offsets_load_buffer_size: int = setting(
        GroupLogSettings.offsets_load_buffer_size,
        "How many bytes of __consumer_offsets a broker that becomes coordinator reads at a time.",
        limits=(1, INT_MAX),
    )
    offsets_commit_timeout_ms: int = setting(
        GroupLogSettings.offsets_commit_timeout_ms,
        "How long a commit waits until the replicas of __consumer_offsets have it.",
        limits=(1, INT_MAX),
    )
    offsets_retention_minutes: int = setting(
        GroupConfig.offsets_retention_minutes,
        "How long the positions of a group are kept after its last member has left, and those of a"
        " group without members after their last commit.",
        limits=(1, INT_MAX),
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        "How often expired positions are looked for.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
