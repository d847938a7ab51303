"""The placement service without Spark: its requests, and when it ends because it is idle."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from regent.core.errors import Errors, RegentError
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.jobs import service
from regent.jobs.service import MAX_WAITING, PlacementService, WaitingRequests
from regent.testing.waits import scaled
from regent.transport.control.remote_ref import RemoteActorRef
from tests.support.keys import EVERYBODY_OPERATES, KEYS, context_for_test

TIMEOUT_S = scaled(30.0)
REQUEST = PlaceTopicsRequest(
    (PlacementSpec("t", 2, 2, 0),),
    tuple(PlacementBroker(broker_id, None, 0) for broker_id in (0, 1)),
    "ring",
    "0",
    "batch",
    0,
)


class Clock:
    """Shows ``times`` one after the other, then the last one again. ``at_last``: called then."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.at_last: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        if len(self.times) > 1:
            return self.times.pop(0)
        self.at_last()
        return self.times[0]


def test_requests_are_taken_in_their_sequence_even_when_the_time_is_over():
    waiting = WaitingRequests[str](10.0, Clock(0.0, 20.0))
    assert [waiting.add("a"), waiting.add("b")] == ["", ""]
    assert [waiting.take(), waiting.take()] == ["a", "b"]


def test_the_time_begins_again_with_each_request():
    waiting = WaitingRequests[str](10.0, Clock(0.0, 9.0, 19.0, 29.0))
    waiting.add("a")
    assert waiting.take() == "a"  # at 0
    waiting.add("b")
    assert waiting.take() == "b"  # at 9
    assert waiting.take() is None  # at 29; it began to wait at 19


def test_a_request_that_comes_while_the_end_is_decided_is_refused_and_not_lost():
    clock = Clock(0.0, 10.0)
    waiting = WaitingRequests[str](10.0, clock)
    refusals: queue.Queue[str] = queue.Queue()
    late = threading.Thread(target=lambda: refusals.put(waiting.add("late")))
    clock.at_last = late.start  # between the look at the requests and the decision
    assert waiting.take() is None
    assert refusals.get(timeout=TIMEOUT_S) == "the service is ending"
    late.join(TIMEOUT_S)
    assert waiting.close() == []


def test_a_request_wakes_the_thread_that_waits_for_it():
    waiting = WaitingRequests[str](None)
    taken: queue.Queue[str | None] = queue.Queue()

    def take_twice() -> None:
        for _ in range(2):
            taken.put(waiting.take())

    thread = threading.Thread(target=take_twice)
    thread.start()
    waiting.add("a")
    assert taken.get(timeout=TIMEOUT_S) == "a"
    assert waiting.close() == []
    assert taken.get(timeout=TIMEOUT_S) is None
    thread.join(TIMEOUT_S)


def test_what_waits_at_the_end_is_returned_once_and_their_number_is_limited():
    waiting = WaitingRequests[int](None)
    for number in range(MAX_WAITING):
        assert not waiting.add(number)
    assert waiting.add(-1) == f"{MAX_WAITING} requests wait already"
    assert waiting.close() == list(range(MAX_WAITING))
    assert waiting.close() == []
    assert waiting.take() is None


class Jvm:
    """Stands for Spark; starts when ``may_start`` is set, unless it is killed."""

    def __init__(self, *_: object, **__: object) -> None:
        self.may_start = threading.Event()
        self.is_killed = False
        jvms.put(self)

    def session(self) -> None:
        assert self.may_start.wait(TIMEOUT_S)
        if self.is_killed:
            raise RegentError("Spark did not start")

    def has_exited(self, within_s: float = 0.0) -> bool:
        return self.is_killed

    def killed_after(self, timeout_s: float) -> threading.Lock:
        return threading.Lock()

    def kill(self) -> None:
        self.is_killed = True
        self.may_start.set()

    def failure(self, what: str) -> RegentError:
        return RegentError(what)

    def stop(self) -> None:
        self.kill()


jvms: queue.Queue[Jvm] = queue.Queue()


def place_without_spark(_: object, request: PlaceTopicsRequest) -> list[PlacedPartition]:
    return list(place(request))


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(service, "SparkJvm", Jvm)
    monkeypatch.setattr(service, "place_with_spark", place_without_spark)
    yield
    assert jvms.empty()


def started(
    tmp_path: Path, idle_s: float | None
) -> tuple[PlacementService, queue.Queue[RegentError | None], Jvm]:
    ends: queue.Queue[RegentError | None] = queue.Queue()
    running = PlacementService(KEYS, EVERYBODY_OPERATES, "tcp://127.0.0.1:0", tmp_path, idle_s)
    running.start(ends.put)
    return running, ends, jvms.get(timeout=TIMEOUT_S)


def test_it_places_and_tells_its_end_when_it_was_idle(tmp_path: Path):
    running, ends, jvm = started(tmp_path, 0.0)
    context = context_for_test()
    try:
        with RemoteActorRef(context, running.endpoint, client_id="test") as client:
            client.tell(REQUEST)  # it waits for the start
            threading.Timer(0.0, jvm.may_start.set).start()
            answer = client.ask(REQUEST, timeout=TIMEOUT_S)
    finally:
        context.destroy(linger=0)
    assert isinstance(answer, PlaceTopicsResponse)
    assert answer.error_code in (Errors.NONE, Errors.BROKER_NOT_AVAILABLE)
    assert ends.get(timeout=TIMEOUT_S) is None
    assert jvm.is_killed
    running.stop()


def test_a_failed_start_is_told(tmp_path: Path):
    running, ends, jvm = started(tmp_path, None)
    jvm.kill()
    assert str(ends.get(timeout=TIMEOUT_S)) == "Spark did not start"
    running.stop()


def test_a_stop_while_spark_starts_kills_it_and_is_no_failure(tmp_path: Path):
    running, ends, jvm = started(tmp_path, None)
    running.stop()
    assert jvm.is_killed
    assert ends.empty()
