"""Brokers that start, fail, restart, change address or have an unreadable registration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller.effects import AddBroker, Effect, RemoveBroker
from regent.core.controller.events import LeaderAndIsrResponseReceived
from regent.core.controller.services import ControllerSettings
from regent.core.controller.states import PartitionState, ReplicaState
from regent.core.errors import Errors
from regent.core.model import (
    NO_EPOCH,
    NO_LEADER,
    BrokerInfo,
    PartitionAndReplica,
    ReplicaAssignment,
    SuspectReplicas,
    TopicPartition,
)
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    PartitionError,
    StopReplicaPartition,
    UpdateMetadataRequest,
)
from regent.zk.znodes import BrokerIdZNode
from tests.support.controller_parts import (
    Candidate,
    ControllerParts,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
    requests,
    stop_replica_rows,
)
from tests.support.world import T0, T1, World, broker_info, topic_id

U0 = TopicPartition("u", 0)
FULL, INCREMENTAL = LeaderAndIsrType.FULL, LeaderAndIsrType.INCREMENTAL


@pytest.fixture
def parts() -> ControllerParts:
    parts = ControllerParts(brokers=(1, 2, 3))
    parts.lead(T0, (1, 2, 3), leader=1, isr=(1, 2, 3))
    parts.lead(T1, (2, 3, 1), leader=2, isr=(2, 3, 1))
    return parts


def change(parts: ControllerParts) -> list[object]:
    parts.brokers.on_broker_change()
    return list(parts.effects())


def scribble(parts: ControllerParts, broker_id: int, data: bytes = b"not JSON") -> None:
    parts.zookeeper.put(BrokerIdZNode.path(broker_id), data)


# --- starting -------------------------------------------------------------------------------------


def test_every_registered_broker_gets_a_channel_when_a_term_begins(parts: ControllerParts) -> None:
    fresh = ControllerParts(brokers=())
    registrations = [fresh.register(broker_id) for broker_id in (10, 9)]
    scribble(fresh, 8)
    fresh.brokers.load()
    assert fresh.effects() == [AddBroker(r) for r in reversed(registrations)]
    assert fresh.context.live_or_shutting_down_broker_ids == [9, 10]


def test_a_new_broker_gets_the_full_state_and_other_brokers_its_addresses(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (1, 4), leader=1, isr=(1,))
    registration = parts.register(4)
    parts.context.replicas_on_offline_dirs[4] = {T0}
    parts.brokers.on_broker_change()
    effects = parts.effects()
    assert of_type(effects, AddBroker) == [AddBroker(registration)]
    assert kinds(effects)[:5] == [
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (3, "UpdateMetadata"),
        (4, "UpdateMetadata"),
        (4, "LeaderAndIsr"),
    ]
    first = requests(effects)[0].request
    assert isinstance(first, UpdateMetadataRequest)
    assert [b.broker_id for b in first.live_brokers] == [1, 2, 3, 4]
    assert first.topic_states == (), "KAFKA-7537"
    assert sorted(metadata_rows(effects)[4]) == [T0, T1]
    full = requests(effects)[4].request
    assert isinstance(full, LeaderAndIsrRequest)
    assert full.type is FULL
    assert [partition for partition, _ in full.partitions()] == [T0]
    assert parts.context.replicas_on_offline_dirs == {}


def test_a_new_broker_without_replicas_gets_an_empty_full_request(parts: ControllerParts) -> None:
    parts.register(4)
    parts.brokers.on_broker_change()
    (full,) = [s.request for s in parts.sent() if isinstance(s.request, LeaderAndIsrRequest)]
    assert full == LeaderAndIsrRequest(FULL, (), ())


def test_a_new_broker_leads_the_partitions_that_waited_for_it(parts: ControllerParts) -> None:
    u0, u1 = TopicPartition("u", 0), TopicPartition("u", 1)
    parts.lead(u0, (4,), leader=NO_LEADER, isr=(4,), state=PartitionState.OFFLINE)
    parts.assign(u1, (4,))
    parts.register(4)
    parts.brokers.on_broker_change()
    assert parts.leads(u0) == (4, (4,), 1)
    assert parts.leads(u1) == (4, (4,), 0)
    assert leader_and_isr_rows(parts.effects())[4][u1].is_new


def test_an_unchanged_broker_list_sends_nothing(parts: ControllerParts) -> None:
    assert change(parts) == []


# --- failing --------------------------------------------------------------------------------------


def test_a_failed_leader_is_replaced_and_leaves_every_isr(parts: ControllerParts) -> None:
    parts.context.shutting_down_broker_ids.add(1)
    parts.context.replicas_on_offline_dirs[1] = {T1}
    parts.unregister(1)
    parts.brokers.on_broker_change()
    effects = parts.effects()
    assert effects[0] == RemoveBroker(1)
    assert parts.leads(T0) == (2, (2, 3), 1)
    assert parts.leads(T1) == (2, (2, 3), 1)
    assert parts.replica_state(T0, 1) is ReplicaState.OFFLINE
    assert parts.context.shutting_down_broker_ids == set()
    assert parts.context.replicas_on_offline_dirs == {}
    assert {b for b, _ in kinds(effects)} == {2, 3}
    last = requests(effects)[-1].request
    assert isinstance(last, UpdateMetadataRequest)
    assert [b.broker_id for b in last.live_brokers] == [2, 3]
    assert metadata_rows(effects)[3][T1].offline_replicas == (1,)


def test_a_broker_that_reports_no_sound_replica_may_lead_a_new_partition(
    parts: ControllerParts,
) -> None:
    all_suspect = replace(
        parts.context.registrations[1], suspects=SuspectReplicas(sound=frozenset())
    )
    parts.context.add_live_broker(all_suspect)
    parts.assign(U0, (1, 2))
    parts.context.put_partition_state(U0, PartitionState.NEW)
    for replica in (1, 2):
        parts.put_replica_state(U0, replica, ReplicaState.ONLINE)
    parts.partitions.trigger_online_partition_state_change()
    assert parts.leads(U0) == (1, (1, 2), 0)
    parts.unregister(2)
    parts.brokers.on_broker_change()
    assert parts.leads(U0) == (1, (1,), 1), "an offline replica leaves the ISR of a sound leader"


def test_a_partition_waits_for_its_last_isr_member(parts: ControllerParts) -> None:
    parts.lead(T0, (1, 2), leader=1, isr=(1,))
    parts.unregister(1)
    parts.brokers.on_broker_change()
    assert parts.leads(T0) == (NO_LEADER, (1,), 1)
    assert parts.context.partition_state(T0) is PartitionState.OFFLINE
    assert parts.context.offline_partition_count == 1
    parts.register(1)
    parts.brokers.on_broker_change()
    assert parts.leads(T0) == (1, (1,), 2)
    assert parts.context.offline_partition_count == 0


def test_the_failure_of_a_broker_without_replicas_is_sent_to_the_others(
    parts: ControllerParts,
) -> None:
    parts.register(4)
    change(parts)
    parts.unregister(4)
    parts.brokers.on_broker_change()
    assert metadata_rows(parts.effects()) == {1: {}, 2: {}, 3: {}}, "KAFKA-13225"


def test_the_last_isr_is_stored_when_all_brokers_fail(parts: ControllerParts) -> None:
    parts.unregister(1, 2, 3)
    parts.brokers.on_broker_change()
    leader, isr, _ = parts.leads(T0)
    assert leader == NO_LEADER
    assert len(isr) == 1
    assert parts.sent() == []


# --- restarting -----------------------------------------------------------------------------------


def test_a_restart_with_the_same_id_is_handled_as_a_failure_and_a_start(
    parts: ControllerParts,
) -> None:
    parts.unregister(1)
    registration = parts.register(1, incarnation=2)
    parts.brokers.on_broker_change()
    effects = parts.effects()
    channel = [e for e in effects if isinstance(e, AddBroker | RemoveBroker)]
    assert channel == [RemoveBroker(1), AddBroker(registration)]
    assert parts.leads(T0) == (2, (2, 3), 1)
    to_1 = [s for s in requests(effects) if s.broker_id == 1]
    assert {s.header.broker_epoch for s in to_1} == {registration.broker_epoch}
    assert effects.index(to_1[0]) > effects.index(channel[1])
    rows = leader_and_isr_rows(effects)[1]
    assert {p: row.leader for p, row in rows.items()} == {T0: 2, T1: 2}
    assert [s.request.type for s in to_1 if isinstance(s.request, LeaderAndIsrRequest)] == [FULL]


def test_failed_and_restarted_brokers_are_not_elected_for_each_other(
    parts: ControllerParts,
) -> None:
    parts.lead(T0, (2, 1, 3), leader=2, isr=(2, 1, 3))
    before = len(parts.zookeeper.transactions)
    parts.unregister(1, 2)
    parts.register(2)
    parts.brokers.on_broker_change()
    assert parts.leads(T0)[0] == 3
    written = repr(parts.zookeeper.transactions[before:])
    assert '"leader":1,' not in written
    assert '"leader":3,' in written


def test_brokers_that_restart_together_lead_again(parts: ControllerParts) -> None:
    parts.unregister(1, 2, 3)
    for broker_id in (1, 2, 3):
        parts.register(broker_id)
    parts.brokers.on_broker_change()
    leader, isr, _ = parts.leads(T0)
    assert leader in isr
    assert parts.context.partitions_with_offline_leader() == []


def test_a_registration_older_than_the_known_one_is_not_a_restart(parts: ControllerParts) -> None:
    known = parts.context.registrations[1]
    parts.context.add_live_broker(type(known)(known.info, known.broker_epoch + 1000))
    assert change(parts) == []


# --- changed addresses ----------------------------------------------------------------------------


def test_new_client_addresses_are_sent_to_all_brokers(parts: ControllerParts) -> None:
    old = broker_info(2)
    moved = type(old)(
        2,
        (type(old.endpoints[0])("PLAINTEXT", "elsewhere", 1),),
        control_endpoint=old.control_endpoint,
        replication_endpoint=old.replication_endpoint,
    )
    scribble(parts, 2, BrokerIdZNode.encode(moved))
    parts.brokers.on_broker_modifications(2)
    effects = parts.effects()
    assert kinds(effects) == [(b, "UpdateMetadata") for b in (1, 2, 3)]
    request = requests(effects)[0].request
    assert isinstance(request, UpdateMetadataRequest)
    assert request.live_brokers[1].endpoints[0].host == "elsewhere"
    assert parts.context.registrations[2].info.endpoints == moved.endpoints


def kafka_broker(broker_id: int) -> BrokerInfo:
    return BrokerInfo(broker_id, broker_info(broker_id).endpoints)


def test_a_broker_of_kafka_is_told_everything_at_its_new_address(parts: ControllerParts) -> None:
    """It is reached at one of its listeners."""
    of_kafka = kafka_broker(2)
    scribble(parts, 2, BrokerIdZNode.encode(of_kafka))
    parts.brokers.on_broker_modifications(2)
    parts.effects()
    moved = type(of_kafka)(2, (type(of_kafka.endpoints[0])("PLAINTEXT", "elsewhere", 1),))
    scribble(parts, 2, BrokerIdZNode.encode(moved))
    parts.brokers.on_broker_modifications(2)
    effects = parts.effects()
    (channel,) = of_type(effects, AddBroker)
    assert channel.registration.info == moved
    assert sorted(leader_and_isr_rows(requests(effects))[2]) == [T0, T1]


def kafka_returns(parts: ControllerParts, broker_id: int) -> list[Effect]:
    """Let a broker of Kafka start again; return what it causes."""
    parts.unregister(broker_id)
    change(parts)
    parts.zookeeper.put(
        BrokerIdZNode.path(broker_id), BrokerIdZNode.encode(kafka_broker(broker_id))
    )
    parts.brokers.on_broker_change()
    return parts.effects()


def refuse(parts: ControllerParts, effects: list[Effect], partition: TopicPartition) -> None:
    """Let broker 3 answer the last LeaderAndIsr that its log is of an earlier topic."""
    header, request = leader_and_isr_requests(effects, 3)[-1]
    error = PartitionError(*partition, Errors.INCONSISTENT_TOPIC_ID)
    answer = LeaderAndIsrResponse(Errors.NONE, (error,))
    event = LeaderAndIsrResponseReceived(3, header, request, answer)
    parts.responses.on_leader_and_isr(event)


def test_a_broker_of_kafka_deletes_the_log_of_an_earlier_topic_and_begins_again(
    parts: ControllerParts,
) -> None:
    effects = kafka_returns(parts, 3)
    before = parts.leads(T0)
    assert before[1] == (1, 2)
    refuse(parts, effects, T0)
    effects = parts.effects()
    assert stop_replica_rows(effects) == {3: {T0: StopReplicaPartition(0, NO_EPOCH, True)}}
    of_three = [kind for broker, kind in kinds(effects) if broker == 3]
    assert of_three.index("StopReplica") < of_three.index("LeaderAndIsr")
    assert leader_and_isr_rows(effects)[3][T0].leader_epoch == before[2] + 1
    assert parts.leads(T0) == (before[0], before[1], before[2] + 1)


def test_a_member_of_the_isr_keeps_the_log_of_an_earlier_topic(parts: ControllerParts) -> None:
    """If the topic's znode was lost, and clients made the topic again, it has the lost records."""
    effects = kafka_returns(parts, 3)
    parts.lead(T0, (1, 2, 3), leader=1, isr=(1, 3))
    refuse(parts, effects, T0)
    assert parts.effects() == []


