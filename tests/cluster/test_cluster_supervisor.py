"""A cluster of stand-ins for brokers: how it starts, what it loses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from regent.cluster.cluster_file import PlacementEntry, placement_entry
from regent.cluster.cluster_plan import BrokerPorts, ClusterPlan
from regent.cluster.cluster_supervisor import (
    ClusterStartError,
    ClusterSupervisor,
)
from regent.cluster.running_cluster import read_controller_id
from regent.cluster.supervisor_socket import (
    SOCKET_FILE,
    SupervisorError,
    start_brokers,
    start_placement,
)
from regent.config.addresses import port_of
from regent.testing.waits import eventually, next_line, scaled
from regent.zk.client.operations import Create
from regent.zk.client.zookeeper_client import ZooKeeperClient
from regent.zk.znodes import ControllerZNode
from tests.support import fake_program

TIMEOUT_S = scaled(30.0)
PROGRAM = (sys.executable, str(Path(fake_program.__file__)))


class Run:
    """A run of a cluster; what it says decides what happens to it next."""

    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.announced: list[str] = []
        self.said: list[str] = []
        self.controller_id: int | None = None
        self.find_controller: Callable[[], int | None] = lambda: self.controller_id
        self.when_ready: list[Callable[[], None]] = [self.interrupt]
        self.when_said: dict[str, list[Callable[[], None]]] = {}
        self.snapshots: list[Any] = []  # of cluster.json
        self.ask_for_brokers: Callable[[str], set[int]] = lambda _: {0, 1, 2}

    def run(self) -> int:
        """Run the cluster to its end; return the exit status."""
        cluster = ClusterSupervisor(
            self.plan,
            announce=self._on_announced,
            say=self._on_said,
            find_controller=lambda _: self.find_controller(),
            ask_for_brokers=lambda endpoint: self.ask_for_brokers(endpoint),
        )
        guard = threading.Timer(TIMEOUT_S, self._give_up)
        guard.start()
        try:
            return cluster.run()
        finally:
            guard.cancel()
            guard.join(TIMEOUT_S)
            assert "TIMEOUT" not in self.said

    @staticmethod
    def interrupt() -> None:
        """Do what Ctrl-C does."""
        os.kill(os.getpid(), signal.SIGINT)

    def file(self) -> Any:
        """Return the content of cluster.json."""
        return json.loads((self.plan.data_dir / "cluster.json").read_text())

    def look(self) -> None:
        """Remember the content of cluster.json."""
        self.snapshots.append(self.file())

    def kill(self, broker_id: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a broker."""
        pids = {broker["id"]: broker["pid"] for broker in self.file()["brokers"]}
        os.kill(pids[broker_id], number)

    def misbehave(self, name: str, mode: str) -> None:
        """Choose how the child ``name`` behaves from its next start on."""
        (self.plan.data_dir / f"{name}.mode").write_text(mode)

    @property
    def stopped(self) -> list[str]:
        """Who ended in order, in the order they did."""
        return (self.plan.data_dir / "stopped").read_text().split()

    def _give_up(self) -> None:
        self.said.append("TIMEOUT")
        self.interrupt()

    def _on_announced(self, line: str) -> None:
        self.announced.append(line)
        for action in self.when_ready:
            action()

    def _on_said(self, line: str) -> None:
        self.said.append(re.sub(r"\d{2,}", "#", line))
        for words, actions in self.when_said.items():
            for action in actions if words in line else ():
                action()


@pytest.fixture
def a_run(tmp_path: Path) -> Run:
    plan = ClusterPlan(
        program=PROGRAM,
        data_dir=tmp_path,
        broker_count=3,
        base_port=0,
        zookeeper="127.0.0.1:1/nowhere",
        zookeeper_nodes=1,
        session_timeout_ms=6_000,
        config=None,
        placement_service=True,
        restart=False,
    )
    return Run(plan)


