"""The fixtures, as an application uses them: pytest in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from regent.testing import cluster
from regent.testing.janitor import processes_with
from regent.testing.regent_cluster import RegentCluster
from regent.testing.waits import await_end, eventually, next_line, scaled
from regent.zk.client.zookeeper_client import ZooKeeperClient
from tests.testing.conftest import InstallWheel

pytestmark = [pytest.mark.system, pytest.mark.zookeeper]

APPLICATION_TESTS = """
from confluent_kafka import Producer

def test_a_topic_has_leaders(regent_cluster, regent_topic):
    assert regent_cluster.leader_of(regent_topic) in regent_cluster.brokers


def test_another_replica_leads_when_the_leader_dies(regent_cluster, regent_topic):
    killed = regent_cluster.kill_leader_of(regent_topic)
    assert regent_cluster.leader_of(regent_topic) != killed


def test_the_next_test_has_a_whole_cluster(regent_cluster, regent_topics):
    topic = regent_topics(partitions=4, replication_factor=2, config={"retention.ms": "5000"})
    assert len(regent_cluster.partition_states(topic)) == 4
    regent_cluster.await_ready()
    former = regent_cluster.await_controller()
    assert regent_cluster.move_controller() != former


def test_a_test_may_leave_a_broker_shut_down(regent_cluster, regent_topic):
    regent_cluster.shut_down(regent_cluster.leader_of(regent_topic))


def test_a_pause_costs_the_leadership(regent_cluster, regent_topic):
    leader = regent_cluster.leader_of(regent_topic)
    regent_cluster.pause(leader)
    regent_cluster.await_leader(regent_topic, other_than=leader)
    regent_cluster.resume(leader)
    regent_cluster.await_isr(regent_topic, set(regent_cluster.brokers))


def test_a_full_disk_costs_the_leadership(regent_cluster, regent_topic):
    leader = regent_cluster.leader_of(regent_topic)
    regent_cluster.fill_disk(leader)
    regent_cluster.await_leader(regent_topic, other_than=leader)
    regent_cluster.restart(leader)
    regent_cluster.await_isr(regent_topic, set(regent_cluster.brokers))


def test_a_broker_cut_off_from_zookeeper_loses_the_leadership(regent_cluster, regent_topic):
    leader = regent_cluster.leader_of(regent_topic)
    regent_cluster.cut(leader, from_="zookeeper")
    regent_cluster.await_leader(regent_topic, other_than=leader)
    regent_cluster.reconnect(leader, to="zookeeper")
    regent_cluster.await_isr(regent_topic, regent_cluster.brokers)


def test_a_follower_cut_off_from_its_leader_leaves_the_isr(regent_cluster, regent_topic):
    leader = regent_cluster.leader_of(regent_topic)
    unsuitable = {leader, regent_cluster.await_controller()}  # it must hear of the new ISR
    follower = min(set(regent_cluster.brokers) - unsuitable)
    producer = Producer({"bootstrap.servers": regent_cluster.bootstrap_servers, "acks": "all"})
    regent_cluster.cut(follower, from_=leader)
    producer.produce(regent_topic, b"without the follower")
    assert producer.flush(20) == 0
    in_sync = set(regent_cluster.brokers) - {follower}
    regent_cluster.await_isr(regent_topic, in_sync, partition=0)
    regent_cluster.kill(follower)
    regent_cluster.restart(follower)
    regent_cluster.reconnect(follower)
    regent_cluster.await_isr(regent_topic, regent_cluster.brokers)


def test_without_zookeeper_leaders_continue(regent_cluster, regent_topic):
    leader = regent_cluster.leader_of(regent_topic)
    regent_cluster.stop_zookeeper()
    regent_cluster.start_zookeeper()
    assert regent_cluster.leader_of(regent_topic) == leader
