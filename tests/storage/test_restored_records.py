"""A log of a topic that is being restored: batches keep the offsets that they come with."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.records.compression import NONE, ZSTD
from regent.records.record_batch import RestoredRecord, empty_batch, read_header, restored_batches
from regent.storage.log.unified_log import UnifiedLog
from regent.storage.log_manager import LogManager
from tests.support.disk_logs import T1, Machine, create, files, log_of
from tests.support.record_batches import TIMESTAMP_MS, batch, records_of

RESTORING = LogConfig(keeps_offsets=True)
FAR = 2**40


def restored(*offsets: int, codec: int = NONE) -> list[bytearray]:
    """Return batches with a record at each offset."""
    records = [
        RestoredRecord(offset, TIMESTAMP_MS + offset % 100, b"k", b"v%d" % offset)
        for offset in offsets
    ]
    return list(restored_batches(records, codec, 1_000_000))


def offsets(log: UnifiedLog) -> list[int]:
    """Return the offsets of all records, as a reader from the beginning finds them."""
    found: list[int] = []
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = bytes(log.read(at, 1_000_000, log.log_end_offset, at_least_one=True).read())
        found += [record.offset for record in records_of(data)]
        position = 0
        while position < len(data):
            header = read_header(data, position)
            position += header.size
            at = header.next_offset
    return found


@pytest.fixture
def log(disk_log: UnifiedLog) -> UnifiedLog:
    disk_log.configure(RESTORING)
    return disk_log


@pytest.mark.parametrize("wanted", [[0, 1, 2], [7, 8], [0, 1, 5, 6, 900], [FAR, FAR + 1, 3 * FAR]])
def test_records_have_the_offsets_that_they_had(log: UnifiedLog, wanted: Sequence[int]):
    for data in restored(*wanted):
        first = read_header(data).base_offset
        assert log.append_as_leader(data, 3).first_offset == first
    assert offsets(log) == wanted
    assert log.log_end_offset == wanted[-1] + 1
    assert log.latest_epoch == 3


def test_gaps_survive_a_crash_and_a_segment_that_ends(machine: Machine, logs: LogManager):
    log = create(logs)
    log.configure(LogConfig(keeps_offsets=True, segment_bytes=160))
    wanted = [3, 10, 11, 5_000, FAR, FAR + 5, FAR + 6, 3 * FAR]
    for data in restored(*wanted):
        log.append_as_leader(data, 0)
    assert len(files(log.path)) == 5
    assert offsets(log) == wanted
    again = log_of(machine.crash())
    assert offsets(again) == wanted
    assert not machine.damaged


def test_a_batch_without_records_brings_a_log_to_its_former_end(log: UnifiedLog):
    (data,) = restored(0, 1)
    log.append_as_leader(data, 0)
    log.append_as_leader(empty_batch(99), 0)
    assert (log.log_end_offset, offsets(log)) == (100, [0, 1])
    assert log.append_as_leader(restored(100)[0], 0).first_offset == 100


def test_a_batch_that_is_sent_again_is_recognised(log: UnifiedLog):
    sent = restored(4, 5, 9, 10, codec=ZSTD)
    for data in sent:
        log.append_as_leader(bytes(data), 0)
    for data in sent:
        answer = log.append_as_leader(bytes(data), 1)
        assert answer.is_duplicate
        assert answer.first_offset == read_header(data).base_offset
        assert answer.last_offset == read_header(data).last_offset
    assert log.log_end_offset == 11


REFUSED = {
    "other records at an offset that is taken": batch(b"other"),
    "a batch that begins inside another": batch(b"x", base_offset=1),
    "an idempotent producer": batch(b"x", base_offset=5, producer_id=1, base_sequence=0),
    "a control batch": batch(b"x", base_offset=5, attributes=0x20),
    "a transactional batch": batch(b"x", base_offset=5, attributes=0x10),
    "a batch at the last offset that there is": batch(b"x", base_offset=2**63 - 1),
    "a batch that ends after the last offset": batch(b"x", b"y", base_offset=2**63 - 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_batches_are_refused_and_nothing_changes(log: UnifiedLog, name: str):
    log.append_as_leader(restored(0, 1, 2)[0], 0)
    with pytest.raises(RecordsRefusedError) as refusal:
        log.append_as_leader(REFUSED[name], 0)
    assert refusal.value.error_code is Errors.INVALID_RECORD
    assert offsets(log) == [0, 1, 2]


def test_a_topic_that_is_not_restored_takes_no_offsets_from_producers(disk_log: UnifiedLog):
    with pytest.raises(RecordsRefusedError):
        disk_log.append_as_leader(restored(7)[0], 0)
    with pytest.raises(RecordsRefusedError):
        disk_log.append_as_leader(empty_batch(0), 0)
    assert disk_log.log_end_offset == 0


def test_a_follower_has_the_same_gaps(log: UnifiedLog, logs: LogManager):
    for data in restored(7, 8, FAR):
        log.append_as_leader(data, 2)
    follower, at = create(logs, T1), 0
    while at < log.log_end_offset:
        follower.append_as_follower(log.read(at, 1_000, 4 * FAR, at_least_one=True).read())
        at = follower.log_end_offset
    assert offsets(follower) == offsets(log) == [7, 8, FAR]
