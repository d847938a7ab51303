"""LeaderAndIsr, StopReplica and UpdateMetadata of a controller of Kafka, and their answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from regent.actors.broker import BrokerCallbacks
from regent.broker.api.control_requests import (
    ControlledBroker,
    control_apis,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import NO_EPOCH, UNKNOWN_BROKER_EPOCH, TopicPartition
from regent.core.ports import ControlFacts
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrType,
    StopReplicaPartition,
    UpdateMetadataEndPoint,
)
from regent.core.protocol.messages import control as kafka
from regent.core.replication.partition import Role
from regent.core.security.session import KafkaPrincipal, Session
from regent.transport.kafka.api import FIRST_FLEXIBLE_VERSION, KafkaApiKey, UnansweredRequestError
from regent.transport.kafka.message_codec import decoded, encoded
from tests.broker.api.canned_replicas import EXECUTOR
from tests.support.stage import Stage, actor_of
from tests.transport.kafka.test_control_messages import (
    LEADER_AND_ISR,
    STOP_REPLICA,
    UPDATE_METADATA,
)
from tests.transport.kafka.wire import SESSION, request_of, whole

BROKER, CONTROLLER, CONTROLLER_EPOCH, BROKER_EPOCH = 1, 9, 4, 70
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
KEYS = {
    kafka.LeaderAndIsrRequest: (KafkaApiKey.LEADER_AND_ISR, kafka.LeaderAndIsrResponse),
    kafka.StopReplicaRequest: (KafkaApiKey.STOP_REPLICA, kafka.StopReplicaResponse),
    kafka.UpdateMetadataRequest: (KafkaApiKey.UPDATE_METADATA, kafka.UpdateMetadataResponse),
}
EPOCHS: dict[str, Any] = {
    "controller_id": CONTROLLER,
    "controller_epoch": CONTROLLER_EPOCH,
    "broker_epoch": BROKER_EPOCH,
}


class Ruled:
    """Broker 1, which ZooKeeper tells that broker 9 of Kafka is the controller."""

    def __init__(self, stack: ExitStack) -> None:
        self._stage = stack.enter_context(Stage())
        self.facts = ControlFacts(CONTROLLER, CONTROLLER_EPOCH, BROKER_EPOCH)
        self.is_of_kafka: Callable[[int], bool] = lambda broker_id: broker_id == CONTROLLER
        self.ref = self._stage.broker(
            BROKER, callbacks=BrokerCallbacks(lambda _: None, self._read_facts)
        )
        actor = actor_of(self.ref)
        self.replicas, self.cache = actor.replica_manager, actor.cache
        self.has_partitions: Callable[[], bool] = lambda: True
        self._apis = control_apis(
            ControlledBroker(
                BROKER,
                self.ref,
                lambda b: self.is_of_kafka(b),
                lambda: self.has_partitions(),
                lambda: self.cache.snapshot.is_complete,
                EXECUTOR,
            )
        )

    def _read_facts(self, _: ControlHeader) -> ControlFacts:
        return self.facts

    def ask(self, message: Any, version: int | None = None, session: Session = SESSION) -> Any:
        """Return the answer to a message, in the newest version by default."""
        key, response = KEYS[type(message)]
        (api,) = [api for api in self._apis if api.key == key]
        version = api.max_version if version is None else version
        is_flexible = version >= FIRST_FLEXIBLE_VERSION[key]

        async def handled() -> bytes:
            body = encoded(message, version, is_flexible=is_flexible)
            return whole(await api.handle(request_of(key, version, body, session=session)))

        body = memoryview(asyncio.run(handled()))
        return decoded(response, body, version, is_flexible=is_flexible)

    def role(self, partition: int = 0) -> Role | None:
        hosted = self.replicas.partitions.get(TopicPartition("orders", partition))
        return None if hosted is None else hosted.role


@pytest.fixture
def ruled() -> Any:
    with ExitStack() as stack:
        yield Ruled(stack)


def lead(leader: int = BROKER, leader_epoch: int = 3, **more: Any) -> kafka.LeaderAndIsrRequest:
    state = kafka.LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=CONTROLLER_EPOCH,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=(BROKER, 2),
        partition_epoch=5,
        replicas=(BROKER, 2),
        is_new=True,
    )
    topic = kafka.LeaderAndIsrTopicState(
        topic_name="orders", topic_id=TOPIC_ID, partition_states=(state,)
    )
    request = kafka.LeaderAndIsrRequest(**EPOCHS, topic_states=(topic,), live_leaders=())
    return dataclasses.replace(request, **more)


def stop(leader_epoch: int = 3, **more: Any) -> kafka.StopReplicaRequest:
    row = kafka.StopReplicaPartitionState(
        partition_index=0, leader_epoch=leader_epoch, delete_partition=True
    )
    topic = kafka.StopReplicaTopicState(topic_name="orders", partition_states=(row,))
    request = kafka.StopReplicaRequest(**EPOCHS, topic_states=(topic,))
    return dataclasses.replace(request, **more)


def metadata(*partitions: int, **more: Any) -> kafka.UpdateMetadataRequest:
    rows = tuple(
        kafka.UpdateMetadataPartitionState(
            partition_index=number,
            controller_epoch=CONTROLLER_EPOCH,
            leader=BROKER,
            leader_epoch=3,
            isr=(BROKER, 2),
            zk_version=5,
            replicas=(BROKER, 2),
            offline_replicas=(),
        )
        for number in partitions
    )
    topic = kafka.UpdateMetadataTopicState(
        topic_name="orders", topic_id=TOPIC_ID, partition_states=rows
    )
    endpoint = kafka.UpdateMetadataEndpoint(
        port=9092, host="kafka", listener="PLAINTEXT", security_protocol=0
    )
    live = kafka.UpdateMetadataBroker(id=CONTROLLER, endpoints=(endpoint,), rack=None)
    request = kafka.UpdateMetadataRequest(
        **EPOCHS, topic_states=(topic,) if rows else (), live_brokers=(live,)
    )
    return dataclasses.replace(request, **more)


ALL = [lead(), stop(), metadata(0)]


# --- the values -----------------------------------------------------------------------------------


def test_orders_to_lead_are_the_same_in_both_protocols():
    request = leader_and_isr(LEADER_AND_ISR)
    ((partition, state),) = request.partitions()
    assert (partition, state.leader, state.leader_epoch, state.isr) == (("orders", 3), 1, 5, (1, 2))
    assert (state.partition_epoch, state.replicas) == (6, (1, 2, 3))
    assert (state.adding_replicas, state.removing_replicas) == ((3,), (2,))
    assert (state.is_new, state.leader_recovery_state, state.controller_epoch) == (True, 1, 4)
    assert request.topic_states[0].topic_id == LEADER_AND_ISR.topic_states[0].topic_id
    assert request.live_leaders[0].replication_endpoint == "tcp://localhost:9092"


@pytest.mark.parametrize(("kind", "is_full"), [(0, False), (1, False), (2, True)])
def test_only_kafkas_type_2_lists_all_partitions(kind: int, is_full: bool):
    request = leader_and_isr(dataclasses.replace(LEADER_AND_ISR, type=kind))
    assert (request.type is LeaderAndIsrType.FULL) is is_full
    assert (request.part, request.parts) == (0, 1)


def test_replicas_are_stopped_in_all_versions():
    new = stop_replica(dataclasses.replace(STOP_REPLICA, topics=()))
    assert [row for _, row in new.partitions()] == [
        StopReplicaPartition(3, -2, True),
        StopReplicaPartition(4, 5, False),
    ]
    old = stop_replica(dataclasses.replace(STOP_REPLICA, topic_states=()))
    assert [row for _, row in old.partitions()] == [
        StopReplicaPartition(3, NO_EPOCH, True),
        StopReplicaPartition(4, NO_EPOCH, True),
    ]


def test_live_brokers_of_kafkas_have_no_broker_epoch_and_no_control_port():
    request = update_metadata(UPDATE_METADATA)
    one, two = request.live_brokers
    assert one.endpoints == (
        UpdateMetadataEndPoint("PLAINTEXT", "localhost", 9092, "PLAINTEXT"),
        UpdateMetadataEndPoint("BROKERS", "::1", 9094, "SASL_SSL"),
    )
    assert (one.broker_epoch, one.control_endpoint) == (UNKNOWN_BROKER_EPOCH, None)
    assert (one.rack, two.rack) == ("east", None)
    ((_, row),) = request.partitions()
    assert (row.leader, row.partition_epoch, row.offline_replicas) == (-2, 6, (3,))


# --- the broker obeys -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 8))
def test_a_broker_leads_and_answers_by_names_or_ids(ruled: Ruled, version: int):
    answer = ruled.ask(lead(), version)
    assert ruled.role() is Role.LEADER
    assert answer.error_code == Errors.NONE
    if version < 5:
        (row,) = answer.partition_errors
        assert row.topic_name == "orders"
    else:
        (topic,) = answer.topics
        assert topic.topic_id == TOPIC_ID
        (row,) = topic.partition_errors
    assert (row.partition_index, row.error_code) == (0, Errors.NONE)


def test_a_repeated_order_is_answered_as_kafka_does(ruled: Ruled):
    ruled.ask(lead())
    (topic,) = ruled.ask(lead()).topics
    assert topic.partition_errors[0].error_code == Errors.STALE_CONTROLLER_EPOCH


@pytest.mark.parametrize("version", range(2, 5))
def test_a_replica_is_deleted(ruled: Ruled, version: int):
    ruled.ask(lead())
    old = kafka.StopReplicaTopicV1(name="orders", partition_indexes=(0,))
    answer = ruled.ask(stop(delete_partitions=True, topics=(old,)), version)
    assert answer.error_code == Errors.NONE
    assert [row.error_code for row in answer.partition_errors] == [Errors.NONE]
    assert ruled.role() is None


def test_an_old_leader_epoch_stops_nothing(ruled: Ruled):
    ruled.ask(lead())
    (row,) = ruled.ask(stop(leader_epoch=2)).partition_errors
    assert row.error_code == Errors.FENCED_LEADER_EPOCH
    assert ruled.role() is Role.LEADER


@pytest.mark.parametrize("version", range(5, 9))
def test_the_cluster_is_complete_with_the_first_partitions(ruled: Ruled, version: int):
    assert ruled.ask(metadata(), version).error_code == Errors.NONE
    before = ruled.cache.snapshot
    assert (before.controller_id, before.is_complete) == (CONTROLLER, False)
    ruled.ask(metadata(0), version)
    assert ruled.cache.snapshot.is_complete
    assert set(ruled.cache.snapshot.partitions) == {("orders", 0)}


def test_a_cluster_without_partitions_is_complete_at_once(ruled: Ruled):
    """Kafka serves such a cluster, in which clients create the first topics."""
    ruled.has_partitions = lambda: False
    ruled.ask(metadata())
    assert ruled.cache.snapshot.is_complete
    ruled.ask(metadata(0))
    ruled.ask(metadata(), 5)
    assert set(ruled.cache.snapshot.partitions) == {("orders", 0)}, "nothing is removed"


def test_without_zookeeper_a_list_without_partitions_must_come_again(ruled: Ruled):
    def fail() -> bool:
        raise SessionExpiredError("gone")

    ruled.has_partitions = fail
    with pytest.raises(UnansweredRequestError):
        ruled.ask(metadata())
    ruled.ask(metadata(0))
    ruled.ask(metadata())  # it knows all partitions, and asks nobody


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ALL)
@pytest.mark.parametrize(
    ("stale", "error"),
    [
        ({"broker_epoch": BROKER_EPOCH - 1}, Errors.STALE_BROKER_EPOCH),
        ({"broker_epoch": -1}, Errors.STALE_BROKER_EPOCH),
        ({"controller_epoch": CONTROLLER_EPOCH - 1}, Errors.STALE_CONTROLLER_EPOCH),
    ],
)
def test_old_epochs_are_refused(ruled: Ruled, asked: Any, stale: dict[str, int], error: Errors):
    ruled.ask(metadata())  # it is told both epochs
    answer = ruled.ask(dataclasses.replace(asked, **stale))
    assert answer.error_code == error
    assert ruled.role() is None
    if isinstance(asked, kafka.LeaderAndIsrRequest):
        assert [row.error_code for t in answer.topics for row in t.partition_errors] == [error]


@pytest.mark.parametrize("asked", ALL)
@pytest.mark.parametrize(
    "facts",
    [
        ControlFacts(2, CONTROLLER_EPOCH, BROKER_EPOCH),
        ControlFacts(-1, 0, UNKNOWN_BROKER_EPOCH),
        ControlFacts(CONTROLLER, CONTROLLER_EPOCH + 1, BROKER_EPOCH),
    ],
)
def test_a_controller_that_zookeeper_does_not_confirm_must_ask_again(
    ruled: Ruled, asked: Any, facts: ControlFacts
):
    ruled.facts = facts
    with pytest.raises(UnansweredRequestError):
        ruled.ask(asked)
    assert ruled.role() is None


@pytest.mark.parametrize("asked", ALL)
def test_a_controller_of_this_project_has_its_own_way(ruled: Ruled, asked: Any):
    """Else everybody who reaches the listener could act in the name of the active controller."""
    ruled.is_of_kafka = lambda _: False
    assert ruled.ask(asked).error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert ruled.role() is None


@pytest.mark.parametrize("asked", ALL)
def test_without_zookeeper_a_controller_must_ask_again(ruled: Ruled, asked: Any):
    def fail(_: int) -> bool:
        raise SessionExpiredError("gone")

    ruled.is_of_kafka = fail
    with pytest.raises(UnansweredRequestError):
        ruled.ask(asked)


@pytest.mark.parametrize("asked", ALL)
def test_the_user_of_another_broker_and_a_kraft_controller_are_refused(
    ruled: Ruled, asked: Any, caplog: pytest.LogCaptureFixture
):
    host = f"host-of-{type(asked).__name__}"  # each line comes once in ten seconds
    other = Session(host, KafkaPrincipal("User", "broker-2"))
    assert ruled.ask(asked, session=other).error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
    assert (
        f"from {host} is refused: the user is User:broker-2, and it acts as broker" in caplog.text
    )
    assert "KRaft" not in caplog.text
    of_kraft = dataclasses.replace(asked, is_k_raft_controller=True)
    assert ruled.ask(of_kraft).error_code == Errors.CLUSTER_AUTHORIZATION_FAILED