def test_a_cluster_that_serves_says_so_and_can_be_found(a_run: Run, tmp_path: Path) -> None:
    a_run.when_ready = [a_run.look, a_run.interrupt]
    assert a_run.run() == 0
    assert a_run.announced == [
        "ready: 3 brokers on 127.0.0.1:50000,50010,50020; "
        f"zookeeper 127.0.0.1:1/nowhere; data {tmp_path}"
    ]
    (content,) = a_run.snapshots
    pids = [broker.pop("pid") for broker in content["brokers"]]
    assert len(set(pids)) == 3
    assert content == {
        "zookeeper": "127.0.0.1:1/nowhere",
        "zookeeper_nodes": [],
        "brokers": [
            {
                "id": broker_id,
                "host": "127.0.0.1",
                "port": 50_000 + 10 * broker_id,
                "control_port": 50_001 + 10 * broker_id,
                "replication_port": 50_002 + 10 * broker_id,
                "metrics_port": 50_003 + 10 * broker_id,
                "control_key": "",
                "listeners": [],
            }
            for broker_id in range(3)
        ],
        "placement": {"pid": 0, "endpoint": "", "message": ""},
    }
    assert not (tmp_path / "cluster.json").exists()


def test_the_brokers_end_one_by_one_with_the_controller_last(a_run: Run) -> None:
    a_run.controller_id = 1

    def end() -> None:
        run_placement(a_run.plan.data_dir)
        a_run.interrupt()

    a_run.when_ready = [lambda: threading.Thread(target=end).start()]
    assert a_run.run() == 0
    assert a_run.stopped == ["broker-0", "broker-2", "broker-1", "placement-service"]


@pytest.mark.parametrize("error", [OSError(24, "none left"), RuntimeError("no thread"), "start"])
def test_brokers_end_in_order_whatever_happens_to_the_question_who_is_the_controller(
    a_run: Run, error: Exception | str
) -> None:
    def fail() -> None:
        raise error if isinstance(error, Exception) else ClusterStartError(error)

    a_run.find_controller = fail
    assert a_run.run() == 0
    assert a_run.stopped == ["broker-0", "broker-1", "broker-2"]


def test_brokers_end_in_order_after_an_unexpected_error_too(a_run: Run) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    a_run.when_ready = [fail]
    with pytest.raises(ZeroDivisionError):
        a_run.run()
    assert a_run.stopped == ["broker-0", "broker-1", "broker-2"]


def test_sigterm_ends_a_cluster_in_order_too(a_run: Run) -> None:
    a_run.when_ready = [lambda: os.kill(os.getpid(), signal.SIGTERM)]
    assert a_run.run() == 0
    assert a_run.stopped == ["broker-0", "broker-1", "broker-2"]


def test_a_cluster_is_ready_when_every_broker_knows_all_of_them(a_run: Run) -> None:
    told = {50_001: [{0, 1, 2}], 50_011: [set(), {0, 1}, {0, 1, 2, 7}], 50_021: [{2}, {2, 1, 0}]}
    a_run.ask_for_brokers = lambda endpoint: told[port_of(endpoint)].pop(0)
    a_run.when_ready = [lambda: a_run.said.append(str(told)), a_run.interrupt]
    assert a_run.run() == 0
    assert "{50001: [], 50011: [], 50021: []}" in a_run.said


def test_a_broker_that_dies_before_it_knows_all_of_them_is_named(a_run: Run) -> None:
    def kill(_: str) -> set[int]:
        a_run.kill(1)
        return {0}

    a_run.ask_for_brokers = kill
    with pytest.raises(ClusterStartError, match=r"^broker 1 .* ended by SIGKILL"):
        a_run.run()
    assert not a_run.announced


def test_a_changed_metrics_port_of_a_broker_is_reported(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, base_port=20_000)
    a_run.misbehave("broker-1", "metrics elsewhere")
    assert a_run.run() == 0
    assert "broker 1: port # for metrics is in use; they are on #" in a_run.said
    assert sum("for metrics" in line for line in a_run.said) == 1


def test_a_request_to_stop_while_it_starts_leaves_nothing(a_run: Run) -> None:
    a_run.misbehave("broker-2", "mute")
    a_run.when_said["starting 3 brokers"] = [a_run.interrupt]
    assert a_run.run() == 0
    assert not a_run.announced


def test_a_second_request_to_stop_kills_the_remaining_processes(a_run: Run) -> None:
    a_run.misbehave("broker-0", "deaf")
    a_run.when_said["press Ctrl-C again"] = [threading.Timer(0.4, a_run.interrupt).start]
    assert a_run.run() == 130
    assert not (a_run.plan.data_dir / "stopped").exists()


def test_a_broker_that_does_not_stop_is_killed_and_this_is_reported(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, broker_stop_timeout_s=0.05)
    a_run.misbehave("broker-1", "deaf")
    assert a_run.run() == 1
    assert "broker 1 (process #) is killed: it did not end in time" in a_run.said


