from __future__ import annotations

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LOG_APPEND_TIME, LogConfig
from regent.core.replica_logs import AppendedRecords, LastOfProducer, PartitionLog
from tests.storage.contract.hosts import T0, T1, Host, create, log_of
from tests.storage.contract.records import EVERYTHING, append, values
from tests.support.record_batches import TIMESTAMP_MS, batch

PRODUCER = 4_000


def send(
    log: PartitionLog, sequence: int, *values: bytes, producer_epoch: int = 0, id: int = PRODUCER
) -> AppendedRecords:
    """Append a batch of an idempotent producer as leader."""
    data = batch(
        *(values or (b"%d" % sequence,)),
        producer_id=id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return log.append_as_leader(data, 1)


def refused(log: PartitionLog, sequence: int, producer_epoch: int = 0) -> Errors:
    """Return the error of a refused batch."""
    with pytest.raises(RecordsRefusedError) as refusal:
        send(log, sequence, producer_epoch=producer_epoch)
    return refusal.value.error_code


def test_a_repeated_batch_is_appended_once(log: PartitionLog):
    append(log, b"another producer's")
    first = send(log, 0, b"a", b"b")
    send(log, 2, b"c")
    again = send(log, 0, b"a", b"b")
    assert (first.is_duplicate, again.is_duplicate) == (False, True)
    assert first[:2] == again[:2] == (1, 2)
    assert values(log) == [b"another producer's", b"a", b"b", b"c"]


def test_the_last_five_batches_are_recognized(log: PartitionLog):
    for sequence in range(7):
        send(log, sequence)
    assert [send(log, sequence).first_offset for sequence in range(2, 7)] == [2, 3, 4, 5, 6]
    assert refused(log, 1) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 7


@pytest.mark.parametrize("sequence", [0, 2, 5])
def test_a_gap_and_a_false_duplicate_are_refused(log: PartitionLog, sequence: int):
    send(log, 0, b"a", b"b", b"c")
    assert refused(log, sequence) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 3


def test_producers_are_independent(log: PartitionLog):
    send(log, 0, id=1)
    send(log, 0, id=2)
    send(log, 1, id=1)
    assert send(log, 1, id=2).first_offset == 3


def test_an_unknown_producer_may_begin_with_any_sequence(log: PartitionLog):
    assert send(log, 12).first_offset == 0
    assert send(log, 13).first_offset == 1


def test_the_last_batch_of_a_producer_is_returned(log: PartitionLog):
    assert log.last_of_producer(PRODUCER) is None
    send(log, 0)
    send(log, 0, producer_epoch=1)
    assert log.last_of_producer(PRODUCER) == LastOfProducer(epoch=1, sequence=0, offset=1)
    assert log.last_of_producer(2) is None


def test_a_new_epoch_of_a_producer_begins_at_0_and_ends_the_old_one(log: PartitionLog):
    send(log, 0)
    assert refused(log, 1, producer_epoch=1) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert not send(log, 0, producer_epoch=1).is_duplicate
    assert refused(log, 1, producer_epoch=0) is Errors.INVALID_PRODUCER_EPOCH
    assert send(log, 1, producer_epoch=1).first_offset == 2


def test_sequence_numbers_wrap_around(log: PartitionLog):
    send(log, 2**31 - 2, b"a", b"b")
    assert send(log, 0).first_offset == 2
    assert send(log, 2**31 - 2, b"a", b"b").is_duplicate


def test_sequence_numbers_wrap_around_inside_a_batch(log: PartitionLog):
    send(log, 2**31 - 1, b"a", b"b")
    assert send(log, 1).first_offset == 2


@pytest.mark.parametrize("ends", [["restart"], ["crash"], ["restart", "crash"], ["crash", "crash"]])
def test_sequences_survive_a_restart(host: Host, log: PartitionLog, ends: list[str]):
    for sequence in range(40):
        send(log, sequence)
    for end in ends:
        getattr(host, end)()
    log = log_of(host)
    assert send(log, 39) == AppendedRecords(39, 39, -1, is_duplicate=True)
    assert refused(log, 41) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 40).first_offset == 40


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_the_last_five_batches_are_recognized_over_segments(
    host: Host, log: PartitionLog, end: str
):
    for count in range(1, 20):
        send(log, count - 1)
        getattr(host, end)()
        log = log_of(host)
        for sequence in range(max(count - 5, 0), count):
            assert send(log, sequence).is_duplicate, f"{sequence} of {count}"
    assert log.log_end_offset == 19


def test_a_follower_learns_sequences_from_batches(host: Host, log: PartitionLog):
    for sequence in range(3):
        send(log, sequence)
    follower = create(host, T1)
    follower.append_as_follower(log.read(0, EVERYTHING, 3, at_least_one=True).read())
    assert send(follower, 2).is_duplicate
    assert refused(follower, 4) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(follower, 3).first_offset == 3


@pytest.mark.parametrize("restarts", [False, True])
def test_sequences_are_removed_with_truncated_records(
    host: Host, log: PartitionLog, restarts: bool
):
    for sequence in range(30):
        send(log, sequence)
    log.truncate_to(12)
    if restarts:
        host.crash()
        log = log_of(host)
    assert send(log, 11).is_duplicate
    assert refused(log, 13) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert send(log, 12).first_offset == 12


def test_a_producer_is_forgotten_with_all_its_records(log: PartitionLog):
    append(log, b"another producer's")
    send(log, 0, producer_epoch=3)
    log.truncate_to(1)
    assert log.last_of_producer(PRODUCER) is None
    assert send(log, 7, producer_epoch=2).first_offset == 1


def test_sequences_stay_when_the_start_moves_up(log: PartitionLog):
    send(log, 0)
    log.advance_log_start_offset(1)
    assert send(log, 0).is_duplicate
    assert send(log, 1).first_offset == 1


def test_after_a_full_truncation_no_producer_is_known(log: PartitionLog):
    send(log, 0)
    log.truncate_fully_and_start_at(0)
    assert send(log, 5).first_offset == 0


def test_a_duplicate_returns_the_time_of_the_first_one(host: Host):
    host.configure({"t": LogConfig(message_timestamp_type=LOG_APPEND_TIME)})
    log = create(host, T0)
    first = send(log, 0)
    assert first.log_append_time_ms == TIMESTAMP_MS
    assert send(log, 0) == first._replace(is_duplicate=True, data=b"")
