"""Memory of large requests is used again, and never while something refers to it."""

from __future__ import annotations

from regent.transport.kafka.request_memory import RequestBuffers

KB = 1024


def test_memory_is_used_again_when_the_last_view_of_it_has_ended():
    buffers = RequestBuffers()
    first = buffers.take(100 * KB)
    records, used = first[10:20], first.obj
    del first
    second = buffers.take(100 * KB)
    assert second.obj is not used, "a part of it is still referred to"
    del records
    third = buffers.take(90 * KB)
    assert (third.obj, len(third)) == (used, 90 * KB)


def test_much_memory_is_not_given_to_a_small_request():
    buffers = RequestBuffers()
    used = buffers.take(1000 * KB).obj
    assert buffers.take(100 * KB).obj is not used
    assert buffers.take(600 * KB).obj is used


def test_a_limited_number_of_bytes_is_kept_and_the_longest_unused_are_dropped():
    buffers = RequestBuffers(limit=300 * KB)
    requests = [buffers.take(100 * KB) for _ in range(5)]
    assert buffers.size == 256 * KB, "two are kept, in pieces of 64 KB"
    assert [len(request) for request in requests] == [100 * KB] * 5
    last = requests.pop().obj
    del requests
    assert buffers.take(100 * KB).obj is not last, "the other one was unused for longer"
    assert buffers.take(100 * KB).obj is last


def test_free_buffers_are_released():
    buffers = RequestBuffers()
    kept = buffers.take(64 * KB)
    buffers.take(128 * KB)
    buffers.release()
    assert buffers.size == len(kept) == 64 * KB