def test_a_new_control_address_gets_a_new_channel_and_the_full_state(
    parts: ControllerParts,
) -> None:
    scribble(parts, 2, BrokerIdZNode.encode(broker_info(2, incarnation=2)))
    parts.brokers.on_broker_modifications(2)
    effects = parts.effects()
    (channel,) = of_type(effects, AddBroker)
    assert channel.registration.info.control_endpoint == "tcp://host-2:19002"
    assert effects.index(RemoveBroker(2)) < effects.index(channel)
    after = requests(effects[effects.index(channel) :])
    assert sorted(leader_and_isr_rows(after)[2]) == [T0, T1]
    assert sorted(metadata_rows(after)[2]) == [T0, T1]


def test_a_missed_address_change_is_found_at_the_next_broker_change(
    parts: ControllerParts,
) -> None:
    scribble(parts, 2, BrokerIdZNode.encode(broker_info(2, incarnation=2)))
    parts.register(4)
    channels = [e.registration.info for e in change(parts) if isinstance(e, AddBroker)]
    assert [(info.broker_id, info.control_endpoint) for info in channels] == [
        (4, broker_info(4).control_endpoint),
        (2, "tcp://host-2:19002"),
    ]


def test_a_registration_rewritten_without_a_change_sends_nothing(parts: ControllerParts) -> None:
    scribble(parts, 2, BrokerIdZNode.encode(broker_info(2)))
    parts.brokers.on_broker_modifications(2)
    assert parts.effects() == []


