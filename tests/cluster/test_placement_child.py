"""When the process of the placement service starts: on request, not soon after a failure."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import cast

from regent.cluster.child_process import ChildStartError, DeathPipe
from regent.cluster.cluster_file import PlacementEntry
from regent.cluster.cluster_plan import ClusterPlan
from regent.cluster.placement_child import PlacementChild
from regent.cluster.process_supervisor import ProcessSupervisor


class Processes:
    """Starts nothing, and counts."""

    def __init__(self) -> None:
        self.started = 0
        self.error: ChildStartError | None = None

    def start(self, child: object) -> None:
        if self.error is not None:
            raise self.error
        self.started += 1

    start_again = start


class Placement(PlacementChild):
    """A placement service whose clock is ``now``, without a process."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.processes = Processes()
        plan = ClusterPlan(
            program=("regent",),
            data_dir=folder,
            broker_count=1,
            base_port=0,
            zookeeper=None,
            zookeeper_nodes=1,
            session_timeout_ms=6_000,
            config=None,
            placement_service=True,
            restart=False,
        )
        super().__init__(plan, cast("DeathPipe", None), lambda: self.now)
        self.child = FakeChild()

    def ask(self) -> str:
        return self.start(cast("ProcessSupervisor", self.processes)).state


class FakeChild:
    """A process that has printed why it failed."""

    name, pid, ready, stdout = "placement service", 7, "tcp://127.0.0.1:1", None

    def launch(self) -> None:
        """Start nothing."""

    def read(self) -> bool:
        return False

    def poll(self) -> int | None:
        return None

    def send_signal(self, number: signal.Signals) -> None:
        """Nobody gets it."""

    def last_line(self) -> str | None:
        return "no Java"


def test_it_starts_once_and_again_after_it_was_idle(tmp_path: Path) -> None:
    placement = Placement(tmp_path)
    assert placement.entry.state == "idle"
    assert [placement.ask(), placement.ask()] == ["starting", "starting"]
    placement.is_ready()
    assert placement.ask() == "running"
    assert placement.processes.started == 1
    placement.has_ended(0)
    assert placement.entry.state == "idle"
    assert placement.ask() == "starting"
    assert placement.processes.started == 2


def test_after_each_failure_it_waits_longer(tmp_path: Path) -> None:
    placement = Placement(tmp_path)
    begun_at = []
    for _ in range(4):
        while placement.ask() == "failed":
            placement.now += 0.5
        begun_at.append(placement.now)
        placement.has_ended(1)
        assert placement.entry == PlacementEntry(message="no Java")
    assert begun_at == [0.0, 1.0, 3.0, 7.0]


def test_the_end_of_a_process_that_ran_long_is_no_reason_to_wait_longer(tmp_path: Path) -> None:
    placement = Placement(tmp_path)
    for _ in range(3):
        placement.ask()
        placement.now += 3_600
        placement.has_ended(-signal.SIGKILL)
        assert placement.entry.message == "its process ended by SIGKILL"
        placement.now += 1.0
    assert placement.ask() == "starting"


def test_a_process_that_cannot_be_launched_has_failed(tmp_path: Path) -> None:
    placement = Placement(tmp_path)
    placement.processes.error = ChildStartError("no memory")
    assert placement.ask() == "failed"
    assert placement.entry.message == "no memory"
    placement.processes.error = None
    assert placement.ask() == "failed", "not at once"
    placement.now += 1.0
    assert placement.ask() == "starting"
