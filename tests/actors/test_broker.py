from __future__ import annotations

import threading
from collections.abc import Collection

import pytest

from regent.actors.broker import (
    BrokerCallbacks,
    BrokerState,
    BrokerStatus,
    LogDirectoryFailed,
    Registered,
    ShrinkIsrs,
)
from regent.actors.control_request_check import ControlRequestReceived
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
from regent.core.replication.partition import Role
from regent.core.replication.replication_settings import ReplicationSettings
from tests.support.memory_logs import MemoryLogs
from tests.support.replicas import PARTITION, hosted_as, lead_and_follow
from tests.support.stage import TIMEOUT_S, Stage, actor_of, ask, facts_of


def become_leader(leader_epoch: int) -> LeaderAndIsrRequest:
    row = LeaderAndIsrPartition(0, 1, 3, leader_epoch, (3,), 0, (3,), (), (), True, 0)
    topic = LeaderAndIsrTopic("payments", None, (row,))
    return LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())


def test_a_request_with_an_earlier_broker_epoch_is_refused(stage: Stage):
    broker = stage.broker(3)
    broker.tell(Registered(20))
    stale = ControlRequestReceived(ControlHeader(0, 1, 10), become_leader(0))
    assert ask(broker, stale).error_code is Errors.STALE_BROKER_EPOCH
    future = ControlRequestReceived(ControlHeader(0, 1, 30), become_leader(0))  # ZooKeeper has it
    assert ask(broker, future).error_code is Errors.NONE


def test_describe_metadata_returns_the_metadata_cache(stage: Stage):
    broker = stage.broker(3)
    row = UpdateMetadataPartition(0, 1, 3, 0, (3,), 0, (3,), ())
    update = UpdateMetadataRequest((UpdateMetadataTopic("payments", None, (row,)),), ())
    ask(broker, ControlRequestReceived(ControlHeader(7, 4, -1), update))
    metadata = ask(broker, DescribeMetadataRequest())
    assert (metadata.controller_id, metadata.controller_epoch) == (7, 4)
    assert [(p.topic, p.partition, p.leader) for p in metadata.partitions] == [("payments", 0, 3)]
    assert ask(broker, DescribeMetadataRequest(("other",))).partitions == ()


def test_describe_metadata_returns_the_warnings_of_all_parts(stage: Stage):
    broker = stage.broker(3)
    actor = actor_of(broker)
    warnings: list[str] = []
    actor.status.add_warner(lambda: warnings)
    assert ask(broker, DescribeMetadataRequest()).warnings == ()
    warnings.append("clients are turned away")
    assert ask(broker, DescribeMetadataRequest()).warnings == ("clients are turned away",)


def test_a_shutdown_request_is_handled_by_the_main_thread(stage: Stage):
    broker = stage.broker(3)
    answer = broker.ask(ShutdownBrokerRequest(), block=False)
    ask(broker, DescribeMetadataRequest())  # the actor continues meanwhile
    (reply,) = stage.shutdown_requests
    assert reply is not None
    reply.set(ShutdownBrokerResponse(Errors.NONE))
    assert answer.get(timeout=TIMEOUT_S) == ShutdownBrokerResponse(Errors.NONE)


def test_the_proposal_callback_is_called_after_each_event_that_may_propose_an_isr(stage: Stage):
    proposed = threading.Semaphore(0)
    callbacks = BrokerCallbacks(lambda _: None, facts_of, on_isrs_proposed=proposed.release)
    broker = stage.broker(3, callbacks=callbacks)
    ask(broker, ControlRequestReceived(ControlHeader(0, 1, -1), become_leader(0)))
    assert proposed.acquire(timeout=TIMEOUT_S)
    broker.tell(ShrinkIsrs())
    assert proposed.acquire(timeout=TIMEOUT_S)


def test_an_isr_member_that_does_not_fetch_is_proposed_for_removal(stage: Stage):
    lag = ReplicationSettings(replica_lag_time_max_ms=1)
    broker = stage.broker(3, settings=lag)
    ask(broker, lead_and_follow(3, (3, 4), isr=(3, 4)))
    actor = actor_of(broker)
    proposals: list[AlterPartitionRequest] = []

    def is_proposed() -> bool:
        ask(broker, DescribeMetadataRequest())  # an answer means that the ISR has been checked
        request = actor.replica_manager.alter_partition_request()
        proposals.extend([request] if request else [])
        broker.tell(ShrinkIsrs())
        return bool(proposals)

    stage.wait_for(is_proposed)
    assert [row.new_isr for row in proposals[0].partitions] == [(3,)]


def test_a_broker_that_is_shutting_down_does_not_return_to_running():
    status = BrokerStatus()
    status.become(BrokerState.RUNNING_AS_CONTROLLER)
    status.become(BrokerState.PENDING_CONTROLLED_SHUTDOWN)
    status.become(BrokerState.RUNNING_AS_BROKER)
    assert status.state is BrokerState.PENDING_CONTROLLED_SHUTDOWN


# --- logs ---


class Configs:
    """Records the reads of topic configurations; each entry is the topics of one read."""

    def __init__(self) -> None:
        self.reads: list[list[str]] = []
        self.is_session_over = False

    def load(self, topics: Collection[str]) -> None:
        if self.is_session_over:
            raise SessionExpiredError("there is no session")
        self.reads.append(list(topics))


