"""The controller's queue: ControllerEventManagerTest, and the answers to preempted requests."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from time import monotonic
from typing import Any, NoReturn

from pykka import ActorDeadError

from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.event_manager_stats import EventManagerStats
from regent.actors.runtime import stop_actor
from regent.broker.metrics.controller_metrics import controller_metrics
from regent.broker.metrics.metric_table import Family
from regent.broker.metrics.metrics_server import MetricsServer
from regent.broker.metrics.recent import Recent
from regent.core.controller import events
from regent.core.controller.events import ControllerEvent
from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.control import (
    ControlHeader,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    UpdateMetadataResponse,
)
from regent.core.protocol.controller import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    ControllerRequest,
    ControllerResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    ElectionType,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from regent.testing.waits import scaled
from tests.conformance.fields import Case, Fields, UnknownInCaseError, check_words, one_of
from tests.support.fake_zookeeper import Call
from tests.support.stage import TIMEOUT_S, BrokenChannelError, Sent, Stage, actor_of, ask

T0 = TopicPartition("t", 0)
TOLERANCE_MS = scaled(400)  # the machine also runs other threads
METRICS = "kafka_controller_controllereventmanager"

_HEADER = ControlHeader(0, 1, -1)
_NO_ORDERS = LeaderAndIsrRequest(LeaderAndIsrType.INCREMENTAL, (), ())
EVENTS: Mapping[str, ControllerEvent] = {
    "AutoPreferredReplicaLeaderElection": events.AutoPreferredReplicaLeaderElection(1),
    "BrokerChange": events.BrokerChange(),
    "BrokerModifications": events.BrokerModifications(0),
    "ControllerChange": events.ControllerChange(),
    "IsrChangeNotification": events.IsrChangeNotification(),
    "LeaderAndIsrResponseReceived": events.LeaderAndIsrResponseReceived(
        0, _HEADER, _NO_ORDERS, LeaderAndIsrResponse(Errors.NONE)
    ),
    "LogDirEventNotification": events.LogDirEventNotification(),
    "PartitionModifications": events.PartitionModifications("t"),
    "TopicChange": events.TopicChange(),
    "TopicDeletion": events.TopicDeletion(),
    "UpdateMetadataResponseReceived": events.UpdateMetadataResponseReceived(
        0, _HEADER, UpdateMetadataResponse(Errors.NONE)
    ),
    "ZkPartitionReassignment": events.ZkPartitionReassignment(),
}
REQUESTS: Mapping[str, ControllerRequest] = {
    "ControlledShutdown": ControlledShutdownRequest(0, -1),
    "ReplicaLeaderElection": ElectLeadersRequest.of(ElectionType.PREFERRED, (T0,)),
    "ApiPartitionReassignment": AlterPartitionReassignmentsRequest.of({T0: (0,)}),
    "ListPartitionReassignments": ListPartitionReassignmentsRequest.of((T0,)),
    "AlterIsrReceived": AlterPartitionRequest(0, -1, ()),
}


class CountingStats(EventManagerStats):
    """Stores which events were handled."""

    def __init__(self, **settings: int) -> None:
        super().__init__(**settings)
        self.handled: list[ControllerEvent] = []

    @contextmanager
    def handling(self, event: ControllerEvent, queue_ms: float) -> Iterator[None]:
        """Store an event and measure it."""
        with super().handling(event, queue_ms):
            self.handled.append(event)
            yield


class Manager:
    """The actor of broker 0, the active controller; ``hook`` is called when it reads ZooKeeper."""

    def __init__(self, stage: Stage, **settings: int) -> None:
        stage.answer = _leave_unanswered  # answers would be further events
        self.ref = stage.controller(0)
        actor = actor_of(self.ref)
        self.actor: ControllerEventManager = actor
        self._stage = stage
        stage.wait_for(lambda: actor.activity.busy_since is None and actor.actor_inbox.size == 0)
        self.stats = CountingStats(**settings)
        actor.stats = self.stats

    def hook(self, hook: Callable[[Call], None] | None) -> None:
        """Call a function in each call to ZooKeeper."""
        self._stage.sessions[0].hook = hook

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition."""
        self._stage.wait_for(condition)


