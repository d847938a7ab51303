import threading
from collections.abc import Callable, Hashable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from pykka import ActorDeadError, ThreadingFuture
from pykka._envelope import Envelope
from pykka.messages import _ActorStop

from regent.actors.inbox import (
    Activity,
    ClearAndPut,
    Delivery,
    Inbox,
    InboxFullError,
    MessageWithReply,
    Overflow,
    Reply,
)
from regent.testing.waits import scaled


class Trigger(NamedTuple):
    """Collapses with every other trigger of the same name."""

    name: str


def collapse_key(message: object) -> Hashable | None:
    return message if isinstance(message, Trigger) else None


def make_inbox(limit: int = 1000) -> Inbox:
    return Inbox(
        "actor-1", Activity(threading.current_thread()), limit=limit, collapse_key=collapse_key
    )


def tell(inbox: Inbox, *messages: object) -> None:
    for message in messages:
        inbox.put(Envelope(message))


def ask(inbox: Inbox, message: object) -> ThreadingFuture[Any]:
    future: ThreadingFuture[Any] = ThreadingFuture()
    inbox.put(Envelope(message, reply_to=future))
    return future


def take(inbox: Inbox) -> Delivery:
    delivery = inbox.get().message
    assert isinstance(delivery, Delivery)
    return delivery


def drain(inbox: Inbox) -> list[tuple[object, bool]]:
    """Take everything: (message, whether it was preempted)."""
    taken = []
    while not inbox.empty():
        delivery = take(inbox)
        taken.append((delivery.message, delivery.preempted))
    return taken


def run_together(*targets: Callable[[], None]) -> None:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(scaled(30))
        assert not thread.is_alive()


# --- sequence and limit ---------------------------------------------------------------------------


def test_messages_are_taken_in_the_sequence_of_arrival() -> None:
    inbox = make_inbox()
    tell(inbox, 1, 2, 3)
    assert inbox.size == 3
    assert drain(inbox) == [(1, False), (2, False), (3, False)]
    assert inbox.empty()


def test_a_waiting_taker_is_woken_by_the_next_message() -> None:
    inbox = make_inbox()
    taken: list[object] = []
    run_together(lambda: taken.append(take(inbox).message), lambda: tell(inbox, "hello"))
    assert taken == ["hello"]


def test_a_tell_over_the_limit_raises() -> None:
    inbox = make_inbox(limit=2)
    tell(inbox, 1, 2)
    with pytest.raises(InboxFullError, match="actor-1: 2 messages are already queued"):
        tell(inbox, 3)
    take(inbox)
    tell(inbox, 3)
    assert drain(inbox) == [(2, False), (3, False)]


def test_an_ask_over_the_limit_fails_through_its_future() -> None:
    inbox = make_inbox(limit=1)
    tell(inbox, 1)
    with pytest.raises(InboxFullError):
        ask(inbox, 2).get(timeout=0)


def test_unanswered_asks_are_limited_after_they_were_taken() -> None:
    inbox = make_inbox(limit=2)
    ask(inbox, 1), ask(inbox, 2)
    first, _second = take(inbox).reply, take(inbox).reply
    with pytest.raises(InboxFullError, match="not answered"):
        ask(inbox, 3).get(timeout=0)
    tell(inbox, "a tell owes nobody an answer")
    assert first is not None
    first.set(None)
    ask(inbox, 3)
    assert inbox.size == 2


def test_stop_and_clear_and_put_fit_into_a_full_inbox() -> None:
    inbox = make_inbox(limit=1)
    tell(inbox, 1, ClearAndPut(2), ClearAndPut(3), _ActorStop())
    assert isinstance(inbox.get().message, _ActorStop)
    assert drain(inbox) == [(1, True), (2, True), (3, False)]


def test_a_stop_is_taken_first() -> None:
    inbox = make_inbox()
    tell(inbox, 1)
    assert not inbox.closing.is_set()
    tell(inbox, _ActorStop())
    assert inbox.closing.is_set()
    assert isinstance(inbox.get().message, _ActorStop)
    assert drain(inbox) == [(1, False)]


# --- collapsing ---


def test_a_message_with_the_key_of_a_queued_one_is_not_queued_twice() -> None:
    inbox = make_inbox()
    tell(inbox, Trigger("brokers"), 1, Trigger("brokers"), Trigger("topics"), 1)
    assert [m for m, _ in drain(inbox)] == [Trigger("brokers"), 1, Trigger("topics"), 1]


def test_a_message_is_queued_again_after_the_equal_one_was_taken() -> None:
    inbox = make_inbox()
    tell(inbox, Trigger("brokers"))
    take(inbox)
    tell(inbox, Trigger("brokers"))
    assert inbox.size == 1