def test_the_death_of_a_broker_is_reported_and_the_cluster_continues(a_run: Run) -> None:
    a_run.when_ready = [lambda: a_run.kill(1)]
    a_run.when_said["SIGKILL"] = [a_run.look, a_run.interrupt]
    assert a_run.run() == 0
    command = f"regent brokers start 1 --data-dir {a_run.plan.data_dir}"
    end = f"broker 1 (process #) ended by SIGKILL; to start it again: {command}"
    assert re.sub(r"\d{2,}", "#", end) in a_run.said
    assert listed(a_run.snapshots[0]) == [0, 1, 2]
    assert a_run.stopped == ["broker-0", "broker-2"]


def test_an_orderly_shutdown_of_a_broker_is_not_reported(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, restart=True)
    a_run.when_ready = [lambda: a_run.kill(1, signal.SIGTERM)]
    a_run.when_said["with status 0"] = [a_run.look, a_run.interrupt]
    assert a_run.run() == 0
    assert listed(a_run.snapshots[0]) == [0, 2]


def test_a_dead_broker_is_restarted_on_its_ports_on_request(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, restart=True, restart_backoff_s=0.01)
    a_run.when_ready = [a_run.look, lambda: a_run.kill(1)]
    a_run.when_said["is ready again"] = [a_run.look, a_run.interrupt]
    assert a_run.run() == 0
    assert any("1 (process #) ended by SIGKILL; starting it again" in line for line in a_run.said)
    before, after = (snapshot["brokers"][1] for snapshot in a_run.snapshots)
    assert before.pop("pid") != after.pop("pid")
    assert before == after


def test_a_restarted_broker_does_not_listen_on_its_advertised_port(a_run: Run) -> None:
    own = {1: {"advertised_port": "1"}}
    a_run.plan = replace(a_run.plan, restart=True, restart_backoff_s=0.01, broker_settings=own)
    commands: list[str] = []

    def note_command() -> None:
        pid = a_run.file()["brokers"][1]["pid"]
        commands.append(Path(f"/proc/{pid}/cmdline").read_text())

    a_run.when_ready = [note_command, lambda: a_run.kill(1)]
    a_run.when_said["is ready again"] = [note_command, a_run.interrupt]
    assert a_run.run() == 0
    first, second = (command.split("\0") for command in commands)
    assert first[first.index("--port") + 1] == second[second.index("--port") + 1] == "0"


def asked_to_start(a_run: Run, *broker_ids: int | None, broken: int | None = None) -> list[Any]:
    """Run the cluster; kill broker 1, end broker 2, ask for brokers one by one; return answers."""
    answers: list[Any] = []

    def ask() -> None:
        for broker_id in broker_ids:
            wanted = None if broker_id is None else (broker_id,)
            try:
                answers.append(start_brokers(a_run.plan.data_dir, wanted, TIMEOUT_S))
            except SupervisorError as error:
                answers.append(re.sub(r"\d{2,}", "#", str(error)))
        a_run.look()
        a_run.interrupt()

    later = () if broken is None else (lambda: a_run.misbehave(f"broker-{broken}", "fail"),)
    a_run.when_ready = [a_run.look, *later, lambda: a_run.kill(2, signal.SIGTERM)]
    a_run.when_said["with status 0"] = [lambda: a_run.kill(1)]
    a_run.when_said["SIGKILL"] = [lambda: threading.Thread(target=ask).start()]
    assert a_run.run() == 0
    return answers


def test_brokers_are_started_again_as_they_were_when_somebody_asks(a_run: Run) -> None:
    (started,) = asked_to_start(a_run, None)
    before, after = (snapshot["brokers"] for snapshot in a_run.snapshots)
    ended = {"ended": "", "ended_ms": 0}
    assert started == [{**entry, **ended} for entry in after[1:]]
    assert listed(a_run.snapshots[1]) == [0, 1, 2]
    for broker_id in (1, 2):
        assert before[broker_id].pop("pid") != after[broker_id].pop("pid")
    assert before == after
    assert sorted(a_run.stopped)[:4] == ["broker-0", "broker-1", "broker-2", "broker-2"]


def test_the_path_of_the_folder_may_be_longer_than_an_address(a_run: Run, tmp_path: Path) -> None:
    a_run.plan = replace(a_run.plan, data_dir=tmp_path / ("d" * 120))
    a_run.plan.data_dir.mkdir()
    (started,) = asked_to_start(a_run, 1)
    assert [entry["id"] for entry in started] == [1]


