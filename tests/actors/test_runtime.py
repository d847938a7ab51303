import threading
from collections.abc import Callable, Hashable, Iterator
from time import monotonic
from typing import Any

import pytest
from pykka import ActorDeadError, ActorRef, ActorRegistry, Future, Timeout
from pykka._envelope import Envelope

from regent.actors.inbox import ClearAndPut, InboxFullError, MessageWithReply, Reply
from regent.actors.runtime import RegentActor, Supervisor, launch, start_actor, stop_actor
from regent.config.threads import UNEXPECTED_ERRORS
from regent.testing.waits import scaled
from tests.support.stage import actor_of

WAIT_S = scaled(10.0)


class Performer(RegentActor):
    """Calls messages that are callables, collects the others."""

    inbox_limit = 50

    def __init__(self, name: str = "performer-1", supervisor: Supervisor | None = None) -> None:
        super().__init__(name, supervisor=supervisor)
        self.handled: list[object] = []
        self.preempted: list[object] = []
        self.deferred: list[Reply] = []
        self.calls: list[str] = []

    def handle(self, message: Any, reply: Reply | None) -> None:
        if callable(message):
            message(self, reply)
            return
        self.handled.append(message)
        if reply is not None:
            self.deferred.append(reply)

    @staticmethod
    def collapse_key(message: Any) -> Hashable | None:
        return message if isinstance(message, str) and message.startswith("trigger") else None

    def on_preempted(self, message: Any) -> None:
        self.preempted.append(message)

    def preemption_answer(self, message: Any) -> object:
        if message == "NOT_CONTROLLER please":
            return "NOT_CONTROLLER"
        return super().preemption_answer(message)

    def on_stop(self) -> None:
        self.calls.append(f"on_stop after {len(self.preempted)} preempted")


class Gate:
    """A message that holds its actor until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _actor: Performer, _reply: Reply | None) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)

    def hold(self, ref: ActorRef[Performer]) -> None:
        ref.tell(self)
        assert self.reached.wait(WAIT_S)


Start = Callable[..., tuple[ActorRef[Performer], Performer]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start performers and stop them afterwards; also returns the actor."""
    started = []

    def start_performer(**kwargs: Any) -> tuple[ActorRef[Performer], Performer]:
        ref = start_actor(Performer, **kwargs)
        actor = actor_of(ref)
        started.append(ref)
        return ref, actor

    yield start_performer
    assert all(stop_actor(ref, WAIT_S) for ref in started)


def settle(ref: ActorRef[Any]) -> None:
    """Wait until all earlier messages have been handled."""
    ref.ask(lambda _actor, reply: reply.set(None), timeout=WAIT_S)


def fail_with(error: BaseException) -> Callable[[Performer, Reply | None], None]:
    def message(_actor: Performer, _reply: Reply | None) -> None:
        raise error

    return message


# --- starting ---


def test_an_actor_runs_on_a_daemon_thread_of_its_name(start: Start) -> None:
    ref, _ = start(name="Controller-0-event-thread")
    threads: list[threading.Thread] = []
    ref.tell(lambda _actor, _reply: threads.append(threading.current_thread()))
    settle(ref)
    assert threads[0].name == "Controller-0-event-thread"
    assert threads[0].daemon


class FailingStart(Performer):
    def on_start(self) -> None:
        raise OSError("no disk")


class ExitingStart(Performer):
    def on_start(self) -> None:
        raise SystemExit(3)


class SlowStart(Performer):
    gate = threading.Event()
    ended = threading.Event()

    def on_start(self) -> None:
        self.gate.wait(WAIT_S)

    def on_stop(self) -> None:
        self.ended.set()


def test_a_failed_start_raises_its_error_and_leaves_nothing_behind() -> None:
    with pytest.raises(OSError, match="no disk"):
        start_actor(FailingStart, "broken-start")
    assert not [ref for ref in ActorRegistry.get_all() if ref.actor_class is FailingStart]
    assert "broken-start" not in [thread.name for thread in threading.enumerate()]


