"""``cluster``: errors before anything is started."""

from __future__ import annotations

import fcntl
import importlib.util
import re
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from regent.cli.cluster import _by_broker, _defaults, cluster
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.config.cluster_location import CLUSTER_FILE, LOCK_FILE
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from tests.support.free_ports import free_ports


def refusal(*arguments: object) -> str:
    """Run the command, which must fail, and return its error."""
    result = CliRunner().invoke(cluster, [str(argument) for argument in arguments])
    assert result.exception is not None
    return result.output if isinstance(result.exception, SystemExit) else str(result.exception)


def test_a_port_in_use_is_named_with_a_remedy_and_no_directory_remains(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", *free_ports(1))) as taken:
        replication_port = taken.getsockname()[1]
        ports = ("--base-port", replication_port - 2_000)
        message = refusal("--data-dir", tmp_path / "new" / "data", *ports)
        refusal("--data-dir", tmp_path, *ports)
    assert not list(tmp_path.iterdir())
    assert re.match(r"port \d+ on 127.0.0.1 cannot be used .*: stop what listens there", message)


def test_zookeepers_port_in_use_can_serve_another_cluster_below_a_chroot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regent.cluster.cluster_plan._BELOW_KAFKA", 100)
    with socket.create_server(("127.0.0.1", *free_ports(1))) as taken:
        port = taken.getsockname()[1]
        message = refusal("--data-dir", tmp_path, "--base-port", port + 100)
    assert f"choose --zookeeper 127.0.0.1:{port}/NAME for a cluster of its own on" in message


def test_overlapping_ports_are_refused(tmp_path: Path) -> None:
    arguments = ("--data-dir", tmp_path, "--base-port", 0)
    same = ("--broker-setting", "0:port=7000", "--broker-setting", "2:metrics_port=7000")
    assert "port 7000 on 127.0.0.1 is needed twice" in refusal(*arguments, *same)


def test_the_ports_that_settings_name_are_checked_instead_of_the_derived_ones(
    tmp_path: Path,
) -> None:
    with (
        socket.create_server(("127.0.0.1", *free_ports(1))) as taken,
        socket.create_server(("127.0.0.2", 0)) as other,
    ):
        port, other_port = taken.getsockname()[1], other.getsockname()[1]
        moved = ("--broker-setting", f"0:replication_port={port + 1}")
        arguments = ("--data-dir", tmp_path, "--brokers", 1, "--base-port", port - 2_000, *moved)
        message = refusal(*arguments, "--broker-setting", f"0:control_port={port}")
        assert f"port {port} on 127.0.0.1 cannot be used" in message
        there = ("--broker-setting", "0:host=127.0.0.2", "--broker-setting", f"0:port={other_port}")
        assert f"port {other_port} on 127.0.0.2 cannot be used" in refusal(*arguments, *there)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (
            "num_partitions=-3",
            "broker 0: command line: broker.num_partitions must be a number from 1 to",
        ),
        ("num_partitions=many", "--broker-setting 0:num_partitions=many: 'many' is not a valid"),
        ("port=65536", "broker.port must be a number from 0 to 65535"),
        ("port=kafka", "'kafka' is not a valid integer"),
        ("host=0.0.0.0", "set broker.advertised_host"),
        ("auto_create_topics_enable=perhaps", "'perhaps' is not a valid boolean"),
        ("replica_fetch_wait_max_ms=2000", "must not exceed replica_lag_time_max_ms (1000)"),
        ("log_dirs=a,a", "names a directory twice"),
    ],
)
def test_the_values_of_settings_are_checked_before_anything_is_started(
    tmp_path: Path, setting: str, problem: str
) -> None:
    config = tmp_path / "cluster.toml"
    config.write_text("[broker]\nreplica_lag_time_max_ms = 1000\n")
    message = refusal(
        *("--data-dir", tmp_path / "data", "--base-port", 0, "--config", config),
        *("--broker-setting", f"0:{setting}"),
    )
    assert problem in message
    assert len(message.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [config]


@pytest.mark.parametrize(
    "arguments",
    [("--brokers", 0), ("--brokers", 101), ("--zookeeper-nodes", 2), ("--base-port", 65_000)],
)
def test_impossible_numbers_are_refused(arguments: Sequence[object]) -> None:
    assert "Invalid value" in refusal(*arguments)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("rack=a", "is not ID:NAME=VALUE, with a broker id from 0 to 2"),
        ("3:rack=a", "is not ID:NAME=VALUE"),
        ("-1:rack=a", "is not ID:NAME=VALUE"),
        ("1:rack", "is not ID:NAME=VALUE"),
        ("1:rak=a", "'rak' is not a setting; see docs/configuration.md"),
    ],
)
def test_a_setting_of_no_broker_is_refused(tmp_path: Path, setting: str, problem: str) -> None:
    assert problem in refusal("--data-dir", tmp_path, "--broker-setting", setting)