def lead(*topics: str, topic_id: str | None = None) -> ControlRequestReceived:
    """Return a LeaderAndIsr request: lead two partitions of each topic, in epoch 0."""
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


def test_configurations_are_read_in_bulk_and_only_before_logs_are_created(stage: Stage):
    configs, logs = Configs(), MemoryLogs()
    logs.get_or_create(TopicPartition("orders", 0), "id-1", is_new=True)
    logs.get_or_create(TopicPartition("orders", 1), "id-1", is_new=True)
    callbacks = BrokerCallbacks(lambda _: None, facts_of, load_topic_configs=configs.load)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    ask(broker, lead("refunds", "orders", "payments", topic_id="id-1"))
    ask(broker, lead("refunds", "orders", topic_id="id-1"))
    assert configs.reads == [["payments", "refunds"], []]
    ask(broker, lead("orders", topic_id="id-2"))
    assert configs.reads[2:] == [["orders"]], "a new topic of the same name"


def test_a_request_whose_topic_configurations_cannot_be_read_fails(stage: Stage):
    configs, logs = Configs(), MemoryLogs()
    configs.is_session_over = True
    callbacks = BrokerCallbacks(lambda _: None, facts_of, load_topic_configs=configs.load)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    with pytest.raises(SessionExpiredError):
        ask(broker, lead("orders"))
    assert logs.hosted() == {}
    configs.is_session_over = False
    response = ask(broker, lead("orders"))
    assert {e.error_code for e in response.partition_errors} == {Errors.NONE}


class Throttles:
    """Replaces the configuration listener; counts the calls of ``catch_up``."""

    def __init__(self) -> None:
        self.catch_ups = 0
        self.is_session_over = False

    def catch_up(self) -> None:
        if self.is_session_over:
            raise SessionExpiredError("there is no session")
        self.catch_ups += 1


@pytest.mark.parametrize("leader", [3, 4], ids=["leader", "follower"])
def test_throttles_are_read_before_a_replica_is_added_and_not_before_an_election(
    stage: Stage, leader: int
):
    throttles = Throttles()
    callbacks = BrokerCallbacks(lambda _: None, facts_of, catch_up_with_configs=throttles.catch_up)
    broker = stage.broker(3, callbacks=callbacks)
    actor = actor_of(broker)

    def apply(leader_epoch: int, adding: tuple[int, ...], replicas: tuple[int, ...]) -> int:
        """Apply a request; return how often the broker caught up."""
        before = throttles.catch_ups
        row = LeaderAndIsrPartition(
            0, 1, leader, leader_epoch, (4, 3), 0, replicas, adding, (), False, 0
        )
        topic = LeaderAndIsrTopic(PARTITION.topic, None, (row,))
        request = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (topic,), ())
        received = ControlRequestReceived(ControlHeader(0, 1, -1), request)
        assert ask(broker, received).partition_errors[0].error_code is Errors.NONE
        return throttles.catch_ups - before

    assert apply(0, (), (4, 3)) == 0
    throttles.is_session_over = True
    with pytest.raises(SessionExpiredError):
        apply(1, (5,), (4, 3, 5))
    assert actor.replica_manager.partitions[PARTITION].leader_epoch == 0
    throttles.is_session_over = False
    assert apply(1, (5,), (4, 3, 5)) == 1
    throttles.is_session_over = True
    assert apply(2, (5,), (4, 3, 5)) == 0, "an election during the reassignment"
    throttles.is_session_over = False
    assert apply(3, (5, 6), (4, 3, 5, 6)) == 1, "another reassignment"
    assert apply(4, (), (4, 3, 5, 6)) == 0


def test_a_broker_reads_its_throttle_before_it_follows_a_new_partition(stage: Stage):
    throttles = Throttles()
    callbacks = BrokerCallbacks(lambda _: None, facts_of, catch_up_with_configs=throttles.catch_up)
    broker = stage.broker(3, callbacks=callbacks)
    row = LeaderAndIsrPartition(0, 1, 4, 7, (4,), 0, (4, 3), (3,), (), True, 0)
    topic = LeaderAndIsrTopic(PARTITION.topic, None, (row,))
    request = LeaderAndIsrRequest(LeaderAndIsrType.FULL, (topic,), ())
    ask(broker, ControlRequestReceived(ControlHeader(0, 1, -1), request))
    assert throttles.catch_ups == 1


def test_replicas_of_a_failed_log_directory_stop_and_the_callback_is_called(stage: Stage):
    logs, notified = MemoryLogs(), threading.Event()
    callbacks = BrokerCallbacks(lambda _: None, facts_of, on_replicas_offline=notified.set)
    broker = stage.broker(3, logs=logs, callbacks=callbacks)
    ask(broker, lead_and_follow(3, (3, 4), isr=(3, 4)))
    actor = actor_of(broker)
    assert hosted_as(Role.LEADER, actor.replica_manager) == 1
    logs.fail([PARTITION])
    broker.tell(LogDirectoryFailed())
    assert notified.wait(TIMEOUT_S)
    assert hosted_as(Role.LEADER, actor.replica_manager) == 0
    assert hosted_as(Role.OFFLINE, actor.replica_manager) == 1