def test_a_start_that_exits_raises_an_ordinary_error() -> None:
    with pytest.raises(RuntimeError, match=r"broken-start: .* raised SystemExit"):
        start_actor(ExitingStart, "broken-start")


def test_a_start_that_takes_too_long_is_given_up_and_stopped() -> None:
    with pytest.raises(TimeoutError, match="slow-start did not start within"):
        launch(SlowStart("slow-start"), 0.01)
    SlowStart.gate.set()
    assert SlowStart.ended.wait(WAIT_S)


# --- answers ---


def test_an_ask_is_answered_after_the_handler_returned(start: Start) -> None:
    ref, actor = start()
    future = ref.ask("later", block=False)
    settle(ref)
    with pytest.raises(Timeout):
        future.get(timeout=0)
    actor.deferred[0].set("now")
    assert future.get(timeout=WAIT_S) == "now"


def test_an_actor_continues_while_an_answer_is_owed(start: Start) -> None:
    ref, actor = start()
    ref.ask("first", block=False)
    ref.tell("second")
    settle(ref)
    assert actor.handled == ["first", "second"]


def test_an_ask_without_an_answer_times_out(start: Start) -> None:
    ref, _ = start()
    with pytest.raises(Timeout):
        ref.ask("never", timeout=0.01)


def test_a_message_may_have_its_own_reply(start: Start) -> None:
    ref, actor = start()
    answers: list[object] = []
    ref.tell(MessageWithReply("question", Reply.of(answers.append)))
    settle(ref)
    actor.deferred[0].set("answer")
    assert answers == ["answer"]


def test_the_sender_is_told_how_long_an_actor_worked_for_its_message(start: Start) -> None:
    ref, _ = start()
    charged: list[float] = []
    ref.tell(MessageWithReply("question", Reply.of(lambda _: None, charged.append)))
    settle(ref)
    (work_s,) = charged
    assert work_s > 0


def test_a_plain_tell_has_no_reply(start: Start) -> None:
    ref, _ = start()
    replies: list[Reply | None] = []
    ref.tell(lambda _, reply: replies.append(reply))
    settle(ref)
    assert replies == [None]


def test_equal_messages_collapse_also_with_replies(start: Start) -> None:
    ref, actor = start()
    gate = Gate()
    gate.hold(ref)
    for _ in range(1000):
        ref.tell("trigger")
    gate.opened.set()
    settle(ref)
    assert actor.handled == ["trigger"]


def test_a_full_inbox_refuses_tells_but_not_a_stop(start: Start) -> None:
    ref, actor = start()
    gate = Gate()
    gate.hold(ref)
    for number in range(actor.inbox_limit):
        ref.tell(number)
    with pytest.raises(InboxFullError):
        ref.tell("one too many")
    with pytest.raises(InboxFullError):
        ref.ask("one too many", timeout=WAIT_S)
    actor.stop()
    gate.opened.set()
    assert stop_actor(ref, WAIT_S)
    assert actor.handled == []
    assert actor.preempted == list(range(actor.inbox_limit))


def test_a_handler_knows_the_waiting_and_handling_time_of_its_message(start: Start) -> None:
    ref, _ = start()
    gate = Gate()
    gate.hold(ref)
    told_at = monotonic()
    times = ref.ask(
        lambda actor, reply: reply.set((actor.queue_ms, actor.activity.handling_ms)), block=False
    )
    gate.opened.set()
    queue_ms, handling_ms = times.get(timeout=WAIT_S)
    assert 0 < queue_ms + handling_ms <= (monotonic() - told_at) * 1000


# --- clear and put ---


def test_clear_and_put_preempts_answers_and_goes_first(start: Start) -> None:
    ref, actor = start()
    gate = Gate()
    gate.hold(ref)
    ref.tell("old")
    valued = ref.ask("NOT_CONTROLLER please", block=False)
    dropped = ref.ask("anything", block=False)
    cleared = ref.ask(ClearAndPut("expire"), block=False)
    ref.tell("new")
    gate.opened.set()
    settle(ref)
    assert valued.get(timeout=0) == "NOT_CONTROLLER"
    with pytest.raises(ActorDeadError, match="dropped"):
        dropped.get(timeout=0)
    assert actor.preempted == ["old", "NOT_CONTROLLER please", "anything"]
    assert actor.handled == ["expire", "new"]
    actor.deferred[0].set("expired")
    assert cleared.get(timeout=WAIT_S) == "expired"


