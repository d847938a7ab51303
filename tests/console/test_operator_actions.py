"""What the console does to brokers of this machine: only to the processes that were started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from regent.client.cluster_connection import Cluster, ClusterLocation, open_session
from regent.cluster.cluster_file import BrokerEntry, ClusterFile
from regent.config.cluster_location import CLUSTER_FILE
from regent.console.cluster_view import BrokerRow, ClusterView
from regent.console.operator_actions import CHANGES_FILE, OperationError, offered, perform
from regent.testing.waits import scaled

SLEEP = "import time; time.sleep(600)"


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SLEEP, *arguments]) as started:
        try:
            yield started
        finally:
            started.kill()


def cluster_with(folder: Path, pid: int, ended: str = "") -> Cluster:
    file = ClusterFile(folder / CLUSTER_FILE, "127.0.0.1:1")
    file.brokers[0] = BrokerEntry(0, pid, "127.0.0.1", 1, 2, 3, 4, ended=ended, ended_ms=1)
    file.write()
    return Cluster(lambda: ClusterLocation("127.0.0.1:1", folder), open_session)


def test_a_broker_is_killed_and_it_is_written_down_by_whom(tmp_path: Path) -> None:
    with process("--data-dir", str(tmp_path / "broker-0")) as broker:
        cluster = cluster_with(tmp_path, broker.pid)
        assert (
            perform(cluster, "kill", {"target": "0"})
            == f"broker 0 (process {broker.pid}) was killed"
        )
        assert broker.wait(scaled(10)) == -signal.SIGKILL
    line = json.loads((tmp_path / CHANGES_FILE).read_text())
    assert (line["operation"], line["target"]) == ("kill", "0")
    assert line["user"]


def test_a_change_by_a_user_without_a_name_is_written_down_with_the_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with process("--data-dir", str(tmp_path / "broker-0")) as broker:
        perform(cluster_with(tmp_path, broker.pid), "kill", {"target": "0"})
    assert json.loads((tmp_path / CHANGES_FILE).read_text())["user"] == str(os.getuid())


@pytest.mark.parametrize("name", ["kill", "stop", "pause", "resume"])
def test_a_process_that_has_the_id_of_a_broker_that_ended_is_left_alone(
    tmp_path: Path, name: str
) -> None:
    with process("--data-dir", "/elsewhere/broker-0") as stranger:
        cluster = cluster_with(tmp_path, stranger.pid)
        with pytest.raises(OperationError, match="broker 0 does not run"):
            perform(cluster, name, {"target": "0"})
        assert stranger.poll() is None


def test_a_broker_that_is_known_to_have_ended_is_left_alone(tmp_path: Path) -> None:
    with process("--data-dir", str(tmp_path / "broker-0")) as broker:
        cluster = cluster_with(tmp_path, broker.pid, ended="by SIGKILL")
        with pytest.raises(OperationError, match="broker 0 does not run"):
            perform(cluster, "kill", {"target": "0"})
        assert broker.poll() is None


def test_operations_are_offered_for_processes_of_this_machine_only() -> None:
    here = ClusterView(0.0, "", Path("data"))
    runs, away = BrokerRow(0, True, process="process 1"), BrokerRow(0, False, process="process 1")
    assert offered(here, runs) == ("kill", "stop", "pause", "resume")
    assert offered(here, away) == ("start", "resume")
    assert offered(here, BrokerRow(0, True)) == ()
    assert offered(ClusterView(0.0, ""), runs) == ()
