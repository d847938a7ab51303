"""Spark's own Kafka connector works with a cluster of ours, unchanged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition as KafkaPosition

from regent.config.java import find_java
from regent.testing.waits import scaled
from tests.genuine_clients.librdkafka import consumer, read_to_end
from tests.support.breakable_cluster import BreakableCluster

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.spark,
    pytest.mark.system,
    pytest.mark.zookeeper,
    pytest.mark.slow,
]

ROOT = Path(__file__).parent.parent.parent.parent
VERSION = "4.2.0"
PARTITIONS = 2


def test_batches_and_streams_of_the_connector_and_a_restart_from_a_checkpoint(
    java: None, cluster: BreakableCluster, tmp_path: Path
):
    for topic in ("connector-in", "connector-out"):
        cluster.create_topic(topic, PARTITIONS)
    query = subprocess.run(
        [
            *(sys.executable, "-m", "tests.jobs.source.connector_query"),
            *(VERSION, cluster.bootstrap_servers, str(tmp_path / "checkpoint")),
        ],
        cwd=ROOT,
        env={**os.environ, "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    if "unresolved dependency" in query.stderr:
        pytest.skip(f"the connector {VERSION} is neither in the Ivy cache nor to be downloaded")
    assert query.returncode == 0, query.stderr
    assert json.loads(query.stdout.splitlines()[-1]) == {"copied": [100, 100], "read": 200}
    starts = [KafkaPosition("connector-out", number, 0) for number in range(PARTITIONS)]
    messages = read_to_end(consumer(cluster.bootstrap_servers), *starts)
    found = sorted((int(m.key() or b""), m.value()) for m in messages)
    assert found == [(number, b"value-%d" % number) for number in range(200)]
