"""The controller of one broker: events in, effects out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from regent.core.controller import events
from regent.core.controller.brokers.responses import MAX_GUESSES
from regent.core.controller.controller import Controller
from regent.core.controller.controller_election import ControllerElection
from regent.core.controller.effects import (
    AddBroker,
    BrokerMustEnd,
    BrokerRegistered,
    ControllerRoleChanged,
    Effect,
    PartitionCreated,
    RecordChanges,
    RemoveBroker,
    ScheduleEvent,
    SendResponse,
    error_response,
)
from regent.core.controller.events import (
    AdvertisedListenersChanged,
    BrokerChange,
    BrokerModifications,
    BrokerUnusable,
    ChannelOverflowed,
    ControlledShutdown,
    ControlledShutdownAbandoned,
    ControllerChange,
    ControllerEvent,
    ControlRequestFailed,
    ElectionDoubted,
    Expire,
    LeaderAndIsrResponseReceived,
    ListPartitionReassignments,
    MoveController,
    OperationNoted,
    PartitionModifications,
    Reelect,
    RegisterBrokerAndReelect,
    Startup,
    TopicChange,
    UpdateMetadataResponseReceived,
)
from regent.core.controller.services import ControllerSettings
from regent.core.errors import ApiError, Errors, ForeignDirectoryError
from regent.core.model import (
    MAX_CONTROLLER_EPOCH,
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    EndPoint,
    LeaderAndIsr,
    TopicPartition,
)
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LeaderAndIsrType,
    PartitionError,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    ControlledShutdownResponse,
    MoveControllerResponse,
    NoteOperationRequest,
    NoteOperationResponse,
)
from regent.core.protocol.messages.partitions import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from regent.zk.stores.controller_store import ZkControllerStore
from regent.zk.znodes import BrokerIdsZNode, BrokerIdZNode
from tests.support.cluster_notes import NotesInMemory
from tests.support.controller_parts import (
    Candidate,
    kinds,
    leader_and_isr_requests,
    leader_and_isr_rows,
    metadata_rows,
    of_type,
    requests,
)
from tests.support.fake_zookeeper import Call, FakeZooKeeper, Moment, act_once
from tests.support.world import T0, T1, TopicIds, World, broker_info, delete, topic_id

HEADER = ControlHeader(0, 1, 1)
NOTHING = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())

EVENTS_OF_THE_ACTIVE_CONTROLLER: list[ControllerEvent] = [
    BrokerChange(),
    BrokerModifications(1),
    TopicChange(),
    PartitionModifications("t"),
    LeaderAndIsrResponseReceived(1, HEADER, NOTHING, LeaderAndIsrResponse(Errors.NONE)),
    UpdateMetadataResponseReceived(1, HEADER, UpdateMetadataResponse(Errors.NONE)),
    ChannelOverflowed(1, HEADER),
    BrokerUnusable(1, HEADER, "it is too old"),
]


def header(candidate: Candidate, broker_id: int, **changes: int) -> ControlHeader:
    """Return the header of a request that is sent to a broker now."""
    context = candidate.controller.context
    epochs = ControlHeader(0, context.epoch, context.live_broker_epochs[broker_id])
    return epochs._replace(**changes)


def storage_error(*partitions: TopicPartition) -> LeaderAndIsrResponse:
    errors = (PartitionError(*p, Errors.KAFKA_STORAGE_ERROR) for p in partitions)
    return LeaderAndIsrResponse(Errors.NONE, tuple(errors))


# --- becoming the controller ----------------------------------------------------------------------


def test_the_first_broker_of_a_cluster_registers_and_becomes_controller() -> None:
    world = World()
    candidate = Candidate(world, 0)
    effects = candidate.start()
    registration = candidate.controller.context.registrations[0]
    assert effects[:3] == [
        BrokerRegistered(registration.broker_epoch),
        ControllerRoleChanged(is_active=True, controller_epoch=1),
        AddBroker(registration),
    ]
    assert kinds(effects) == [(0, "UpdateMetadata"), (0, "LeaderAndIsr"), (0, "UpdateMetadata")]
    assert isinstance(effects[-1], RecordChanges)
    assert effects[-1].controller_epoch == 1
    assert candidate.controller.is_active
    assert candidate.controller.active_controller_id == 0


def test_startup_elects_without_registering_again(world: World) -> None:
    candidate = Candidate(world, 1)
    effects = candidate.handle(Startup())
    assert candidate.controller.is_active
    assert of_type(effects, BrokerRegistered) == []


def test_a_new_controller_reads_the_whole_state_before_it_sends_requests(world: World) -> None:
    world.put_state(T0, 9, (9, 2), leader_epoch=3, controller_epoch=0)
    candidate = Candidate(world, 0)
    effects = candidate.start()
    shape = [type(e).__name__ for e in effects if not isinstance(e, RecordChanges)]
    assert shape[:5] == [
        "BrokerRegistered",
        "ControllerRoleChanged",
        "AddBroker",
        "AddBroker",
        "AddBroker",
    ]
    assert shape[-1] == "ScheduleEvent", "the timer of the automatic leader rebalance"
    assert set(shape[5:-1]) == {"SendControlRequest"}
    assert kinds(effects)[:11] == [
        (0, "UpdateMetadata"),  # live brokers first (KAFKA-4443)
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (1, "LeaderAndIsr"),  # INCREMENTAL, of leaders that replace dead ones
        (2, "LeaderAndIsr"),
        (0, "UpdateMetadata"),
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
        (0, "LeaderAndIsr"),  # FULL, to all brokers
        (1, "LeaderAndIsr"),
        (2, "LeaderAndIsr"),
    ]
    first = metadata_rows(requests(effects)[:3])
    assert first == {0: {}, 1: {}, 2: {}}
    told = [sent.request for sent in requests(effects)]
    incremental, full = LeaderAndIsrType
    assert [r.type for r in told if isinstance(r, LeaderAndIsrRequest)][:5] == [
        *[incremental] * 2,
        *[full] * 3,
    ]
    listed = [[p for p, _ in r.partitions()] for r in told if isinstance(r, LeaderAndIsrRequest)]
    assert listed[:5] == [[T0], [T0], [], [T0], [T0]]
    metadata = [r for r in told if isinstance(r, UpdateMetadataRequest)]
    assert [r.is_full for r in metadata[:9]] == [False] * 6 + [True] * 3
    assert world.leads(T0) == (2, (2,), 4)
    assert world.leads(T1) == (2, (2, 1), 0)
    assert leader_and_isr_rows(effects)[1][T0].leader == 2


def test_the_last_requests_of_a_failover_agree_with_zookeeper(world: World) -> None:
    world.put_state(T0, 9, (9, 1, 2), leader_epoch=3, controller_epoch=0)
    effects = Candidate(world, 0).start()
    for rows in leader_and_isr_rows(effects).values():
        for partition, row in rows.items():
            assert (row.leader, row.isr, row.leader_epoch) == world.leads(partition)
    for metadata in metadata_rows(effects).values():
        for partition, known in metadata.items():
            assert (known.leader, known.isr, known.leader_epoch) == world.leads(partition)


def test_only_one_broker_is_the_active_controller(world: World, active: Candidate) -> None:
    other = Candidate(world, 5)
    effects = other.start()
    assert not other.controller.is_active
    assert other.controller.active_controller_id == 0
    assert [type(e) for e in effects] == [BrokerRegistered, RecordChanges]
    assert active.controller.is_active


def test_another_broker_becomes_controller_when_the_controller_fails(
    world: World, active: Candidate
) -> None:
    other = Candidate(world, 5)
    other.start()
    active.session.close()
    effects = other.catch_up()
    assert of_type(effects, ControllerRoleChanged) == [ControllerRoleChanged(True, 2)]
    assert {sent.header.controller_epoch for sent in requests(effects)} == {2}
    assert sorted(r.registration.info.broker_id for r in of_type(effects, AddBroker)) == [1, 2, 5]


def asked_to_move(of: Candidate) -> MoveController:
    """Return the request of an operator who knows the present controller."""
    context = of.controller.context
    return MoveController(7, context.epoch, context.epoch_zk_version)


def test_a_broker_takes_the_place_of_the_controller_and_no_third_can_be_elected(
    world: World, active: Candidate
) -> None:
    second, third = Candidate(world, 1), Candidate(world, 2)
    second.start(), third.start()
    request, former = asked_to_move(active), active.controller.context.epoch
    seen: list[str] = []

    def stand(call: Call) -> None:
        if call.method == "multi" and call.moment is not Moment.BETWEEN:
            seen.append(call.method)
            third.handle(Reelect())

    second.session.hook = stand
    answers = of_type(second.handle(request), SendResponse)
    second.session.hook = None
    assert answers == [SendResponse(7, MoveControllerResponse(Errors.NONE))]
    assert seen
    assert second.controller.is_active
    assert second.controller.context.epoch == former + 1
    assert not third.controller.is_active
    active.handle(Reelect())
    assert not active.controller.is_active
    assert active.controller.active_controller_id == third.controller.active_controller_id == 1


def test_a_late_request_to_move_the_controller_is_refused(world: World, active: Candidate) -> None:
    second, third = Candidate(world, 1), Candidate(world, 2)
    second.start(), third.start()
    request = asked_to_move(active)
    third.handle(request)
    effects = second.handle(request)
    refused = SendResponse(7, MoveControllerResponse(Errors.NOT_CONTROLLER))
    assert of_type(effects, SendResponse) == [refused]
    assert third.controller.is_active
    assert not second.controller.is_active
    repeated = of_type(third.handle(request), SendResponse)
    assert repeated == [SendResponse(7, MoveControllerResponse(Errors.NONE))]


def test_a_broker_without_replicas_rules_again_after_brokers_of_kafka_have_elected_one(
    world: World,
) -> None:
    world.register_as(replace(broker_info(3), control_endpoint=None, replication_endpoint=None))
    kafka = ControllerElection(broker_info(3), ZkControllerStore(world.sessions[3]))
    first = Candidate(world, 10, no_replicas=True)
    second = Candidate(world, 11, no_replicas=True)
    first.start(), second.start()
    first.session.expire()
    assert kafka.elect(0) is not None
    second.catch_up()
    assert second.controller.is_active
    assert 3 in second.controller.context.live_broker_ids
    second.session.expire()
    assert kafka.elect(0) is not None
    third = Candidate(world, 12, no_replicas=True)
    third.start()
    assert third.controller.is_active, "it takes its place when it starts"


def test_registration_is_retried_while_the_broker_id_is_in_use(world: World) -> None:
    candidate = Candidate(world, 1)
    assert candidate.start() == [ScheduleEvent(500, RegisterBrokerAndReelect())]
    assert not candidate.controller.is_active
    world.unregister(1)
    candidate.start()
    assert candidate.controller.is_active


def test_registration_is_retried_after_any_error() -> None:
    world = World()
    candidate = Candidate(world, 0)
    tool = FakeZooKeeper(world.zookeeper)

    def wipe() -> None:
        delete(tool, BrokerIdsZNode.PATH)

    act_once(candidate.session, wipe, path=BrokerIdZNode.path(0))
    assert candidate.start() == [ScheduleEvent(500, RegisterBrokerAndReelect())]
    candidate.start()
    assert candidate.controller.is_active


@pytest.mark.parametrize("is_active", [True, False])
def test_a_deleted_registration_is_created_again_at_once(
    world: World, active: Candidate, is_active: bool
) -> None:
    world.unregister(1)
    follower = Candidate(world, 1)
    follower.handle(RegisterBrokerAndReelect())
    broker_id, broker = (0, active) if is_active else (1, follower)
    active.catch_up()
    world.zookeeper.remove(BrokerIdZNode.path(broker_id))
    effects = broker.catch_up()
    node = world.zookeeper.snapshot()[BrokerIdZNode.path(broker_id)]
    assert BrokerRegistered(node.stat.czxid) in effects
    active.catch_up()
    assert active.controller.context.live_broker_epochs[broker_id] == node.stat.czxid
    assert active.controller.is_active
    world.zookeeper.put(BrokerIdZNode.path(broker_id), b"")  # uses up the watch
    broker.catch_up()
    world.zookeeper.remove(BrokerIdZNode.path(broker_id))
    assert of_type(broker.catch_up(), BrokerRegistered)


def test_a_broker_id_taken_by_another_process_is_logged_once_and_retried(
    world: World, active: Candidate, caplog: pytest.LogCaptureFixture
) -> None:
    world.unregister(1)
    follower = Candidate(world, 1)
    follower.handle(RegisterBrokerAndReelect())
    world.zookeeper.remove(BrokerIdZNode.path(1))
    world.register(1, incarnation=2)
    for _ in range(5):
        retries = of_type(
            follower.catch_up() or follower.handle(RegisterBrokerAndReelect()), ScheduleEvent
        )
        assert [retry.event for retry in retries] == [RegisterBrokerAndReelect()]
    logged = [m for m in caplog.messages if "is registered by another process (session" in m]
    assert len(logged) == 1
    world.unregister(1)
    assert of_type(follower.catch_up(), BrokerRegistered)


def test_a_broker_with_the_data_of_another_cluster_stops(world: World) -> None:
    notes = NotesInMemory()
    notes.cluster_id = "ours"
    before = world.zookeeper.snapshot()
    session = FakeZooKeeper(world.zookeeper)
    store = ZkControllerStore(session, notes.check_cluster)
    controller = Controller(broker_info(0), store, TopicIds())
    (effect,) = controller.handle(RegisterBrokerAndReelect(), 1)
    assert isinstance(effect, BrokerMustEnd)
    assert isinstance(effect.reason, ForeignDirectoryError)
    controller.handle(Startup(), 1)
    assert not controller.is_active
    assert world.zookeeper.snapshot() == before


@pytest.mark.parametrize("request_type", [LeaderAndIsrRequest, UpdateMetadataRequest])
def test_a_controller_with_a_refused_epoch_is_elected_again_in_a_higher_epoch(
    world: World, active: Candidate, request_type: type
) -> None:
    world.put_topic("t", {0: (0,)})
    active.catch_up()
    header = ControlHeader(0, 1, active.controller.context.live_broker_epochs[0])
    stale = Errors.STALE_CONTROLLER_EPOCH
    refused: ControllerEvent
    if request_type is LeaderAndIsrRequest:
        response = LeaderAndIsrResponse(stale, controller_epoch=41)
        refused = LeaderAndIsrResponseReceived(0, header, NOTHING, response)
    else:
        refused = UpdateMetadataResponseReceived(0, header, UpdateMetadataResponse(stale, 41))
    effects = active.handle(refused)
    assert active.controller.is_active
    assert active.controller.context.epoch == 42
    assert world.zookeeper.snapshot()["/controller_epoch"].data == b"42"
    assert {sent.header.controller_epoch for sent in requests(effects)} == {42}
    assert "t" in active.controller.context.all_topics
    assert active.handle(refused) == [], "the error_response is of the previous epoch"


def answered_by_kafka(active: Candidate, accepted: int) -> int:
    """Answer as brokers 1 and 2, of Kafka, until nothing more is refused; return the elections."""
    for elections in range(50):
        epoch = active.controller.context.epoch
        error = Errors.STALE_CONTROLLER_EPOCH if epoch < accepted else Errors.NONE
        for broker_id in (elections % 2 + 1, 2 - elections % 2):  # either may be the first
            stale = error if broker_id == 1 or accepted < 100 else Errors.NONE
            response = UpdateMetadataResponse(stale)  # it does not say which epoch it has accepted
            asked = header(active, broker_id, controller_epoch=epoch)
            active.handle(UpdateMetadataResponseReceived(broker_id, asked, response))
        if active.controller.context.epoch == epoch:
            return elections
    pytest.fail("the controller is elected for ever")


def test_the_epoch_is_raised_in_steps_above_what_a_broker_of_kafka_has_accepted(
    world: World, active: Candidate, caplog: pytest.LogCaptureFixture
) -> None:
    for broker_id in (1, 2):
        world.unregister(broker_id)
        world.register_as(replace(broker_info(broker_id), control_endpoint=None))
    active.catch_up()
    assert answered_by_kafka(active, 90) == 7
    assert active.controller.context.epoch == 128
    assert world.zookeeper.snapshot()["/controller_epoch"].data == b"128"
    assert answered_by_kafka(active, 129) == 1, "the steps begin again after an answer"
    assert active.controller.context.epoch == 129
    assert answered_by_kafka(active, MAX_CONTROLLER_EPOCH) == MAX_GUESSES
    assert active.controller.is_active
    assert active.controller.context.epoch < 2**18
    assert "refused 16 lower ones: restart it" in caplog.text


def test_a_deposed_controller_resigns_when_its_epoch_is_refused_by_a_broker_of_kafka(
    world: World, active: Candidate
) -> None:
    world.unregister(1)
    world.register_as(replace(broker_info(1), control_endpoint=None))
    active.catch_up()
    asked = header(active, 1)
    world.zookeeper.remove("/controller")
    world.elect(2)
    response = UpdateMetadataResponse(Errors.STALE_CONTROLLER_EPOCH)
    active.handle(UpdateMetadataResponseReceived(1, asked, response))
    assert not active.controller.is_active
    assert world.zookeeper.snapshot()["/controller_epoch"].data == b"2"


def test_a_deposed_controller_resigns_when_its_epoch_is_refused(
    world: World, active: Candidate
) -> None:
    header = ControlHeader(0, 1, active.controller.context.live_broker_epochs[0])
    world.elect_another_controller()
    response = UpdateMetadataResponse(Errors.STALE_CONTROLLER_EPOCH, 41)
    active.handle(UpdateMetadataResponseReceived(0, header, response))
    assert not active.controller.is_active
    assert world.zookeeper.snapshot()["/controller_epoch"].data == b"2"


def test_a_controller_whose_epoch_was_overwritten_resigns_when_a_broker_doubts_it(
    world: World, active: Candidate
) -> None:
    assert active.handle(ElectionDoubted()) == [], "its election is in force"
    world.zookeeper.put("/controller_epoch", b"7")  # its version changes
    resigned = active.handle(ElectionDoubted())
    assert ControllerRoleChanged(is_active=False, controller_epoch=1) in resigned
    assert active.handle(ElectionDoubted()) == [], "it is not the controller any more"
    elected = active.handle(Reelect())
    assert ControllerRoleChanged(is_active=True, controller_epoch=8) in elected
    world.elect_another_controller()
    resigned = active.handle(ElectionDoubted())
    assert ControllerRoleChanged(is_active=False, controller_epoch=8) in resigned


def test_a_state_with_a_higher_controller_epoch_is_changed_if_it_is_older_than_the_term(
    world: World,
) -> None:
    """``/controller_epoch`` was set back; no broker remembers the higher epoch."""
    world.put_topic("t", {0: (1, 2)})
    world.put_state(T0, 1, (1, 2), controller_epoch=41)
    candidate = Candidate(world, 0)
    candidate.handle(RegisterBrokerAndReelect())
    assert candidate.controller.context.epoch == 1
    world.unregister(1)
    candidate.catch_up()
    assert world.leads(T0)[:2] == (2, (2,))
    world.put_state(T0, 2, (2, 1), controller_epoch=42)
    world.unregister(2)
    candidate.catch_up()
    assert world.leads(T0)[0] == 2, "a later controller wrote the state"


def test_an_election_that_is_not_possible_is_logged_once_a_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.zookeeper.put("/controller_epoch", b"%d" % MAX_CONTROLLER_EPOCH)
    candidate = Candidate(world, 0)
    for _ in range(130):
        candidate.handle(RegisterBrokerAndReelect())
        candidate.now_ms += 1000
    logged = [m for m in caplog.messages if "cannot stand for election" in m]
    assert len(logged) == 3
    assert world.zookeeper.snapshot()["/controller_epoch"].data == b"%d" % MAX_CONTROLLER_EPOCH


def test_the_controller_settings_are_used_in_elections(world: World) -> None:
    world.put_state(T0, 9, (9,))
    Candidate(world, 0, ControllerSettings(unclean_leader_election_enable=True)).start()
    assert world.leads(T0)[:2] == (1, (1,))


# --- the registration -----------------------------------------------------------------------------


@pytest.mark.parametrize("broker_id", [0, 3])
def test_new_listeners_for_clients_change_the_registration_and_the_metadata(
    world: World, active: Candidate, broker_id: BrokerId
) -> None:
    """Of the active controller, and of another broker."""
    broker = active if broker_id == 0 else Candidate(world, broker_id)
    broker.start()
    active.catch_up()
    path = BrokerIdZNode.path(broker_id)
    before = world.zookeeper.snapshot()[path]
    endpoint = EndPoint("PLAINTEXT", "elsewhere", 1)

    effects = broker.handle(AdvertisedListenersChanged((endpoint,)))
    effects += active.catch_up()

    node = world.zookeeper.snapshot()[path]
    info = BrokerIdZNode.decode(node.data, broker_id)
    assert (info.endpoints, node.stat.czxid) == ((endpoint,), before.stat.czxid)
    assert info.control_endpoint == broker_info(broker_id).control_endpoint
    (sent,) = {
        (sent.host, sent.port)
        for effect in requests(effects)
        if isinstance(effect.request, UpdateMetadataRequest)
        for live in effect.request.live_brokers
        for sent in live.endpoints
        if live.broker_id == broker_id
    }
    assert sent == ("elsewhere", 1)
    broker.expire()
    broker.start()
    data = world.zookeeper.snapshot()[path].data
    assert BrokerIdZNode.decode(data, broker_id).endpoints == (endpoint,)


# --- while active ---------------------------------------------------------------------------------


def test_watches_of_brokers_and_topics_become_events(world: World, active: Candidate) -> None:
    world.register(3)
    world.put_topic("t", {0: (1, 2), 1: (2, 1), 2: (3,)}, topic_id(77))
    world.put_topic("u", {0: (3,)})
    world.zookeeper.put(BrokerIdZNode.path(1), BrokerIdZNode.encode(broker_info(1, incarnation=2)))
    assert list(active.inbox) == [
        BrokerChange(),
        PartitionModifications("t"),
        TopicChange(),
        BrokerModifications(1),
    ]
    effects = active.catch_up()
    assert (
        world.leads(TopicPartition("t", 2)) == world.leads(TopicPartition("u", 0)) == (3, (3,), 0)
    )
    assert [r.registration.info.broker_id for r in of_type(effects, AddBroker)] == [3, 1]
    world.unregister(2)
    active.catch_up()
    assert world.leads(T1) == (1, (1,), 1)


@pytest.mark.parametrize("event", [Startup(), ControllerChange(), Reelect()])
def test_an_active_controller_ignores_further_elections(
    active: Candidate, event: ControllerEvent
) -> None:
    assert active.handle(event) == []
    assert active.controller.is_active
    assert active.controller.context.epoch == 1


def test_a_repeated_registration_does_not_end_the_term(active: Candidate) -> None:
    epoch = active.controller.context.live_broker_epochs[0]
    effects = active.start()
    assert of_type(effects, BrokerRegistered) == [BrokerRegistered(epoch)]
    assert of_type(effects, ControllerRoleChanged) == []


def test_a_controlled_shutdown_is_answered_when_the_new_leader_has_answered(
    world: World, active: Candidate
) -> None:
    epoch = active.controller.context.live_broker_epochs[2]
    effects = active.handle(ControlledShutdown(17, 2, epoch))
    assert world.leads(T1) == (1, (1,), 1)
    assert of_type(effects, SendResponse) == [], "the new leader has not answered"
    _, request = leader_and_isr_requests(effects, 1)[0]
    response = LeaderAndIsrResponse(Errors.NONE, (PartitionError("t", 1, Errors.NONE),))
    assert answer(active, 1, response) == [], "the response to an earlier request"
    answered = LeaderAndIsrResponseReceived(1, header(active, 1), request, response)
    assert active.handle(answered) == [SendResponse(17, ControlledShutdownResponse(Errors.NONE))]


def test_recorded_changes_are_the_last_effect_and_are_limited(
    world: World, active: Candidate
) -> None:
    world.put_topic("wide", dict.fromkeys(range(50), (1, 2)), topic_id(5))
    effects = active.catch_up()
    changes = effects[-1]
    assert isinstance(changes, RecordChanges)
    assert (changes.controller_epoch, len(changes.changes), changes.total) == (1, 20, 51)
    first, second = changes.changes[:2]
    assert first == "wide: new topic"
    assert second == PartitionCreated(TopicPartition("wide", 0), LeaderAndIsr(1, (1, 2)))


def test_what_an_operator_has_done_is_a_change_for_the_journal_of_the_active_controller_alone(
    world: World, active: Candidate
) -> None:
    other = Candidate(world, 1)
    other.start()
    noted = OperationNoted(7, NoteOperationRequest("somebody", "kill 3: 100 % dead"))
    assert active.handle(noted) == [
        SendResponse(7, NoteOperationResponse(Errors.NONE)),
        RecordChanges(1, ("kill 3: 100 % dead",), 1),
    ]
    refused = SendResponse(7, NoteOperationResponse(Errors.NOT_CONTROLLER))
    assert other.handle(noted) == [refused]


# --- responses of brokers -------------------------------------------------------------------------


def answer(
    active: Candidate, broker_id: int, response: LeaderAndIsrResponse, **changes: int
) -> list[Effect]:
    asked = header(active, broker_id, **changes)
    return active.handle(LeaderAndIsrResponseReceived(broker_id, asked, NOTHING, response))


def test_a_replica_in_a_failed_log_directory_is_replaced(world: World, active: Candidate) -> None:
    effects = answer(active, 1, storage_error(T0))
    assert world.leads(T0) == (2, (2,), 1)
    assert world.leads(T1) == (2, (2, 1), 0)
    assert leader_and_isr_rows(effects)[2][T0].leader == 2
    assert active.controller.context.replicas_on_offline_dirs == {1: {T0}}
    assert answer(active, 1, storage_error(T0)) == [], "a repeated response changes nothing"


def test_a_repaired_replica_may_lead_again(world: World, active: Candidate) -> None:
    answer(active, 1, storage_error(T0))
    healthy = LeaderAndIsrResponse(Errors.NONE, (PartitionError(*T0, Errors.NONE),))
    rows_by_broker = metadata_rows(answer(active, 1, healthy))
    assert active.controller.context.is_replica_online(1, T0)
    assert {broker: rows[T0].offline_replicas for broker, rows in rows_by_broker.items()} == {
        0: (),
        1: (),
        2: (),
    }
    assert answer(active, 1, healthy) == [], "a repeated response changes nothing"


@pytest.mark.parametrize(
    ("controller_epoch", "broker_epoch"), [(0, None), (2, None), (None, 0), (None, 10_000)]
)
def test_a_response_with_another_controller_or_broker_epoch_is_dropped(
    world: World, active: Candidate, controller_epoch: int | None, broker_epoch: int | None
) -> None:
    changes = {"controller_epoch": controller_epoch, "broker_epoch": broker_epoch}
    known = {key: value for key, value in changes.items() if value is not None}
    assert answer(active, 1, storage_error(T0), **known) == []
    assert world.leads(T0) == (1, (1, 2), 0)


def test_a_response_of_an_offline_broker_is_dropped(world: World, active: Candidate) -> None:
    stale = header(active, 1)
    world.unregister(1)
    active.catch_up()
    before = world.leads(T0)
    assert active.handle(LeaderAndIsrResponseReceived(1, stale, NOTHING, storage_error(T0))) == []
    assert world.leads(T0) == before


def test_a_response_about_replicas_of_other_brokers_is_ignored(
    world: World, active: Candidate
) -> None:
    gone, foreign = TopicPartition("gone", 0), TopicPartition("u", 0)
    world.put_topic("u", {0: (2,)}, topic_id(5))
    active.catch_up()
    assert answer(active, 1, storage_error(gone, foreign)) == []
    assert not active.controller.context.replicas_on_offline_dirs.get(1)
    assert "gone" not in active.controller.context.all_topics


def test_a_response_about_an_earlier_topic_of_the_same_name_is_ignored(
    world: World, active: Candidate
) -> None:
    earlier = LeaderAndIsrRequest(
        LeaderAndIsrType.INCREMENTAL, (LeaderAndIsrTopic("t", topic_id(9), ()),), ()
    )
    event = LeaderAndIsrResponseReceived(1, header(active, 1), earlier, storage_error(T0))
    assert active.handle(event) == []
    assert world.leads(T0) == (1, (1, 2), 0)


@pytest.mark.parametrize("error", [Errors.STALE_BROKER_EPOCH, Errors.STALE_CONTROLLER_EPOCH])
def test_replica_errors_in_a_refused_request_are_ignored(
    world: World, active: Candidate, error: Errors
) -> None:
    refused = LeaderAndIsrResponse(error, (PartitionError(*T0, Errors.KAFKA_STORAGE_ERROR),))
    assert answer(active, 1, refused) == []
    assert world.leads(T0) == (1, (1, 2), 0)


def test_refused_metadata_is_only_logged(active: Candidate) -> None:
    for error in (Errors.NONE, Errors.STALE_BROKER_EPOCH):
        response = UpdateMetadataResponse(error)
        event = UpdateMetadataResponseReceived(1, header(active, 1), response)
        assert active.handle(event) == []


def test_a_waiting_controlled_shutdown_is_answered_with_the_partitions_led_at_the_end(
    world: World, active: Candidate
) -> None:
    effects = active.handle(ControlledShutdown(1, 1, UNKNOWN_BROKER_EPOCH))
    (request,) = (r for _, r in leader_and_isr_requests(effects, 2) if T0 in dict(r.partitions()))
    scheduled = [effect.event for effect in of_type(effects, ScheduleEvent)]
    (abandoned,) = (e for e in scheduled if isinstance(e, ControlledShutdownAbandoned))
    active.handle(abandoned)
    world.put_state(T0, 2, (2, 1), leader_epoch=2)
    failed = LeaderAndIsrResponseReceived(2, header(active, 2), request, storage_error(T0))
    (reply,) = of_type(active.handle(failed), SendResponse)
    assert world.leads(T0) == (1, (1,), 3)
    assert reply == SendResponse(1, ControlledShutdownResponse(Errors.NONE, (T0,)))


def test_a_broker_whose_channel_overflowed_gets_the_full_state(active: Candidate) -> None:
    effects = active.handle(ChannelOverflowed(1, header(active, 1)))
    registration = active.controller.context.registrations[1]
    assert effects[:2] == [RemoveBroker(1), AddBroker(registration)]
    assert sorted(metadata_rows(effects)[1]) == [T0, T1]
    assert sorted(leader_and_isr_rows(effects)[1]) == [T0, T1]


def test_a_known_failed_log_causes_no_election_when_its_broker_gets_the_full_state(
    world: World, active: Candidate
) -> None:
    answer(active, 1, storage_error(T0))
    before = world.leads(T0)
    effects = active.handle(ChannelOverflowed(1, header(active, 1)))
    assert sorted(leader_and_isr_rows(effects)[1]) == [T0, T1], "an unlisted replica would be stray"
    assert answer(active, 1, storage_error(T0)) == [], "the failure is known"
    assert world.leads(T0) == before


def test_a_broker_that_failed_to_apply_a_request_gets_the_full_state(active: Candidate) -> None:
    effects = answer(active, 1, LeaderAndIsrResponse(Errors.UNKNOWN_SERVER_ERROR))
    (again,) = of_type(effects, ScheduleEvent)
    assert again.event == ControlRequestFailed(1, header(active, 1))
    effects = active.handle(again.event)
    assert sorted(leader_and_isr_rows(effects)[1]) == [T0, T1]


def test_replica_errors_are_used_although_the_request_failed_in_part(
    world: World, active: Candidate
) -> None:
    effects = answer(active, 1, replace(storage_error(T0), error_code=Errors.UNKNOWN_SERVER_ERROR))
    assert of_type(effects, ScheduleEvent)
    assert world.leads(T0)[0] != 1


def test_a_broker_that_takes_no_requests_is_named_in_the_journal(active: Candidate) -> None:
    why = "Kafka 2.4 or later is needed"
    (recorded,) = active.handle(BrokerUnusable(1, header(active, 1), why))
    assert isinstance(recorded, RecordChanges)
    assert recorded.changes == (f"broker 1 takes no requests: {why}",)
    assert active.handle(BrokerUnusable(1, header(active, 1, broker_epoch=0), why)) == []


def test_an_overflow_of_a_closed_channel_is_ignored(active: Candidate) -> None:
    for stale in (header(active, 1, broker_epoch=0), header(active, 1, controller_epoch=0)):
        assert active.handle(ChannelOverflowed(1, stale)) == []


# --- while not active -----------------------------------------------------------------------------


def test_a_broker_that_is_not_the_controller_refuses_requests_and_ignores_other_events(
    world: World, active: Candidate
) -> None:
    other = Candidate(world, 5)
    other.start()
    other.catch_up()
    before = len(world.zookeeper.transactions)
    assert other.handle(ControlledShutdown(1, 5, 1)) == [
        SendResponse(1, ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH))
    ]
    assert other.handle(ListPartitionReassignments(2, ListPartitionReassignmentsRequest.of())) == [
        SendResponse(2, ListPartitionReassignmentsResponse.of({}, ApiError(Errors.NOT_CONTROLLER)))
    ]
    for event in EVENTS_OF_THE_ACTIVE_CONTROLLER:
        assert other.handle(event) == []
    assert len(world.zookeeper.transactions) == before


def test_the_response_to_an_event_that_is_never_handled_is_a_refusal() -> None:
    shutdown = ControlledShutdownResponse(Errors.STALE_CONTROLLER_EPOCH)
    assert error_response(ControlledShutdown(1, 2, 3)) == SendResponse(1, shutdown)
    question = ListPartitionReassignments(4, ListPartitionReassignmentsRequest.of())
    refused = ListPartitionReassignmentsResponse.of({}, ApiError(Errors.NOT_CONTROLLER))
    assert error_response(question) == SendResponse(4, refused)
    assert all(
        error_response(event) is None
        for event in (*EVENTS_OF_THE_ACTIVE_CONTROLLER, Expire(), Startup())
    )


def test_only_events_that_read_the_present_state_are_collapsed() -> None:
    collapsing = {
        type(event)
        for event in EVENTS_OF_THE_ACTIVE_CONTROLLER
        if events.collapse_key(event) is not None
    }
    assert collapsing == {BrokerChange, BrokerModifications, TopicChange, PartitionModifications}
    assert events.collapse_key(Reelect()) is not None
    assert events.collapse_key(Expire()) is None
    assert events.collapse_key(BrokerModifications(1)) != events.collapse_key(
        BrokerModifications(2)
    )