def test_a_collapsed_message_keeps_its_place_and_time() -> None:
    inbox = make_inbox()
    tell(inbox, Trigger("brokers"), "between", Trigger("brokers"))
    first, between = take(inbox), take(inbox)
    assert (first.message, between.message) == (Trigger("brokers"), "between")
    assert first.enqueued_at <= between.enqueued_at
    assert inbox.empty()


def test_a_collapsed_message_fits_into_a_full_inbox() -> None:
    inbox = make_inbox(limit=1)
    tell(inbox, Trigger("brokers"), Trigger("brokers"))
    assert inbox.size == 1


def test_a_message_with_a_reply_is_never_collapsed() -> None:
    inbox = make_inbox()
    tell(inbox, Trigger("brokers"))
    ask(inbox, Trigger("brokers"))
    tell(inbox, MessageWithReply(Trigger("brokers"), Reply.of(lambda _: None)))
    assert inbox.size == 3


def test_a_message_does_not_collapse_into_a_preempted_one() -> None:
    inbox = make_inbox()
    tell(inbox, Trigger("brokers"), ClearAndPut("expire"), Trigger("brokers"))
    assert drain(inbox) == [
        (Trigger("brokers"), True),
        ("expire", False),
        (Trigger("brokers"), False),
    ]


def test_no_message_is_lost_if_it_arrives_while_the_equal_one_is_taken() -> None:
    inbox = make_inbox()
    written = [0]
    seen: list[int] = []

    def writer() -> None:
        for i in range(1, 5001):
            written[0] = i
            tell(inbox, Trigger("read it again"))
        tell(inbox, "end")

    def reader() -> None:
        while take(inbox).message != "end":
            seen.append(written[0])

    run_together(writer, reader)
    assert seen[-1] == 5000


# --- clear and put --------------------------------------------------------------------------------


def test_clear_and_put_preempts_in_sequence_and_is_taken_first() -> None:
    inbox = make_inbox()
    tell(inbox, 1, 2, ClearAndPut("expire"), 3)
    assert inbox.size == 4
    assert drain(inbox) == [(1, True), (2, True), ("expire", False), (3, False)]


def test_a_later_clear_preempts_an_earlier_one() -> None:
    inbox = make_inbox()
    tell(inbox, 1, ClearAndPut("expire"), 2, ClearAndPut("shut down"))
    assert drain(inbox) == [(1, True), ("expire", True), (2, True), ("shut down", False)]


def test_clear_and_put_can_be_asked() -> None:
    inbox = make_inbox()
    future = ask(inbox, ClearAndPut("expire"))
    reply = take(inbox).reply
    assert reply is not None
    reply.set("done")
    assert future.get(timeout=0) == "done"


def take_while_sent_and_cleared(tellers: int, sent: int, clears: int) -> list[tuple[Any, bool]]:
    """Take all messages while threads put (n, i) and another puts ("clear", i)."""
    inbox = make_inbox(limit=1_000_000)
    taken: list[tuple[Any, bool]] = []

    def teller(number: int) -> Callable[[], None]:
        return lambda: tell(inbox, *((number, i) for i in range(sent)))

    def clearer() -> None:
        for i in range(clears):
            tell(inbox, ClearAndPut(("clear", i)))

    def taker() -> None:
        while len(taken) < tellers * sent + clears:
            delivery = take(inbox)
            taken.append((delivery.message, delivery.preempted))

    run_together(*(teller(number) for number in range(tellers)), clearer, taker)
    assert inbox.empty()
    return taken


def test_every_message_is_taken_once_and_none_survives_a_later_clear() -> None:
    taken = take_while_sent_and_cleared(tellers=3, sent=2000, clears=200)
    assert len({message for message, _ in taken}) == len(taken)
    for source, number in ((0, 2000), (1, 2000), (2, 2000), ("clear", 200)):
        assert [m[1] for m, _ in taken if m[0] == source] == list(range(number))
    for (_, was_preempted), (message, is_preempted) in pairwise(taken):
        if was_preempted and not is_preempted:
            assert message[0] == "clear", "something old was handled after a clear"


# --- replies ---


def test_the_first_answer_counts() -> None:
    answers: list[object] = []
    reply = Reply.of(answers.append)
    assert not reply.answered
    reply.set(1)
    reply.set(2)
    reply.fail(ValueError())
    assert answers == [1]
    assert reply.answered


def test_a_callback_is_given_the_exception() -> None:
    answers: list[object] = []
    error = ValueError("no")
    Reply.of(answers.append).fail(error)
    assert answers == [error]


def test_a_reply_answered_by_many_threads_is_delivered_once() -> None:
    for _ in range(50):
        answers: list[object] = []
        reply = Reply.of(answers.append)
        gate = threading.Barrier(4)

        def answer(
            reply: Reply = reply, gate: threading.Barrier = gate, n: object = object()
        ) -> None:
            gate.wait(scaled(10))
            reply.set(n)

        run_together(*[answer] * 4)
        assert len(answers) == 1


