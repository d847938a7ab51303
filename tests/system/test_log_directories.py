"""A real broker with two disks: one fails, then the other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import TIMEOUT_S, eventually, scaled

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

BROKER = 3
CONFIG = """
[log]
log_dirs = "one,two"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RegentCluster]:
    with RegentCluster(tmp_path / "cluster", "--no-placement-service") as cluster:
        yield cluster


def led_by(cluster: RegentCluster, broker_id: int, topic: str) -> set[int]:
    states = cluster.partition_states(topic).items()
    return {number for number, state in states if state.leader_and_isr.leader == broker_id}


def partitions_in(directory: Path, topic: str) -> set[int]:
    return {int(log.name.rpartition("-")[2]) for log in directory.glob(f"{topic}-*")}


def test_a_failed_disk_costs_its_replicas_and_the_last_one_the_broker(
    cluster: RegentCluster, tmp_path: Path
) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(CONFIG)
    process = cluster.start_broker(BROKER, "--config", str(config))
    one, two = (cluster.data_dir / f"broker-{BROKER}" / name for name in ("one", "two"))
    cluster.create_topic_on("payments", [(BROKER, other) for other in (0, 1, 2, 0)])
    assert led_by(cluster, BROKER, "payments") == {0, 1, 2, 3}
    eventually(
        lambda: all(len(partitions_in(d, "payments")) == 2 for d in (one, two)),
        "its logs are there",
    )
    kept = partitions_in(two, "payments")

    shutil.rmtree(one)
    cluster.create_topic_on("more", [(0, BROKER)] * 4)
    eventually(
        lambda: led_by(cluster, BROKER, "payments") == kept,
        "other brokers lead the partitions of the first directory",
    )
    assert process.poll() is None

    shutil.rmtree(two)
    cluster.create_topic_on("again", [(0, BROKER)] * 2)
    _, output = process.communicate(timeout=scaled(TIMEOUT_S))
    assert process.returncode == 1
    reasons = f"every log directory has failed: log directory {one} is offline: "
    assert reasons in output.splitlines()[-1]
    assert f"; log directory {two} is offline: " in output.splitlines()[-1]
    eventually(
        lambda: not led_by(cluster, BROKER, "payments"),
        "other brokers lead the partitions of the last directory",
    )
