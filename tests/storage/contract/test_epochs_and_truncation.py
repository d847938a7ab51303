from __future__ import annotations

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.replica_logs import NO_EPOCH_END_OFFSET, EpochEndOffset, PartitionLog
from tests.storage.contract.hosts import T1, Host, create, log_of
from tests.storage.contract.records import EVERYTHING, append, append_each, read, values
from tests.support.record_batches import batch, offsets_of


@pytest.fixture
def epochs(log: PartitionLog) -> PartitionLog:
    """Epoch 2 has offsets 0 and 1, epoch 3 none, epoch 5 offsets 2 to 4."""
    for epoch, written in ((2, (b"a", b"b")), (3, ()), (5, (b"c", b"d", b"e"))):
        log.assign_epoch(epoch)
        append_each(log, *written, epoch=epoch)
    return log


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (1, (1, 0)),
        (2, (2, 2)),
        (3, (2, 2)),
        (4, (2, 2)),
        (5, (5, 5)),
        (6, (-1, -1)),
    ],
)
def test_an_epoch_ends_where_the_next_one_begins(
    host: Host, epochs: PartitionLog, epoch: int, expected: tuple[int, int]
):
    assert epochs.latest_epoch == 5
    assert epochs.end_offset_for_epoch(epoch) == EpochEndOffset(*expected)
    host.restart()
    assert log_of(host).end_offset_for_epoch(epoch) == EpochEndOffset(*expected)
    host.crash()
    assert log_of(host).end_offset_for_epoch(epoch) == EpochEndOffset(*expected)


def test_the_epoch_of_a_record_is_known_until_it_is_deleted(host: Host, epochs: PartitionLog):
    assert [epochs.epoch_for(offset) for offset in range(6)] == [2, 2, 5, 5, 5, 5]
    epochs.advance_log_start_offset(1)
    host.restart()
    log = log_of(host)
    assert [log.epoch_for(offset) for offset in range(6)] == [-1, 2, 5, 5, 5, 5]


def test_an_empty_log_has_no_epoch_until_one_is_assigned(host: Host, log: PartitionLog):
    assert log.end_offset_for_epoch(0) == NO_EPOCH_END_OFFSET
    assert log.epoch_for(0) == -1
    log.assign_epoch(4)
    for _ in range(2):
        log = log_of(host)
        assert log.latest_epoch == 4
        assert log.end_offset_for_epoch(4) == EpochEndOffset(4, 0)
        host.restart()


def test_an_epoch_without_records_is_kept_until_a_crash(host: Host, log: PartitionLog):
    append(log, b"a", epoch=1)
    log.assign_epoch(7)
    host.restart()
    log = log_of(host)
    assert log.latest_epoch == 7
    assert log.end_offset_for_epoch(7) == EpochEndOffset(7, 1)
    log.assign_epoch(8)
    host.crash()
    log = log_of(host)
    assert log.latest_epoch in (1, 7)
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 1)


def test_an_epoch_is_kept_with_its_first_records(host: Host, log: PartitionLog):
    append(log, b"a", epoch=1)
    log.assign_epoch(7)
    append(log, b"b", epoch=7)
    host.crash()
    log = log_of(host)
    assert log.latest_epoch == 7
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 1)


def test_an_epoch_that_is_assigned_again_begins_where_it_began(log: PartitionLog):
    log.assign_epoch(1)
    append(log, b"a", epoch=1)
    log.assign_epoch(1)
    log.assign_epoch(2)
    assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 1)
    assert log.end_offset_for_epoch(0) == EpochEndOffset(0, 0)


def test_a_follower_learns_epochs_from_batches(host: Host, log: PartitionLog):
    log.append_as_follower(batch(b"a", leader_epoch=1) + batch(b"b", base_offset=1, leader_epoch=4))
    for _ in range(2):
        log = log_of(host)
        assert log.latest_epoch == 4
        assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 1)
        assert values(log) == [b"a", b"b"]
        host.crash()


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 5, 6])
def test_records_and_epochs_from_an_offset_on_are_removed(
    host: Host, epochs: PartitionLog, offset: int
):
    epochs.truncate_to(offset)
    end = min(offset, 5)
    latest = 5 if end > 2 else 2 if end > 0 else -1
    for end_process in (host.restart, host.crash):
        log = log_of(host)
        assert log.log_end_offset == end
        assert [record.offset for record in read(log)] == list(range(end))
        assert log.latest_epoch == latest
        end_process()