@pytest.mark.parametrize("racks", ["a,b,c,d", "a,,b", ","])
def test_racks_that_fit_no_brokers_are_refused(tmp_path: Path, racks: str) -> None:
    message = refusal("--data-dir", tmp_path, "--racks", racks)
    assert f"--racks {racks!r} is not a list of 1 to 3 racks, one for each broker" in message


def test_racks_are_given_in_turn_but_a_setting_of_a_broker_counts_more() -> None:
    assert _by_broker(["1:rack=z", "2:port=1"], "a,b", 4) == {
        0: {"rack": "a"},
        1: {"rack": "z"},
        2: {"rack": "a", "port": "1"},
        3: {"rack": "b"},
    }


def test_a_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (tmp_path / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711\n")
        lock.flush()
        message = refusal("--data-dir", tmp_path)
    assert message.startswith(f"another cluster (process 4711) runs on {tmp_path}: ")


def test_an_unusable_data_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert refusal("--data-dir", file, "--base-port", 0).startswith(f"{file} cannot be used")


def test_the_number_of_zookeeper_nodes_cannot_change(tmp_path: Path) -> None:
    for name in ("zookeeper-0", "zookeeper-0.bak", "zookeeper-old", "zookeeper-"):
        (tmp_path / name).mkdir()
    assert "with --zookeeper-nodes 1: use that" in refusal(
        "--data-dir", tmp_path, "--zookeeper-nodes", 3, "--base-port", 0
    )


def test_an_invalid_zookeeper_address_is_refused(tmp_path: Path) -> None:
    assert "::::" in refusal("--data-dir", tmp_path, "--zookeeper", "::::")


def test_without_pyspark_only_the_remedy_is_printed_and_no_directory_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = refusal("--data-dir", tmp_path / "data")
    assert message.startswith("the embedded ZooKeeper server comes with PySpark, which is not")
    message = refusal("--data-dir", tmp_path / "data", "--placement-service")
    assert message.startswith("the placement service needs Spark, which is not installed")
    assert not list(tmp_path.iterdir())


def test_a_local_cluster_has_suitable_defaults_unless_they_are_configured(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text("[broker]\ncontrolled_shutdown_retry_backoff_ms = 5000\n")
    assert _defaults(Settings(), 5, internal_topics=True) == {
        "controlled_shutdown_retry_backoff_ms": 200,
        "internal_topics_at_start": True,
        "offsets_topic_replication_factor": 3,
        "transaction_state_log_replication_factor": 3,
        "transaction_state_log_min_isr": 2,
    }
    assert _defaults(load_settings(path, {}), 1, internal_topics=False) == {
        "internal_topics_at_start": False,
        "offsets_topic_replication_factor": 1,
        "transaction_state_log_replication_factor": 1,
        "transaction_state_log_min_isr": 1,
    }


def test_settings_are_checked_before_the_brokers_read_them(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[broker]\nhots = 'x'\n")
    assert "broker.hots is not a setting; did you mean host?" in refusal(
        "--data-dir", tmp_path, "--config", settings
    )


def test_leftover_processes_of_a_killed_cluster_are_awaited(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as left_over:
        broker = BrokerEntry(0, left_over.pid, "127.0.0.1", 9092, 10092, 11092, 12092)
        ClusterFile(tmp_path / CLUSTER_FILE, "127.0.0.1:2181", brokers={0: broker}).write()
        (tmp_path / LOCK_FILE).touch()
        assert left_over.stdin is not None
        threading.Timer(0.1, left_over.stdin.close).start()
        try:
            refusal("--data-dir", tmp_path, "--zookeeper", "::::")
            assert left_over.poll() == 0
        finally:
            left_over.kill()
