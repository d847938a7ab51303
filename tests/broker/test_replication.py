"""Replication between brokers of one process, over real sockets."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from regent.actors.broker import Broker, BrokerCallbacks, BrokerStatus, BrokerView
from regent.actors.runtime import launch, stop_actor
from regent.actors.scheduler import Scheduler, monotonic_ms
from regent.broker.machine_settings import filled
from regent.broker.replication import Replication
from regent.config.settings import Settings
from regent.config.settings_file import load_settings
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.client import ACKS_ALL, ProducedPartition
from regent.core.replica_logs import ReplicaLogs
from regent.core.replication.replica_manager import ReplicaManager
from regent.core.replication.replication_settings import ReplicationSettings
from regent.storage.log_manager import LogManager
from regent.testing.waits import scaled
from regent.transport.control.server import PortInUseError
from regent.transport.control.sockets import Context
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.free_ports import on_free_ports
from tests.support.keys import context_for_test
from tests.support.memory_logs import MemoryLogs
from tests.support.record_batches import batch, values_of
from tests.support.replicas import PARTITION, alive, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, ask, facts_of

STOPS_AT_ONCE_S = scaled(1.0)
LAG_MS = 200
QUICK: dict[str, Any] = {"replica_lag_time_max_ms": LAG_MS, "replica_fetch_wait_max_ms": 20}
PATIENT: dict[str, Any] = {"replica_fetch_wait_max_ms": 30_000}


class Replicas:
    """Brokers with everything for replication, and without the rest of their processes."""

    def __init__(self, context: Context, undo: ExitStack, stage: Stage) -> None:
        self._context = context
        self._undo = undo
        self._stage = stage
        self._views: dict[int, BrokerView] = {}
        self._endpoints: dict[int, str] = {}

    def start(
        self, broker_id: int, logs: ReplicaLogs | None = None, **settings: object
    ) -> Replication:
        config = on_free_ports(
            load_settings(None, {"broker": {"isr_change_protocol": "zookeeper", **settings}})
        )
        replication, broker = self._start(broker_id, logs or MemoryLogs(), config)
        (port,) = replication.listen(broker).values()
        self._endpoints[broker_id] = f"tcp://127.0.0.1:{port}"
        replication.propose_isrs(
            self._stage.controller(broker_id), FakeZooKeeper(self._stage.zookeeper)
        )
        return replication

    def _start(
        self, broker_id: int, logs: ReplicaLogs, config: Settings
    ) -> tuple[Replication, BrokerView]:
        scheduler = Scheduler(f"scheduler-{broker_id}")
        self._undo.callback(scheduler.shutdown)
        replication = Replication(self._context, broker_id, config, scheduler)
        broker = Broker(
            broker_id,
            logs,
            BrokerStatus(),
            BrokerCallbacks(lambda _: None, facts_of, on_isrs_proposed=replication.wake),
            open_fetch_channel=replication.open_fetch_channel,
            scheduler=scheduler,
            settings=filled(ReplicationSettings, config),
        )
        self._views[broker_id] = broker.view
        self._undo.callback(stop_actor, launch(broker, TIMEOUT_S), TIMEOUT_S)
        self._undo.callback(replication.stop)
        return replication, broker.view

    def lead(self, isr: tuple[int, ...]) -> None:
        """Let broker 1 lead and broker 2 follow."""
        self._stage.put_state(PARTITION, 1, isr)
        for view in self._views.values():
            ask(view.ref, alive(self._endpoints))
            ask(view.ref, lead_and_follow(1, (1, 2), isr=isr))

    def isr(self) -> tuple[int, ...]:
        """Return the ISR in the leader's memory."""
        return self.manager(1).partitions[PARTITION].isr

    def manager(self, broker_id: int) -> ReplicaManager:
        """Return the replica manager of a broker."""
        return self._views[broker_id].replica_manager

    def produce(self, *values: bytes) -> ProducedPartition:
        """Produce a batch with acks=all; return the result."""
        outcomes: queue.Queue[Mapping[TopicPartition, ProducedPartition]] = queue.Queue()
        records = {PARTITION: batch(*values)}
        self.manager(1).produce(ACKS_ALL, records, monotonic_ms(), outcomes.put)
        return outcomes.get(timeout=TIMEOUT_S)[PARTITION]


@pytest.fixture
def replicas(stage: Stage) -> Iterator[Replicas]:
    context = context_for_test()
    with ExitStack() as undo:
        undo.callback(context.destroy, linger=0)
        yield Replicas(context, undo, stage)


