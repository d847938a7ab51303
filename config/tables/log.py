"""The table ``[log]``: where logs are, their maintenance, and the defaults of topics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from regent.config.tables.ranges import INTERVAL_MS, LONG_INTERVAL_MS, NOT_NEGATIVE
from regent.core.log_config import LOG_SETTINGS, CleanerSettings
from regent.core.setting import DOUBLE_MAX, INT_MAX, LONG_MAX, ConfigType, Scope, setting


def _default_of_topics(field_of_topics: str, **changes: Any) -> Any:
    """Return the broker's setting that applies to topics without a value of their own."""
    row = LOG_SETTINGS[field_of_topics]
    changes = {"scope": Scope.CLUSTER_WIDE, "broker_name": None, **changes}
    declared = replace(row.declared, **changes)
    return field(default=row.default, metadata=declared.metadata)


@dataclass(frozen=True)
class LogsConfig:
    """The table ``[log]``: where logs are, their maintenance, and the defaults of topics."""

    log_dirs: str = setting(
        "log",
        "The log directories, separated by commas; relative ones are below --data-dir. When one of"
        " several fails, the broker continues with the others.",
    )
    num_recovery_threads_per_data_dir: int = setting(
        1,
        "How many threads recover the logs of one directory after a crash. A value in ZooKeeper has"
        " no effect: logs are recovered before it is read.",
        limits=(1, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    log_flush_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often recovery points are written.", limits=INTERVAL_MS
    )
    log_flush_start_offset_checkpoint_interval_ms: int = setting(
        60_000, "How often log start offsets are written.", limits=INTERVAL_MS
    )
    replica_high_watermark_checkpoint_interval_ms: int = setting(
        5_000,
        "How often high watermarks are written.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
    log_flush_scheduler_interval_ms: int = setting(
        3_000,
        "How often the broker checks which logs must be flushed.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        "How often the broker checks which segments are too old.",
        limits=LONG_INTERVAL_MS,
        type=ConfigType.LONG,
    )
    log_verification_bytes_per_s: int = setting(
        8_388_608,
        "How fast complete segments are read in the background, once a week, to find what a disk"
        " has changed. 0: never. Damaged replicas are fetched again from others. Reads for clients"
        " and followers are always checked.",
        limits=NOT_NEGATIVE,
        ours=True,
    )
    log_open_files_max: int = setting(
        0,
        "How many files of logs the broker keeps open. Those that were used long ago are closed,"
        " and opened again when they are needed. 0: half of the file descriptors that the process"
        " may have (ulimit -n), less if that leaves too few for connections.",
        limits=(0, INT_MAX),
        ours=True,
    )
    log_dir_min_free_bytes: int = setting(
        67_108_864,
        "Records of producers are refused (KAFKA_STORAGE_ERROR, after which clients try again) as"
        " long as less is free on the file system of a log directory. So the broker goes on:"
        " followers, groups, transactions and the deletion of segments use what is left. 0: never.",
        limits=(0, LONG_MAX),
        type=ConfigType.LONG,
        ours=True,
    )
    log_dir_warning_percent: int = setting(
        85,
        "From which used part of the file system of a log directory on `regent status` warns.",
        limits=(1, 100),
        ours=True,
    )
    log_dir_critical_percent: int = setting(
        95,
        "From which used part of the file system of a log directory on `regent status` says that it"
        " is almost full.",
        limits=(1, 100),
        ours=True,
    )
    min_insync_replicas: int = _default_of_topics("min_insync_replicas")
    message_max_bytes: int = _default_of_topics("max_message_bytes")
    log_cleanup_policy: str = _default_of_topics("cleanup_policy")
    log_cleaner_enable: bool = setting(
        CleanerSettings.log_cleaner_enable,
        "Whether logs with cleanup.policy compact are compacted. If not, they grow without a limit,"
        " those of Kafka's own topics too.",
    )
    log_cleaner_threads: int = setting(
        CleanerSettings.log_cleaner_threads,
        "Has no effect: one thread compacts the logs of a broker, because the threads of a Python"
        " process share one interpreter.",
        limits=(1, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_backoff_ms: int = setting(
        CleanerSettings.log_cleaner_backoff_ms,
        "How often the broker looks for logs to compact, when there was none.",
        limits=LONG_INTERVAL_MS,
        scope=Scope.CLUSTER_WIDE,
        type=ConfigType.LONG,
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        CleanerSettings.log_cleaner_dedupe_buffer_size,
        "How much memory the keys of one cleaning take. A key takes about 160 bytes (in Kafka 24)."
        " A log with more keys since its last cleaning is compacted in several cleanings.",
        limits=(1_048_576, LONG_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_size: int = setting(
        CleanerSettings.log_cleaner_io_buffer_size,
        "How much the log cleaner reads or writes at once: half for each.",
        limits=(1_024, INT_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_buffer_load_factor: float = setting(
        CleanerSettings.log_cleaner_io_buffer_load_factor,
        "Which part of log.cleaner.dedupe.buffer.size is used.",
        limits=(0.01, 1),
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        CleanerSettings.log_cleaner_io_max_bytes_per_second,
        "How many bytes a second the log cleaner reads and writes on average.",
        limits=(1, DOUBLE_MAX),
        scope=Scope.CLUSTER_WIDE,
    )
    log_cleaner_min_cleanable_ratio: float = _default_of_topics("min_cleanable_dirty_ratio")
    log_cleaner_min_compaction_lag_ms: int = _default_of_topics("min_compaction_lag_ms")
    log_cleaner_max_compaction_lag_ms: int = _default_of_topics("max_compaction_lag_ms")
    log_cleaner_delete_retention_ms: int = _default_of_topics("delete_retention_ms")
    producer_id_expiration_ms: int = _default_of_topics("producer_id_expiration_ms")
    log_retention_ms: int = _default_of_topics("retention_ms")
    log_retention_bytes: int = _default_of_topics("retention_bytes")
    log_segment_delete_delay_ms: int = _default_of_topics(
        "file_delete_delay_ms",
        meaning="How long the files of a dropped segment or a removed log are kept. They are looked"
        " for every 30 s.",
    )
    log_segment_bytes: int = _default_of_topics("segment_bytes")
    log_roll_ms: int = _default_of_topics("segment_ms")
    log_roll_jitter_ms: int = _default_of_topics("segment_jitter_ms")
    log_index_size_max_bytes: int = _default_of_topics("segment_index_bytes")
    log_index_interval_bytes: int = _default_of_topics("index_interval_bytes")
    log_flush_interval_messages: int = _default_of_topics("flush_messages")
    log_flush_interval_ms: int = _default_of_topics("flush_ms")
    log_message_downconversion_enable: bool = _default_of_topics("message_downconversion_enable")
    log_message_timestamp_type: str = _default_of_topics("message_timestamp_type")
    log_message_timestamp_after_max_ms: int = _default_of_topics("message_timestamp_after_max_ms")
    log_message_timestamp_before_max_ms: int = _default_of_topics("message_timestamp_before_max_ms")
    log_message_timestamp_difference_max_ms: int = _default_of_topics(
        "message_timestamp_difference_max_ms"
    )
