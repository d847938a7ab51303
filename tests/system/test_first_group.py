"""The first group comes after a broker has died."""

from __future__ import annotations

import subprocess
from pathlib import Path
from time import monotonic

import pytest
from confluent_kafka import Consumer, Producer

from regent.config.command_line import COMMAND
from regent.testing import cluster
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import eventually, scaled

pytestmark = pytest.mark.system

TIMEOUT_S = scaled(60.0)
MISSING = "no coordinator for groups: topic __consumer_offsets needs 3 brokers, and 2 are live"


def write(servers: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for number in range(count):
        producer.produce("orders", str(number))
    assert producer.flush(TIMEOUT_S) == 0


def read_in_a_group(servers: str, count: int) -> int:
    config = {"bootstrap.servers": servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, "log_level": 0})
    consumer.subscribe(["orders"])
    read, deadline = 0, monotonic() + TIMEOUT_S
    try:
        while read < count and monotonic() < deadline:
            message = consumer.poll(0.2)
            read += message is not None and message.error() is None
    finally:
        consumer.close()
    return read


def test_a_group_reads_every_record_after_the_death_of_a_leader() -> None:
    with cluster() as regent:
        regent.create_topic("orders")
        write(regent.bootstrap_servers, 50)
        regent.kill_leader_of("orders")
        write(regent.bootstrap_servers, 50)
        assert read_in_a_group(regent.bootstrap_servers, 100) == 100


@pytest.mark.nightly
def test_a_group_without_a_coordinator_is_explained(tmp_path: Path) -> None:
    options = ("--no-placement-service", "--no-internal-topics")
    with RegentCluster(tmp_path, *options) as regent:
        regent.create_topic("orders")
        write(regent.bootstrap_servers, 1)
        regent.kill(0)
        consumed = subprocess.run(
            [*COMMAND, "consume", "orders", "--group", "billing", "--timeout-ms", "9000"],
            env={"REGENT_DATA_DIR": str(tmp_path), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert consumed.returncode == 1
        while_waiting, at_last = consumed.stderr.splitlines()
        assert while_waiting.startswith(f"regent: topic orders: no record comes: {MISSING}")
        assert at_last.startswith("regent: the group gave no partition within 9 s; ")
        assert MISSING in at_last
        assert any(MISSING in line for line in regent.status()["warnings"])
        regent.restart(0)
        assert read_in_a_group(regent.bootstrap_servers, 1) == 1
        eventually(
            lambda: not any(MISSING in line for line in regent.status()["warnings"]),
            "status has no such warning any more",
        )
