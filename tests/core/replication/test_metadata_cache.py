"""The metadata cache after requests in and out of sequence."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from regent.core.errors import Errors
from regent.core.model import LEADER_DURING_DELETE, NO_CONTROLLER, TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from tests.support.world import live_broker, topic_id

HEADER = ControlHeader(controller_id=3, controller_epoch=7, broker_epoch=100)
OLD, NEW = topic_id(1), topic_id(2)
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache()


def broker(broker_id: int) -> UpdateMetadataBroker:
    return live_broker(broker_id, 10)


def row(
    partition: int = 0,
    leader: int = 1,
    *,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    isr: tuple[int, ...] = (1, 2),
) -> UpdateMetadataPartition:
    return UpdateMetadataPartition(
        partition, 7, leader, leader_epoch, isr, partition_epoch, (1, 2), ()
    )


def gone(partition: int) -> UpdateMetadataPartition:
    return row(partition, LEADER_DURING_DELETE)


def update(
    cache: MetadataCache,
    *rows: UpdateMetadataPartition,
    topic: str = "t",
    topic_id: str | None = OLD,
    brokers: tuple[int, ...] = (1, 2, 3),
    header: ControlHeader = HEADER,
    is_full: bool = False,
    **more: Any,
) -> MetadataSnapshot:
    topics = (UpdateMetadataTopic(topic, topic_id, rows),) if rows else ()
    request = UpdateMetadataRequest(topics, tuple(broker(b) for b in brokers), is_full, **more)
    cache.update(header, request)
    return cache.snapshot


def test_the_cache_is_empty_at_first(cache: MetadataCache) -> None:
    assert cache.snapshot.controller_id == NO_CONTROLLER
    assert cache.snapshot.controller is None
    assert not cache.snapshot.brokers
    assert not cache.snapshot.partitions


def test_brokers_are_replaced_and_partitions_merged(cache: MetadataCache) -> None:
    update(cache, row(0), row(1, leader=2))
    after = update(cache, row(1, leader=1, leader_epoch=1), brokers=(2, 3))
    assert sorted(after.brokers) == [2, 3]
    assert {
        topic_partition: known.leader for topic_partition, known in after.partitions.items()
    } == {T0: 1, T1: 1}
    assert after.topic_ids == {"t": OLD}


def test_an_update_of_brokers_only_keeps_the_partitions(cache: MetadataCache) -> None:
    before = update(cache, row(0))
    after = update(cache, brokers=(1,))
    assert after.topics is before.topics
    assert after.topic_ids is before.topic_ids


def test_an_update_of_one_topic_shares_the_rows_of_all_others(cache: MetadataCache) -> None:
    update(cache, row(0))
    before = update(cache, row(0), topic="other", topic_id=NEW)
    after = update(cache, row(1), topic="other", topic_id=NEW)
    assert after.topics["t"] is before.topics["t"]
    assert after.topic_ids is before.topic_ids


def test_rows_that_are_known_already_change_no_topic(cache: MetadataCache) -> None:
    before = update(cache, row(0), row(1))
    assert update(cache, row(1)).topics["t"] is before.topics["t"]


def test_a_topic_without_an_id_gets_it_with_a_row_that_is_known_already(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), topic_id=None)
    assert update(cache, row(0)).topic_ids == {"t": OLD}


def test_the_sender_is_the_controller(cache: MetadataCache) -> None:
    snapshot = update(cache)
    assert (snapshot.controller_id, snapshot.controller_epoch) == (3, 7)
    assert snapshot.controller == broker(3)
    dead = update(cache, brokers=(1, 2))
    assert (dead.controller_id, dead.controller) == (3, None)
    unknown = update(cache, header=ControlHeader(-7, 8, 100))
    assert (unknown.controller_id, unknown.controller_epoch) == (NO_CONTROLLER, 8)


def test_a_snapshot_does_not_change(cache: MetadataCache) -> None:
    before = update(cache, row(0))
    update(cache, row(0, leader=2, leader_epoch=1), row(1), brokers=(2,))
    assert sorted(before.brokers) == [1, 2, 3]
    assert dict(before.partitions) == {T0: row(0)}


# --- sequence -------------------------------------------------------------------------------------


def test_the_newest_row_remains_in_every_sequence() -> None:
    rows = [
        row(leader=1, leader_epoch=4, partition_epoch=9),
        row(leader=2, leader_epoch=5, partition_epoch=10),
        row(leader=2, leader_epoch=5, partition_epoch=11, isr=(2,)),
    ]
    for sequence in permutations(rows):
        cache = MetadataCache()
        for each in sequence:
            update(cache, each)
        assert cache.snapshot.partitions[T0] == rows[2]


def test_a_row_with_equal_epochs_is_applied(cache: MetadataCache) -> None:
    update(cache, row(0))
    fresh = row(0)._replace(offline_replicas=(2,))
    assert update(cache, fresh).partitions[T0] == fresh


def test_a_repeated_request_changes_nothing(cache: MetadataCache) -> None:
    before = update(cache, row(0, leader_epoch=3), row(1))
    assert update(cache, row(0, leader_epoch=3), row(1)) == before


# --- deleted and recreated topics -----------------------------------------------------------------


def test_a_topic_is_removed_with_its_last_partition(cache: MetadataCache) -> None:
    update(cache, row(0), row(1))
    update(cache, row(0), topic="u", topic_id=NEW)
    one_left = update(cache, gone(0))
    assert sorted(one_left.partitions) == [T1, ("u", 0)]
    assert one_left.topic_ids == {"t": OLD, "u": NEW}
    none_left = update(cache, gone(1))
    assert none_left.topic_ids == {"u": NEW}


def test_removing_an_unknown_partition_is_not_a_change(cache: MetadataCache) -> None:
    snapshot = update(cache, gone(0))
    assert not snapshot.partitions
    assert not snapshot.topic_ids


def test_a_recreated_topic_begins_at_epoch_0(cache: MetadataCache) -> None:
    update(cache, row(0, leader_epoch=8, partition_epoch=9))
    snapshot = update(cache, row(0, leader=2), topic_id=NEW)
    assert snapshot.partitions[T0] == row(0, leader=2)
    assert snapshot.topic_ids == {"t": NEW}


def test_a_recreated_topic_keeps_nothing_of_the_earlier_one(cache: MetadataCache) -> None:
    update(cache, row(0, leader_epoch=4), row(1, leader_epoch=4))
    assert set(update(cache, row(1), topic_id=NEW).partitions) == {T1}
    assert update(cache, row(0), topic_id=NEW).partitions[T0].leader_epoch == 0


def test_a_late_removal_of_an_earlier_topic_does_not_remove_the_present_one(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), topic_id=NEW)
    snapshot = update(cache, gone(0), topic_id=OLD)
    assert snapshot.partitions[T0] == row(0)
    assert snapshot.topic_ids == {"t": NEW}


def test_a_removal_without_a_topic_id_is_about_the_present_topic(cache: MetadataCache) -> None:
    update(cache, row(0, leader_epoch=5))
    snapshot = update(cache, row(0, leader_epoch=4), row(1), topic_id=None)
    assert snapshot.partitions[T0].leader_epoch == 5
    assert snapshot.topic_ids == {"t": OLD}
    assert not update(cache, gone(0), gone(1), topic_id=None).partitions


# --- full updates ---------------------------------------------------------------------------------


def test_a_full_update_removes_everything_it_does_not_list(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), topic="gone", topic_id=NEW)
    update(cache, row(0), row(1))
    assert not cache.snapshot.is_complete
    snapshot = update(cache, row(1), is_full=True)
    assert snapshot.is_complete
    assert set(snapshot.partitions) == {T1}
    assert set(snapshot.topic_ids) == {"t"}


def test_a_full_update_removes_any_topic_of_the_name(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), row(1), topic_id=OLD)
    snapshot = update(cache, gone(0), row(1), topic_id=NEW, is_full=True)
    assert set(snapshot.partitions) == {T1}
    assert snapshot.topic_ids == {"t": NEW}


def test_a_late_duplicate_of_a_full_update_does_not_undo_later_changes(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), is_full=True)
    update(cache, row(1))
    assert set(update(cache, row(0), is_full=True).partitions) == {T0, T1}


@pytest.mark.parametrize("changed", ["controller_epoch", "broker_epoch"])
def test_a_full_update_with_newer_epochs_is_applied(cache: MetadataCache, changed: str) -> None:
    update(cache, row(0), is_full=True)
    update(cache, row(1))
    next_term = HEADER._replace(**{changed: getattr(HEADER, changed) + 1})
    assert set(update(cache, row(0), is_full=True, header=next_term).partitions) == {T0}


# --- completeness ---------------------------------------------------------------------------------


def test_a_list_of_all_that_could_be_read_completes_the_cache_and_removes_nothing(
    cache: MetadataCache,
) -> None:
    update(cache, row(0), topic="hidden", topic_id=NEW)
    snapshot = update(cache, row(0), lists_all=True)
    assert snapshot.is_complete
    assert set(snapshot.topics) == {"t", "hidden"}


def test_a_cluster_without_topics_completes_the_cache(cache: MetadataCache) -> None:
    assert update(cache, lists_all=True).is_complete
    assert update(MetadataCache(), is_full=True).is_complete


def test_all_parts_of_a_list_complete_the_cache(cache: MetadataCache) -> None:
    for part in (0, 2, 0, 1):
        update(cache, row(part), lists_all=True, part=part, parts=3)
        assert not cache.snapshot.is_complete
    assert update(cache, row(2), lists_all=True, part=2, parts=3).is_complete


def test_the_cache_stays_complete_in_the_next_term(cache: MetadataCache) -> None:
    update(cache, row(0), is_full=True)
    assert update(cache, row(0), header=HEADER._replace(controller_epoch=8)).is_complete


def test_a_waiting_caller_is_notified_once_when_the_cache_is_complete(cache: MetadataCache) -> None:
    told: list[int] = []
    cache.when_complete(lambda: told.append(1))
    update(cache, row(0))
    assert not told
    update(cache, row(0), lists_all=True)
    update(cache, row(0), is_full=True)
    assert told == [1]
    cache.when_complete(lambda: told.append(2))
    assert told == [1, 2]


def test_a_missing_topic_does_not_exist_only_if_the_cache_is_complete(cache: MetadataCache) -> None:
    retriable = Errors.NOT_LEADER_OR_FOLLOWER
    before = update(cache, row(0))
    assert before.error_of_missing(retriable) is retriable
    assert "try again" in before.missing_topic("u", retriable).message
    after = update(cache, row(0), lists_all=True)
    assert after.error_of_missing(retriable) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert after.missing_topic("u", retriable).message == "there is no topic u"


def test_any_broker_may_be_alive_until_the_brokers_are_known(cache: MetadataCache) -> None:
    assert cache.snapshot.may_be_alive(9)
    snapshot = update(cache, brokers=(1,))
    assert (snapshot.may_be_alive(1), snapshot.may_be_alive(9)) == (True, False)