def test_an_epoch_without_records_is_truncated(log: PartitionLog):
    append(log, b"a", epoch=1)
    log.assign_epoch(2)
    log.truncate_to(1)
    assert (log.log_end_offset, log.latest_epoch) == (1, 1)


def test_a_batch_is_removed_as_a_whole(log: PartitionLog):
    append(log, b"a")
    append(log, b"b", b"c", b"d")
    log.truncate_to(3)
    assert log.log_end_offset == 1
    assert append(log, b"e")[:2] == (1, 1)
    assert values(log) == [b"a", b"e"]


def test_other_records_replace_the_removed_ones(host: Host, log: PartitionLog):
    append_each(log, *(b"old %d" % number for number in range(40)), epoch=1)
    log.truncate_to(7)
    append_each(log, *(b"new %d" % number for number in range(7, 30)), epoch=2)
    expected = [b"old %d" % n for n in range(7)] + [b"new %d" % n for n in range(7, 30)]
    for end_process in (host.restart, host.crash, host.restart):
        log = log_of(host)
        assert values(log) == expected
        assert log.end_offset_for_epoch(1) == EpochEndOffset(1, 7)
        end_process()


def test_a_log_starts_over_at_any_offset(host: Host, log: PartitionLog):
    append_each(log, *(b"%d" % number for number in range(30)), epoch=3)
    log.truncate_fully_and_start_at(100)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (100, 100, -1)
    log.append_as_follower(batch(b"x", b"y", base_offset=100, leader_epoch=4))
    for end_process in (host.restart, host.crash):
        log = log_of(host)
        assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (100, 102, 4)
        assert values(log) == [b"x", b"y"]
        end_process()


def test_the_epoch_of_the_new_start_begins_there(host: Host, epochs: PartitionLog):
    epochs.advance_log_start_offset(1)
    assert epochs.end_offset_for_epoch(1) == EpochEndOffset(1, 1)
    epochs.advance_log_start_offset(4)
    assert epochs.end_offset_for_epoch(2) == EpochEndOffset(2, 4)
    assert epochs.end_offset_for_epoch(5) == EpochEndOffset(5, 5)
    host.restart()
    log = log_of(host)
    assert (log.log_start_offset, log.log_end_offset) == (4, 5)
    assert log.end_offset_for_epoch(2) == EpochEndOffset(2, 4)


def test_a_truncation_below_the_start_lowers_the_start(log: PartitionLog):
    append_each(log, b"a", b"b", b"c", b"d")
    log.advance_log_start_offset(3)
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert append(log, b"e")[:2] == (2, 2)


def test_records_of_another_leader_epoch_than_that_of_the_fence_are_refused(log: PartitionLog):
    def append(leader_epoch: int) -> None:
        log.append_as_follower(batch(b"a", base_offset=log.log_end_offset), leader_epoch)

    with pytest.raises(RecordsRefusedError) as refused:
        append(4)
    assert refused.value.error_code is Errors.FENCED_LEADER_EPOCH
    log.fence(4)
    append(4)
    for leader_epoch in (3, 5):
        with pytest.raises(RecordsRefusedError):
            append(leader_epoch)
    log.assign_epoch(5)
    for leader_epoch in (4, 5):
        with pytest.raises(RecordsRefusedError):
            append(leader_epoch)
    assert log.log_end_offset == 1


def test_a_follower_that_begins_inside_a_batch_appends_the_whole_batch(
    host: Host, log: PartitionLog
):
    append(log, b"a", b"b", b"c", epoch=1)
    append(log, b"d", epoch=1)
    log.advance_log_start_offset(2)
    sent = log.read(2, EVERYTHING, 4, at_least_one=True).read()
    follower = create(host, T1)
    follower.truncate_fully_and_start_at(2)
    follower.append_as_follower(sent)
    for end_process in (host.restart, host.restart):
        follower = log_of(host, T1)
        assert (follower.log_start_offset, follower.log_end_offset) == (2, 4)
        data = follower.read(2, EVERYTHING, 4, at_least_one=True).read()
        assert offsets_of(data) == [0, 1, 2, 3]
        end_process()


@pytest.mark.parametrize("base_offset", [0, 1])
def test_a_follower_refuses_batches_that_it_has(log: PartitionLog, base_offset: int):
    log.append_as_follower(batch(b"a", b"b"))
    with pytest.raises(RecordsRefusedError):
        log.append_as_follower(batch(b"x", b"y", base_offset=base_offset))
    assert values(log) == [b"a", b"b"]
