"""The metrics of the log cleaner, those of Kafka's ``LogCleaner`` and ``LogCleanerManager``."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from regent.storage.log_cleaner_manager import LogCleanerManager


def log_cleaner_metrics(
    cleaner: LogCleanerManager, directories: Collection[Path]
) -> Iterable[Metric]:
    """Yield every metric with its present value."""
    stats = cleaner.last_stats
    for name, meaning, value in (
        (
            "LogCleanerManager_max_dirty_percent",
            "the dirty part of the dirtiest log, when a log to clean was last looked for",
            int(100 * cleaner.max_dirty_ratio),
        ),
        (
            "LogCleanerManager_time_since_last_run_ms",
            "milliseconds since a log to clean was looked for",
            cleaner.time_since_last_run_ms,
        ),
        (
            "LogCleaner_cleaner_recopy_percent",
            "how much of its log the last cleaning kept",
            100 * stats.bytes_written // max(stats.bytes_read, 1),
        ),
        (
            "LogCleaner_max_buffer_utilization_percent",
            "how much of log.cleaner.dedupe.buffer.size the last cleaning used",
            int(100 * stats.map_utilization),
        ),
        (
            "LogCleaner_max_clean_time_secs",
            "how long the last cleaning took",
            int(stats.elapsed_s),
        ),
    ):
        yield GaugeMetricFamily(f"kafka_log_{name}", meaning, value=value)
    uncleanable = GaugeMetricFamily(
        "kafka_log_LogCleanerManager_uncleanable_partitions_count",
        "logs that are not cleaned any more, because that failed",
        labels=["logDirectory"],
    )
    counts = cleaner.uncleanable_partitions()
    for path in sorted(directories):
        uncleanable.add_metric([str(path)], counts.get(path, 0))
    yield uncleanable
