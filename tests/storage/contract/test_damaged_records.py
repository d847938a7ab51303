"""Damaged records: readers never get them, and the log can be replaced."""

from __future__ import annotations

import pytest

from regent.core.errors import DamagedRecordsError, StorageError
from regent.core.replica_logs import PartitionLog
from tests.storage.contract.hosts import T0, T1, U0, A, B, Host, create, log_of
from tests.storage.contract.records import EVERYTHING, append, append_each, read, values
from tests.support.record_batches import offsets_of


@pytest.fixture(params=["before a start", "after it"])
def damaged(host: Host, log: PartitionLog, request: pytest.FixtureRequest) -> PartitionLog:
    """A log of the offsets 0 to 59, of which the batch of offset 7 is damaged."""
    append_each(log, *(b"%d" % number for number in range(60)))
    host.damage(T0, 7)
    if request.param == "before a start":
        host.restart()
    return log_of(host)


@pytest.mark.parametrize("offset", range(7))
def test_records_before_the_damage_are_read(damaged: PartitionLog, offset: int):
    assert [record.offset for record in read(damaged, offset, limit=7)] == list(range(offset, 7))
    found = offsets_of(damaged.read(6, EVERYTHING, 60, at_least_one=True).read())
    assert found == [6]


def test_a_read_at_the_damage_raises(damaged: PartitionLog):
    for _ in range(2):
        with pytest.raises(DamagedRecordsError):
            damaged.read(7, EVERYTHING, 60, at_least_one=True)


def test_records_after_the_damage_are_read(damaged: PartitionLog):
    assert [record.offset for record in read(damaged, 8)] == list(range(8, 60))


def test_a_damaged_log_accepts_appends(host: Host, damaged: PartitionLog):
    with pytest.raises(DamagedRecordsError):
        damaged.read(7, EVERYTHING, 60, at_least_one=True)
    assert append(damaged, b"new")[:2] == (60, 60)
    assert [record.value for record in read(damaged, 59)] == [b"59", b"new"]
    assert host.logs.get(T0) is damaged
    assert (host.logs.is_offline(T0), host.logs.is_damaged(T0)) == (False, False)


def test_damage_is_removed_with_truncated_records(damaged: PartitionLog):
    damaged.truncate_to(7)
    append_each(damaged, *(b"%d" % number for number in range(7, 40)))
    assert values(damaged) == [b"%d" % number for number in range(40)]


def test_a_log_that_is_marked_damaged_is_unusable(host: Host, damaged: PartitionLog):
    append(create(host, T1), b"a")
    for _ in range(2):
        host.logs.mark_damaged(T0, "at 7")
        assert host.logs.get(T0) is None
        assert (host.logs.is_offline(T0), host.logs.is_damaged(T0)) == (True, True)
    for is_new in (True, False):
        with pytest.raises(StorageError, match="t-0"):
            host.logs.get_or_create(T0, A, is_new=is_new)
    with pytest.raises(StorageError):
        damaged.read(0, EVERYTHING, 7, at_least_one=True)
    with pytest.raises(StorageError):
        append(damaged, b"new")
    assert (host.logs.is_offline(T1), host.logs.is_damaged(T1)) == (False, False)
    assert values(log_of(host, T1)) == [b"a"]


def test_a_missing_log_can_be_marked_damaged(host: Host):
    host.logs.mark_damaged(U0, "nothing")
    assert (host.logs.is_offline(U0), host.logs.is_damaged(U0)) == (False, False)
    assert create(host, U0).log_end_offset == 0


@pytest.mark.parametrize("way", ["delete", "set_aside"])
def test_a_damaged_log_is_replaced_by_a_new_one(host: Host, damaged: PartitionLog, way: str):
    host.logs.checkpoint_high_watermarks({T0: 60})
    host.logs.mark_damaged(T0, "at 7")
    getattr(host.logs, way)(T0)
    assert (host.logs.is_offline(T0), host.logs.is_damaged(T0)) == (False, False)
    log = create(host, T0, B)
    assert (log.topic_id, log.log_end_offset) == (B, 0)
    append(log, b"a")
    for end_process in (host.restart, host.crash):
        assert values(log_of(host)) == [b"a"]
        end_process()
    assert damaged is not log


@pytest.mark.parametrize(("way", "stays"), [("delete", False), ("set_aside", True)])
def test_the_replica_of_a_damaged_log_stays_suspect_if_an_empty_one_replaces_it(
    host: Host, damaged: PartitionLog, way: str, *, stays: bool
):
    host.logs.mark_damaged(T0, "at 7")
    before = host.logs.suspect_changes
    host.logs.mark_suspect(T0)
    host.logs.mark_suspect(U0)
    assert (host.logs.suspect_changes, host.logs.is_suspect(U0)) == (before + 1, False)
    host.logs.save_suspects()
    getattr(host.logs, way)(T0)
    if not stays:
        host.logs.save_suspects()
    for end_process in (host.crash, lambda: create(host, T0, A), host.restart, host.crash):
        end_process()
        assert host.logs.is_suspect(T0) is stays
    assert host.logs.get(T0) is not damaged
    host.logs.mark_sound(T0)
    assert not host.logs.is_suspect(T0)


def test_a_stray_log_leaves_no_suspect_replica(host: Host, log: PartitionLog):
    append(log, b"a")
    host.logs.mark_suspect(T0)
    host.logs.set_aside(T0)
    assert not host.logs.is_suspect(T0)