def test_a_follower_joins_the_isr(stage: Stage, replicas: Replicas):
    replicas.start(1, **QUICK)
    replicas.start(2, **QUICK)
    replicas.lead(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))


def test_an_isr_member_that_does_not_fetch_is_removed(stage: Stage, replicas: Replicas):
    replicas.start(1, **QUICK)
    replicas.start(2, **QUICK).stop()
    replicas.lead(isr=(1, 2))
    stage.wait_for(lambda: replicas.isr() == (1,))


def test_a_batch_is_acknowledged_when_all_isr_members_have_it(stage: Stage, replicas: Replicas):
    logs = {1: MemoryLogs(), 2: MemoryLogs()}
    for broker_id, its_logs in logs.items():
        replicas.start(broker_id, its_logs, **PATIENT)
    replicas.lead(isr=(1, 2))
    large = bytes(300_000)
    for number, value in enumerate([b"one", large, b"three"]):
        outcome = replicas.produce(value)
        assert (outcome.error_code, outcome.base_offset) == (Errors.NONE, number)
    copies = [its_logs.log(PARTITION) for its_logs in logs.values()]
    assert [log.log_end_offset for log in copies] == [3, 3]
    everything = [log.read(0, 2**31, 3, at_least_one=True).read() for log in copies]
    assert [values_of(data) for data in everything] == [[b"one", large, b"three"]] * 2


def test_a_waiting_fetch_is_answered_by_the_append_and_not_by_a_timer(
    stage: Stage, replicas: Replicas
):
    replicas.start(1, **PATIENT)
    replicas.start(2, **PATIENT)
    replicas.lead(isr=(1, 2))
    replicas.produce(b"the fetcher is on its way from here on")
    started = monotonic()
    for _ in range(20):
        assert replicas.produce(b"x").error_code is Errors.NONE
    assert monotonic() - started < PATIENT["replica_fetch_wait_max_ms"] / 1000


def test_after_a_crash_of_both_brokers_acknowledged_records_are_on_both_disks(
    stage: Stage, replicas: Replicas, tmp_path: Path
):
    disks = [tmp_path / "1", tmp_path / "2"]
    managers = [LogManager([disk], number) for number, disk in enumerate(disks, start=1)]
    for number, logs in enumerate(managers, start=1):
        logs.open()
        replicas.start(number, logs, **PATIENT)
    replicas.lead(isr=(1, 2))
    values = [bytes([number]) * (100 if number % 5 else 100_000) for number in range(20)]
    assert [replicas.produce(value).base_offset for value in values] == list(range(20))
    crashed = [shutil.copytree(disk, tmp_path / f"crashed-{disk.name}") for disk in disks]
    for logs in managers:
        logs.close(is_clean=False)

    segment = f"{PARTITION}/{0:020d}.log"
    assert (crashed[0] / segment).read_bytes() == (crashed[1] / segment).read_bytes()
    for number, disk in enumerate(crashed, start=1):
        recovered = LogManager([disk], number)
        recovered.open()
        log = recovered.get(PARTITION)
        assert log is not None
        assert values_of(log.read(0, 2**31, 20, at_least_one=True).read()) == values
        recovered.close(is_clean=False)


def test_replication_stops_at_once_while_a_fetch_waits(stage: Stage, replicas: Replicas):
    leader = replicas.start(1, **PATIENT)
    follower = replicas.start(2, **PATIENT)
    replicas.lead(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))
    for replication in (follower, leader, leader):  # the second stop changes nothing
        started = monotonic()
        replication.stop()
        assert monotonic() - started < STOPS_AT_ONCE_S


def test_stopped_replication_leaves_no_threads(stage: Stage, replicas: Replicas):
    leader = replicas.start(1, **QUICK)
    follower = replicas.start(2, **QUICK)
    replicas.lead(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))
    follower.stop()
    leader.stop()
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith(("ReplicaFetcher", "replication-"))}
    assert not {name for name in names if name.endswith("zk-isr-manager")}


def test_a_port_in_use_is_named(stage: Stage, replicas: Replicas):
    replicas.start(1)
    (endpoint,) = replicas._endpoints.values()
    with pytest.raises(PortInUseError, match=endpoint.removeprefix("tcp://")):
        replicas.start(2, replication_port=int(endpoint.rpartition(":")[2]))
