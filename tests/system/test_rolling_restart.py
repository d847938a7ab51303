"""``restart --rolling`` of real brokers under load: every acknowledged record is there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from regent.config.command_line import COMMAND
from regent.testing.waits import scaled
from tests.support.breakable_cluster import BreakableCluster
from tests.support.histories import check, summary
from tests.support.load import Load

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]


@pytest.mark.timeout(300)
def test_no_acknowledged_record_is_lost_by_a_rolling_restart(tmp_path: Path) -> None:
    with BreakableCluster(tmp_path) as cluster:
        epochs = {broker: cluster.broker_epoch(broker) for broker in (0, 1, 2)}
        partitions = cluster.create_safe_topic("t", 6)
        command = [*COMMAND, "restart", "--rolling", "--data-dir", str(cluster.data_dir)]
        with Load(cluster.bootstrap_servers, partitions) as load:
            load.await_progress()
            ended = subprocess.run(
                command, capture_output=True, text=True, timeout=scaled(120), check=False
            )
            load.await_progress()
            load.stop_producers()
            logs = cluster.agreed_logs(partitions)
            load.finish_consumers({p: len(next(iter(logs[p].values()))) for p in partitions})
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout.startswith("Restarted ")
        assert all(cluster.broker_epoch(b) != epoch for b, epoch in epochs.items())
    assert load.acknowledged
    assert not check(load.history, logs), summary(check(load.history, logs))
