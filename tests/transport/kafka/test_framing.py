from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regent.transport.kafka.framing import CHUNK_BYTES, FrameBuffer
from regent.transport.kafka.primitives import MalformedRequestError
from regent.transport.kafka.request_memory import RequestBuffers

repeatable = settings(derandomize=True, deadline=None, database=None)
MAX_BYTES = 4 * 1024 * 1024


def framed(*requests: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(request)) + request for request in requests)


def receive(buffer: FrameBuffer, data: bytes) -> list[memoryview]:
    """Let ``data`` come, as much at once as there is room for, and take what is whole."""
    taken: list[memoryview] = []
    while data:
        room = buffer.room()
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        buffer.received(count)
        data = data[count:]
        while (request := buffer.take()) is not None:
            taken.append(request)
    return taken


def test_requests_are_found_in_every_division_of_the_stream():
    requests = [b"the first request", b"12345678", b"x" * 300]
    stream = framed(*requests)
    for cut in range(len(stream) + 1):
        buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
        assert receive(buffer, stream[:cut]) + receive(buffer, stream[cut:]) == requests


def test_requests_are_found_byte_by_byte():
    requests = [b"the first request", b"12345678"]
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    taken = [request for byte in framed(*requests) for request in receive(buffer, bytes([byte]))]
    assert taken == requests


@repeatable
@given(
    st.lists(st.integers(8, 3 * CHUNK_BYTES), max_size=6),
    st.lists(st.integers(1, 2 * CHUNK_BYTES), min_size=1, max_size=20),
)
def test_no_request_is_overwritten_by_later_ones(sizes: list[int], arrivals: list[int]):
    requests = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = framed(*requests)
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    taken: list[memoryview] = []
    for count in arrivals:
        taken += receive(buffer, stream[:count])
        stream = stream[count:]
    taken += receive(buffer, stream)
    assert taken == requests


def test_a_large_request_is_received_into_one_piece_of_memory_that_can_be_patched():
    request = b"12345678" * (MAX_BYTES // 8)
    (taken,) = receive(FrameBuffer(MAX_BYTES, RequestBuffers()), framed(request))
    taken[:4] = b"base"
    assert taken == b"base" + request[4:]


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 7, MAX_BYTES + 1, 2**31 - 1])
def test_a_size_no_request_can_have_is_malformed_at_once(size: int):
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    with pytest.raises(MalformedRequestError):
        receive(buffer, struct.pack(">i", size))


def test_the_size_is_known_before_the_request_is_there():
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    assert buffer.next_size is None
    assert receive(buffer, struct.pack(">i", 1000) + b"begun") == []
    assert buffer.next_size == 1000


def test_small_requests_use_little_memory():
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    for _ in range(100):
        receive(buffer, framed(b"a small request"))
        assert len(buffer.room()) <= 4096
    receive(buffer, framed(bytes(5_000)))
    assert 4096 < len(buffer.room()) <= CHUNK_BYTES
    buffer.shrink()
    assert len(buffer.room()) <= 4096


def test_memory_in_use_is_not_given_back():
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    request = framed(b"half of it" * 300)
    receive(buffer, request[:2000])
    buffer.shrink()
    assert receive(buffer, request[2000:]) == [request[4:]]


def test_a_large_request_is_received_no_further_than_there_is_memory_for_it():
    buffer = FrameBuffer(MAX_BYTES, RequestBuffers())
    request = framed(bytes(range(256)) * 2_000)
    buffer.room()[:4] = request[:4]
    buffer.received(4)
    for allowed in (0, 2 * CHUNK_BYTES, 4 * CHUNK_BYTES, 8 * CHUNK_BYTES):
        at = 4 + buffer.size
        room = buffer.room(allowed)
        assert at + len(room) == min(4 + max(allowed, CHUNK_BYTES), len(request))
        room[:] = request[at : at + len(room)]
        buffer.received(len(room))
    assert bytes(buffer.take() or b"") == request[4:]