def test_one_broker_can_be_asked_for_and_only_one_that_does_not_run(a_run: Run) -> None:
    started, again, unknown, rest, nothing = asked_to_start(a_run, 1, 1, 7, None, None)
    assert [entry["id"] for entry in started] == [1]
    assert again == "broker 1 is already running, as process #"
    assert unknown == "there is no broker 7, only 0, 1, 2"
    assert [entry["id"] for entry in rest] == [2]
    assert nothing == []


def test_a_request_for_a_broker_gets_the_reason_why_it_cannot_start(a_run: Run) -> None:
    assert asked_to_start(a_run, 1, broken=1) == [
        "broker 1 ended while it started: the disk is on fire"
    ]


def test_an_invalid_request_gets_an_error(a_run: Run) -> None:
    answers = []

    def ask() -> None:
        for request in (b"nonsense\n", b"[]\n", b'{"start": ["1"]}\n'):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(TIMEOUT_S)
                connection.connect(str(a_run.plan.data_dir / SOCKET_FILE))
                connection.sendall(request)
                answers.append(json.loads(connection.makefile().readline()))
        a_run.interrupt()

    a_run.when_ready = [lambda: threading.Thread(target=ask).start()]
    assert a_run.run() == 0
    assert ["not understood" in answer["error"] for answer in answers] == [True, True, True]


def test_without_a_running_cluster_a_command_fails(tmp_path: Path) -> None:
    with pytest.raises(SupervisorError, match=f"no cluster runs on {tmp_path}"):
        start_brokers(tmp_path, None, TIMEOUT_S)
    (tmp_path / SOCKET_FILE).touch()  # of one that was killed
    with pytest.raises(SupervisorError, match=f"no cluster runs on {tmp_path}"):
        start_brokers(tmp_path, None, TIMEOUT_S)


def test_the_placement_service_starts_when_a_broker_asks_and_again_after_its_end(
    a_run: Run,
) -> None:
    a_run.plan = replace(a_run.plan, restart_backoff_s=0.0)
    states: list[str] = []

    def ask() -> None:
        def until(state: str) -> PlacementEntry:
            def reached() -> PlacementEntry | None:
                entry = placement_entry(a_run.plan.data_dir / "cluster.json")
                return entry if entry is not None and entry.state == state else None

            entry = eventually(reached, f"the placement service is {state}", TIMEOUT_S)
            assert entry is not None
            states.append(entry.state)
            return entry

        for number in (signal.SIGTERM, signal.SIGKILL):
            until("idle")
            assert start_placement(a_run.plan.data_dir, TIMEOUT_S).state == "starting"
            running = until("running")
            assert start_placement(a_run.plan.data_dir, TIMEOUT_S) == running, "no second process"
            os.kill(running.pid, number)
        assert until("failed").message == "its process ended by SIGKILL"
        assert start_placement(a_run.plan.data_dir, TIMEOUT_S).state == "starting"
        a_run.interrupt()

    thread = threading.Thread(target=ask)
    a_run.when_ready = [thread.start]
    assert a_run.run() == 0
    thread.join(TIMEOUT_S)
    assert states == ["idle", "running", "idle", "running", "failed"]
    assert "placement service (process #) ended by SIGKILL" in a_run.said


def test_a_placement_service_that_cannot_start_says_why_and_the_cluster_goes_on(
    a_run: Run,
) -> None:
    a_run.plan = replace(a_run.plan, placement_at_once=True)
    a_run.misbehave("placement-service", "fail")
    a_run.when_ready = []
    entries: list[PlacementEntry | None] = []

    def look() -> None:
        entries.append(placement_entry(a_run.plan.data_dir / "cluster.json"))
        a_run.interrupt()

    a_run.when_said["the disk is on fire"] = [look]
    assert a_run.run() == 0
    assert "placement service (process #) ended with status 1: the disk is on fire" in a_run.said
    assert entries == [PlacementEntry(message="the disk is on fire")]


def test_a_cluster_without_a_placement_service_starts_none(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, placement_service=False)
    errors: list[str] = []

    def ask() -> None:
        try:
            start_placement(a_run.plan.data_dir, TIMEOUT_S)
        except SupervisorError as error:
            errors.append(str(error))
        a_run.interrupt()

    a_run.when_ready = [lambda: threading.Thread(target=ask).start()]
    assert a_run.run() == 0
    assert errors == ["this cluster was started without a placement service"]