def _leave_unanswered(sent: Sent) -> NoReturn:
    raise BrokenChannelError


class CollectedController:
    """The metrics of one actor."""

    def __init__(self, manager: ControllerEventManager) -> None:
        self._manager = manager
        self._recent = Recent()

    def collect(self) -> Iterator[Family]:
        """Yield them."""
        yield from controller_metrics(self._manager.view, self._recent)


def event_queue(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect, Stage() as stage:
        if "event" in given:
            _handle_one(stage, given, expect)
        elif "events" in given:
            _let_events_wait(stage, given, expect)
        else:
            _close(stage, expect)


def _handle_one(stage: Stage, given: Fields, expect: Fields) -> None:
    event = one_of(given.take("event"), EVENTS, "the event")
    manager = Manager(stage)

    def fail(call: Call) -> None:
        raise RuntimeError(f"as the case has it: {call.method}")

    manager.hook(one_of(given.take("handler", "ok"), {"ok": None, "throws": fail}, "handler"))
    before = {name: timer.count for name, timer in manager.stats.timers.items()}
    with suppress(RuntimeError):
        ask(manager.ref, event)
    manager.hook(None)
    timer = expect.take("timer", None)
    for delta in expect.expected("timer_delta"):
        named = list(before) if timer is None else [timer]
        assert sum(manager.stats.timers[name].count - before[name] for name in named) == delta
    for count in expect.expected("processed"):
        assert manager.stats.handled.count(event) == count
    for state in expect.expected("state_after"):
        manager.wait_for(lambda: manager.actor.activity.busy_since is None)
        assert manager.stats.state.label == state


def _let_events_wait(stage: Stage, given: Fields, expect: Fields) -> None:
    """Let the first event take some time while the others are queued."""
    count, handler_ms = given.take("events"), given.take("handler_ms", 0)
    settings = {"idle_reset_ms": given.take("idle_reset_ms")} if "idle_reset_ms" in given else {}
    manager = Manager(stage, **settings)
    all_are_queued = threading.Event()
    handled = manager.stats.handled
    slept: list[int] = []

    def take_time(call: Call) -> None:
        assert all_are_queued.wait(TIMEOUT_S), call
        if len(handled) not in slept:  # in the first call of each event
            slept.append(len(handled))
            _pass(handler_ms)

    manager.hook(take_time)
    manager.ref.tell(events.TopicChange())
    manager.wait_for(lambda: handled == [events.TopicChange()])
    for number in range(count - 1):
        manager.ref.tell(events.PartitionModifications(f"t-{number}"))
    all_are_queued.set()
    manager.wait_for(lambda: len(handled) == count)
    manager.hook(None)
    if settings:
        manager.wait_for(lambda: manager.stats.event_queue_time.count == 0)
    timer = manager.stats.event_queue_time
    for expected in expect.expected("count"):
        assert timer.count == expected
    for expected in expect.expected("min"):
        assert expected <= timer.minimum_ms < expected + TOLERANCE_MS
    for expected in expect.expected("max"):
        assert expected <= timer.maximum_ms < expected + TOLERANCE_MS
    for expected in expect.expected("processed"):
        assert len(handled) == expected


def _pass(duration_ms: float) -> None:
    until = monotonic() + duration_ms / 1000
    while (left := until - monotonic()) > 0:
        threading.Event().wait(left)


def _close(stage: Stage, expect: Fields) -> None:
    manager = Manager(stage)
    server, collected = MetricsServer("127.0.0.1", 0), CollectedController(manager.actor)
    with closing(server):
        server.publish(collected)
        names = _names(server)
        for expected in expect.expected("metrics_while_open"):
            _assert_metrics(names, expected)
        server.withdraw(collected)
        stop_actor(manager.ref, TIMEOUT_S)
        for expected in expect.expected("metrics_after_close"):
            _assert_metrics(_names(server), expected)


def _names(server: MetricsServer) -> list[str]:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{server.port}/metrics", timeout=scaled(10)
    ) as page:
        words = [line.split() for line in page.read().decode().splitlines()]
    return [word[2] for word in words if word[1] == "TYPE" and word[2].startswith(METRICS)]


