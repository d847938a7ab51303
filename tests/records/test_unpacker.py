"""Large batches are decompressed piece by piece, as far as somebody reads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice

import cramjam
import pytest

from regent.records.compression import LZ4, ZSTD, Unpacker

DATA = bytes(range(256)) * 2**16
PACKED = {LZ4: bytes(cramjam.lz4.compress(DATA)), ZSTD: bytes(cramjam.zstd.compress(DATA))}


@pytest.fixture
def unpacker() -> Iterator[Unpacker]:
    with ThreadPoolExecutor(1) as executor:
        yield Unpacker(executor)


@pytest.mark.parametrize("codec", PACKED)
def test_pieces_are_the_whole(unpacker: Unpacker, codec: int):
    assert b"".join(unpacker.unpack(codec, memoryview(PACKED[codec]))) == DATA


@pytest.mark.parametrize("codec", PACKED)
def test_a_reader_may_stop(unpacker: Unpacker, codec: int):
    opened = len(os.listdir("/dev/fd"))
    for wanted in (0, 1, 2, 3):
        with closing(unpacker.unpack(codec, memoryview(PACKED[codec]))) as pieces:
            read = b"".join(islice(pieces, wanted))
        assert DATA.startswith(read)
    assert b"".join(unpacker.unpack(codec, memoryview(PACKED[codec]))) == DATA
    assert len(os.listdir("/dev/fd")) == opened


@pytest.mark.parametrize("codec", PACKED)
def test_wrong_data_are_an_error_after_the_pieces_before(unpacker: Unpacker, codec: int):
    with pytest.raises(ValueError, match=r".+"):
        list(unpacker.unpack(codec, memoryview(PACKED[codec][:-9])))
    with pytest.raises(ValueError, match=r".+"):
        list(unpacker.unpack(codec, memoryview(b"garbage")))


def test_without_a_thread_nothing_stays_open():
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    opened = len(os.listdir("/dev/fd"))
    with pytest.raises(RuntimeError):
        list(Unpacker(executor).unpack(ZSTD, memoryview(PACKED[ZSTD])))
    assert len(os.listdir("/dev/fd")) == opened
