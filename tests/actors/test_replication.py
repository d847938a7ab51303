"""Replication between brokers of one process, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic

import pytest
from pykka import ActorRef

from actors.broker import Broker, BrokerStatus
from actors.machine_settings import replication_settings
from actors.replication import Replication
from actors.runtime import start_actor, stop_actor
from actors.scheduler import Scheduler
from config.settings import Settings, load_settings
from core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch
from storage.empty_logs import EmptyLogs
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.replicas import PARTITION, alive, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, ask
from transport.server import PortInUseError
from transport.sockets import Context, new_context
from zk.znodes import TopicPartitionStateZNode

STOPS_AT_ONCE_S = 1.0
LAG_MS = 200
QUICK = {"replica_lag_time_max_ms": LAG_MS, "replica_fetch_wait_max_ms": 20}
PATIENT = {"replica_fetch_wait_max_ms": 2_000}


class Replicas:
    """Brokers with all that replicates, without the rest of their processes."""

    def __init__(self, context: Context, undo: ExitStack, stage: Stage) -> None:
        self._context = context
        self._undo = undo
        self._stage = stage
        self._brokers: dict[int, ActorRef[Broker]] = {}
        self._endpoints: dict[int, str] = {}

    def start(self, broker_id: int, **settings: object) -> Replication:
        config = load_settings(None, {"broker": {"isr_change_protocol": "zookeeper", **settings}})
        replication, broker = self._start(broker_id, config)
        self._endpoints[broker_id] = replication.listen(broker)
        replication.propose_isrs(
            self._stage.controller(broker_id), FakeZooKeeper(self._stage.zookeeper)
        )
        return replication

    def _start(self, broker_id: int, config: Settings) -> tuple[Replication, ActorRef[Broker]]:
        scheduler = Scheduler(f"scheduler-{broker_id}")
        self._undo.callback(scheduler.shutdown)
        replication = Replication(self._context, broker_id, config, scheduler)
        broker = self._brokers[broker_id] = start_actor(
            Broker,
            TIMEOUT_S,
            broker_id,
            EmptyLogs(),
            BrokerStatus(),
            request_shutdown=lambda _: None,
            open_fetch_channel=replication.open_channel,
            scheduler=scheduler,
            settings=replication_settings(config),
            on_isrs_proposed=replication.wake,
        )
        self._undo.callback(stop_actor, broker, TIMEOUT_S)
        self._undo.callback(replication.stop)
        return replication, broker

    def order(self, isr: tuple[int, ...]) -> None:
        """Have broker 1 lead and broker 2 follow."""
        state = LeaderIsrAndControllerEpoch(LeaderAndIsr(1, isr), 1)
        self._stage.zookeeper.put(
            TopicPartitionStateZNode.path(PARTITION), TopicPartitionStateZNode.encode(state)
        )
        for broker in self._brokers.values():
            ask(broker, alive(self._endpoints))
            ask(broker, lead_and_follow(1, (1, 2), isr=isr))

    def isr(self) -> tuple[int, ...]:
        """Return the ISR as the leader knows it."""
        leader = self._brokers[1]._actor_weakref()
        assert leader is not None
        return leader.replica_manager.partitions[PARTITION].isr


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


@pytest.fixture
def replicas(stage: Stage) -> Iterator[Replicas]:
    context = new_context()
    with ExitStack() as undo:
        undo.callback(context.destroy, linger=0)
        yield Replicas(context, undo, stage)


def test_a_follower_joins_the_isr(stage: Stage, replicas: Replicas):
    replicas.start(1, **QUICK)
    replicas.start(2, **QUICK)
    replicas.order(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))


def test_a_member_of_the_isr_that_never_fetches_leaves_it(stage: Stage, replicas: Replicas):
    replicas.start(1, **QUICK)
    replicas.start(2, **QUICK).stop()
    replicas.order(isr=(1, 2))
    stage.wait_for(lambda: replicas.isr() == (1,))


def test_replication_stops_at_once_while_a_fetch_is_held(stage: Stage, replicas: Replicas):
    leader = replicas.start(1, **PATIENT)
    follower = replicas.start(2, **PATIENT)
    replicas.order(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))
    for replication in (follower, leader, leader):  # twice does no harm
        started = monotonic()
        replication.stop()
        assert monotonic() - started < STOPS_AT_ONCE_S


def test_nothing_is_left_of_it(stage: Stage, replicas: Replicas):
    leader = replicas.start(1, **QUICK)
    follower = replicas.start(2, **QUICK)
    replicas.order(isr=(1,))
    stage.wait_for(lambda: replicas.isr() == (1, 2))
    follower.stop()
    leader.stop()
    names = {thread.name for thread in threading.enumerate()}
    assert not {name for name in names if name.startswith(("ReplicaFetcher", "replication-"))}
    assert not {name for name in names if name.endswith("zk-isr-manager")}


def test_a_taken_port_is_named(stage: Stage, replicas: Replicas):
    replicas.start(1)
    (endpoint,) = replicas._endpoints.values()
    with pytest.raises(PortInUseError, match=endpoint):
        replicas.start(2, replication_port=int(endpoint.rpartition(":")[2]))