"""


@pytest.mark.nightly
def test_an_application_uses_the_fixtures_of_an_installed_wheel(
    tmp_path: Path, install_wheel: InstallWheel
) -> None:
    python = install_wheel(extras=["jobs"], also=["pytest"]) / "bin" / "python"
    application = tmp_path / "application"
    application.mkdir()
    (application / "test_application.py").write_text(APPLICATION_TESTS)
    (application / "pytest.ini").write_text("[pytest]\nregent_config = brokers.toml\n")
    (application / "brokers.toml").write_text("[broker]\nreplica_lag_time_max_ms = 1000\n")

    ended = subprocess.run(
        [python, "-m", "pytest", "-q"],
        cwd=application,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=scaled(180),
        check=False,
    )

    assert "9 passed" in ended.stdout, ended.stdout + ended.stderr
    assert not list(tmp_path.glob("regent-*"))


def test_no_process_remains_when_the_tests_are_killed(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys\n"
        "from regent.testing import cluster\n"
        "with cluster(brokers=1) as running:\n"
        "    print(running.data_dir.parent, running.process.pid, running.pid(0), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=scaled(60),
        check=False,
    )
    folder, *pids = killed.stdout.split()

    assert killed.returncode == -signal.SIGKILL
    eventually(lambda: not Path(folder).exists(), "the folder is gone")
    for pid in map(int, pids):
        eventually(partial(_is_gone, pid), "the process is gone")


RUNNER = """
import multiprocessing, os, sys, time
from pathlib import Path
from regent.testing.regent_cluster import RegentCluster

cluster = RegentCluster(Path(sys.argv[1]), "--brokers", "3", "--no-placement-service")
multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,)).start()
cluster.kill(1, 2)
cluster.start_broker(1)
cluster.start_broker(2)
cluster.pause(0)
cluster.pause(1)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_of_a_cluster_remains_after_the_process_that_started_it(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Neither those that are paused nor ZooKeeper; a process that it forked lives on."""
    runner = subprocess.Popen(
        [sys.executable, "-c", RUNNER, str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert next_line(runner, "a cluster with faults", 90.0) == "ready\n"
        pids = list(processes_with(f"{tmp_path}/data/"))
        pids += processes_with(f"--data-dir\0{tmp_path}/data\0")
        pids += [g for pid in pids for g in processes_with(f"guardian\0--pid\0{pid}\0")]
        assert len(pids) > 7
        runner.send_signal(number)
        for pid in pids:
            eventually(partial(_is_gone, pid), f"process {pid} is gone")
        runner.wait(scaled(10.0))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(runner.pid, signal.SIGKILL)
        await_end(runner, "the process that started a cluster")


def test_a_broker_that_runs_is_not_started_twice_and_a_lost_session_is_replaced(
    tmp_path: Path,
) -> None:
    with RegentCluster(tmp_path, "--brokers", "1", "--no-placement-service") as running:
        with pytest.raises(ValueError, match=r"broker 0 runs already, as process \d+"):
            running.start_broker(0)
        running.kill(0)
        process = running.start_broker(0)
        with pytest.raises(ValueError, match=f"broker 0 runs already, as process {process.pid}"):
            running.start_broker(0)
        lost = running.zookeeper.credentials
        thief = ZooKeeperClient(
            running.description["zookeeper"], 10_000, on_watch=lambda _: None, credentials=lost
        )
        thief.start(scaled(10.0))
        thief.close()  # ends the session of both
        eventually(lambda: running.broker_epoch(0) is not None, "the broker is registered")
        assert running.zookeeper.credentials != lost


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_remains_when_the_tests_end_while_the_cluster_starts(
    tmp_path: Path, number: signal.Signals
) -> None:
    program = "from regent.testing import cluster\nwith cluster(brokers=1): pass\n"
    tests = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    eventually(lambda: _broker_in(tmp_path), "a broker starts")
    tests.send_signal(number)
    tests.wait(scaled(60.0))

    def is_clean() -> bool:
        return not list(tmp_path.iterdir()) and not list(processes_with(f"{tmp_path}/"))

    eventually(is_clean, "no process and no file is left", timeout_s=10)


def test_an_impossible_topic_or_broker_is_refused_at_once() -> None:
    with cluster(brokers=1) as running:
        for action, problem in (
            (partial(running.kill, 9), "there is no broker 9"),
            (partial(running.create_topic, "t", 0), "partitions must be at least 1"),
            (partial(running.create_topic, "t", 1, 2), "replication_factor must be 1 to 1"),
            (partial(running.create_topic, "t", config={"foo": "1"}), "foo is not a setting"),
        ):
            with pytest.raises(ValueError, match=problem):
                action()


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    program = (
        "import sys, regent.testing.plugin\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'kazoo', 'zmq', 'msgpack', 'pykka', 'click', 'pyspark', 'orjson'}))\n"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(60),
    )
    assert loaded.stdout == "[]\n"


def _broker_in(folder: Path) -> bool:
    commands = (Path(f"/proc/{pid}/cmdline") for pid in processes_with(f"{folder}/"))
    with suppress(FileNotFoundError):
        return any(b"\0broker\0" in command.read_bytes() for command in commands)
    return False


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False
