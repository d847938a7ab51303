from __future__ import annotations

from regent.transport.kafka.request_memory import RequestMemory, Reservation

MB = 1024 * 1024


class Request:
    """A request that is being received."""

    def __init__(self, memory: RequestMemory) -> None:
        self.grants = 0
        self.reservation = Reservation(self._on_granted)
        self._memory = memory

    def reserve(self, size: int) -> bool:
        return self._memory.reserve(self.reservation, size)

    def end(self) -> None:
        self._memory.release(self.reservation)

    def _on_granted(self) -> None:
        self.grants += 1


def three_of_which_one_holds(size: int) -> tuple[RequestMemory, Request, Request, Request]:
    """Memory of 100 bytes and three requests, the oldest of which has some of them."""
    memory = RequestMemory(100)
    holder, older, younger = Request(memory), Request(memory), Request(memory)
    assert holder.reserve(size)
    return memory, holder, older, younger


def test_a_request_for_more_memory_than_is_free_waits_in_sequence():
    memory, first, second, third = three_of_which_one_holds(80)
    assert not second.reserve(60)
    assert not third.reserve(10)  # there is room, but another was first
    assert memory.is_short

    first.end()
    assert (first.grants, second.grants, third.grants) == (0, 1, 1)
    assert not memory.is_short


def test_a_request_grows_as_it_arrives():
    memory = RequestMemory(100)
    first, second = Request(memory), Request(memory)
    assert first.reserve(20)
    assert first.reserve(60)
    assert second.reserve(40)
    assert not second.reserve(41)
    first.end()
    assert second.grants == 1
    assert second.reserve(100)


def test_a_request_may_reserve_ahead_only_what_is_little_of_the_free_memory():
    memory = RequestMemory(100 * MB)
    assert memory.ample_bytes == MB
    assert Request(memory).reserve(96 * MB)
    assert memory.ample_bytes == MB // 2
    assert Request(memory).reserve(4 * MB)
    assert memory.ample_bytes == 0


def test_the_oldest_request_gets_memory_first():
    _, holder, older, younger = three_of_which_one_holds(80)
    assert not younger.reserve(50)
    assert not older.reserve(60)
    holder.end()
    assert (older.grants, younger.grants) == (1, 0)


def test_a_request_larger_than_all_memory_goes_through_alone():
    memory = RequestMemory(100)
    small, large = Request(memory), Request(memory)
    assert small.reserve(50)
    assert not large.reserve(1000)
    small.end()
    assert large.grants == 1


def test_the_oldest_request_continues_when_all_holders_of_memory_wait_for_more():
    memory = RequestMemory(100)
    requests = [Request(memory) for _ in range(4)]
    for request in requests:
        assert request.reserve(25)
    assert [request.reserve(50) for request in requests] == [False] * 4
    assert [request.grants for request in requests] == [1, 0, 0, 0]
    assert requests[0].reserve(90)  # it goes on, and nobody else does
    assert [request.grants for request in requests] == [1, 0, 0, 0]
    requests[0].end()
    assert [request.grants for request in requests] == [1, 1, 0, 0]


def test_the_next_request_gets_the_memory_of_one_that_gives_up():
    _, _, impatient, patient = three_of_which_one_holds(50)
    assert not impatient.reserve(100)
    assert not patient.reserve(50)
    impatient.end()
    assert (impatient.grants, patient.grants) == (0, 1)
    impatient.end()
