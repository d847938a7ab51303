"""The settings of one topic's logs. Mirrors ``kafka.log.LogConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

UNLIMITED = -1
LOG_APPEND_TIME = "LogAppendTime"
_NO_LIMIT = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000

BROKER_NAMES: Mapping[str, str] = {
    "cleanup_policy": "log.cleanup.policy",
    "file_delete_delay_ms": "log.segment.delete.delay.ms",
    "flush_messages": "log.flush.interval.messages",
    "flush_ms": "log.flush.interval.ms",
    "index_interval_bytes": "log.index.interval.bytes",
    "max_message_bytes": "message.max.bytes",
    "message_timestamp_after_max_ms": "log.message.timestamp.after.max.ms",
    "message_timestamp_before_max_ms": "log.message.timestamp.before.max.ms",
    "message_timestamp_difference_max_ms": "log.message.timestamp.difference.max.ms",
    "message_timestamp_type": "log.message.timestamp.type",
    "min_insync_replicas": "min.insync.replicas",
    "retention_bytes": "log.retention.bytes",
    "retention_ms": "log.retention.ms",
    "segment_bytes": "log.segment.bytes",
    "segment_index_bytes": "log.index.size.max.bytes",
    "segment_jitter_ms": "log.roll.jitter.ms",
    "segment_ms": "log.roll.ms",
}
"""What Kafka calls each setting when it is a broker's: the default of its topics."""


@dataclass(frozen=True)
class LogConfig:
    """Kafka's topic settings of the same names with ``.`` for ``_``, and Kafka's defaults.

    Sizes in bytes, times in milliseconds; ``retention_*`` -1: no limit.
    """

    cleanup_policy: str = "delete"
    file_delete_delay_ms: int = 60_000
    flush_messages: int = 2**63 - 1
    flush_ms: int = 2**63 - 1
    index_interval_bytes: int = 4_096
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = _NO_LIMIT
    message_timestamp_before_max_ms: int = _NO_LIMIT
    message_timestamp_difference_max_ms: int = _NO_LIMIT
    message_timestamp_type: str = "CreateTime"
    min_insync_replicas: int = 1
    retention_bytes: int = UNLIMITED
    retention_ms: int = 7 * _DAY_MS
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * _DAY_MS

    @property
    def stamps_append_time(self) -> bool:
        """Whether records get the time they are appended at instead of the one they came with."""
        return self.message_timestamp_type == LOG_APPEND_TIME

    @property
    def max_past_ms(self) -> int:
        """How old records may be when they come. The difference counts unless this is set."""
        before_ms = self.message_timestamp_before_max_ms
        return self.message_timestamp_difference_max_ms if before_ms == _NO_LIMIT else before_ms

    @property
    def max_future_ms(self) -> int:
        """How far ahead of the broker's clock records may be. The difference counts likewise."""
        after_ms = self.message_timestamp_after_max_ms
        return self.message_timestamp_difference_max_ms if after_ms == _NO_LIMIT else after_ms

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key is kept, so that every record must have one."""
        return "compact" in self.cleanup_policy

    def overridden(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return these settings with what a topic overrides (``/config/topics/T``).

        Names that are not here are other components' business. A value that is no number, which
        only a hand can have written, is ignored: the default holds.
        """
        names = [field.name for field in fields(self)]
        return self._with({name: overrides.get(name.replace("_", ".")) for name in names})

    def with_broker_config(self, config: Mapping[str, str]) -> LogConfig:
        """Return these settings with what a broker overrides (``/config/brokers/N``)."""
        return self._with({field: config.get(name) for field, name in BROKER_NAMES.items()})

    def _with(self, texts: Mapping[str, str | None]) -> LogConfig:
        changes: dict[str, Any] = {}
        for name, text in texts.items():
            if text is None:
                continue
            if isinstance(getattr(self, name), str):
                changes[name] = text.strip()
                continue
            try:
                changes[name] = int(text)
            except ValueError:
                continue
        return replace(self, **changes)


DEFAULT_LOG_CONFIG = LogConfig()
