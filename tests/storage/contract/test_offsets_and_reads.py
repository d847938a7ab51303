from __future__ import annotations

import pytest

from regent.core.replica_logs import PartitionLog
from tests.storage.contract.hosts import T0, Host, log_of
from tests.storage.contract.records import EVERYTHING, append, append_each, read, values
from tests.support.record_batches import Record, batch, offsets_of, records_of, values_of

SIZE = len(batch(b"0"))


def test_a_new_log_is_empty(log: PartitionLog):
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (0, 0, -1)
    assert log.size == 0
    assert log.read(0, EVERYTHING, 0, at_least_one=True).size == 0


def test_a_leader_assigns_offsets_and_its_epoch(log: PartitionLog):
    assert append(log, b"a", b"b", epoch=3)[:2] == (0, 1)
    assert append(log, b"c", epoch=3)[:2] == (2, 2)
    assert log.log_end_offset == 3
    expected = [(0, b"a"), (1, b"b"), (2, b"c")]
    assert read(log) == [Record(offset, 3, None, value) for offset, value in expected]


def test_several_batches_of_one_request_follow_one_another(log: PartitionLog):
    appended = log.append_as_leader(batch(b"a", b"b") + batch(b"c"), 1)
    assert appended[:2] == (0, 2)
    assert offsets_of(log.read(0, EVERYTHING, 3, at_least_one=True).read()) == [0, 1, 2]


def test_writable_records_are_patched_in_place(log: PartitionLog):
    append(log, b"a")
    writable = bytearray(batch(b"b"))
    log.append_as_leader(writable, 5)
    assert records_of(writable) == [Record(1, 5, None, b"b")]
    unwritable = batch(b"c")
    log.append_as_leader(unwritable, 5)
    assert values(log) == [b"a", b"b", b"c"]
    assert records_of(unwritable)[0].offset == 0


def test_part_of_a_larger_buffer_is_appended(log: PartitionLog):
    request = bytearray(b"head" + batch(b"a") + b"tail")
    log.append_as_leader(memoryview(request)[4:-4], 2)
    assert read(log) == [Record(0, 2, None, b"a")]
    assert request.startswith(b"head")
    assert request.endswith(b"tail")


def test_a_read_begins_with_the_batch_of_the_offset(log: PartitionLog):
    append(log, b"a", b"b", b"c")
    append(log, b"d")
    assert offsets_of(log.read(1, EVERYTHING, 4, at_least_one=True).read()) == [0, 1, 2, 3]
    assert offsets_of(log.read(3, EVERYTHING, 4, at_least_one=True).read()) == [3]


def test_a_read_at_the_end_is_empty(log: PartitionLog):
    append(log, b"a")
    assert log.read(1, EVERYTHING, 1, at_least_one=True).size == 0


@pytest.mark.parametrize("limit", [0, 1, 2, 3])
def test_no_record_is_read_from_the_limit_on(log: PartitionLog, limit: int):
    append(log, b"a")
    append(log, b"b", b"c")
    found = offsets_of(log.read(0, EVERYTHING, limit, at_least_one=True).read())
    assert found == {0: [], 1: [0], 2: [0], 3: [0, 1, 2]}[limit]


@pytest.mark.parametrize(("max_bytes", "count"), [(0, 0), (SIZE - 1, 0), (SIZE, 1), (2 * SIZE, 2)])
def test_only_whole_batches_that_fit_are_read(log: PartitionLog, max_bytes: int, count: int):
    append_each(log, b"0", b"1", b"2")
    for at_least_one in (False, True):
        records = log.read(0, max_bytes, 3, at_least_one=at_least_one)
        found = values_of(records.read())
        expected = max(count, 1) if at_least_one else count
        assert len(found) == expected
        assert records.size == expected * SIZE


def test_every_offset_of_a_long_log_can_be_read(host: Host, log: PartitionLog):
    append_each(log, *(b"%d" % number for number in range(60)))
    for _ in range(2):
        log = log_of(host)
        assert log.size >= 60 * SIZE
        for offset in range(60):
            data = log.read(offset, SIZE, 60, at_least_one=True).read()
            assert values_of(data) == [b"%d" % offset]
        host.restart()


def test_records_that_were_read_stay_readable_after_a_deletion(host: Host, log: PartitionLog):
    append_each(log, *(b"%d" % number for number in range(30)))
    records = log.read(0, EVERYTHING, 30, at_least_one=True)
    host.logs.delete(T0)
    assert values_of(records.read())[0] == b"0"


def test_the_log_start_offset_never_decreases(log: PartitionLog):
    append(log, b"a", b"b")
    append(log, b"c")
    log.advance_log_start_offset(1)
    log.advance_log_start_offset(0)
    assert (log.log_start_offset, log.log_end_offset) == (1, 3)
    assert offsets_of(log.read(1, EVERYTHING, 3, at_least_one=True).read()) == [0, 1, 2]
    log.advance_log_start_offset(3)
    assert append(log, b"d")[:2] == (3, 3)