def _assert_metrics(names: list[str], expected: Any) -> None:
    """Compare with a number, with names, or with a word for some or none."""
    if isinstance(expected, bool) or expected in ("none", "empty", "some", "nonempty", "present"):
        assert bool(names) is (expected is True or expected in ("some", "nonempty", "present"))
    elif isinstance(expected, int):
        assert bool(names) is (expected > 0)
    elif isinstance(expected, list):
        assert {name.removeprefix(f"{METRICS}_") for name in names} >= set(map(str.lower, expected))
        assert bool(names) is bool(expected)
    else:
        raise UnknownInCaseError(f"metrics {expected!r}")


# --- preemption -----------------------------------------------------------------------------------


_ENDS = (
    "controller manager queue broker session zookeeper shuts shut down shutdown stops stopped"
    " closes closed resigns expires expired moves before after runs running handled processed first"
    " ends other event events queued"
)


def event_preemption(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect, Stage() as stage:
        if given.take("running", 1) not in (1, True, *EVENTS):
            raise UnknownInCaseError("more than one event runs")
        ends = ("shut", "stop", "close", "resign", "expire")
        then = str(given.take("then", "controller shuts down")).lower()
        if not any(word in then for word in ends):
            raise UnknownInCaseError(f"then {then!r}")
        check_words(then, "then", _ENDS)
        named = given.take("queued_event", None)
        queued: Any = given.take("queued", None)
        if named is not None:
            answer = _preempt(stage, [one_of(named, REQUESTS, "the event")])[0]
            assert isinstance(answer, ControllerResponse)
            _assert_refused(answer, expect)
        else:
            answers = _preempt(stage, _queued(queued))
            preempted = [a for a in answers if isinstance(a, ActorDeadError | ControllerResponse)]
            for count in expect.expected("preempted"):
                if isinstance(count, list):
                    count = len(count)
                assert len(preempted) == (len(answers) if count in (True, "all") else count)


def _queued(queued: Any) -> list[object]:
    if isinstance(queued, int):
        return [events.PartitionModifications(f"t-{number}") for number in range(queued)]
    known = {**EVENTS, **REQUESTS}
    return [one_of(name, known, "the event") for name in queued]


def _preempt(stage: Stage, messages: list[Any]) -> list[object]:
    """Stop the actor while one event runs and these are queued; return their answers."""
    manager = Manager(stage)
    is_running, may_end = threading.Event(), threading.Event()

    def hold(call: Call) -> None:
        is_running.set()
        assert may_end.wait(TIMEOUT_S), call

    manager.hook(hold)
    manager.ref.tell(events.TopicChange())
    assert is_running.wait(TIMEOUT_S)
    waiting = [manager.ref.ask(message, block=False) for message in messages]
    stopped = manager.ref.stop(block=False)
    may_end.set()
    stopped.get(timeout=TIMEOUT_S)
    answers: list[object] = []
    for future in waiting:
        try:
            answers.append(future.get(timeout=TIMEOUT_S))
        except ActorDeadError as dead:
            answers.append(dead)
    assert manager.stats.handled == [events.TopicChange()]
    return answers


def _assert_refused(answer: Any, expect: Fields) -> None:
    """A refused request is an answer for every partition."""
    error: Errors = answer.error_code
    for name in expect.expected("failure"):
        # Kafka's ControllerMovedException has this code on the wire.
        assert (
            one_of(name, {"ControllerMovedException": Errors.STALE_CONTROLLER_EPOCH}, "") is error
        )
    for name in expect.expected("top_level_error"):
        assert error.name == name
    for name in expect.expected("per_partition_error"):
        rows = getattr(answer, "partitions", ())
        assert ({row.error_code.name for row in rows} or {error.name}) == {name}
