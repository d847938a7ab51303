"""The actor that moves logs, with real logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from regent.actors.replica_alter_log_dirs_thread import CopyLogs, ReplicaAlterLogDirsThread
from regent.actors.runtime import start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.broker.machine_settings import dynamic_values
from regent.config.settings import Settings
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_alter_log_dirs_manager import ReplicaAlterLogDirsManager
from regent.core.replication.replica_manager import ReplicaManager
from regent.testing.waits import eventually, scaled
from tests.support.disk_logs import BATCH_BYTES, BROKER, T0, T1, Machine, fill, log_of, numbered
from tests.support.disk_logs import values as values_in
from tests.support.led_partitions import lead
from tests.support.world import live_broker

STARTED = dynamic_values(Settings())
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


class Host:
    """A broker that leads t-0 and t-1, which have ten records each, with the actor."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.logs = machine.start()
        self.replicas = ReplicaManager(BROKER, self.logs, MetadataCache())
        alive = live_broker(BROKER)
        lead(self.replicas, alive, {"t": 2}, (BROKER,))
        for name in (T0, T1):
            fill(log_of(self.logs, name), 10)
        self.manager = ReplicaAlterLogDirsManager(self.replicas, self.logs.moves)
        self.scheduler = Scheduler("scheduler")
        self.thread = start_actor(ReplicaAlterLogDirsThread, self.manager, self.scheduler)
        self.manager.on_begun = lambda: self.thread.tell(CopyLogs())

    def swap(self) -> None:
        """Ask for a move of each log to the directory of the other."""
        first, second = (str(path) for path in self.machine.directories)
        self.manager.alter({T0: second, T1: first})

    def close(self) -> None:
        """Stop the actor."""
        stop_actor(self.thread, scaled(10))
        self.scheduler.shutdown()
        self.machine.end()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(Machine(tmp_path / "a", tmp_path / "b"))
    yield host
    host.close()


def test_all_logs_are_moved(host: Host):
    host.swap()
    eventually(lambda: not host.logs.moves.moving(), "nothing is left to move")
    first, second = host.machine.directories
    assert log_of(host.logs, T0).directory.path == second
    assert log_of(host.logs, T1).directory.path == first
    assert values_in(log_of(host.logs, T0)) == numbered(0, 10)


def test_a_rate_limit_holds_the_copies_back_until_it_is_raised(host: Host):
    host.replicas.quotas.reconfigure(STARTED, {**STARTED, RATE: BATCH_BYTES})
    host.swap()
    eventually(lambda: _copied(host) > 0, "something is copied")
    assert len(host.logs.moves.moving()) == 2
    host.replicas.quotas.reconfigure({**STARTED, RATE: BATCH_BYTES}, STARTED)
    eventually(lambda: not host.logs.moves.moving(), "nothing is left to move")


def _copied(host: Host) -> int:
    moved = (host.logs.moves.get(name) for name in (T0, T1))
    return sum(found.future.log_end_offset for found in moved if found is not None)
