"""The actor runtime: features that Pykka lacks and every actor here needs.

Deferred answers, a bounded inbox that collapses and preempts messages (``actors.inbox``), a start
that reports failure, handlers whose errors do not end the actor, a stop that a blocked actor can
see, and a watchdog.

Senders use ``ref.tell(message)``, ``ref.ask(message, timeout=…)``,
``ref.tell(MessageWithReply(message, reply))`` and ``ClearAndPut`` around a message. Each results in
``handle(message, reply)`` on the actor's own thread.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from time import monotonic, thread_time
from typing import Any, ClassVar, Final, ParamSpec, TypeAlias, TypeVar

from pykka import ActorDeadError, ActorRef, ActorRegistry, ThreadingActor
from pykka.messages import _ActorStop

from regent.actors.inbox import (
    Activity,
    Delivery,
    Inbox,
    InboxFullError,
    MessageWithReply,
    Overflow,
    Reply,
    inbox_of,
)
from regent.config.threads import UNEXPECTED_ERRORS, NamedThread

logger = logging.getLogger(__name__)

_START_TIMEOUT_S: Final = 10.0

P = ParamSpec("P")
A = TypeVar("A", bound="RegentActor")

Supervisor: TypeAlias = Callable[[str, object, Exception], None]
"""Called with the actor's name, the message and the exception, on the actor's thread."""


class RegentActor(ThreadingActor):
    """An actor that handles one message at a time and survives all exceptions of its handlers.

    ``name`` is also the name of the thread, after the broker's prefix. ``queue_ms`` is how long the
    current message was queued. The hooks run on the actor's thread; others read ``activity``.
    """

    inbox_limit: ClassVar[int] = 100_000
    overflow: ClassVar[Overflow] = Overflow()

    actor_inbox: Inbox

    def __init__(self, name: str, *, supervisor: Supervisor | None = None) -> None:
        self.name = name
        self.thread = NamedThread(self._actor_loop, name)
        self.activity = Activity(self.thread)
        super().__init__()
        self.supervisor = supervisor
        self.closing = self.actor_inbox.closing
        self.started = threading.Event()
        self.start_error: Exception | None = None
        self.queue_ms = 0.0

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def handle(self, message: Any, reply: Reply | None) -> None:
        """Handle a message; ``reply`` (None if the sender does not wait) may be answered later."""

    def handle_each(
        self, messages: Iterable[MessageWithReply], step: Callable[[Any, Reply], None]
    ) -> None:
        """Call ``step`` for each message of one that brought several, as ``handle`` is called.

        Each has a reply and may fail alone. The limit of unanswered replies counts each of them.
        """
        unanswered = self.actor_inbox.unanswered
        for message in messages:
            if len(unanswered) >= self.inbox_limit:
                message.reply.fail(InboxFullError(f"{self.name}: too many are not answered yet"))
                continue
            message.reply.track(unanswered, message.message)
            try:
                step(message.message, message.reply)
            except BaseException as error:  # noqa: BLE001 - the others are handled too
                self._end_failed(message.message, message.reply, error)

    @staticmethod
    def collapse_key(message: Any) -> Hashable | None:
        """Return a key; of messages with the same key one queued is enough. Thread-safe."""
        return None

    def on_preempted(self, message: Any) -> None:
        """A queued message will not be handled: it was preempted, or the actor stops."""

    def preemption_answer(self, message: Any) -> object:
        """Return the answer to a message that was preempted or is unanswered after ``on_stop``.

        An exception is raised in the sender's ``ask``.
        """
        return ActorDeadError(f"{self.name} dropped the message before answering it")

    def on_unexpected_error(self, message: Any, error: Exception) -> None:
        """Handle the failure of a handler; afterwards the sender gets the exception as answer."""
        logger.error("%s: handling %.300r failed", self.name, message, exc_info=error)
        if self.supervisor is not None:
            self.supervisor(self.name, message, error)

    # --- pykka's hooks ---

    def _create_actor_inbox(self) -> Inbox:  # type: ignore[override]  # it needs the name
        return Inbox(
            self.name,
            self.activity,
            limit=self.inbox_limit,
            collapse_key=self.collapse_key,
            overflow=self.overflow,
        )

    def _start_actor_loop(self) -> None:
        self.thread.start()

    def _actor_loop_setup(self) -> None:
        try:
            self.on_start()
        except BaseException as error:  # noqa: BLE001 - start_actor raises it to its caller
            failure = self.start_error = self._as_exception("on_start", error)
            self._handle_failure(type(failure), failure, failure.__traceback__)
        self.activity.end()
        self.started.set()

    def _handle_receive(self, message: Any) -> None:
        if isinstance(message, _ActorStop):
            self._stop()
            return
        delivery: Delivery = message
        self.queue_ms = (monotonic() - delivery.enqueued_at) * 1000
        step = self._preempt if delivery.preempted else self.handle
        started_s = thread_time()
        self._attempt(step, delivery.message, delivery.reply)
        if delivery.reply is not None:
            delivery.reply.charge(thread_time() - started_s)

    def _stop(self) -> None:
        self._preempt_queued()
        ActorRegistry.unregister(self.actor_ref)
        self.actor_stopped.set()
        self._attempt(lambda _message, _reply: self.on_stop(), "on_stop", None)

    def _actor_loop_teardown(self) -> None:
        self._preempt_queued()  # not done yet after a failed start
        for reply, message in self.actor_inbox.unanswered.copy().items():
            self._attempt(self._answer_preempted, message, reply)
        super()._actor_loop_teardown()  # answers further stop messages

    # --- one step at a time ---

    def _attempt(
        self, step: Callable[[Any, Reply | None], None], message: object, reply: Reply | None
    ) -> None:
        self.activity.begin(message)
        try:
            step(message, reply)
        except BaseException as error:  # noqa: BLE001 - else pykka ends this actor, or all actors
            self._end_failed(message, reply, error)
        finally:
            self.activity.end()

    def _end_failed(self, message: object, reply: Reply | None, error: BaseException) -> None:
        UNEXPECTED_ERRORS.add()
        failure = self._as_exception(message, error)
        try:
            self.on_unexpected_error(message, failure)
        except BaseException:
            logger.exception("%s: on_unexpected_error failed", self.name)
        if reply is not None:
            reply.fail(failure)

    def _preempt_queued(self) -> None:
        for delivery in self.actor_inbox.close():
            self._attempt(self._preempt, delivery.message, delivery.reply)

    def _preempt(self, message: object, reply: Reply | None) -> None:
        self.on_preempted(message)
        self._answer_preempted(message, reply)

    def _answer_preempted(self, message: object, reply: Reply | None) -> None:
        if reply is None or reply.answered:
            return
        answer = self.preemption_answer(message)
        if isinstance(answer, Exception):
            reply.fail(answer)
        else:
            reply.set(answer)

    def _as_exception(self, message: object, error: BaseException) -> Exception:
        if isinstance(error, Exception):
            return error
        failure = RuntimeError(f"{self.name}: {message!r:.300} raised {error!r}")
        failure.__cause__ = error  # raised unchanged, it would end the sender's thread too
        return failure


def start_actor(actor_class: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> ActorRef[A]:
    """Start ``actor_class(*args, **kwargs)``; see ``launch``."""
    return launch(actor_class(*args, **kwargs))


def launch(actor: A, timeout: float = _START_TIMEOUT_S) -> ActorRef[A]:
    """Start an actor and return its ref once ``on_start`` has succeeded.

    Raises what ``on_start`` raised, or ``TimeoutError`` after ``timeout`` seconds; in both cases
    the actor stops.
    """
    ActorRegistry.register(actor.actor_ref)
    try:
        actor._start_actor_loop()
    except RuntimeError:  # no thread could be started
        ActorRegistry.unregister(actor.actor_ref)
        raise
    if not actor.started.wait(timeout):
        with suppress(ActorDeadError):
            actor.stop()
        raise TimeoutError(f"{actor.name} did not start within {timeout} s")
    if actor.start_error is not None:
        actor.thread.join(timeout)
        raise actor.start_error
    return actor.actor_ref


def stop_actor(ref: ActorRef[Any], timeout: float) -> bool:
    """Stop an actor before it handles queued messages; wait up to ``timeout`` s for its thread.

    Returns whether it ended; if not, logs its name and its current message. An actor stops itself
    by ``self.stop()``, because it cannot wait for its own thread.
    """
    activity = inbox_of(ref).activity
    thread = activity.thread
    ref.stop(block=False)
    thread.join(timeout)
    if not thread.is_alive():
        return True
    logger.error(
        "%s did not stop within %s s, busy with %.300r", thread.name, timeout, activity.message
    )
    return False
