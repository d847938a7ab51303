from __future__ import annotations

from transport.kafka.request_memory import RequestMemory


class Waiter:
    """Somebody who wants memory."""

    def __init__(self) -> None:
        self.grants = 0

    def granted(self) -> None:
        self.grants += 1


def test_who_wants_more_than_there_is_waits_in_line():
    memory = RequestMemory(100)
    first, second, third = Waiter(), Waiter(), Waiter()
    assert memory.reserve(80, first.granted)
    assert not memory.reserve(60, second.granted)
    assert not memory.reserve(10, third.granted)  # there is room, but others were first

    memory.release(80)
    assert (first.grants, second.grants, third.grants) == (0, 1, 1)


def test_a_request_larger_than_all_memory_goes_through_alone():
    memory = RequestMemory(100)
    large = Waiter()
    assert memory.reserve(50, Waiter().granted)
    assert not memory.reserve(1000, large.granted)
    memory.release(50)
    assert large.grants == 1


def test_who_gives_up_lets_those_behind_pass():
    memory = RequestMemory(100)
    impatient, next_one = Waiter(), Waiter()
    assert memory.reserve(50, Waiter().granted)
    assert not memory.reserve(100, impatient.granted)
    assert not memory.reserve(50, next_one.granted)

    memory.cancel(impatient.granted)
    assert (impatient.grants, next_one.grants) == (0, 1)
    memory.cancel(impatient.granted)
