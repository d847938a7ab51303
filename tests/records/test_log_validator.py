"""What a log accepts from producers and from leaders."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LOG_APPEND_TIME, LogConfig
from regent.records.record_batch import batches_of_leader, batches_of_producer
from tests.support.record_batches import (
    CONTROL_MASK,
    LOG_APPEND_TIME_MASK,
    TIMESTAMP_MS,
    TRANSACTIONAL_MASK,
    batch,
    resealed,
)

RECORD_COUNT_AT = 57
MAX_TIMESTAMP_AT = 35
CONFIG = LogConfig(message_timestamp_difference_max_ms=1_000)


def code_for(data: bytes, config: LogConfig = CONFIG) -> Errors | None:
    """Return the error of a producer's batches; None: they are accepted."""
    try:
        batches_of_producer(data, config, TIMESTAMP_MS)
    except RecordsRefusedError as refused:
        return refused.error_code
    return None


def edited(data: bytes, position: int, layout: str, value: int) -> bytes:
    """Return a batch with another value in its header, and a correct CRC."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    return resealed(changed)


@pytest.mark.parametrize("attributes", [CONTROL_MASK, TRANSACTIONAL_MASK])
def test_batches_of_brokers_or_transactions_are_refused(attributes: int):
    assert code_for(batch(b"a", attributes=attributes)) is Errors.INVALID_RECORD


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_compressed_batches_are_accepted_unchanged(compression: int):
    assert code_for(batch(b"a", attributes=compression)) is None


@pytest.mark.parametrize("count", [-1, 0, 1, 3])
def test_the_number_of_records_must_match_the_offsets(count: int):
    data = edited(batch(b"a", b"b"), RECORD_COUNT_AT, ">i", count)
    assert code_for(data) is Errors.INVALID_RECORD


def test_no_records_are_refused():
    assert code_for(b"") is Errors.INVALID_RECORD


def test_an_idempotent_producer_must_number_its_records():
    data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=-1)
    assert code_for(data) is Errors.INVALID_RECORD


def test_a_flipped_bit_is_found():
    data = bytearray(batch(b"a"))
    data[-1] ^= 1
    assert code_for(bytes(data)) is Errors.CORRUPT_MESSAGE


def test_sizes_are_limited():
    one, several = batch(b"a" * 100), batch(b"a" * 100) * 3
    small = LogConfig(max_message_bytes=len(one) - 1)
    assert code_for(one, small) is Errors.MESSAGE_TOO_LARGE
    assert code_for(several, LogConfig(max_message_bytes=len(one))) is None
    segment = LogConfig(segment_bytes=len(several) - 1)
    assert code_for(several, segment) is Errors.RECORD_LIST_TOO_LARGE


@pytest.mark.parametrize(
    ("timestamp_ms", "code"),
    [
        (TIMESTAMP_MS, None),
        (TIMESTAMP_MS - 1_000, None),
        (TIMESTAMP_MS + 1_000, None),
        (TIMESTAMP_MS - 1_001, Errors.INVALID_TIMESTAMP),
        (TIMESTAMP_MS + 1_001, Errors.INVALID_TIMESTAMP),
        (-1, None),
    ],
)
def test_times_must_be_near_the_present(timestamp_ms: int, code: Errors | None):
    data = batch(b"a", timestamp_ms=timestamp_ms)
    assert code_for(data) is code
    newest = edited(batch(b"a", b"b"), MAX_TIMESTAMP_AT, ">q", timestamp_ms)
    assert code_for(newest) is code


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "past_ms", "future_ms"),
    [
        (None, None, 1_000, 1_000),
        (10, None, 10, 1_000),
        (None, 10, 1_000, 10),
        (5_000, 10, 5_000, 10),
    ],
)
def test_past_and_future_may_have_separate_limits(
    before_ms: int | None, after_ms: int | None, past_ms: int, future_ms: int
):
    config = replace(
        CONFIG,
        message_timestamp_before_max_ms=2**63 - 1 if before_ms is None else before_ms,
        message_timestamp_after_max_ms=2**63 - 1 if after_ms is None else after_ms,
    )
    for off_ms in (-past_ms, future_ms):
        assert code_for(batch(b"a", timestamp_ms=TIMESTAMP_MS + off_ms), config) is None
    for off_ms in (-past_ms - 1, future_ms + 1):
        code = code_for(batch(b"a", timestamp_ms=TIMESTAMP_MS + off_ms), config)
        assert code is Errors.INVALID_TIMESTAMP


def test_times_are_not_checked_with_log_append_time():
    stamps = LogConfig(
        message_timestamp_type=LOG_APPEND_TIME, message_timestamp_difference_max_ms=0
    )
    assert code_for(batch(b"a", timestamp_ms=1), stamps) is None


def test_a_producer_may_not_set_the_append_time():
    data = batch(b"a", attributes=LOG_APPEND_TIME_MASK)
    assert code_for(data) is Errors.INVALID_TIMESTAMP


# --- from a leader --------------------------------------------------------------------------------


@pytest.mark.parametrize(("base_offset", "follows"), [(4, False), (5, True), (9, True)])
def test_a_leaders_batches_begin_at_the_end_or_beyond(base_offset: int, follows: bool):
    data = batch(b"a", b"b", base_offset=base_offset)
    if follows:
        [(position, header)] = batches_of_leader(data, 5, may_overlap=False)
        assert (position, header.base_offset) == (0, base_offset)
    else:
        with pytest.raises(RecordsRefusedError, match=r"offsets 4 to 5 do not follow: .* is 5"):
            batches_of_leader(data, 5, may_overlap=False)


def test_only_the_first_batch_may_include_the_end():
    first, second = batch(b"a", b"b", base_offset=4), batch(b"c", base_offset=5)
    assert len(batches_of_leader(first, 5, may_overlap=True)) == 1
    with pytest.raises(RecordsRefusedError, match="do not follow"):
        batches_of_leader(first + second, 5, may_overlap=True)
    with pytest.raises(RecordsRefusedError, match="do not follow"):
        batches_of_leader(batch(b"a", base_offset=3), 5, may_overlap=True)


def test_the_last_batch_of_a_leader_may_be_cut_but_not_the_only_one():
    first, second = batch(b"a", b"b"), batch(b"c", base_offset=2)
    data = first + second
    for end in range(1, len(first)):
        with pytest.raises(RecordsRefusedError):
            batches_of_leader(data[:end], 0, may_overlap=False)
    for end in range(len(first), len(data)):
        assert len(batches_of_leader(data[:end], 0, may_overlap=False)) == 1
    assert len(batches_of_leader(data, 0, may_overlap=False)) == 2


def test_a_follower_accepts_all_batches_that_its_leader_accepted():
    control = batch(b"a", attributes=CONTROL_MASK | TRANSACTIONAL_MASK, timestamp_ms=1)
    compacted = edited(batch(b"a", b"b"), RECORD_COUNT_AT, ">i", 0)
    for data in (control, compacted):
        assert len(batches_of_leader(data, 0, may_overlap=False)) == 1


@pytest.mark.parametrize("data", [batch(b"a", base_offset=99), batch(b"a", attributes=7)])
def test_malformed_batches_are_refused(data: bytes):
    assert code_for(data) is Errors.INVALID_RECORD
