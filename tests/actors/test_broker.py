from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from regent.actors.broker import (
    BrokerCallbacks,
    BrokerState,
    BrokerStatus,
    ControlRequestReceived,
    LogDirectoryFailed,
    Registered,
    ShrinkIsrs,
)
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import TopicPartition
from regent.core.protocol.broker import (
    DescribeMetadataRequest,
    ShutdownBrokerRequest,
    ShutdownBrokerResponse,
)
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.controller import AlterPartitionRequest
from regent.core.replication.replica_manager import ReplicationSettings
from tests.support.memory_logs import MemoryLogs
from tests.support.replicas import PARTITION, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, ask


@pytest.fixture
def stage():
    with Stage() as stage:
        yield stage


def become_leader(leader_epoch: int) -> LeaderAndIsrRequest:
    row = LeaderAndIsrPartition(0, 1, 3, leader_epoch, (3,), 0, (3,), (), (), True, 0)
    topic = LeaderAndIsrTopic("payments", None, (row,))
    return LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())


def test_a_broker_obeys_once_and_refuses_what_is_not_newer(stage: Stage):
    broker = stage.broker(3)
    request = ControlRequestReceived(ControlHeader(0, 1, -1), become_leader(0))
    obeyed = ask(broker, request)
    assert [e.error_code for e in obeyed.partition_errors] == [Errors.NONE]
    repeated = ask(broker, request)
    assert [e.error_code for e in repeated.partition_errors] == [Errors.STALE_CONTROLLER_EPOCH]


def test_a_request_for_an_earlier_life_is_refused(stage: Stage):
    broker = stage.broker(3)
    broker.tell(Registered(20))
    stale = ControlRequestReceived(ControlHeader(0, 1, 10), become_leader(0))
    assert ask(broker, stale).error_code is Errors.STALE_BROKER_EPOCH
    future = ControlRequestReceived(ControlHeader(0, 1, 30), become_leader(0))
    assert ask(broker, future).error_code is Errors.NONE


def test_it_tells_what_its_metadata_cache_holds(stage: Stage):
    broker = stage.broker(3)
    row = UpdateMetadataPartition(0, 1, 3, 0, (3,), 0, (3,), ())
    update = UpdateMetadataRequest((UpdateMetadataTopic("payments", None, (row,)),), ())
    broker.tell(ControlRequestReceived(ControlHeader(7, 4, -1), update))
    told = ask(broker, DescribeMetadataRequest())
    assert (told.controller_id, told.controller_epoch) == (7, 4)
    assert [(p.topic, p.partition, p.leader) for p in told.partitions] == [("payments", 0, 3)]
    assert ask(broker, DescribeMetadataRequest(("other",))).partitions == ()


def test_what_its_parts_warn_of_is_told(stage: Stage):
    broker = stage.broker(3)
    actor = broker._actor_weakref()
    assert actor is not None
    warnings: list[str] = []
    actor.status.add_warner(lambda: warnings)
    assert ask(broker, DescribeMetadataRequest()).warnings == ()
    warnings.append("clients are turned away")
    assert ask(broker, DescribeMetadataRequest()).warnings == ("clients are turned away",)


def test_a_shutdown_request_is_left_to_the_main_thread(stage: Stage):
    broker = stage.broker(3)
    answer = broker.ask(ShutdownBrokerRequest(), block=False)
    ask(broker, DescribeMetadataRequest())  # it goes on working meanwhile
    (reply,) = stage.shutdown_requests
    assert reply is not None
    reply.set(ShutdownBrokerResponse(Errors.NONE))
    assert answer.get(timeout=TIMEOUT_S) == ShutdownBrokerResponse(Errors.NONE)


def test_whatever_may_propose_an_isr_is_followed_by_a_call(stage: Stage):
    proposed = threading.Semaphore(0)
    callbacks = BrokerCallbacks(lambda _: None, on_isrs_proposed=proposed.release)
    broker = stage.broker(3, callbacks=callbacks)
    broker.tell(ControlRequestReceived(ControlHeader(0, 1, -1), become_leader(0)))
    assert proposed.acquire(timeout=TIMEOUT_S)
    broker.tell(ShrinkIsrs())
    assert proposed.acquire(timeout=TIMEOUT_S)


def test_a_member_of_the_isr_that_never_fetched_is_proposed_to_leave_it(stage: Stage):
    lag = ReplicationSettings(replica_lag_time_max_ms=1)
    broker = stage.broker(3, settings=lag)
    ask(broker, lead_and_follow(3, (3, 4), isr=(3, 4)))
    actor = broker._actor_weakref()
    assert actor is not None
    proposals: list[AlterPartitionRequest] = []

    def is_proposed() -> bool:
        ask(broker, DescribeMetadataRequest())  # when this is answered, it has looked
        request = actor.replica_manager.alter_partition_request()
        proposals.extend([request] if request else [])
        broker.tell(ShrinkIsrs())
        return bool(proposals)

    stage.wait_for(is_proposed)
    assert [row.new_isr for row in proposals[0].partitions] == [(3,)]


def test_a_broker_that_shuts_down_never_runs_again():
    status = BrokerStatus()
    status.become(BrokerState.RUNNING_AS_CONTROLLER)
    status.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
    status.become(BrokerState.RUNNING_AS_BROKER)
    assert status.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN


# --- logs ---


