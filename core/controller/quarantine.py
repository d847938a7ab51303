"""A topic or event that ended two controllers in a row is quarantined by the third.

A controller resigns after an unexpected exception, so that the next one reads everything again
(``Controller._move``). The same topic or event must not end one controller after another. So a
failure is recorded in ZooKeeper before the controller resigns. A topic or event that ends a second
controller within its first minute is quarantined by the third: this one logs it, and handles
everything else.

It is tried again when the topic's znode changes, or when the record is deleted (``controller
try-again``). Kafka has no quarantine: there one controller after another fails.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from types import TracebackType

from regent.core.controller.events import Resign, event_of
from regent.core.controller.partition_entries import PartitionEntry
from regent.core.controller.services import ControllerServices
from regent.core.errors import RegentError
from regent.core.model import PartitionAndReplica, TopicPartition
from regent.core.ports import ControllerFailure
from regent.core.protocol.controller import (
    AwaitBrokersRequest,
    ControllerRequest,
    DescribeControllerRequest,
)

FIRST_MINUTE_MS = 60_000
FAILURES_TO_QUARANTINE = 2
MAX_TOPICS_OF_AN_EVENT = 3  # quarantined; the next failure quarantines the event
MAX_FAILURES = 50  # so that the znode stays small: the oldest are dropped
MAX_ERROR_CHARACTERS = 300

_TOPIC = "topic "

LOADING_QUARANTINE = "loading what is quarantined"
LOADING_BROKERS = "loading brokers"
LOADING_TOPICS = "loading topics"
ANNOUNCING_BROKERS = "announcing brokers"
SETTLING_LEADERSHIPS = "settling leaderships of restarted brokers"
STARTING_STATE_MACHINES = "starting the state machines"

_INDISPENSABLE = frozenset(
    {
        *("Startup", "ControllerChange", "Reelect", "RegisterBrokerAndReelect", "StandAgain"),
        *("Expire", "Resign", "EventsLost", LOADING_QUARANTINE, LOADING_BROKERS, LOADING_TOPICS),
        *(ANNOUNCING_BROKERS, SETTLING_LEADERSHIPS, STARTING_STATE_MACHINES),
        "ControllerFailuresChange",
    }
)
"""The controller cannot do without these. Only the topic on which they fail is quarantined.