def test_a_modification_event_of_a_missing_broker_is_handled_as_its_failure(
    parts: ControllerParts,
) -> None:
    parts.unregister(1)
    parts.brokers.on_broker_modifications(1)
    assert parts.context.live_or_shutting_down_broker_ids == [2, 3]
    assert parts.leads(T0)[0] == 2


# --- unreadable registrations ---------------------------------------------------------------------


def test_a_known_broker_keeps_its_state_while_its_registration_is_unreadable(
    parts: ControllerParts,
) -> None:
    scribble(parts, 1)
    parts.brokers.on_broker_modifications(1)
    assert change(parts) == []
    assert parts.context.live_or_shutting_down_broker_ids == [1, 2, 3]
    assert parts.leads(T0) == (1, (1, 2, 3), 0)


def test_a_new_broker_with_an_unreadable_registration_is_added_when_it_is_readable(
    parts: ControllerParts,
) -> None:
    parts.register(4)
    scribble(parts, 4)
    assert change(parts) == []
    scribble(parts, 4, BrokerIdZNode.encode(broker_info(4)))
    parts.brokers.on_broker_modifications(4)
    assert parts.context.live_or_shutting_down_broker_ids == [1, 2, 3, 4]
    assert [r.registration.info.broker_id for r in of_type(parts.effects(), AddBroker)] == [4]