def test_clear_and_put_does_not_answer_messages_that_were_handled(start: Start) -> None:
    ref, actor = start()
    future = ref.ask("handled", block=False)
    settle(ref)
    ref.tell(ClearAndPut("expire"))
    settle(ref)
    actor.deferred[0].set("still valid")
    assert future.get(timeout=0) == "still valid"


# --- errors of handlers ---


def test_an_actor_survives_a_failing_handler_and_notifies_its_supervisor(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[tuple[str, object, Exception]] = []
    ref, _ = start(supervisor=lambda *args: seen.append(args))
    message = fail_with(error := ValueError("bad row"))
    before = UNEXPECTED_ERRORS.count
    ref.tell(message)
    settle(ref)
    assert seen == [("performer-1", message, error)]
    assert UNEXPECTED_ERRORS.count == before + 1
    assert "performer-1: handling <function fail_with" in caplog.text


def test_an_ask_raises_the_error_of_the_handler(start: Start) -> None:
    ref, _ = start()
    with pytest.raises(ValueError, match="bad row"):
        ref.ask(fail_with(ValueError("bad row")), timeout=WAIT_S)
    settle(ref)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_no_handler_can_end_its_actor_or_another(start: Start, error: BaseException) -> None:
    ref, _ = start()
    bystander, _ = start(name="bystander-1")
    ref.tell(fail_with(error))
    with pytest.raises(RuntimeError, match=type(error).__name__):
        ref.ask(fail_with(error), timeout=WAIT_S)
    settle(ref)
    settle(bystander)


def test_an_actor_survives_a_failing_supervisor(start: Start) -> None:
    def supervisor(_name: str, _message: object, _error: Exception) -> None:
        raise SystemExit

    ref, _ = start(supervisor=supervisor)
    with pytest.raises(ValueError, match="first"):
        ref.ask(fail_with(ValueError("first")), timeout=WAIT_S)
    settle(ref)


def test_a_huge_message_is_not_logged_in_full(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    class Huge(Gate):
        def __call__(self, _actor: Performer, _reply: Reply | None) -> None:
            raise ValueError("bad")

        def __repr__(self) -> str:
            return "x" * 1_000_000

    ref, _ = start()
    ref.tell(Huge())
    settle(ref)
    assert len(caplog.records[0].getMessage()) < 500


# --- stopping ---


def test_stop_answers_all_owed_replies(start: Start) -> None:
    ref, actor = start()
    handled = ref.ask("handled", block=False)
    valued = ref.ask("NOT_CONTROLLER please", block=False)
    settle(ref)
    gate = Gate()
    gate.hold(ref)
    queued = ref.ask("queued", block=False)
    answers: list[object] = []
    ref.tell(MessageWithReply("NOT_CONTROLLER please", Reply.of(answers.append)))
    first_stop, second_stop = ref.stop(block=False), ref.stop(block=False)
    gate.opened.set()
    assert stop_actor(ref, WAIT_S)
    for future in (handled, queued):
        with pytest.raises(ActorDeadError):
            future.get(timeout=0)
    assert valued.get(timeout=0) == "NOT_CONTROLLER"
    assert answers == ["NOT_CONTROLLER"]
    assert first_stop.get(timeout=0)
    assert second_stop.get(timeout=0)
    assert actor.preempted == ["queued", "NOT_CONTROLLER please"]
    assert actor.calls == ["on_stop after 2 preempted"]
    assert not ref.is_alive()
    assert not actor.actor_inbox.unanswered


def test_on_stop_may_give_the_answers_itself(start: Start) -> None:
    class Settler(Performer):
        def on_stop(self) -> None:
            for reply in self.deferred:
                reply.set("settled")

    ref = start_actor(Settler)
    future = ref.ask("owed", block=False)
    settle(ref)
    assert stop_actor(ref, WAIT_S)
    assert future.get(timeout=0) == "settled"


def test_a_failing_on_stop_leaves_no_reply_unanswered() -> None:
    class Failing(Performer):
        def on_stop(self) -> None:
            raise SystemExit

    ref = start_actor(Failing)
    future = ref.ask("owed", block=False)
    settle(ref)
    assert stop_actor(ref, WAIT_S)
    with pytest.raises(ActorDeadError):
        future.get(timeout=0)


def test_a_failed_start_answers_queued_messages_and_refuses_new_ones() -> None:
    asked: list[tuple[Performer, Future[Any]]] = []

    class AskedWhileStarting(Performer):
        def on_start(self) -> None:
            asked.append((self, self.actor_ref.ask("early", block=False)))
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        start_actor(AskedWhileStarting)
    [(actor, future)] = asked
    with pytest.raises(ActorDeadError):
        future.get(timeout=0)
    assert actor.preempted == ["early"]
    with pytest.raises(ActorDeadError):
        actor.actor_inbox.put(Envelope("late"))


def test_a_blocked_actor_sees_that_it_is_closing(start: Start) -> None:
    ref, _ = start()
    reached = threading.Event()

    def block(actor: Performer, _reply: Reply | None) -> None:
        reached.set()
        actor.calls.append(f"closing: {actor.closing.wait(WAIT_S)}")

    ref.tell(block)
    assert reached.wait(WAIT_S)
    actor = actor_of(ref)
    assert stop_actor(ref, WAIT_S)
    assert actor.calls == ["closing: True", "on_stop after 0 preempted"]


def test_an_actor_that_does_not_stop_is_named(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ref, _ = start(name="stubborn-1")
    gate = Gate()
    gate.hold(ref)
    assert not stop_actor(ref, timeout=0.01)
    assert "stubborn-1 did not stop within 0.01 s, busy with <" in caplog.text
    gate.opened.set()


def test_an_actor_may_be_stopped_twice(start: Start) -> None:
    ref, _ = start()
    assert stop_actor(ref, WAIT_S)
    assert stop_actor(ref, WAIT_S)
    with pytest.raises(ActorDeadError):
        ref.tell("anybody there?")
    with pytest.raises(ActorDeadError):
        ref.ask("anybody there?", timeout=WAIT_S)


def test_an_actor_can_stop_itself(start: Start) -> None:
    ref, actor = start()
    ref.tell(lambda actor, _reply: actor.stop())
    actor.thread.join(WAIT_S)
    assert not actor.thread.is_alive()


def race_asks_with_a_stop() -> list[Future[Any]]:
    """Stop an actor while two threads send asks; return the futures of all 40 asks."""
    ref = start_actor(Performer)
    gate = threading.Barrier(3)
    futures: list[Future[Any]] = []

    def ask() -> None:
        gate.wait(WAIT_S)
        futures.extend(ref.ask(i, block=False) for i in range(20))

    askers = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
    for asker in askers:
        asker.start()
    gate.wait(WAIT_S)
    assert stop_actor(ref, WAIT_S)
    for asker in askers:
        asker.join(WAIT_S)
    assert len(futures) == 40
    return futures


def test_no_ask_that_races_with_a_stop_stays_unanswered() -> None:
    """Pykka alone may lose asks: it checks that the actor is alive before it puts the message."""
    for _ in range(150):
        for future in race_asks_with_a_stop():
            with pytest.raises(ActorDeadError):
                future.get(timeout=0)


def test_an_ask_to_an_actor_that_stops_meanwhile_fails_at_once(start: Start) -> None:
    ref, actor = start()
    asked_when_alive = ref.actor_inbox.put
    assert stop_actor(ref, WAIT_S)
    future = actor._create_future()
    asked_when_alive(Envelope("too late", reply_to=future))
    with pytest.raises(ActorDeadError, match="performer-1 has stopped"):
        future.get(timeout=0)