``ControllerFailuresChange`` is one of them, because it ends quarantines. A controller that skipped
it would continue all quarantines until its term ends, although their records are deleted. When it
fails, the next term does its work: a term begins by reading the records.
"""


def event_name(message: object) -> str:
    """Return the name of an event or request: its class, and its broker if it has one.

    A request has the name of the event that it becomes.
    """
    if isinstance(message, ControllerRequest) and not isinstance(
        message, DescribeControllerRequest | AwaitBrokersRequest
    ):
        message = event_of(message, 0)
    broker_id = getattr(message, "broker_id", getattr(_request(message), "broker_id", None))
    name = type(message).__name__
    return name if broker_id is None else f"{name} of broker {broker_id}"


def topic_of(message: object, error: BaseException) -> str | None:
    """Return the topic that was being worked on when ``error`` was raised; None: unknown.

    It is the topic or partition in a local variable of the innermost frame that has one. This costs
    nothing before an error, and finds one topic of the hundred thousand that a failover loads.
    """
    frames: list[TracebackType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        for name, value in reversed(list(frame.tb_frame.f_locals.items())):
            match value:
                case TopicPartition():
                    return value.topic
                case PartitionAndReplica() | PartitionEntry():
                    return value.topic_partition.topic
                case str() if name == "topic":
                    return value
    topic_partition = getattr(message, "topic_partition", None)
    return topic_partition.topic if topic_partition is not None else getattr(message, "topic", None)


def resignation(message: object, error: BaseException) -> Resign:
    """Return the event for a controller that raised ``error`` when it handled ``message``."""
    name, topic = event_name(message), topic_of(message, error)
    about = "" if topic is None else f" about topic {topic}"
    reason = f"{name} failed{about}: {type(error).__name__}: {error}"
    return Resign(reason, name, topic)


class Quarantine:
    """Records the failures that end controllers, and knows what they quarantine."""

    def __init__(self, services: ControllerServices) -> None:
        self._services = services
        self._log = services.log(__name__)
        self._context = services.context

    def load(self) -> None:
        """Learn at the start of a term what is quarantined."""
        self._read()
        for what, error in self._context.quarantined.items():
            self._log.error(
                "%s is quarantined, it ended %d controllers: %s",
                what,
                FAILURES_TO_QUARANTINE,
                error,
            )
            self._services.outbox.note("%s: quarantined, %s", what, error)

    def on_change(self) -> set[str]:
        """Read the records again; return what is not quarantined any more."""
        before = set(self._context.quarantined)
        self._read()
        again = before - self._context.quarantined.keys()
        for what in sorted(again):
            self._services.outbox.note("%s: tried again", what)
        return again

    def try_again(self, topic: str) -> bool:
        """End the quarantine of a topic whose znode has changed; True if there was one."""
        what = _TOPIC + topic
        if what not in self._context.quarantined:
            return False
        self._services.outbox.note("%s: tried again, it has changed", what)
        self._forget({what})
        return True

    def forget_missing(self, topics: Collection[str]) -> bool:
        """End the quarantine of all topics but ``topics``; True if there was one."""
        kept = {_TOPIC + topic for topic in topics}
        gone = {w for w in self._context.quarantined if w.startswith(_TOPIC) and w not in kept}
        if gone:
            self._forget(gone)
        return bool(gone)

    def has_event(self, name: str) -> bool:
        """Whether an event, or a step of the failover, is quarantined."""
        return name in self._context.quarantined

    def on_failure(self, event: str, topic: str | None, error: str, *, term_ms: int) -> bool:
        """Record in ZooKeeper what ended this term after ``term_ms``.

        Returns whether the next term is the first that quarantines it. The write is fenced: the
        failures of a deposed controller are not recorded. Raises ``ControllerMovedError``.
        """
        is_quarantined_next = False

        def with_this_one(failures: Sequence[ControllerFailure]) -> Sequence[ControllerFailure]:
            nonlocal is_quarantined_next
            what = self._to_blame(event, topic, failures)
            known = next((f for f in failures if f.what == what), None)
            is_written = known is not None and known.controller_epoch == self._context.epoch
            if is_written or what in _INDISPENSABLE:
                return failures
            controllers = 1
            if known is not None:
                controllers = known.controllers + (term_ms < FIRST_MINUTE_MS)
                is_quarantined_next = known.controllers < FAILURES_TO_QUARANTINE <= controllers
            brief = error[:MAX_ERROR_CHARACTERS]
            failure = ControllerFailure(
                what, event, brief, controllers, self._services.broker_id, self._context.epoch
            )
            others = [f for f in failures if f.what != what]
            return [*others, failure][-MAX_FAILURES:]

        self._change(with_this_one)
        return is_quarantined_next

    def write_down(self, step: str | None, failed: Resign, *, term_ms: int) -> bool:
        """Do as ``on_failure``, without an error: the controller must resign anyway.

        ``step`` is that of the failover in which it failed; None: it failed later.
        """
        if not failed.event:
            return False
        try:
            return self.on_failure(
                step or failed.event, failed.topic, failed.reason, term_ms=term_ms
            )
        except Exception as error:  # noqa: BLE001 - see above
            self._log.warning("%r", error)
            return False

    def _to_blame(
        self, event: str, topic: str | None, failures: Collection[ControllerFailure]
    ) -> str:
        if topic is None or self._context.is_topic_quarantined(topic):
            return event
        of_event = sum(
            f.event == event
            and f.what.startswith(_TOPIC)
            and f.controllers >= FAILURES_TO_QUARANTINE
            for f in failures
        )
        return _TOPIC + topic if of_event < MAX_TOPICS_OF_AN_EVENT else event

    def _forget(self, what: Collection[str]) -> None:
        self._change(lambda failures: [f for f in failures if f.what not in what])
        for forgotten in what:
            self._context.quarantined.pop(forgotten, None)

    def _change(
        self, change: Callable[[Sequence[ControllerFailure]], Sequence[ControllerFailure]]
    ) -> None:
        self._services.store.change_failures(change, self._context.epoch_zk_version)

    def _read(self) -> None:
        try:
            failures = self._services.store.read_failures()
        except RegentError as error:
            self._log.error("what is to be quarantined cannot be read: %s", error)
            failures = ()
        self._context.quarantined = {
            f.what: f.error for f in failures if f.controllers >= FAILURES_TO_QUARANTINE
        }


def _request(message: object) -> object:
    return getattr(message, "request", None)
