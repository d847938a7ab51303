"""One command plans and executes on a real cluster that has lost a broker."""

import json
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from regent.core.ports import TopicAssignment
from regent.jobs.plan import main
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually
from regent.zk.stores.admin_store import ZkAdminStore

LOST, PARTITIONS = 3, 24
BEFORE: list[tuple[int, ...]] = [
    ((LOST, 0), (1, LOST), (0, 2))[partition % 3] for partition in range(PARTITIONS)
]


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.zookeeper
def test_replicas_of_a_lost_broker_move_to_the_others_with_a_summary_of_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    data, out = tmp_path / "data", tmp_path / "plan"
    options = ("--brokers", "4", "--no-placement-service", "--no-internal-topics")
    with RegentCluster(data, *options) as cluster:
        cluster.create_topic_on("orders", BEFORE)
        cluster.signal(LOST, signal.SIGKILL)
        eventually(lambda: cluster.broker_epoch(LOST) is None, "its registration is gone")
        where = ["--data-dir", str(data), "--out", str(out), "--execute"]
        assert main(["decommission", "--from", str(LOST), "--sizes", "cluster", *where], spark) == 0
        [line] = capsys.readouterr().out.splitlines()
        topic = ZkAdminStore(cluster.zookeeper).topics.read_topics(["orders"])["orders"]
    summary = json.loads(line)
    assert (summary["moves"], summary["lower_bound"]) == (16, 16)
    assert summary["warnings"] == ["24 partitions have no size in --sizes, or size 0"]
    execution = summary["execution"]
    assert (execution["moved"], execution["left"]) == (16, 0)
    assert isinstance(topic, TopicAssignment)
    after = [topic.partitions[partition].replicas for partition in range(PARTITIONS)]
    held = [sum(broker in replicas for replicas in after) for broker in range(4)]
    assert held == [16, 16, 16, 0]
    assert all(len(set(replicas)) == 2 for replicas in after)