# --- failed log directories -----------------------------------------------------------------------


def test_replicas_in_a_failed_log_directory_are_replaced(parts: ControllerParts) -> None:
    parts.context.replicas_on_offline_dirs[1] = {T0}
    parts.brokers.on_replicas_become_offline([PartitionAndReplica(T0, 1)])
    assert parts.leads(T0) == (2, (2, 3), 1)
    assert parts.leads(T1) == (2, (2, 3, 1), 0), "the broker's other directory works"
    effects = parts.effects()
    assert (1, "StopReplica") in kinds(effects)
    assert metadata_rows(effects)[1][T0].offline_replicas == (1,)


def test_no_leader_is_elected_for_a_topic_queued_for_deletion(parts: ControllerParts) -> None:
    parts.context.queue_topic_deletion(["t"])
    parts.unregister(1)
    parts.brokers.on_broker_change()
    assert parts.leads(T0) == (1, (1, 2, 3), 0)
    assert parts.replica_state(T0, 1) is ReplicaState.ONLINE


def test_a_broker_that_failed_since_the_last_look_is_not_elected(parts: ControllerParts) -> None:
    parts.services.settings.unclean_leader_election_enable = True
    parts.lead(T0, (1, 2), leader=NO_LEADER, isr=(1,), state=PartitionState.OFFLINE)
    parts.context.remove_live_broker(1)
    parts.unregister(1, 2)
    parts.register(4)
    parts.brokers.on_broker_change()
    assert parts.leads(T0) == (NO_LEADER, (1,), 0)


