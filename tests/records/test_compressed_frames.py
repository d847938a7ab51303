"""Brokers take the compressed frames that every client reads, and no others.

``tests/genuine_clients/test_compressed_frames.py`` asks the clients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from regent.records import compression
from regent.records.compression import Unpack, Unpacker, decompressed, unpacked_at_once
from regent.records.record_validation import InvalidRecordsError, validate
from tests.support.compressed_frames import FRAMES, Frame
from tests.support.record_batches import keyed_batch

HEADER_BYTES = 61
_ALSO_IN_LOGS = {
    "records in two gzip members",
    "an empty gzip member before the records",
    "snappy with a long size",
    "records in two frames of lz4",
    "an empty frame of lz4 after the records",
    "an empty frame of lz4 before the records",
    "a skippable frame before lz4",
    "a skippable frame after lz4",
    "lz4 with blocks that are linked",
    "lz4 with one block that is linked",
    "lz4 with an empty block at the end",
    "lz4 with an empty block before the records",
    "lz4 with a stored block of no bytes",
}
"""Frames that Kafka's brokers or earlier versions of this one have let into logs."""


def is_taken(frame: Frame, unpack: Unpack = unpacked_at_once) -> bool:
    try:
        validate(memoryview(bytearray(frame.batch())), needs_keys=True, unpack=unpack)
    except InvalidRecordsError:
        return False
    return True


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_frames_are_taken_if_every_client_reads_them(frame: Frame):
    assert is_taken(frame) is frame.is_taken


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_large_batches_are_judged_as_small_ones(frame: Frame, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compression, "SMALL_BYTES", 1_500)
    assert is_taken(frame) is frame.is_taken
    with ThreadPoolExecutor(1) as executor:
        assert is_taken(frame, Unpacker(executor).unpack) is frame.is_taken


@pytest.mark.parametrize("name", [n for n in FRAMES if FRAMES[n].is_taken or n in _ALSO_IN_LOGS])
def test_frames_in_logs_are_read(name: str):
    frame = FRAMES[name]
    pairs = [(b"key", value) for value in frame.values]
    plain = keyed_batch(*pairs)[HEADER_BYTES:]
    assert decompressed(frame.codec, memoryview(frame.batch())[HEADER_BYTES:]) == plain
