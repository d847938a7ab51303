from __future__ import annotations

import struct
from contextlib import suppress

import pytest

from regent.core.errors import Errors, RecordsRefusedError
from regent.core.log_config import LogConfig
from regent.core.replica_logs import PartitionLog
from tests.storage.contract.hosts import Host, create, log_of
from tests.storage.contract.records import append, values
from tests.support.record_batches import CONTROL_MASK, TIMESTAMP_MS, batch, resealed

GOOD = batch(b"good")


def changed(position: int, pack: str, value: int) -> bytes:
    """Return a batch with one field changed."""
    data = bytearray(GOOD)
    struct.pack_into(pack, data, position, value)
    return bytes(data)


BAD: dict[str, tuple[bytes, Errors]] = {
    "a flipped bit": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), Errors.CORRUPT_MESSAGE),
    "another checksum": (changed(17, ">I", 1), Errors.CORRUPT_MESSAGE),
    "a tail that is cut off": (GOOD[:-1], Errors.CORRUPT_MESSAGE),
    "half a header": (GOOD[:40], Errors.CORRUPT_MESSAGE),
    "zeros": (bytes(10), Errors.CORRUPT_MESSAGE),
    "a length below that of a header": (changed(8, ">i", 10), Errors.CORRUPT_MESSAGE),
    "a negative length": (changed(8, ">i", -1), Errors.CORRUPT_MESSAGE),
    "an enormous length": (changed(8, ">i", 2**31 - 1), Errors.CORRUPT_MESSAGE),
    "another magic": (changed(16, ">b", 1), Errors.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "more records than offsets": (resealed(changed(57, ">i", 2)), Errors.INVALID_RECORD),
    "no records": (resealed(changed(57, ">i", 0)), Errors.INVALID_RECORD),
    "a control batch": (batch(b"x", attributes=CONTROL_MASK), Errors.INVALID_RECORD),
}


@pytest.mark.parametrize("name", BAD)
def test_a_leader_appends_nothing_of_a_request_with_a_bad_batch(log: PartitionLog, name: str):
    append(log, b"before")
    data, error = BAD[name]
    for request in (data, GOOD + data):
        with pytest.raises(RecordsRefusedError) as refusal:
            log.append_as_leader(request, 1)
        assert refusal.value.error_code is error
        with pytest.raises(RecordsRefusedError):
            log.append_as_leader(bytearray(request), 1)
    assert values(log) == [b"before"]
    assert append(log, b"after")[:2] == (1, 1)


@pytest.mark.parametrize("name", [name for name, (_, e) in BAD.items() if "CORRUPT" in e.name])
def test_a_follower_appends_no_corrupt_batch(log: PartitionLog, name: str):
    data, _ = BAD[name]
    with pytest.raises(RecordsRefusedError) as refusal:
        log.append_as_follower(data)
    assert refusal.value.error_code is Errors.CORRUPT_MESSAGE
    assert log.log_end_offset == 0
    with suppress(RecordsRefusedError):  # or it is cut, and comes again
        log.append_as_follower(batch(b"a") + data)
    assert values(log) in ([], [b"a"])


@pytest.mark.parametrize("left", [1, 16, 60, 61, -1])
def test_a_follower_leaves_out_a_batch_that_a_leader_of_kafka_has_cut(
    host: Host, log: PartitionLog, left: int
):
    first, second = batch(b"a", b"b"), batch(b"c", base_offset=2)
    log.append_as_follower(first + second[:left])
    assert values(log) == [b"a", b"b"]
    log.append_as_follower(second)
    host.restart()
    assert values(log_of(host)) == [b"a", b"b", b"c"]


def test_a_follower_accepts_what_its_leader_accepted(log: PartitionLog):
    control = batch(b"x", attributes=CONTROL_MASK)
    log.append_as_follower(control)
    assert log.log_end_offset == 1


def test_a_batch_must_not_be_larger_than_max_message_bytes(host: Host):
    host.configure({"t": LogConfig(max_message_bytes=len(GOOD))})
    log = create(host)
    log.append_as_leader(GOOD, 0)
    with pytest.raises(RecordsRefusedError) as refusal:
        append(log, b"good!")
    assert refusal.value.error_code is Errors.MESSAGE_TOO_LARGE
    host.configure({"t": LogConfig(max_message_bytes=len(GOOD) + 1)})
    append(log, b"good!")
    assert values(log) == [b"good", b"good!"]


@pytest.mark.parametrize("offset_ms", [-5_001, 5_001])
def test_a_time_too_far_from_the_present_is_refused(host: Host, offset_ms: int):
    host.configure({"t": LogConfig(message_timestamp_difference_max_ms=5_000)})
    log = create(host)
    with pytest.raises(RecordsRefusedError) as refusal:
        log.append_as_leader(batch(b"x", timestamp_ms=TIMESTAMP_MS + offset_ms), 0)
    assert refusal.value.error_code is Errors.INVALID_TIMESTAMP
    log.append_as_leader(batch(b"y", timestamp_ms=TIMESTAMP_MS + 5_000), 0)
    assert values(log) == [b"y"]