# --- sending the full state again -----------------------------------------------------------------


def test_a_broker_can_get_the_full_state_again_through_a_new_channel(
    parts: ControllerParts,
) -> None:
    parts.brokers.send_complete_state(3)
    effects = parts.effects()
    assert effects[:2] == [RemoveBroker(3), AddBroker(parts.context.registrations[3])]
    assert kinds(effects) == [(3, "UpdateMetadata"), (3, "LeaderAndIsr")] + [
        (b, "UpdateMetadata") for b in (1, 2, 3)
    ]
    assert sorted(metadata_rows(effects)[3]) == [T0, T1]
    assert sorted(leader_and_isr_rows(effects)[3]) == [T0, T1]


def test_the_full_state_contains_a_replica_that_is_being_added(parts: ControllerParts) -> None:
    moving = ReplicaAssignment((3, 1), adding_replicas=(3,), removing_replicas=(1,))
    parts.lead(T0, moving, leader=1, isr=(1,))
    parts.put_replica_state(T0, 3, ReplicaState.NEW)  # the first request was dropped
    parts.context.partitions_being_reassigned.add(T0)
    parts.brokers.send_complete_state(3)
    assert leader_and_isr_rows(parts.effects())[3][T0].is_new


# --- control requests after a failure -------------------------------------------------------------


@pytest.fixture
def crowd() -> Candidate:
    """Broker 0 is the active controller of three brokers with thirty partitions."""
    world = World((1, 2))
    world.put_topic("t", {p: ((p + 1) % 3, (p + 2) % 3, p % 3) for p in range(30)}, topic_id(77))
    candidate = Candidate(world, 0)
    candidate.start()
    candidate.catch_up()
    world.unregister(1)
    return candidate


def test_after_a_failure_every_broker_gets_each_partition_once(crowd: Candidate) -> None:
    sent = requests(crowd.catch_up())
    for kind, rows_each in ((LeaderAndIsrRequest, 30), (UpdateMetadataRequest, 30)):
        for broker_id in (0, 2):
            received = [
                s.request for s in sent if s.broker_id == broker_id and type(s.request) is kind
            ]
            rows = [name for request in received for name, _ in request.partitions()]
            assert len(rows) == len(set(rows)) == rows_each
            assert len(received) == 2, "one of elections, one of the other partitions"


