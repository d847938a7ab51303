"""Control requests on a broker: epoch checks, roles, duplicates and late requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regent.core.errors import Errors, ShortageError
from regent.core.model import (
    EPOCH_DURING_DELETE,
    EPOCH_OF_LOST_TOPIC,
    NO_EPOCH,
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    LeaderRecoveryState,
    ReplicaAssignment,
    TopicPartition,
)
from regent.core.protocol.broker import FetchRequest, FetchResponse
from regent.core.protocol.client import ConsumerFetch
from regent.core.protocol.control import (
    ControlRequest,
    LeaderAndIsrPartition,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    StopReplicaResponse,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopic,
)
from regent.core.protocol.controller import AlterPartitionRequest
from regent.core.replica_logs import SeenOfCluster
from regent.core.replication.control_request_handler import refusal
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.partition import Partition, Role
from regent.core.replication.replica_manager import ReplicaManager
from tests.core.replication.numbered_logs import NumberedLogs
from tests.core.replication.stage import (
    FULL,
    HEADER,
    INCREMENTAL,
    ME,
    SETTINGS,
    T0,
    T1,
    T2,
    A,
    B,
    BareBroker,
    accepted,
    leader_and_isr,
    state,
    stop_replica,
)
from tests.support.replicas import hosted_as

REQUESTS: dict[str, ControlRequest] = {
    "LeaderAndIsr": leader_and_isr({T0: state()}),
    "StopReplica": stop_replica(T0, NO_EPOCH, delete=True),
    "UpdateMetadata": UpdateMetadataRequest((), ()),
}


@pytest.fixture
def broker() -> BareBroker:
    return BareBroker()


@pytest.fixture
def leader(broker: BareBroker) -> BareBroker:
    """A broker that leads t-0 in leader epoch 1."""
    assert broker.apply({T0: state(leader_epoch=1)}) == {T0: Errors.NONE}
    return broker


def test_the_newest_known_leader_of_a_partition_is_named(broker: BareBroker) -> None:
    assert broker.manager.current_leader(T0) == (NO_LEADER, NO_EPOCH)
    broker.apply({T0: state(2, leader_epoch=4)})
    assert broker.manager.current_leader(T0) == (2, 4)
    for leader, leader_epoch, newest in ((3, 3, (2, 4)), (3, 5, (3, 5))):
        row = UpdateMetadataPartition(0, 7, leader, leader_epoch, (3,), 0, (1, 2, 3), ())
        broker.handle(UpdateMetadataRequest((UpdateMetadataTopic("t", A, (row,)),), ()))
        assert broker.manager.current_leader(T0) == newest


# --- epoch checks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    ("broker_epoch", "error"),
    [
        (99, Errors.STALE_BROKER_EPOCH),
        (100, Errors.NONE),
        (101, Errors.STALE_BROKER_EPOCH),  # ZooKeeper has not confirmed it
        (UNKNOWN_BROKER_EPOCH, Errors.STALE_BROKER_EPOCH),
    ],
)
def test_a_request_for_another_broker_epoch_is_refused(
    broker: BareBroker, kind: str, broker_epoch: int, error: Errors
) -> None:
    response = broker.handle(REQUESTS[kind], broker_epoch=broker_epoch)
    assert isinstance(response, LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse)
    assert response.error_code is error
    if error is not Errors.NONE:
        assert broker.manager.partitions == {}
        assert broker.manager.controller_epoch == 0


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize(
    ("controller_epoch", "error"),
    [(6, Errors.STALE_CONTROLLER_EPOCH), (7, Errors.NONE), (8, Errors.NONE)],
)
@pytest.mark.parametrize("first", REQUESTS)
def test_a_request_of_a_deposed_controller_is_refused(
    broker: BareBroker, kind: str, controller_epoch: int, error: Errors, first: str
) -> None:
    broker.handle(REQUESTS[first])
    before = dict(broker.manager.partitions)
    response = broker.handle(REQUESTS[kind], controller_epoch=controller_epoch)
    assert isinstance(response, LeaderAndIsrResponse | StopReplicaResponse | UpdateMetadataResponse)
    assert response.error_code is error
    assert broker.manager.controller_epoch == max(7, controller_epoch)
    if error is not Errors.NONE:
        assert broker.manager.partitions == before


@pytest.mark.parametrize("kind", REQUESTS)
def test_an_outdated_request_can_be_refused_by_its_header(broker: BareBroker, kind: str) -> None:
    broker.handle(REQUESTS[kind], controller_epoch=7)

    def refused(controller_epoch: int, broker_epoch: int) -> Errors | None:
        header = HEADER._replace(controller_epoch=controller_epoch, broker_epoch=broker_epoch)
        answer = broker.manager.refuse_unread(header, type(REQUESTS[kind]))
        return None if answer is None else answer.error_code

    assert refused(7, 100) is refused(8, 101) is None
    assert refused(6, 100) is Errors.STALE_CONTROLLER_EPOCH
    assert refused(7, 99) is refused(7, -1) is Errors.STALE_BROKER_EPOCH


def test_a_refused_leader_and_isr_has_the_error_for_every_partition() -> None:
    request = leader_and_isr({T0: state(), T1: state()})
    answer = refusal(request, Errors.STALE_BROKER_EPOCH)
    assert isinstance(answer, LeaderAndIsrResponse)
    assert answer.error_code is Errors.STALE_BROKER_EPOCH
    errors = [(e.topic_partition, e.error_code) for e in answer.partition_errors]
    assert errors == [(T0, Errors.STALE_BROKER_EPOCH), (T1, Errors.STALE_BROKER_EPOCH)]
    stop = refusal(REQUESTS["StopReplica"], Errors.STALE_CONTROLLER_EPOCH)
    assert stop == StopReplicaResponse(Errors.STALE_CONTROLLER_EPOCH)


def test_update_metadata_updates_the_cache(broker: BareBroker) -> None:
    broker.handle(UpdateMetadataRequest((), ()), controller_id=5)
    assert broker.cache.snapshot.controller_id == 5
    broker.handle(UpdateMetadataRequest((), ()), controller_id=6, controller_epoch=6)
    assert broker.cache.snapshot.controller_id == 5


# --- roles ----------------------------------------------------------------------------------------


def test_a_leader_and_isr_row_is_applied_completely(broker: BareBroker) -> None:
    row = LeaderAndIsrPartition(0, 6, 2, 4, (2,), 9, (3, 1, 2), (3,), (2,), False, 0)
    assert broker.apply({T0: row}) == {T0: Errors.NONE}
    assert broker.hosted(T0) == Partition(
        T0,
        topic_id=A,
        role=Role.FOLLOWER,
        leader=2,
        leader_epoch=4,
        partition_epoch=9,
        controller_epoch=6,
        isr=(2,),
        assignment=ReplicaAssignment((3, 1, 2), (3,), (2,)),
        leader_recovery_state=LeaderRecoveryState.RECOVERED,
    )
    assert broker.logs.hosted() == {T0: A}


@pytest.mark.parametrize(
    ("named", "role"), [(ME, Role.LEADER), (2, Role.FOLLOWER), (NO_LEADER, Role.NONE)]
)
def test_the_leader_in_the_row_decides_the_role(leader: BareBroker, named: int, role: Role) -> None:
    assert leader.apply({T0: state(named, leader_epoch=2)}) == {T0: Errors.NONE}
    assert leader.role(T0) is role


@pytest.mark.parametrize("leader_epoch", [0, 1])
def test_a_row_with_an_old_or_equal_leader_epoch_is_refused(
    leader: BareBroker, leader_epoch: int
) -> None:
    errors = leader.apply({T0: state(2, leader_epoch)})
    assert errors == {T0: Errors.STALE_CONTROLLER_EPOCH}
    assert leader.role(T0) is Role.LEADER


def test_leader_epochs_may_be_skipped(leader: BareBroker) -> None:
    assert leader.apply({T0: state(2, leader_epoch=9)}) == {T0: Errors.NONE}
    assert leader.role(T0) is Role.FOLLOWER


def test_a_partition_that_is_not_assigned_to_the_broker_is_not_hosted(
    broker: BareBroker,
) -> None:
    errors = broker.apply({T0: state(2, replicas=(2, 3)), T1: state()})
    assert errors == {T0: Errors.UNKNOWN_TOPIC_OR_PARTITION, T1: Errors.NONE}
    assert list(broker.manager.partitions) == [T1]
    assert list(broker.logs.hosted()) == [T1]


# --- topic ids ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic_partition",
    [
        TopicPartition("../../t", 0),
        TopicPartition("", 0),
        TopicPartition("t\0", 0),
        TopicPartition("a 0 5\nt", 0),
        TopicPartition("t", -1),
        TopicPartition("t", 2**31),
    ],
)
def test_an_invalid_partition_is_refused_and_the_others_are_hosted(
    broker: BareBroker, topic_partition: TopicPartition
) -> None:
    errors = broker.apply({topic_partition: state(), T0: state()}, type=FULL)
    assert errors == {topic_partition: Errors.INVALID_TOPIC_EXCEPTION, T0: Errors.NONE}
    assert list(broker.manager.partitions) == [T0]
    assert list(broker.logs.hosted()) == [T0]


def test_a_leader_epoch_over_32_bits_is_refused(broker: BareBroker) -> None:
    assert broker.apply({T0: state(leader_epoch=2**31)}) == {T0: Errors.INVALID_TOPIC_EXCEPTION}
    assert broker.apply({T0: state(leader_epoch=2**31 - 1)}) == {T0: Errors.NONE}


def test_a_row_for_another_topic_of_the_same_name_is_refused(broker: BareBroker) -> None:
    assert broker.apply({T0: state(leader_epoch=0)}, id=A) == {T0: Errors.NONE}
    assert broker.apply({T0: state(leader_epoch=1)}, id=A) == {T0: Errors.NONE}
    for leader_epoch in (1, 2):
        errors = broker.apply({T0: state(leader_epoch=leader_epoch)}, id=B)
        assert errors == {T0: Errors.INCONSISTENT_TOPIC_ID}
    assert broker.hosted(T0).leader_epoch == 1


def test_a_log_of_an_earlier_topic_of_the_same_name_is_set_aside(broker: BareBroker) -> None:
    """A controller of Kafka sends no FULL request, which would find it."""
    broker.logs.get_or_create(T0, A, is_new=True)
    assert broker.apply({T0: state()}, id=B) == {T0: Errors.NONE}
    assert broker.logs.aside == [T0]
    assert broker.logs.hosted() == {T0: B}
    assert broker.apply({T0: state(leader_epoch=9)}, id=A) == {T0: Errors.INCONSISTENT_TOPIC_ID}
    assert broker.logs.aside == [T0]


def test_a_topic_id_added_later_reaches_the_log_without_a_new_epoch(broker: BareBroker) -> None:
    broker.apply({T0: state()}, id=None)
    assert broker.logs.hosted() == {T0: None}
    assert broker.apply({T0: state()}, id=A) == {T0: Errors.NONE}, "KAFKA-13132"
    assert broker.hosted(T0).topic_id == A
    assert broker.logs.hosted() == {T0: A}
    assert broker.apply({T0: state()}, id=A) == {T0: Errors.STALE_CONTROLLER_EPOCH}


def test_a_topic_id_added_later_with_an_old_epoch_is_ignored(leader: BareBroker) -> None:
    leader.apply({T1: state(leader_epoch=1)}, id=None)
    assert leader.apply({T1: state()}, id=A) == {T1: Errors.STALE_CONTROLLER_EPOCH}
    assert leader.hosted(T1).topic_id is None


# --- failed directories ---------------------------------------------------------------------------


def test_a_failed_directory_is_reported_before_epochs_are_checked(leader: BareBroker) -> None:
    leader.logs.offline.add(T0)
    assert leader.apply({T0: state(leader_epoch=0)}) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert leader.role(T0) is Role.OFFLINE


def test_a_log_that_may_be_in_a_failed_directory_is_not_created(broker: BareBroker) -> None:
    broker.logs.failing.update((T0, T1))
    errors = broker.apply({T0: state(), T1: state(is_new=True), T2: state()})
    assert errors == {T0: Errors.KAFKA_STORAGE_ERROR, T1: Errors.NONE, T2: Errors.NONE}
    assert broker.role(T0) is Role.OFFLINE
    assert broker.role(T1) is Role.LEADER


def test_a_repaired_directory_is_used_by_the_next_request(broker: BareBroker) -> None:
    broker.logs.failing.add(T0)
    broker.apply({T0: state()})
    broker.logs.failing.clear()
    assert broker.apply({T0: state()}) == {T0: Errors.NONE}, "the failed request was not applied"
    assert broker.role(T0) is Role.LEADER


# --- FULL -----------------------------------------------------------------------------------------


def test_logs_that_a_full_request_does_not_list_are_set_aside(broker: BareBroker) -> None:
    broker.apply({T0: state(), T1: state()})
    stray = TopicPartition("stray", 0)
    broker.logs.get_or_create(stray, B, is_new=True)
    assert broker.apply({T1: state()}, type=FULL) == {T1: Errors.STALE_CONTROLLER_EPOCH}
    assert broker.logs.aside == [stray, T0]
    assert list(broker.manager.partitions) == [T1]


def test_a_stray_log_on_a_failed_disk_stays_and_others_are_set_aside(
    broker: BareBroker,
) -> None:
    broker.apply({T0: state(), T1: state(), T2: state()})
    broker.logs.failing.add(T0)
    broker.apply({T2: state()}, type=FULL)
    assert broker.logs.aside == [T1]
    assert list(broker.manager.partitions) == [T2]


def test_an_empty_full_request_sets_all_logs_aside(leader: BareBroker) -> None:
    assert leader.apply({}, type=FULL) == {}
    assert leader.logs.aside == [T0]
    assert leader.manager.partitions == {}


def test_an_incremental_request_sets_nothing_aside(leader: BareBroker) -> None:
    leader.apply({T1: state()})
    leader.apply({})
    assert leader.logs.aside == []


def test_a_listed_replica_is_not_stray_even_if_it_fails(leader: BareBroker) -> None:
    leader.logs.offline.add(T0)
    leader.logs.failing.add(T1)
    leader.apply({T0: state(), T1: state(), T2: state(2, replicas=(2,))}, type=FULL)
    assert leader.logs.aside == []


def test_a_late_duplicate_of_a_full_request_does_not_undo_later_requests(
    broker: BareBroker,
) -> None:
    broker.apply({T0: state()}, type=FULL)
    broker.apply({T1: state(is_new=True)})
    broker.apply({T0: state()}, type=FULL)
    assert broker.logs.aside == []
    assert sorted(broker.manager.partitions) == [T0, T1]


@pytest.mark.parametrize("epochs", [{"controller_epoch": 8}, {"broker_epoch": 101}])
def test_a_full_request_with_newer_epochs_is_applied(
    broker: BareBroker, epochs: dict[str, int]
) -> None:
    broker.apply({T0: state()}, type=FULL)
    broker.apply({T1: state(is_new=True)})
    broker.manager.broker_epoch = epochs.get("broker_epoch", 100)
    response = broker.handle(leader_and_isr({T0: state()}, type=FULL), **epochs)
    assert isinstance(response, LeaderAndIsrResponse)
    assert broker.logs.aside == [T1]


def test_a_full_request_of_a_deposed_controller_sets_nothing_aside(leader: BareBroker) -> None:
    response = leader.handle(leader_and_isr({}, type=FULL), controller_epoch=6)
    assert response == LeaderAndIsrResponse(Errors.STALE_CONTROLLER_EPOCH, controller_epoch=7)
    assert leader.logs.aside == []


def test_a_controller_epoch_belongs_to_one_controller(broker: BareBroker) -> None:
    """``/controller_epoch`` was set back, and another controller was elected in the same epoch."""
    broker.handle(leader_and_isr({T0: state(leader_epoch=1)}), controller_id=0)
    again = leader_and_isr({T1: state(leader_epoch=1)}, type=FULL)
    response = broker.handle(again, controller_id=2)
    assert response == refusal(again, Errors.STALE_CONTROLLER_EPOCH, controller_epoch=7)
    assert broker.logs.aside == []
    broker.handle(again, controller_id=2, controller_epoch=8)
    assert broker.hosted(T1).leader_epoch == 1


def test_a_restarted_broker_refuses_a_deposed_controller(broker: BareBroker) -> None:
    broker.handle(leader_and_isr({T0: state(leader_epoch=1)}), controller_epoch=9)
    again = ReplicaManager(broker.manager.broker_id, broker.logs, MetadataCache())
    again.broker_epoch = 100
    stale = again.handle(HEADER._replace(controller_epoch=8), leader_and_isr({}, type=FULL), 0)
    assert stale == LeaderAndIsrResponse(Errors.STALE_CONTROLLER_EPOCH, controller_epoch=9)
    assert broker.logs.aside == []


def test_the_highest_epochs_are_stored_before_a_request_is_applied(broker: BareBroker) -> None:
    broker.manager.broker_epoch = 300
    broker.manager.broker_epoch = 200  # a late answer
    broker.handle(leader_and_isr({}), controller_epoch=9, broker_epoch=200)
    assert broker.logs.seen == SeenOfCluster(controller_epoch=9, zxid=300)


def test_a_log_of_an_earlier_topic_is_set_aside_for_the_present_one(leader: BareBroker) -> None:
    leader.logs.get_or_create(T1, A, is_new=True)  # left on disk
    leader.apply({T2: state(leader_epoch=5)})
    errors = leader.apply({T0: state(2), T1: state(), T2: state()}, id=B, type=FULL)
    assert errors == dict.fromkeys((T0, T1, T2), Errors.NONE)
    assert leader.logs.aside == [T0, T1, T2]
    assert leader.logs.hosted() == dict.fromkeys((T0, T1, T2), B)
    assert (leader.role(T0), leader.hosted(T0).leader_epoch) == (Role.FOLLOWER, 0)
    assert hosted_as(Role.LEADER, leader.manager) == 2


def test_a_topic_without_an_id_sets_no_log_aside(leader: BareBroker) -> None:
    leader.apply({T1: state()}, id=None)
    assert leader.apply({T0: state(), T1: state()}, id=None, type=FULL)
    assert leader.logs.aside == []


def test_only_the_first_full_request_of_a_term_sets_logs_of_other_topics_aside(
    leader: BareBroker,
) -> None:
    leader.apply({T0: state(leader_epoch=1)}, type=FULL)
    late = leader.apply({T0: state(leader_epoch=9)}, id=B, type=FULL)
    assert late == {T0: Errors.INCONSISTENT_TOPIC_ID}
    assert leader.apply({T0: state(leader_epoch=9)}, id=B, type=INCREMENTAL) == late
    assert leader.logs.aside == []
    assert leader.hosted(T0).topic_id == A


# --- StopReplica ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("leader_epoch", "error"),
    [
        (0, Errors.FENCED_LEADER_EPOCH),
        (1, Errors.NONE),  # KAFKA-13972
        (2, Errors.NONE),
        (NO_EPOCH, Errors.NONE),
        (EPOCH_DURING_DELETE, Errors.NONE),
    ],
)
@pytest.mark.parametrize("delete", [False, True])
def test_a_stop_is_applied_unless_its_leader_epoch_is_old(
    leader: BareBroker, leader_epoch: int, error: Errors, delete: bool
) -> None:
    assert leader.stop(T0, leader_epoch, delete=delete) is error
    is_gone = delete and error is Errors.NONE
    assert (T0 not in leader.manager.partitions) == is_gone
    assert (T0 not in leader.logs.hosted()) == is_gone


def test_a_stop_ends_following_but_not_leading(leader: BareBroker) -> None:
    leader.apply({T1: state(2, leader_epoch=1)})
    for topic_partition in (T0, T1):
        assert leader.stop(topic_partition, 1, delete=False) is Errors.NONE
    assert leader.role(T0) is Role.LEADER
    assert leader.role(T1) is Role.NONE
    assert leader.apply({T1: state(2, leader_epoch=1)}) == {T1: Errors.STALE_CONTROLLER_EPOCH}


def test_a_stopped_replica_follows_again_in_the_next_controller_epoch(
    broker: BareBroker,
) -> None:
    broker.apply({T1: state(2, leader_epoch=1)})
    broker.stop(T1, 1, delete=False)
    next_term = HEADER.controller_epoch + 1
    row = {T1: state(2, leader_epoch=1)}
    assert broker.apply(row, controller_epoch=next_term) == {T1: Errors.NONE}
    assert broker.role(T1) is Role.FOLLOWER


def test_a_repeated_stop_changes_nothing(leader: BareBroker) -> None:
    for delete in (False, True, True, False):
        assert leader.stop(T0, 1, delete=delete) is Errors.NONE
    assert leader.manager.partitions == {}


def test_the_deletion_of_a_partition_that_is_not_hosted_deletes_its_log(
    broker: BareBroker,
) -> None:
    broker.logs.get_or_create(T0, A, is_new=True)
    assert broker.stop(T0, NO_EPOCH, delete=False) is Errors.NONE
    assert broker.logs.hosted() == {T0: A}
    assert broker.stop(T0, NO_EPOCH, delete=True) is Errors.NONE
    assert broker.logs.hosted() == {}


def test_a_deleted_partition_may_be_created_again(leader: BareBroker) -> None:
    leader.stop(T0, EPOCH_DURING_DELETE, delete=True)
    assert leader.apply({T0: state(is_new=True)}, id=B) == {T0: Errors.NONE}
    assert leader.hosted(T0).topic_id == B


def test_a_late_stop_for_an_earlier_topic_is_refused(leader: BareBroker) -> None:
    for delete in (False, True):
        late = leader.stop(T0, EPOCH_DURING_DELETE, delete=delete, id=B)
        assert late is Errors.INCONSISTENT_TOPIC_ID
    assert leader.role(T0) is Role.LEADER
    assert leader.stop(T0, EPOCH_DURING_DELETE, delete=True, id=None) is Errors.NONE


@pytest.mark.parametrize("epoch", [NO_EPOCH, EPOCH_DURING_DELETE])
def test_a_stop_for_another_topic_does_not_delete_a_log_that_is_not_hosted(
    broker: BareBroker, epoch: int
) -> None:
    broker.logs.get_or_create(T0, B, is_new=True)
    assert broker.stop(T0, epoch, delete=True, id=A) is Errors.INCONSISTENT_TOPIC_ID
    assert broker.logs.hosted() == {T0: B}
    assert broker.stop(T0, epoch, delete=True, id=B) is Errors.NONE
    assert broker.logs.hosted() == {}


def test_a_log_that_may_be_in_a_failed_directory_is_not_reported_as_deleted(
    broker: BareBroker,
) -> None:
    broker.logs.out_of_sight.add(T0)
    assert broker.stop(T0, EPOCH_DURING_DELETE, delete=True) is Errors.KAFKA_STORAGE_ERROR
    assert broker.role(T0) is None
    assert broker.stop(T0, EPOCH_DURING_DELETE, delete=False) is Errors.NONE
    broker.logs.out_of_sight.clear()
    assert broker.stop(T0, EPOCH_DURING_DELETE, delete=True) is Errors.NONE


def test_a_log_of_a_topic_whose_znode_is_missing_is_set_aside(leader: BareBroker) -> None:
    assert leader.stop(T0, EPOCH_OF_LOST_TOPIC, delete=True, id=B) is Errors.INCONSISTENT_TOPIC_ID
    for _ in range(2):
        assert leader.stop(T0, EPOCH_OF_LOST_TOPIC, delete=True) is Errors.NONE
    assert (leader.role(T0), leader.logs.hosted().get(T0)) == (None, None)
    assert T0 in leader.logs.aside


def test_a_log_of_a_restored_topic_needs_a_later_leader_epoch(broker: BareBroker) -> None:
    log = broker.logs.get_or_create(T0, A, is_new=True)
    broker.logs.epochs[T0] = [(2, 0)]
    log.stray_high_watermark = 0  # type: ignore[misc]
    for leader in (ME, 2):
        asked = broker.apply({T0: state(leader, 2, is_new=True)})
        assert asked == {T0: Errors.CORRUPT_MESSAGE}
    assert broker.apply({T0: state(ME, 3, is_new=True)}) == {T0: Errors.NONE}


@pytest.mark.parametrize("leader_epoch", [1, EPOCH_DURING_DELETE])
def test_a_failed_deletion_takes_the_replica_offline(leader: BareBroker, leader_epoch: int) -> None:
    leader.logs.failing.add(T0)
    assert leader.stop(T0, leader_epoch, delete=True) is Errors.KAFKA_STORAGE_ERROR
    assert leader.role(T0) is Role.OFFLINE
    assert leader.stop(T0, leader_epoch, delete=True) is Errors.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("delete", [False, True])
def test_a_stop_in_a_failed_directory_is_a_storage_error_in_any_epoch(
    leader: BareBroker, delete: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="state.change")
    leader.logs.offline.add(T0)
    assert leader.stop(T0, 0, delete=delete) is Errors.KAFKA_STORAGE_ERROR
    assert caplog.messages[-1].endswith(f"stopped 0 of 1 partitions, not {T0}: KAFKA_STORAGE_ERROR")


# --- duplicate and late requests ------------------------------------------------------------------


def test_a_duplicate_or_late_request_changes_nothing() -> None:
    control_requests: list[ControlRequest] = [
        leader_and_isr({T0: state(2, 0), T1: state(2, 0)}, type=FULL),
        leader_and_isr({T0: state(ME, 1), T2: state(ME, 0, is_new=True)}),
        stop_replica(T1, 0, delete=False),
        leader_and_isr({T1: state(ME, 1), T0: state(NO_LEADER, 2)}),
    ]
    expected = BareBroker()
    for request in control_requests:
        expected.handle(request)
    for late in control_requests:
        broker = BareBroker()
        for request in control_requests:
            broker.handle(request)
        broker.handle(late)
        assert broker.manager.partitions == expected.manager.partitions
        assert broker.logs.hosted() == expected.logs.hosted()


# --- the lock -------------------------------------------------------------------------------------


class CountedLock:
    """A lock that cannot be taken twice; counts how often it is taken."""

    def __init__(self) -> None:
        self.is_held = False
        self.count = 0

    def __enter__(self) -> None:
        assert not self.is_held
        self.is_held = True
        self.count += 1

    def __exit__(self, *failure: object) -> None:
        self.is_held = False


def test_every_method_takes_the_lock_once_and_releases_it() -> None:
    lock = CountedLock()
    manager = ReplicaManager(ME, NumberedLogs(), MetadataCache(), SETTINGS, lock)
    fetch = FetchRequest(2)
    proposals = AlterPartitionRequest(ME, 100, ())

    def ignore(response: object) -> None:
        assert not lock.is_held

    uses: list[Callable[[], object]] = [
        lambda: manager.handle(HEADER, leader_and_isr({T0: state(2)}), 0),
        lambda: manager.fetch(fetch, 0, ignore),
        lambda: manager.produce(-1, {}, 0, ignore),
        lambda: manager.current_leader(T0),
        lambda: manager.fetch_for_consumer(ConsumerFetch({}), 0, ignore),
        lambda: manager.delete_records({}, 0, ignore),
        lambda: manager.list_offsets({}),
        lambda: manager.offsets_for_leader_epoch({}),
        manager.on_log_directory_failed,
        manager.checkpoint_high_watermarks,
        lambda: manager.shrink_isrs(0),
        manager.leaders_to_fetch_from,
        lambda: manager.fetch_request(2, 0),
        lambda: manager.on_fetch_response(2, fetch, FetchResponse(Errors.NONE), 0),
        manager.alter_partition_request,
        lambda: manager.on_alter_partition_response(proposals, None, 0),
        lambda: manager.under_replicated_count,
        lambda: manager.under_min_isr_count,
        lambda: manager.at_min_isr_count,
        lambda: manager.max_lag,
        lambda: sum(manager.delayed_counts.values()),
        lambda: manager.counters,
    ]
    for count, use in enumerate(uses, start=1):
        use()
        assert (lock.count, lock.is_held) == (count, False)


# --- late duplicates within a term ----------------------------------------------------------------


def test_a_late_duplicate_of_an_earlier_request_changes_nothing(broker: BareBroker) -> None:
    host, drop = leader_and_isr({T0: state(leader_epoch=1)}), stop_replica(T0, 1, delete=True)
    broker.handle(host, sequence=3)
    broker.handle(drop, sequence=4)
    late = broker.handle(host, sequence=3)
    assert late == refusal(host, Errors.STALE_CONTROLLER_EPOCH)
    assert broker.manager.partitions == {}, "a deleted replica does not come back"


def test_update_metadata_is_in_no_order_with_the_other_requests(broker: BareBroker) -> None:
    host, metadata = leader_and_isr({T0: state(leader_epoch=1)}), UpdateMetadataRequest((), ())
    assert broker.handle(metadata, sequence=4) == UpdateMetadataResponse(Errors.NONE)
    broker.handle(host, sequence=3)  # it was sent first, and its connection broke
    assert set(broker.manager.partitions) == {T0}
    assert broker.handle(metadata, sequence=2) == refusal(metadata, Errors.STALE_CONTROLLER_EPOCH)


def test_a_duplicate_request_gets_the_same_response(broker: BareBroker) -> None:
    drop = stop_replica(T0, 1, delete=True)
    assert broker.handle(drop, sequence=4) == broker.handle(drop, sequence=4)


def test_sequence_numbers_restart_with_the_controller_epoch_and_may_be_missing(
    broker: BareBroker,
) -> None:
    host = leader_and_isr({T0: state(leader_epoch=1)})
    broker.handle(host, sequence=9)
    unnumbered = broker.handle(leader_and_isr({T1: state(leader_epoch=1)}))
    assert isinstance(unnumbered, LeaderAndIsrResponse)
    assert unnumbered.error_code is Errors.NONE
    first = broker.handle(
        leader_and_isr({T2: state(leader_epoch=1)}), sequence=1, controller_epoch=8
    )
    assert isinstance(first, LeaderAndIsrResponse)
    assert first.error_code is Errors.NONE
    assert set(broker.manager.partitions) == {T0, T1, T2}


def test_a_second_full_request_of_a_term_is_applied_if_it_is_no_duplicate(
    broker: BareBroker,
) -> None:
    broker.handle(leader_and_isr({T0: state()}, type=FULL), sequence=1)
    broker.handle(leader_and_isr({T1: state()}), sequence=2)
    broker.handle(leader_and_isr({T1: state()}, type=FULL), sequence=3)
    assert set(broker.manager.partitions) == {T1}


@pytest.mark.parametrize("newer", ["controller_epoch", "broker_epoch"])
def test_a_replica_stopped_for_a_shutdown_follows_again_in_newer_epochs(
    broker: BareBroker, newer: str
) -> None:
    follow = leader_and_isr({T0: state(2, leader_epoch=1)}, type=FULL)
    broker.handle(follow)
    broker.handle(stop_replica(T0, 1, delete=False))
    broker.handle(follow)
    assert broker.manager.partitions[T0].role is Role.NONE, "a late duplicate"
    broker.manager.broker_epoch += newer == "broker_epoch"
    broker.handle(follow, **{newer: getattr(HEADER, newer) + 1})
    assert broker.manager.partitions[T0].role is Role.FOLLOWER


# --- unexpected errors ----------------------------------------------------------------------------


class PoisonedLogs(NumberedLogs):
    """Logs of which one raises an unexpected error."""

    poisoned: TopicPartition | None = T1

    def get_or_create(self, topic_partition: TopicPartition, *args: Any, **kwargs: Any) -> Any:
        """Return a log, or raise."""
        if topic_partition == self.poisoned:
            raise LookupError("unexpected")
        return super().get_or_create(topic_partition, *args, **kwargs)

    def delete(self, topic_partition: TopicPartition, **options: Any) -> None:
        """Delete a log, or raise."""
        if topic_partition == self.poisoned:
            raise LookupError("unexpected")
        super().delete(topic_partition, **options)


class ShortOfDescriptors(NumberedLogs):
    """Logs of which one gets no file descriptor."""

    short: TopicPartition | None = T1

    def get_or_create(self, topic_partition: TopicPartition, *args: Any, **kwargs: Any) -> Any:
        """Return a log, or raise."""
        if topic_partition == self.short:
            raise ShortageError("Too many open files")
        return super().get_or_create(topic_partition, *args, **kwargs)

    def set_aside(self, topic_partition: TopicPartition) -> None:
        """Set a log aside, or raise."""
        if topic_partition == self.short:
            raise ShortageError("Too many open files")
        super().set_aside(topic_partition)


def test_a_row_without_a_file_descriptor_fails_the_request_so_that_it_is_repeated() -> None:
    broker, logs = BareBroker(), ShortOfDescriptors()
    broker.manager = ReplicaManager(ME, logs, broker.cache, SETTINGS)
    broker.manager.broker_epoch = 100
    request = leader_and_isr({T0: state(), T1: state()}, A, INCREMENTAL)
    response = broker.handle(request)
    assert isinstance(response, LeaderAndIsrResponse)
    assert response.error_code is Errors.UNKNOWN_SERVER_ERROR
    assert broker.role(T0) is Role.LEADER
    assert hosted_as(Role.OFFLINE, broker.manager) == 0
    logs.short = None
    again = broker.handle(request)
    assert isinstance(again, LeaderAndIsrResponse)
    assert again.error_code is Errors.NONE
    assert [broker.role(topic_partition) for topic_partition in (T0, T1)] == [
        Role.LEADER,
        Role.LEADER,
    ]


def test_a_leader_whose_log_cannot_be_set_aside_for_lack_of_descriptors_leads_on() -> None:
    broker, logs = BareBroker(), ShortOfDescriptors()
    logs.short = None
    broker.manager = ReplicaManager(ME, logs, broker.cache, SETTINGS)
    broker.manager.broker_epoch = 100
    broker.meet({1: 100, 2: 100})
    broker.apply({T0: state(leader_epoch=1, isr=(1,))})
    logs.short = T0
    broker.stop(T0, EPOCH_OF_LOST_TOPIC, delete=True)
    assert broker.role(T0) is Role.LEADER
    broker.fetched_by(2)
    request = broker.send()
    broker.answer(request, accepted(request.partitions[0]))
    assert broker.hosted(T0).isr == (1, 2)


@pytest.fixture
def poisoned() -> BareBroker:
    broker = BareBroker()
    broker.logs = PoisonedLogs()
    broker.manager = ReplicaManager(ME, broker.logs, broker.cache, SETTINGS)
    broker.manager.broker_epoch = 100
    return broker


@pytest.mark.parametrize("type", [FULL, INCREMENTAL])
def test_a_row_that_raises_fails_alone(poisoned: BareBroker, type: LeaderAndIsrType) -> None:
    rows = {topic_partition: state() for topic_partition in (T0, T1, T2)}
    for _ in range(2):
        errors = poisoned.apply(rows, type=type)
        assert errors[T1] is Errors.KAFKA_STORAGE_ERROR
        assert Errors.KAFKA_STORAGE_ERROR not in (errors[T0], errors[T2])
    assert [poisoned.role(t) for t in (T0, T1, T2)] == [Role.LEADER, Role.OFFLINE, Role.LEADER]


def test_a_row_that_raised_is_applied_when_it_is_repeated(poisoned: BareBroker) -> None:
    poisoned.apply({T1: state()})
    assert isinstance(poisoned.logs, PoisonedLogs)
    poisoned.logs.poisoned = None
    assert poisoned.apply({T1: state()}) == {T1: Errors.NONE}
    assert poisoned.role(T1) is Role.LEADER
    assert hosted_as(Role.OFFLINE, poisoned.manager) == 0


def test_a_role_change_that_raised_is_repeated_in_the_same_epoch(
    poisoned: BareBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_after(partition: Partition, *args: Any) -> None:
        make_leader(partition, *args)
        raise LookupError("unexpected")

    make_leader = Partition.make_leader
    with monkeypatch.context() as patched:
        patched.setattr(Partition, "make_leader", raise_after)
        assert poisoned.apply({T0: state()}) == {T0: Errors.KAFKA_STORAGE_ERROR}
    assert poisoned.apply({T0: state()}) == {T0: Errors.NONE}
    assert poisoned.role(T0) is Role.LEADER


def test_a_replica_that_cannot_be_stopped_fails_alone(poisoned: BareBroker) -> None:
    poisoned.apply({T0: state()})
    assert poisoned.stop(T1, EPOCH_DURING_DELETE, delete=True) is Errors.KAFKA_STORAGE_ERROR
    assert poisoned.stop(T0, EPOCH_DURING_DELETE, delete=True) is Errors.NONE


def test_a_stray_log_that_raises_does_not_stop_other_rows(
    poisoned: BareBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned.apply({T0: state()})

    def set_aside(topic_partition: TopicPartition) -> None:
        raise LookupError("unexpected")

    monkeypatch.setattr(poisoned.logs, "set_aside", set_aside)
    assert poisoned.apply({T2: state()}, type=FULL) == {T2: Errors.NONE}
    assert poisoned.role(T2) is Role.LEADER


def test_stray_logs_of_a_topic_are_needed_until_its_other_logs_are_in_use():
    """The metadata name the topic before a LeaderAndIsr takes its logs back."""
    broker = BareBroker()
    assert not broker.manager.is_complete_topic(A), "no other broker has it either"
    rows = dict.fromkeys((0, 1), (ME, 2)) | {2: (2, 3)}
    known = UpdateMetadataTopic(
        "t",
        A,
        tuple(
            UpdateMetadataPartition(number, 7, replicas[0], 1, replicas, 3, replicas, ())
            for number, replicas in rows.items()
        ),
        0,
    )
    broker.handle(UpdateMetadataRequest((known,), ()))
    assert not broker.manager.is_complete_topic(A)
    broker.apply({T0: state(leader_epoch=1)})
    assert not broker.manager.is_complete_topic(A)
    broker.apply({T1: state(leader_epoch=1)})
    assert broker.manager.is_complete_topic(A)
    assert not broker.manager.is_complete_topic(B)
