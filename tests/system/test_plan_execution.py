"""A plan on a real cluster is completed although brokers and its executor are killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.ports import TopicAssignment
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import await_end, eventually, scaled
from regent.zk.stores.admin_store import ZkAdminStore

pytestmark = [pytest.mark.nightly, pytest.mark.system, pytest.mark.zookeeper]

LEAVING, RECEIVER = 3, 2
PARTITIONS = 60
TIMEOUT_S = scaled(60.0)
PROGRAM = """
import sys
from regent.jobs.command import run_job
from regent.jobs.plan_commands import execute_command, rollback_command

commands = {"execute": execute_command, "rollback": rollback_command}
sys.exit(run_job(commands[sys.argv[1]], "plan", sys.argv[2:], None))
"""

Replicas = list[tuple[BrokerId, ...]]
# Replicas of the leaving broker go to the receiver; those of a shared partition to the third.
BEFORE: Replicas = [((LEAVING, 0), (1, LEAVING), (LEAVING, RECEIVER))[p % 3] for p in range(60)]
TARGET: Replicas = [((RECEIVER, 0), (1, RECEIVER), (0, RECEIVER))[p % 3] for p in range(60)]
TARGETS = [ReplicaAssignment(replicas) for replicas in TARGET]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RegentCluster]:
    with RegentCluster(tmp_path / "data", "--brokers", "4", "--no-placement-service") as cluster:
        cluster.create_topic_on("orders", BEFORE)
        yield cluster


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    directory = tmp_path / "plan"
    directory.mkdir()
    (directory / "plan.json").write_text(document(TARGET))
    (directory / "rollback.json").write_text(document(BEFORE))
    return directory


def document(assigned: Replicas) -> str:
    rows = [{"topic": "orders", "partition": p, "replicas": r} for p, r in enumerate(assigned)]
    return json.dumps({"version": 1, "partitions": rows})


@contextmanager
def executor(
    cluster: RegentCluster, plan: Path, command: str = "execute"
) -> Iterator[subprocess.Popen[str]]:
    address = cluster.description["zookeeper"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", PROGRAM, command, str(plan), "--zookeeper", address),
            *("--data-dir", cluster.data_dir),  # where our key is
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        process.kill()
        await_end(process, "the command")


def assignments(cluster: RegentCluster) -> list[ReplicaAssignment]:
    topic = ZkAdminStore(cluster.zookeeper).topics.read_topics(["orders"])["orders"]
    assert isinstance(topic, TopicAssignment)
    return [topic.partitions[p] for p in range(PARTITIONS)]


def reached(cluster: RegentCluster) -> int:
    return sum(now == wanted for now, wanted in zip(assignments(cluster), TARGETS, strict=True))


def await_words(process: subprocess.Popen[str], words: str) -> None:
    assert process.stderr is not None
    guard = threading.Timer(TIMEOUT_S, process.kill)
    guard.start()
    try:
        for line in process.stderr:
            if words in line:
                return
    finally:
        guard.cancel()
    raise AssertionError(f"it never printed {words!r}")


def outcome(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], list[str]]:
    """Wait for the end of a process; return its exit status, its summary, and its messages."""
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, json.loads(out or "{}"), err.splitlines()


def test_a_plan_survives_the_receiving_broker_and_its_executor(cluster: RegentCluster, plan: Path):
    with executor(cluster, plan) as first:
        eventually(lambda: reached(cluster) >= 5, "some moves are complete")
        pid = cluster.pid(RECEIVER)
        cluster.signal(RECEIVER, signal.SIGKILL)
        cluster.await_end(RECEIVER, pid)
        first.kill()
    eventually(lambda: cluster.broker_epoch(RECEIVER) is None, "its registration is gone")

    with executor(cluster, plan) as second:
        await_words(second, "partitions to move")
        second.send_signal(signal.SIGINT)
        status, summary, said = outcome(second)
    assert (status, summary) == (130, {})
    assert [line.partition(" ")[0] for line in said if line] == ["interrupted;", "To", "To"]
    before = reached(cluster)
    assert 5 <= before < PARTITIONS

    with executor(cluster, plan) as third:
        cluster.start_broker(RECEIVER)
        status, summary, said = outcome(third)
    assert status == 0, said
    assert (summary["reached_before"], summary["moved"]) == (before, PARTITIONS - before)
    assert assignments(cluster) == TARGETS
    for p, state in cluster.partition_states("orders").items():
        assert set(state.leader_and_isr.isr) == set(TARGET[p])

    with executor(cluster, plan, "rollback") as back:
        status, summary, said = outcome(back)
    assert (status, summary["moved"]) == (0, PARTITIONS), said
    assert assignments(cluster) == [ReplicaAssignment(replicas) for replicas in BEFORE]
