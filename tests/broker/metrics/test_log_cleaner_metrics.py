"""The metrics of the log cleaner."""

from __future__ import annotations

from pathlib import Path

from regent.broker.metrics.broker_metrics import log_cleaner_metrics
from regent.broker.metrics.recent import Recent
from regent.core.log_config import LogConfig
from tests.support.disk_logs import T0, T1, Machine, create, flip_byte, segment_file, send

PREFIX = "kafka_log_"


def test_the_metrics_show_the_last_cleaning_and_the_remaining_logs(tmp_path: Path):
    config = LogConfig(cleanup_policy="compact", segment_bytes=100)
    machine = Machine(tmp_path / "one", tmp_path / "two", defaults=config)
    logs = machine.start()
    damaged, log = create(logs, T0), create(logs, T1)
    for each in (damaged, log):
        for _ in range(5):
            send(each, b"value", key=b"key")
    flip_byte(segment_file(damaged.path, 0), 70)
    logs.checkpoint_high_watermarks({T0: 5, T1: 5})
    logs.cleaner.clean_all()
    machine.clock.now_ms += 1_234
    seen: dict[str, float] = {}
    for family in log_cleaner_metrics(logs.cleaner, logs.directories, Recent()):
        seen.update(family.values())
    uncleanable = f"{PREFIX}logcleanermanager_uncleanable_partitions_count"
    assert seen == {
        f"{PREFIX}logcleanermanager_max_dirty_percent": 0,
        f"{PREFIX}logcleanermanager_time_since_last_run_ms": 1_234,
        f"{PREFIX}logcleaner_cleaner_recopy_percent": 25,
        f"{PREFIX}logcleaner_max_buffer_utilization_percent": 0,
        f"{PREFIX}logcleaner_max_clean_time_secs": 0,
        f'{uncleanable}{{logdirectory="{tmp_path / "one"}"}}': 1,
        f'{uncleanable}{{logdirectory="{tmp_path / "two"}"}}': 0,
    }
    machine.end()
