from __future__ import annotations

import struct

from aiokafka.record.memory_records import MemoryRecords
from crc32c import crc32c

from tests.support.record_batches import HEADER, Record, batch, records_of, resealed


def test_written_batches_are_read():
    data = batch(b"one", None, b"", base_offset=7, leader_epoch=3, key=b"k")
    assert records_of(data) == [
        Record(7, 3, b"k", b"one"),
        Record(8, 3, b"k", None),
        Record(9, 3, b"k", b""),
    ]


def test_several_batches_are_read_one_after_the_other():
    data = batch(b"a", b"b") + batch(b"c" * 300, base_offset=2, leader_epoch=1)
    assert [r.offset for r in records_of(memoryview(data))] == [0, 1, 2]


def test_an_independent_client_reads_the_batches():
    data = batch(
        b"one", b"x" * 9_000, base_offset=40, producer_id=12, producer_epoch=1, base_sequence=5
    )
    read = MemoryRecords(data).next_batch()
    assert read is not None
    assert read.validate_crc()
    assert (read.base_offset, read.producer_id, read.base_sequence) == (40, 12, 5)
    assert [(r.offset, r.value) for r in read] == [(40, b"one"), (41, b"x" * 9_000)]


def test_a_changed_batch_is_valid_after_resealing():
    data = bytearray(batch(b"one"))
    data[-2] ^= 1
    assert HEADER.unpack_from(data)[4] != crc32c(data[21:])
    whole = resealed(data)
    assert struct.unpack_from(">I", whole, 17)[0] == crc32c(whole[21:])
