"""``reassign --throttle`` on real brokers: a move is slow while there is a throttle."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Producer

from regent.config.command_line import COMMAND
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import scaled

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

RECORDS, RECORD_BYTES = 40, 100_000
RATE = 1_000_000
AHEAD_BYTES = 1_100_000  # a quota allows the bytes of the first second, and one more fetch


def test_a_throttled_move_is_slow_and_a_verified_one_leaves_no_throttle(
    whole_cluster: RegentCluster, tmp_path: Path
) -> None:
    cluster = whole_cluster

    def reassign(action: str, broker: int, *options: str) -> subprocess.CompletedProcess[str]:
        entry = {"topic": "t", "partition": 0, "replicas": [broker]}
        path = tmp_path / "moves.json"
        path.write_text(json.dumps({"version": 1, "partitions": [entry]}))
        where = ["--data-dir", str(cluster.data_dir), "--reassignment-json-file", str(path)]
        return subprocess.run(
            [*COMMAND, "reassign", action, *where, *options],
            capture_output=True,
            text=True,
            timeout=scaled(120),
            check=True,
        )

    def settings(entity: str) -> object:
        node = cluster.zookeeper.get(f"/config/{entity}")
        return {} if node is None else json.loads(node.data)["config"]

    cluster.create_topic_on("t", [(0,)])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for _ in range(RECORDS):
        producer.produce("t", bytes(RECORD_BYTES))
    assert producer.flush(scaled(30)) == 0

    began = monotonic()
    reassign("--execute", 1, "--throttle", str(RATE), "--wait")
    assert monotonic() - began >= (RECORDS * RECORD_BYTES - AHEAD_BYTES) / RATE
    assert settings("brokers/1") == {
        "leader.replication.throttled.rate": str(RATE),
        "follower.replication.throttled.rate": str(RATE),
    }

    verified = reassign("--verify", 1)
    assert "Reassignment of partition t-0 is complete." in verified.stdout
    assert "Clearing topic-level throttles on topics t" in verified.stderr
    assert settings("brokers/0") == settings("brokers/1") == settings("topics/t") == {}

    reassign("--execute", 2, "--wait")
    assert "Reassignment of partition t-0 is complete." in reassign("--verify", 2).stdout