def test_new_leaders_are_sent_before_the_failed_broker_leaves_the_other_isrs(
    crowd: Candidate,
) -> None:
    performed: list[Effect] = []
    writes: list[int] = []

    def perform(effects: list[Effect]) -> None:
        performed.extend(effects)
        writes.append(len(crowd.session.server.transactions))

    before = len(crowd.session.server.transactions)
    crowd.controller.flush_to(perform)
    rest = crowd.catch_up()
    elected = leader_and_isr_rows(performed)
    assert {p.partition % 3 for rows in elected.values() for p in rows} == {0}
    assert len(elected[0]) == len(elected[2]) == 10
    assert before < writes[0] < len(crowd.session.server.transactions)
    shrunk = leader_and_isr_rows(rest)
    assert len(shrunk[0]) == len(shrunk[2]) == 20


def test_new_leaders_are_sent_before_the_next_ones_are_elected() -> None:
    world = World((1, 2))
    world.put_topic("t", dict.fromkeys(range(5), (1, 2)), topic_id(77))
    candidate = Candidate(world, 0, ControllerSettings(changes_at_once=2))
    candidate.start()
    candidate.catch_up()
    performed: list[list[TopicPartition]] = []

    def perform(effects: list[Effect]) -> None:
        led = [p for p in map(TopicPartition, "t" * 5, range(5)) if world.leads(p)[0] == 2]
        rows = leader_and_isr_rows(effects)
        assert rows[2].keys() <= set(led), "what is written, and nothing else"
        performed.append(sorted(rows[2]))

    candidate.controller.flush_to(perform)
    world.unregister(1)
    candidate.catch_up()
    assert list(map(len, performed)) == [2, 2, 1]
    assert [p.partition for some in performed for p in some] == [0, 1, 2, 3, 4]


def test_leaders_get_smaller_isrs_before_the_next_isrs_are_written() -> None:
    world = World((1, 2))
    world.put_topic("t", dict.fromkeys(range(5), (1, 2)), topic_id(77))
    candidate = Candidate(world, 0, ControllerSettings(changes_at_once=2))
    candidate.start()
    candidate.catch_up()
    performed: list[Effect] = []
    candidate.controller.flush_to(performed.extend)
    world.unregister(2)
    rest = candidate.catch_up()
    assert kinds(performed) == [(1, "LeaderAndIsr")] * 2
    told = [[p.partition for p in leader_and_isr_rows([sent])[1]] for sent in requests(performed)]
    assert told == [[0, 1], [2, 3]]
    assert kinds(rest) == [(1, "LeaderAndIsr"), (0, "UpdateMetadata"), (1, "UpdateMetadata")]
    assert [p.partition for p in leader_and_isr_rows(rest)[1]] == [4]
    assert len(metadata_rows(rest)[1]) == 5, "metadata are sent once, at the end"


def test_a_new_controller_tells_smaller_isrs_once_in_the_full_request() -> None:
    world = World((1,))
    world.put_topic("t", dict.fromkeys(range(5), (1, 2)), topic_id(77))
    for number in range(5):
        world.put_state(TopicPartition("t", number), 1, (1, 2))
    candidate = Candidate(world, 0, ControllerSettings(changes_at_once=2))
    performed: list[Effect] = []
    candidate.controller.flush_to(performed.extend)
    rest = candidate.start()
    sent = requests([*performed, *rest])
    assert [
        (s.broker_id, s.request.type) for s in sent if isinstance(s.request, LeaderAndIsrRequest)
    ] == [
        (0, LeaderAndIsrType.FULL),
        (1, LeaderAndIsrType.FULL),
    ]
    assert {row.isr for row in leader_and_isr_rows(sent)[1].values()} == {(1,)}


def test_a_broker_that_starts_while_the_leader_fails_is_elected_in_one_epoch() -> None:
    parts = ControllerParts(brokers=(1,))
    parts.lead(T0, (1, 2), leader=1, isr=(1, 2))
    parts.unregister(1)
    parts.register(2)
    change(parts)
    assert parts.leads(T0) == (2, (2,), 1)
