"""The metrics of the log cleaner, those of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from regent.broker.metrics.exposition import Family, gauge

if TYPE_CHECKING:
    from regent.storage.compaction.log_cleaner_manager import LogCleanerManager


def log_cleaner_metrics(
    cleaner: LogCleanerManager, directories: Collection[Path]
) -> Iterable[Family]:
    """Yield every metric with its present value."""
    stats = cleaner.last_stats
    for name, meaning, value in (
        (
            "logcleanermanager_max_dirty_percent",
            "the dirty part of the dirtiest log, when a log to clean was last looked for",
            int(100 * cleaner.max_dirty_ratio),
        ),
        (
            "logcleanermanager_time_since_last_run_ms",
            "milliseconds since a log to clean was looked for",
            cleaner.time_since_last_run_ms,
        ),
        (
            "logcleaner_cleaner_recopy_percent",
            "how much of its log the last cleaning kept",
            100 * stats.bytes_written // max(stats.bytes_read, 1),
        ),
        (
            "logcleaner_max_buffer_utilization_percent",
            "how much of log.cleaner.dedupe.buffer.size the last cleaning used",
            int(100 * stats.map_utilization),
        ),
        (
            "logcleaner_max_clean_time_secs",
            "how long the last cleaning took",
            int(stats.elapsed_s),
        ),
    ):
        yield gauge(f"kafka_log_{name}", meaning, value)
    uncleanable = gauge(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "logs that are not cleaned any more, because that failed",
    )
    counts = cleaner.uncleanable_partitions()
    for path in sorted(directories):
        uncleanable.add(counts.get(path, 0), {"logdirectory": str(path)})
    yield uncleanable
