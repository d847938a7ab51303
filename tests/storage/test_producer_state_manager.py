"""Idempotent producers: a record sent twice is written once, also across crashes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.core.errors import Errors, RecordsRefusedError, StorageError
from regent.core.setting import DAY_MS
from regent.records.end_transaction_marker import EndTransactionMarker
from regent.records.record_batch import BatchHeader, read_header
from regent.storage.log.producer_state_manager import (
    BATCHES_TO_RETAIN,
    ProducerStateManager,
)
from tests.support.record_batches import batch

NOW_MS = 1_600_000_000_000
PRODUCER = 7


@pytest.fixture
def state(tmp_path: Path) -> ProducerStateManager:
    return ProducerStateManager(tmp_path)


def header(
    sequence: int,
    count: int = 1,
    *,
    offset: int = 0,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    timestamp_ms: int = NOW_MS,
    attributes: int = 0,
) -> BatchHeader:
    return read_header(
        batch(
            *[b""] * count,
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            timestamp_ms=timestamp_ms,
            attributes=attributes,
        )
    )


def refused(state: ProducerStateManager, *headers: BatchHeader) -> Errors:
    with pytest.raises(RecordsRefusedError) as raised:
        state.check(headers)
    return raised.value.error_code


def first_offset_of_duplicate(state: ProducerStateManager, *headers: BatchHeader) -> int | None:
    """Return the offset of the first one; None: the batches are new and in sequence."""
    found = state.check(headers)
    return None if found is None else found.first_offset


# --- sequences ------------------------------------------------------------------------------------


def test_batches_follow_each_other(state: ProducerStateManager) -> None:
    for sequence, count in ((0, 3), (3, 1), (4, 10)):
        assert state.check([header(sequence, count)]) is None
        state.update(header(sequence, count, offset=100 + sequence))
    assert refused(state, header(15)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, header(13, 2)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check([header(14)]) is None


def test_checking_changes_nothing(state: ProducerStateManager) -> None:
    for _ in range(2):
        assert state.check([header(0, 3), header(3)]) is None
    assert len(state) == 0


def test_several_batches_are_checked_one_after_the_other(state: ProducerStateManager) -> None:
    state.update(header(0))
    assert state.check([header(1, 2), header(0, producer_id=8), header(3)]) is None
    assert refused(state, header(1, 2), header(4)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_unknown_producer_may_begin_with_any_sequence(state: ProducerStateManager) -> None:
    assert state.check([header(500)]) is None


def test_producers_are_independent(state: ProducerStateManager) -> None:
    state.update(header(0, 5))
    state.update(header(0, 3, producer_id=8, offset=5))
    assert state.check([header(5), header(3, producer_id=8)]) is None


def test_records_without_a_producer_id_are_ignored(state: ProducerStateManager) -> None:
    plain = read_header(batch(b"a", b"b"))
    assert state.check([plain, plain]) is None
    state.update(plain)
    assert len(state) == 0


def test_sequence_numbers_wrap_around_to_zero(state: ProducerStateManager) -> None:
    state.update(header(2**31 - 3, 3))
    assert refused(state, header(1)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check([header(0)]) is None
    state.update(header(2**31 - 2, 5, epoch=1))
    assert state.check([header(3, epoch=1)]) is None


# --- epochs ---------------------------------------------------------------------------------------


def test_an_older_epoch_is_fenced(state: ProducerStateManager) -> None:
    state.update(header(0, epoch=3))
    assert refused(state, header(1, epoch=2)) is Errors.INVALID_PRODUCER_EPOCH
    assert refused(state, header(0, epoch=2)) is Errors.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_begins_with_zero(state: ProducerStateManager) -> None:
    state.update(header(0, 4, epoch=3))
    assert refused(state, header(4, epoch=4)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check([header(0, epoch=4)]) is None
    assert state.check([header(0, 2, epoch=4), header(2, epoch=4)]) is None
    assert refused(state, header(0, epoch=4), header(4, epoch=3)) is Errors.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_is_no_duplicate_of_an_older_one(state: ProducerStateManager) -> None:
    state.update(header(0, 4, offset=10, epoch=3))
    assert first_offset_of_duplicate(state, header(0, 4, epoch=4)) is None
    state.update(header(0, 4, offset=14, epoch=4))
    assert first_offset_of_duplicate(state, header(0, 4, epoch=4)) == 14
    assert refused(state, header(0, 4, epoch=3)) is Errors.INVALID_PRODUCER_EPOCH


# --- duplicates -----------------------------------------------------------------------------------


def test_a_repetition_of_one_of_the_last_five_batches_is_recognized(
    state: ProducerStateManager,
) -> None:
    for i in range(7):
        state.update(header(2 * i, 2, offset=100 + 10 * i, timestamp_ms=NOW_MS + i))
    for i in range(2, 7):
        found = state.check([header(2 * i, 2)])
        assert found is not None
        assert (found.first_offset, found.last_offset) == (100 + 10 * i, 101 + 10 * i)
        assert found.timestamp == NOW_MS + i
    for i in range(2):
        assert refused(state, header(2 * i, 2)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_with_other_records_is_no_duplicate(state: ProducerStateManager) -> None:
    state.update(header(0, 4, offset=10))
    assert refused(state, header(0, 3)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(state, header(1, 3)) is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER


# --- transactions ---------------------------------------------------------------------------------


def in_transaction(
    sequence: int, count: int = 1, *, offset: int, epoch: int = 0, producer_id: int = PRODUCER
) -> BatchHeader:
    return header(
        sequence, count, offset=offset, epoch=epoch, producer_id=producer_id, attributes=0x10
    )


def marker_at(offset: int, *, epoch: int = 0, producer_id: int = PRODUCER) -> BatchHeader:
    return header(-1, offset=offset, epoch=epoch, producer_id=producer_id, attributes=0x30)


def test_a_transaction_begins_with_its_first_batch_and_ends_with_a_marker(
    state: ProducerStateManager,
) -> None:
    state.update(in_transaction(0, 2, offset=10))
    state.update(in_transaction(2, 2, offset=12))
    entry = state.entry(PRODUCER)
    assert entry is not None
    assert entry.first_offset_of_transaction == 10
    assert state.update(marker_at(14), EndTransactionMarker(True, 3)) is None
    assert (entry.first_offset_of_transaction, entry.coordinator_epoch) == (-1, 3)
    assert state.check([header(4)]) is None


def test_a_marker_of_a_newer_epoch_fences_the_older_one(state: ProducerStateManager) -> None:
    state.update(in_transaction(0, 2, offset=10))
    state.update(marker_at(12, epoch=1), EndTransactionMarker(False, 3))
    assert refused(state, header(2)) is Errors.INVALID_PRODUCER_EPOCH
    assert state.check([header(0, epoch=1)]) is None


def test_an_aborted_transaction_names_the_offset_before_which_no_other_is_open(
    state: ProducerStateManager,
) -> None:
    abort = EndTransactionMarker(False, 0)
    state.update(in_transaction(0, offset=10))
    state.update(in_transaction(0, offset=11, producer_id=8))
    assert state.update(marker_at(12), abort) == (PRODUCER, 10, 12, 11)
    assert state.update(marker_at(13, producer_id=8), abort) == (8, 11, 13, 14)
    assert state.update(marker_at(14), abort) is None  # it is repeated


def test_a_batch_without_verification_is_refused_until_the_transaction_is_open(
    state: ProducerStateManager,
) -> None:
    def outcome(guard: int | None) -> Errors:
        try:
            state.check([in_transaction(0, offset=0)], guard)
        except RecordsRefusedError as error:
            return error.error_code
        return Errors.NONE

    assert [outcome(guard) for guard in (None, 0, 1)] == [
        Errors.NONE,
        Errors.INVALID_TXN_STATE,
        Errors.INVALID_TXN_STATE,
    ]
    guard = state.begin_verification(in_transaction(0, offset=0), NOW_MS)
    assert outcome(guard) is Errors.NONE
    assert outcome(guard + 1) is Errors.INVALID_TXN_STATE
    state.update(marker_at(0), EndTransactionMarker(False, 0))
    assert outcome(guard) is Errors.INVALID_TXN_STATE  # the transaction ended in between


def test_only_the_first_of_the_batches_that_are_being_verified_may_come_first(
    state: ProducerStateManager,
) -> None:
    guard = state.begin_verification(in_transaction(3, offset=0), NOW_MS)
    assert state.begin_verification(in_transaction(5, offset=0), NOW_MS) == guard
    with pytest.raises(RecordsRefusedError) as refusal:
        state.check([in_transaction(5, offset=0)], guard)
    assert refusal.value.error_code is Errors.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check([in_transaction(3, offset=0)], guard) is None


# --- expiry ---------------------------------------------------------------------------------------


def test_producers_without_writes_for_a_day_are_removed(state: ProducerStateManager) -> None:
    state.update(header(0))
    state.update(header(0, producer_id=8, timestamp_ms=NOW_MS + 1))
    state.update(header(0, producer_id=9, attributes=0x10))
    state.remove_expired(NOW_MS + DAY_MS - 1, DAY_MS)
    assert len(state) == 3
    state.remove_expired(NOW_MS + DAY_MS, DAY_MS)
    assert state.entry(PRODUCER) is None
    assert state.entry(8) is not None
    assert state.entry(9) is not None  # its transaction is not over


# --- snapshots ------------------------------------------------------------------------------------


def snapshot(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}.snapshot"


def test_a_snapshot_has_kafkas_format(state: ProducerStateManager, tmp_path: Path) -> None:
    state.update(header(5, 3, offset=100, epoch=2))
    state.take_snapshot(103)
    data = snapshot(tmp_path, 103).read_bytes()
    body = struct.pack(">iqhiqiqiq", 1, PRODUCER, 2, 7, 102, 2, NOW_MS, -1, -1)
    assert data == struct.pack(">hI", 1, crc32c(body)) + body


@settings(deadline=None)
@given(
    producers=st.dictionaries(
        st.integers(0, 2**63 - 1),
        st.tuples(
            st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.sampled_from([0x00, 0x10])
        ),
    )
)
def test_producers_continue_after_a_snapshot(
    tmp_path_factory: pytest.TempPathFactory, producers: dict[int, tuple[int, int, int]]
) -> None:
    state = ProducerStateManager(tmp_path_factory.mktemp("log"))
    for producer_id, (epoch, sequence, attributes) in producers.items():
        state.update(
            header(sequence, 2, producer_id=producer_id, epoch=epoch, attributes=attributes)
        )
    state.take_snapshot(50)
    again = ProducerStateManager(state.directory)
    assert again.restore(0, 50, NOW_MS, DAY_MS) == 50
    assert len(again) == len(producers)
    for producer_id in producers:
        assert again.entry(producer_id) == state.entry(producer_id)


def test_a_repeated_batch_is_recognized_after_a_snapshot_and_later_batches(
    state: ProducerStateManager, tmp_path: Path
) -> None:
    for i in range(BATCHES_TO_RETAIN + 2):
        state.update(header(i, offset=i))
    state.take_snapshot(BATCHES_TO_RETAIN + 2)
    again = ProducerStateManager(tmp_path)
    again.restore(0, BATCHES_TO_RETAIN + 2, NOW_MS, DAY_MS)
    for i in range(2, BATCHES_TO_RETAIN + 2):
        known = again.check([header(i)])
        assert known is not None
        assert known.last_offset == i
    with pytest.raises(RecordsRefusedError):
        again.check([header(1)])


def test_a_snapshot_has_no_batches_of_former_producer_epochs(
    state: ProducerStateManager, tmp_path: Path
) -> None:
    state.update(header(0, offset=0, epoch=1))
    state.update(header(0, offset=1, epoch=2))
    state.take_snapshot(2)
    again = ProducerStateManager(tmp_path)
    again.restore(0, 2, NOW_MS, DAY_MS)
    assert again.entry(PRODUCER) == state.entry(PRODUCER)


def test_the_newest_snapshot_within_the_log_counts(
    state: ProducerStateManager, tmp_path: Path
) -> None:
    for i, offset in enumerate((10, 20, 30)):
        state.update(header(i, offset=offset - 1))
        state.take_snapshot(offset)
    again = ProducerStateManager(tmp_path)
    assert again.restore(0, 29, NOW_MS, DAY_MS) == 20
    assert again.check([header(2)]) is None
    assert again.snapshot_offsets() == [10, 20]  # the log does not reach the other one any more
    assert again.restore(15, 29, NOW_MS, DAY_MS) == 20
    assert again.snapshot_offsets() == [20]
    assert again.restore(21, 29, NOW_MS, DAY_MS) == 21
    assert again.snapshot_offsets() == []
    assert len(again) == 0


def test_a_snapshot_with_any_byte_changed_or_cut_is_ignored(
    state: ProducerStateManager, tmp_path: Path
) -> None:
    state.update(header(0, offset=9))
    state.take_snapshot(10)
    state.update(header(1, offset=19))
    state.take_snapshot(20)
    whole = snapshot(tmp_path, 20).read_bytes()
    damaged = [whole[:end] for end in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))]
    damaged.append(whole + b"\0")
    for data in damaged:
        snapshot(tmp_path, 20).write_bytes(data)
        again = ProducerStateManager(tmp_path)
        assert again.restore(0, 25, NOW_MS, DAY_MS) == 10
        assert again.snapshot_offsets() == [10]
        assert again.check([header(1)]) is None


def test_expired_producers_do_not_return(state: ProducerStateManager, tmp_path: Path) -> None:
    state.update(header(0, offset=9))
    state.take_snapshot(10)
    again = ProducerStateManager(tmp_path)
    assert again.restore(0, 10, NOW_MS + DAY_MS, DAY_MS) == 10
    assert len(again) == 0


def test_unneeded_snapshots_are_deleted(state: ProducerStateManager, tmp_path: Path) -> None:
    for offset in (10, 20, 30, 40):
        state.take_snapshot(offset)
    (tmp_path / "00000000000000000005.log").touch()
    state.delete_snapshots_before(20)
    assert state.snapshot_offsets() == [20, 30, 40]
    state.retain_snapshots({20, 40})
    assert state.snapshot_offsets() == [20, 40]
    state.update(header(0))
    state.clear()
    assert state.snapshot_offsets() == []
    assert len(state) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000005.log"]


def test_a_directory_that_fails_is_named(tmp_path: Path) -> None:
    state = ProducerStateManager(tmp_path / "missing")
    for use in (state.snapshot_offsets, lambda: state.take_snapshot(1)):
        with pytest.raises(StorageError, match="missing"):
            use()
