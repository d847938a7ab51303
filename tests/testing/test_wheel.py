"""The wheel in an environment outside the checkout, beside programs with modules of our names."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from regent.testing.regent_cluster import CLUSTER_START_TIMEOUT_S
from regent.testing.waits import next_line, scaled
from tests.testing.conftest import LIBRARY, InstallWheel

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

COLLIDING = ("config", "core", "jobs", "run", "cli", "zk")
INSTALL_JOBS = "pip install 'regent-cluster[jobs]'"


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("REGENT_")},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )


@contextmanager
def running(command: list[str | Path], folder: Path) -> Iterator[str]:
    """Run a cluster for the block; yields its line beginning ``ready``."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        yield next_line(process, "the cluster is ready", CLUSTER_START_TIMEOUT_S)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=scaled(60))


def test_a_wheel_without_extras_runs_a_cluster_beside_modules_of_the_same_names(
    tmp_path: Path, install_wheel: InstallWheel, zookeeper_address: str
) -> None:
    environment = install_wheel()
    for name in COLLIDING:
        (environment / LIBRARY / f"{name}.py").write_text("raise SystemExit('not regent')")
    regent, folder = environment / "bin" / "regent", tmp_path / "elsewhere"
    folder.mkdir()
    options = ["--zookeeper", zookeeper_address, "--brokers", "1", "--base-port", "0"]

    with running([regent, "cluster", *options], folder) as ready:
        assert ready.startswith("ready: 1 broker on 127.0.0.1:")
        port = ready.partition("127.0.0.1:")[2].partition(";")[0]
        size = ["--partitions", "2", "--replication-factor", "1"]
        created = run([regent, "topics", "create", "t", *size], folder)
        assert created.stdout == "Created topic t (2 partitions, replication factor 1).\n"
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
        producer.produce("t", b"a record")
        assert producer.flush(scaled(20)) == 0
        refused = run([regent, "produce", "t"], folder)
    assert refused.returncode == 1
    assert refused.stderr.startswith("regent: the command produce needs confluent_kafka, which is")
    assert refused.stderr.endswith(f"{INSTALL_JOBS}\n")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["cluster"], "the embedded ZooKeeper server comes with PySpark, which is not installed"),
        (["cluster", "--placement-service"], "the placement service needs Spark, which is not"),
        (["jobs", "report", "balance"], "the command jobs balance needs "),
    ],
)
def test_a_command_that_needs_the_jobs_extra_names_the_remedy(
    tmp_path: Path, install_wheel: InstallWheel, arguments: list[str | Path], expected: str
) -> None:
    regent = install_wheel() / "bin" / "regent"

    refused = run([regent, *arguments], tmp_path)

    assert refused.returncode == 1
    last = refused.stderr.splitlines()[-1]
    assert expected in last
    assert INSTALL_JOBS in last
