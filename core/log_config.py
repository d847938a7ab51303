"""The settings of one topic's logs. Mirrors ``kafka.log.LogConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regent.core.setting import (
    DAY_MS,
    DOUBLE_MAX,
    INT_MAX,
    LONG_MAX,
    ConfigType,
    Scope,
    Setting,
    SettingValues,
    setting,
    settings_of,
)

UNLIMITED = -1
LOG_APPEND_TIME = "LogAppendTime"


def _of_topics(default: Any, broker_name: str, meaning: str, **declared: Any) -> Any:
    row = {"limits": (0, LONG_MAX), "scope": Scope.TOPIC, "broker_name": broker_name, **declared}
    return setting(default, meaning, **row)


@dataclass(frozen=True)
class LogConfig:
    """Kafka's topic settings of the same names with ``.`` for ``_``, and Kafka's defaults.

    Sizes in bytes, times in milliseconds; ``retention_*`` -1: no limit. A topic cannot override
    ``producer_id_expiration_ms``.
    """

    cleanup_policy: str = _of_topics(
        "delete",
        "log.cleanup.policy",
        "What happens to old segments: delete drops them by retention.ms and retention.bytes;"
        " compact keeps the newest record of each key, and every record must have a key.",
        type=ConfigType.LIST,
        choices=("compact", "delete"),
    )
    delete_retention_ms: int = _of_topics(
        DAY_MS,
        "log.cleaner.delete.retention.ms",
        "How long compaction keeps a tombstone (a record whose value is null) after the first"
        " cleaning that saw it. A consumer that reads a log from its start in this time sees all.",
    )
    file_delete_delay_ms: int = _of_topics(
        60_000,
        "log.segment.delete.delay.ms",
        "How long the files of a dropped segment are kept. Those of a removed log are kept for the"
        " broker's log.segment.delete.delay.ms. They are looked for every 30 s.",
    )
    flush_messages: int = _of_topics(
        LONG_MAX,
        "log.flush.interval.messages",
        "After how many records a log is flushed to disk. By default never: safety comes from"
        " replicas.",
        limits=(1, LONG_MAX),
    )
    flush_ms: int = _of_topics(
        LONG_MAX, "log.flush.interval.ms", "After what time a log is flushed to disk."
    )
    index_interval_bytes: int = _of_topics(
        4_096,
        "log.index.interval.bytes",
        "How many bytes of records lie between two entries of an index, from the next segment on.",
        limits=(0, INT_MAX),
    )
    keeps_offsets: bool = setting(
        False,
        "Whether the batches of producers keep the offsets that they come with. `regent jobs"
        " restore` sets this while it writes a topic, and takes it away. Other producers are"
        " refused meanwhile. Kafka's brokers do not know this setting.",
        scope=Scope.TOPIC,
        ours=True,
        prefix="regent.",
    )
    max_compaction_lag_ms: int = _of_topics(
        LONG_MAX,
        "log.cleaner.max.compaction.lag.ms",
        "A compacted log with records that are older than this and not compacted is cleaned, even"
        " if it is not dirty enough. A new segment begins at the latest at this age.",
        limits=(1, LONG_MAX),
    )
    max_message_bytes: int = _of_topics(
        1_048_588,
        "message.max.bytes",
        "The largest record batch. Clients and brokers hold such a batch in memory several times,"
        " and a request must fit into socket.request.max.bytes.",
        limits=(0, INT_MAX),
    )
    message_downconversion_enable: bool = _of_topics(
        True,
        "log.message.downconversion.enable",
        "Whether clients older than Kafka 0.11 get records, which a broker must convert for them."
        " Otherwise they get the error UNSUPPORTED_VERSION.",
    )
    message_timestamp_after_max_ms: int = _of_topics(
        LONG_MAX,
        "log.message.timestamp.after.max.ms",
        "How far a timestamp may be ahead of the broker's clock (KIP-937).",
    )
    message_timestamp_before_max_ms: int = _of_topics(
        LONG_MAX,
        "log.message.timestamp.before.max.ms",
        "How far a timestamp may be behind the broker's clock (KIP-937).",
    )
    message_timestamp_difference_max_ms: int = _of_topics(
        LONG_MAX,
        "log.message.timestamp.difference.max.ms",
        "How far a timestamp may be from the broker's clock. It counts in each direction in which"
        " the settings of KIP-937 have their default.",
    )
    message_timestamp_type: str = _of_topics(
        "CreateTime",
        "log.message.timestamp.type",
        'Whether records keep the timestamps of their producers ("CreateTime") or get the time at'
        ' which they are appended ("LogAppendTime").',
        choices=("CreateTime", LOG_APPEND_TIME),
    )
    min_cleanable_dirty_ratio: float = _of_topics(
        0.5,
        "log.cleaner.min.cleanable.ratio",
        "A compacted log is cleaned when more than this part of it is new since the last cleaning.",
        limits=(0, 1),
    )
    min_compaction_lag_ms: int = _of_topics(
        0,
        "log.cleaner.min.compaction.lag.ms",
        "Compaction leaves records that are younger than this as they are.",
    )
    min_insync_replicas: int = _of_topics(
        1,
        "min.insync.replicas",
        "How many replicas must be in sync for a record with acks=all; all, if a topic has fewer.",
        limits=(1, INT_MAX),
    )
    retention_bytes: int = _of_topics(
        UNLIMITED,
        "log.retention.bytes",
        "How many bytes of a partition are kept; -1: no limit. Only whole segments are deleted.",
        limits=(UNLIMITED, LONG_MAX),
    )
    retention_ms: int = _of_topics(
        7 * DAY_MS,
        "log.retention.ms",
        "How long records are kept; -1: no limit.",
        limits=(UNLIMITED, LONG_MAX),
    )
    segment_bytes: int = _of_topics(
        1_073_741_824,
        "log.segment.bytes",
        "The size at which a new segment begins.",
        limits=(14, INT_MAX),
    )
    segment_index_bytes: int = _of_topics(
        10_485_760,
        "log.index.size.max.bytes",
        "The size of an index at which a new segment begins.",
        limits=(4, INT_MAX),
    )
    segment_jitter_ms: int = _of_topics(
        0,
        "log.roll.jitter.ms",
        "Up to this much, chosen at random, is subtracted from the age at which a new segment"
        " begins.",
    )
    segment_ms: int = _of_topics(
        7 * DAY_MS,
        "log.roll.ms",
        "The age at which a new segment begins.",
        limits=(1, LONG_MAX),
    )

    producer_id_expiration_ms: int = setting(
        DAY_MS,
        "How long a producer that writes nothing to a partition is remembered there, unless it has"
        " an open transaction.",
        limits=(1, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
        broker_name="producer.id.expiration.ms",
    )

    @property
    def stamps_append_time(self) -> bool:
        """Whether records get the time at which they are appended."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def max_past_ms(self) -> int:
        """How far the timestamps of new records may be behind the broker's clock."""
        before_ms = self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms if before_ms == LONG_MAX else before_ms

    @property
    def max_future_ms(self) -> int:
        """How far the timestamps of new records may be ahead of the broker's clock."""
        after_ms = self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms if after_ms == LONG_MAX else after_ms

    @property
    def is_compacted(self) -> bool:
        """Whether ``cleanup.policy`` has ``compact``: then every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def max_segment_ms(self) -> int:
        """The age at which a new segment begins: the active one is never compacted."""
        if self.is_compacted:
            return min(self.segment_ms, self.max_compaction_lag_ms)
        return self.segment_ms

    @classmethod
    def of_broker(cls, values: SettingValues) -> LogConfig:
        """Return the configuration of topics without overrides for the settings of a broker."""
        return cls(**{field: values[name] for field, name in BROKER_NAMES.items()})

    def overridden(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return these settings with what a topic overrides (``/config/topics/T``).

        Keys of other settings are ignored, and so are values that are not allowed: then the default
        holds. Our tools write neither.
        """
        rows = [(_OF_TOPICS[name], text) for name, text in overrides.items() if name in _OF_TOPICS]
        changes = {row.name: row.parsed(t) for row, t in rows if row.text_problem(t) is None}
        return replace(self, **changes) if changes else self


DEFAULT_LOG_CONFIG = LogConfig()


@dataclass(frozen=True)
class CleanerSettings:
    """How a broker compacts logs. Mirrors ``CleanerConfig``."""

    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_size: int = 524_288
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = DOUBLE_MAX


DEFAULT_CLEANER_SETTINGS = CleanerSettings()


LOG_SETTINGS: Mapping[str, Setting] = {row.name: row for row in settings_of(DEFAULT_LOG_CONFIG)}
"""The settings of logs by the names of their fields."""

TOPIC_LOG_SETTINGS: Mapping[str, Setting] = {
    name: row for name, row in LOG_SETTINGS.items() if row.scope is Scope.TOPIC
}
"""Those that a topic may override."""

_OF_TOPICS: Mapping[str, Setting] = {row.dotted_name: row for row in TOPIC_LOG_SETTINGS.values()}

BROKER_NAMES: Mapping[str, str] = {
    name: row.declared.broker_name
    for name, row in LOG_SETTINGS.items()
    if row.declared.broker_name is not None
}
"""The broker's setting (Kafka's name) that each of these has its value from, by its field.

``keeps_offsets`` has none: only a topic has it.
"""