def test_the_error_of_a_broker_that_cannot_start_is_printed_and_no_process_remains(
    a_run: Run,
) -> None:
    a_run.misbehave("broker-1", "fail")
    with pytest.raises(ClusterStartError, match=r"^broker 1 .* status 1: the disk is on fire$"):
        a_run.run()
    assert not a_run.announced
    assert not (a_run.plan.data_dir / "cluster.json").exists()


@pytest.fixture
def a_restarting_run(a_run: Run) -> Run:
    a_run.plan = replace(a_run.plan, restart=True, restart_backoff_s=0.01)
    return a_run


@pytest.mark.parametrize("fault", ["fail", "garbage"])
def test_with_restarts_the_others_serve_and_a_broker_that_cannot_start_is_tried_again(
    a_restarting_run: Run, fault: str
) -> None:
    a_run = a_restarting_run
    a_run.misbehave("broker-1", fault)
    a_run.when_ready = [a_run.look, lambda: a_run.misbehave("broker-1", "")]
    a_run.when_said["broker 1 is ready"] = [a_run.look, a_run.interrupt]
    assert a_run.run() == 0
    (line,) = a_run.announced
    assert line.startswith("ready: 2 of 3 brokers on 127.0.0.1:50000,50020; ")
    assert [listed(snapshot) for snapshot in a_run.snapshots] == [[0, 2], [0, 1, 2]]


def test_with_restarts_a_broker_whose_process_cannot_be_made_is_tried_again(
    a_restarting_run: Run,
) -> None:
    a_run = a_restarting_run
    in_the_way = a_run.plan.broker_dir(1)
    in_the_way.write_text("")
    a_run.when_ready = [in_the_way.unlink]
    a_run.when_said["broker 1 is ready"] = [a_run.interrupt]
    assert a_run.run() == 0
    assert any("broker 1 cannot be started" in line for line in a_run.said)


def test_with_restarts_too_a_cluster_without_any_broker_does_not_start(
    a_restarting_run: Run,
) -> None:
    for number in range(3):
        a_restarting_run.misbehave(f"broker-{number}", "fail")
    with pytest.raises(ClusterStartError, match=r"^broker . .* status 1: the disk is on fire$"):
        a_restarting_run.run()


def test_with_restarts_a_broker_that_dies_before_it_knows_all_of_them_is_started_again(
    a_restarting_run: Run,
) -> None:
    a_run = a_restarting_run
    deaths = [lambda: a_run.kill(1)]

    def kill_once(_: str) -> set[int]:
        while deaths:
            deaths.pop()()
        return {0, 1, 2} if any("broker 1" in line for line in a_run.said) else set()

    a_run.ask_for_brokers = kill_once
    assert a_run.run() == 0
    assert len(a_run.announced) == 1


def test_a_broker_that_sends_garbage_does_not_count_as_ready(a_run: Run) -> None:
    a_run.misbehave("broker-1", "garbage")
    with pytest.raises(ClusterStartError, match=r"broker 1 .* ended by SIGKILL"):
        a_run.run()
    assert any("the announcement of a broker: " in line for line in a_run.said)


def test_a_broker_has_its_own_settings_besides_those_of_all(a_run: Run) -> None:
    plan = replace(a_run.plan, broker_settings={1: {"control_port": "7", "rack": "b"}})
    ports = BrokerPorts(1, 2, 3, 4)
    first, second = (plan.broker_command(broker_id, ports, "") for broker_id in (0, 1))
    assert "--rack" not in first
    assert second[second.index("--rack") + 1] == "b"
    assert [command[command.index("--control-port") + 1] for command in (first, second)] == [
        "2",
        "7",
    ]


def test_ports_lie_a_thousand_apart_and_below_those_that_linux_gives_away(a_run: Run) -> None:
    plan = replace(a_run.plan, base_port=9092, zookeeper=None, zookeeper_nodes=3)
    assert plan.broker_ports(2) == BrokerPorts(9094, 10094, 11094, 12094)
    assert plan.zookeeper_ports() == [2181, 2182, 2183]
    assert replace(plan, base_port=0).zookeeper_ports() == [0, 0, 0]


@pytest.mark.parametrize(("base_port", "first"), [(9192, 2281), (7935, 1024), (7934, 11934)])
def test_zookeepers_ports_move_with_the_base_port_to_ports_for_users(
    a_run: Run, base_port: int, first: int
) -> None:
    plan = replace(a_run.plan, base_port=base_port, zookeeper=None, zookeeper_nodes=3)
    assert plan.zookeeper_ports() == [first, first + 1, first + 2]