def test_a_callback_that_raises_does_not_affect_the_answering_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def callback(_answer: object) -> None:
        raise OSError("socket closed")

    Reply.of(callback).set(1)
    assert "Cannot deliver a reply" in caplog.text


def test_ask_and_a_message_with_a_reply_arrive_alike() -> None:
    inbox = make_inbox()
    answers: list[object] = []
    future = ask(inbox, "asked")
    tell(inbox, MessageWithReply("sent", Reply.of(answers.append)))
    for number in (1, 2):
        reply = take(inbox).reply
        assert reply is not None
        reply.set(number)
    assert future.get(timeout=0) == 1
    assert answers == [2]


def test_an_answered_reply_is_no_longer_owed() -> None:
    inbox = make_inbox()
    ask(inbox, 1), ask(inbox, 2)
    assert list(inbox.unanswered.values()) == [1, 2]
    reply = take(inbox).reply
    assert reply is not None
    reply.set(None)
    assert list(inbox.unanswered.values()) == [2]


def test_a_reply_answered_before_it_is_sent_is_not_owed() -> None:
    inbox = make_inbox()
    reply = Reply.of(lambda _: None)
    reply.set(1)
    tell(inbox, MessageWithReply("late", reply))
    assert not inbox.unanswered


def test_a_forwarded_message_is_owed_by_the_second_inbox() -> None:
    first, second = make_inbox(), make_inbox()
    reply = Reply.of(lambda _: None)
    tell(first, MessageWithReply("forward me", reply))
    tell(second, MessageWithReply(take(first).message, reply))
    assert not first.unanswered
    assert list(second.unanswered) == [reply]


# --- closing ---


def test_a_put_after_close_fails_at_once() -> None:
    inbox = make_inbox()
    inbox.close()
    with pytest.raises(ActorDeadError, match="actor-1 has stopped"):
        tell(inbox, 1)
    with pytest.raises(ActorDeadError):
        tell(inbox, ClearAndPut(1))
    with pytest.raises(ActorDeadError):
        ask(inbox, 1).get(timeout=0)
    with pytest.raises(ActorDeadError):
        ask(inbox, _ActorStop()).get(timeout=0)
    assert inbox.empty()


def test_a_refused_tell_does_not_answer_the_reply() -> None:
    inbox = make_inbox()
    inbox.close()
    reply = Reply.of(lambda _: None)
    with pytest.raises(ActorDeadError):
        tell(inbox, MessageWithReply(1, reply))
    assert not reply.answered


def test_close_returns_the_queued_messages_except_stops() -> None:
    inbox = make_inbox()
    tell(inbox, 1, ClearAndPut(2), 3, _ActorStop())
    assert [delivery.message for delivery in inbox.close()] == [1, 2, 3]
    assert isinstance(inbox.get().message, _ActorStop)
    assert inbox.empty()


# --- a full inbox with a substitute message -------------------------------------------------------

ALL = Trigger("all")
RARE = ("rare", "also rare")


def make_overflowing_inbox() -> Inbox:
    overflow = Overflow(lambda message: message in (*RARE, ALL), ALL)
    return Inbox(
        "actor-1",
        Activity(threading.current_thread()),
        limit=3,
        collapse_key=collapse_key,
        overflow=overflow,
    )


def test_some_messages_are_queued_in_a_full_inbox() -> None:
    inbox = make_overflowing_inbox()
    tell(inbox, 1, 2, 3, *RARE)
    assert drain(inbox) == [(m, False) for m in (1, 2, 3, *RARE)]


def test_a_message_that_does_not_fit_is_replaced_by_a_substitute() -> None:
    inbox = make_overflowing_inbox()
    tell(inbox, 1, "rare", Trigger("a"), 4)
    assert drain(inbox) == [(1, True), (Trigger("a"), True), (ALL, False), ("rare", False)]
    tell(inbox, Trigger("a"), Trigger("a"))
    assert drain(inbox) == [(Trigger("a"), False)], "it can be queued again"


def test_one_substitute_replaces_all_messages_that_do_not_fit() -> None:
    inbox = make_overflowing_inbox()
    tell(inbox, *range(1000))
    taken = drain(inbox)
    assert [m for m, preempted in taken if preempted] == [0, 1, 2]
    assert [m for m, preempted in taken if not preempted] == [ALL, 4, 5]
    tell(inbox, *range(4))
    assert (ALL, False) in drain(inbox), "after it was handled the next loss needs another"


def test_an_ask_to_a_full_inbox_is_refused_even_with_a_substitute() -> None:
    inbox = make_overflowing_inbox()
    tell(inbox, 1, 2, 3)
    with pytest.raises(InboxFullError):
        ask(inbox, "question").get(timeout=1)
    assert drain(inbox) == [(1, False), (2, False), (3, False)]