class Configs:
    """What a broker reads of configurations; each entry is the topics of one read."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.is_session_over = False

    def load(self, topics: Collection[str]) -> None:
        if self.is_session_over:
            raise SessionExpiredError("there is no session")
        self.reads.append(list(topics))


def order(*topics: str, topic_id: str | None = None) -> ControlRequestReceived:
    """The order to lead two partitions of each topic, in the first epoch."""
    rows = tuple(
        LeaderAndIsrPartition(number, 1, 3, 0, (3,), 0, (3,), (), (), True, 0)
        for number in range(2)
    )
    request = LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL,
        tuple(LeaderAndIsrTopic(topic, topic_id, rows) for topic in topics),
        (),
    )
    return ControlRequestReceived(ControlHeader(0, 1, -1), request)


def test_configurations_are_read_in_bulk_before_logs_are_created_and_never_after(stage: Stage):
    configs, logs = Configs(), MemoryLogs()
    logs.get_or_create(TopicPartition("orders", 0), "id-1", is_new=True)
    logs.get_or_create(TopicPartition("orders", 1), "id-1", is_new=True)
    callbacks = BrokerCallbacks(lambda _: None, load_topic_configs=configs.load)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    ask(broker, order("refunds", "orders", "payments", topic_id="id-1"))
    ask(broker, order("refunds", "orders", topic_id="id-1"))
    assert configs.reads == [["payments", "refunds"], []]
    ask(broker, order("orders", topic_id="id-2"))
    assert configs.reads[2:] == [["orders"]], "a new topic of an old name"


def test_an_order_that_needs_configurations_nobody_can_read_is_not_obeyed(stage: Stage):
    configs, logs = Configs(), MemoryLogs()
    configs.is_session_over = True
    callbacks = BrokerCallbacks(lambda _: None, load_topic_configs=configs.load)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    with pytest.raises(SessionExpiredError):
        ask(broker, order("orders"))
    assert logs.hosted() == {}
    configs.is_session_over = False
    obeyed = ask(broker, order("orders"))
    assert {e.error_code for e in obeyed.partition_errors} == {Errors.NONE}


class Throttles:
    """Stands for the listener of configurations: whether somebody caught up before each role."""

    def __init__(self) -> None:
        self.catch_ups = 0
        self.is_session_over = False

    def catch_up(self) -> None:
        if self.is_session_over:
            raise SessionExpiredError("there is no session")
        self.catch_ups += 1


@pytest.mark.parametrize("leader", [3, 4], ids=["leader", "follower"])
def test_throttles_are_in_force_before_a_replica_is_added_and_failovers_wait_for_none(
    stage: Stage, leader: int
):
    throttles = Throttles()
    callbacks = BrokerCallbacks(lambda _: None, catch_up_with_configs=throttles.catch_up)
    broker = stage.broker(3, callbacks=callbacks)
    actor = broker._actor_weakref()
    assert actor is not None

    def obey(leader_epoch: int, adding: tuple[int, ...], replicas: tuple[int, ...]) -> int:
        """Return how often the broker caught up for a request that it obeyed."""
        before = throttles.catch_ups
        row = LeaderAndIsrPartition(
            0, 1, leader, leader_epoch, (4, 3), 0, replicas, adding, (), False, 0
        )
        topic = LeaderAndIsrTopic(PARTITION.topic, None, (row,))
        request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
        received = ControlRequestReceived(ControlHeader(0, 1, -1), request)
        assert ask(broker, received).partition_errors[0].error_code is Errors.NONE
        return throttles.catch_ups - before

    assert obey(0, (), (4, 3)) == 0
    throttles.is_session_over = True
    with pytest.raises(SessionExpiredError):
        obey(1, (5,), (4, 3, 5))
    assert actor.replica_manager.partitions[PARTITION].leader_epoch == 0
    throttles.is_session_over = False
    assert obey(1, (5,), (4, 3, 5)) == 1
    throttles.is_session_over = True
    assert obey(2, (5,), (4, 3, 5)) == 0, "an election during the move"
    throttles.is_session_over = False
    assert obey(3, (5, 6), (4, 3, 5, 6)) == 1, "another move"
    assert obey(4, (), (4, 3, 5, 6)) == 0


def test_a_broker_that_is_added_has_its_throttle_before_it_follows(stage: Stage):
    throttles = Throttles()
    callbacks = BrokerCallbacks(lambda _: None, catch_up_with_configs=throttles.catch_up)
    broker = stage.broker(3, callbacks=callbacks)
    row = LeaderAndIsrPartition(0, 1, 4, 7, (4,), 0, (4, 3), (3,), (), True, 0)
    topic = LeaderAndIsrTopic(PARTITION.topic, None, (row,))
    request = LeaderAndIsrRequest(LeaderAndIsrType.FULL, (topic,), ())
    ask(broker, ControlRequestReceived(ControlHeader(0, 1, -1), request))
    assert throttles.catch_ups == 1


def test_when_a_log_directory_fails_its_replicas_stop_and_it_is_told(stage: Stage):
    logs, told = MemoryLogs(), threading.Event()
    callbacks = BrokerCallbacks(lambda _: None, on_replicas_offline=told.set)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    ask(broker, lead_and_follow(3, (3, 4), isr=(3, 4)))
    actor = broker._actor_weakref()
    assert actor is not None
    assert actor.replica_manager.leader_count == 1
    logs.fail([PARTITION])
    broker.tell(LogDirectoryFailed())
    assert told.wait(TIMEOUT_S)
    assert actor.replica_manager.leader_count == 0
    assert actor.replica_manager.offline_replica_count == 1