def test_ports_of_settings_replace_the_derived_ones(a_run: Run) -> None:
    plan = replace(a_run.plan, broker_settings={1: {"control_port": "7", "metrics_port": "9"}})
    assert plan.broker_ports(1) == BrokerPorts(0, 7, 0, 9)
    assert plan.broker_ports(0) == BrokerPorts(0, 0, 0, 0)


@pytest.mark.zookeeper
def test_the_death_of_zookeeper_is_reported_with_the_command_that_restarts_it(a_run: Run) -> None:
    a_run.plan = replace(a_run.plan, zookeeper=None, zookeeper_heap_mb=99)

    def kill_zookeeper() -> None:
        (node,) = a_run.file()["zookeeper_nodes"]
        assert b"-Xmx99m" in Path(f"/proc/{node['pid']}/cmdline").read_bytes().split(b"\0")
        os.kill(node["pid"], signal.SIGKILL)

    a_run.when_ready = [kill_zookeeper]
    a_run.when_said["zookeeper 0 (process"] = [a_run.interrupt]
    assert a_run.run() == 0
    command = (
        f"regent zookeeper --data-dir {a_run.plan.data_dir}/zookeeper-0 --port 99 --heap-mb 99"
    )
    end = f"zookeeper 0 (process 99) ended by SIGKILL; to start it again: {command}"
    assert re.sub(r"\d{2,}", "#", end) in a_run.said


@pytest.mark.zookeeper
def test_the_controller_is_found_in_zookeeper(zookeeper_address: str) -> None:
    assert read_controller_id(zookeeper_address) is None
    client = ZooKeeperClient(zookeeper_address, 6_000, on_watch=lambda _: None)
    client.start(TIMEOUT_S)
    client.multi([Create(ControllerZNode.PATH, ControllerZNode.encode(7, 0), ephemeral=True)])
    assert read_controller_id(zookeeper_address) == 7
    client.close()


@pytest.mark.system
def test_nothing_outlives_a_cluster_that_is_killed(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as process:
        try:
            pidfds = [os.pidfd_open(pid) for pid in pids_of(tmp_path)]
        finally:
            process.kill()
    assert len(pidfds) == 4  # the ZooKeeper server, two brokers, the placement service
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], TIMEOUT_S)[0]
        os.close(pidfd)


@pytest.mark.system
def test_no_process_or_folder_of_an_interrupted_cluster_remains(tmp_path: Path) -> None:
    with start_cluster(tmp_path) as process:
        try:
            pids = pids_of(tmp_path)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert (tmp_path / "stopped").read_text().split()[-1] == "placement-service"


def run_placement(data_dir: Path) -> None:
    """Start the placement service; return when it listens."""
    start_placement(data_dir, TIMEOUT_S)

    def is_running() -> bool:
        entry = placement_entry(data_dir / "cluster.json")
        return entry is not None and entry.state == "running"

    eventually(is_running, "the placement service listens", TIMEOUT_S)


def listed(content: Any) -> list[int]:
    """Return the ids of the brokers cluster.json lists."""
    return [broker["id"] for broker in content["brokers"]]


def start_cluster(data_dir: Path) -> subprocess.Popen[bytes]:
    """Start a cluster of two stand-ins on a ZooKeeper of its own; return when it is ready."""
    source = f"""
import sys
from pathlib import Path
from regent.cluster.cluster_plan import ClusterPlan
from regent.cluster.cluster_supervisor import ClusterSupervisor
plan = ClusterPlan({PROGRAM!r}, Path({str(data_dir)!r}), 2, 0, None, 1, 6000, None, True, True)
supervisor = ClusterSupervisor(plan, announce=lambda line: print(line, flush=True), say=print,
    ask_for_brokers=lambda endpoint: [0, 1])
sys.exit(supervisor.run())
"""
    process = subprocess.Popen([sys.executable, "-c", source], bufsize=0, stdout=subprocess.PIPE)
    while line := next_line(process, "the cluster is ready", TIMEOUT_S):
        if line.startswith(b"ready: "):
            run_placement(data_dir)
            return process
    raise AssertionError(f"the cluster ended with status {process.wait(TIMEOUT_S)}")


def pids_of(data_dir: Path) -> list[int]:
    """Return the process ids of everything cluster.json lists."""
    content = json.loads((data_dir / "cluster.json").read_text())
    listed = [*content["zookeeper_nodes"], *content["brokers"], content["placement"]]
    return [entry["pid"] for entry in listed]
