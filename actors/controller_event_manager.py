"""The controller as an actor: one queue and one thread that owns all of the controller's state.

Mirrors ``kafka.controller.ControllerEventManager``. ZooKeeper watches, timers, answers of brokers
and requests of other processes reach it only as messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final, NamedTuple

from pykka import ActorDeadError, ActorRef

from regent.actors.controller_channel_manager import ControllerChannelManager
from regent.actors.event_journal import EventJournal, HandledEvent
from regent.actors.event_manager_stats import EventManagerStats
from regent.actors.inbox import Overflow, Reply
from regent.actors.request_send_thread import DeliverySettings, OpenChannel
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import Scheduler
from regent.config.collector import collector
from regent.core.controller import effects as fx
from regent.core.controller import events
from regent.core.controller.controller import Controller
from regent.core.controller.effects import error_response
from regent.core.controller.events import ControllerEvent, RequestId
from regent.core.controller.gauges import take_gauges
from regent.core.controller.quarantine import resignation
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.controller import (
    AwaitBrokersRequest,
    AwaitBrokersResponse,
    ControllerRequest,
    DescribeControllerRequest,
    DescribeControllerResponse,
    OfflineReplicas,
)

logger = logging.getLogger(__name__)

_MAX_REFUSED_STATES = 100  # listed in an answer
_MAX_OFFLINE_NAMED = 5  # of one broker


class ControllerListener:
    """Receives what concerns the controller's own broker; does nothing by default."""

    def on_broker_registered(self, broker_epoch: int) -> None:
        """The broker has registered with this broker epoch."""

    def on_must_end(self, reason: RegentError) -> None:
        """This broker must stop, for this reason."""

    def on_role_changed(self, is_active: bool, controller_epoch: int) -> None:
        """This broker became, or is no longer, the active controller."""


class ControllerView(NamedTuple):
    """The parts of a controller that any thread may read."""

    ref: ActorRef[ControllerEventManager]
    stats: EventManagerStats
    channels: ControllerChannelManager


class _BrokersAwaited:
    """Answers when the last of some brokers has answered. Thread-safe."""

    def __init__(self, brokers: set[BrokerId], reply: Reply) -> None:
        self._lock = threading.Lock()
        self._awaited = brokers
        self._silent: set[BrokerId] = set()
        self._reply = reply

    def on_answered(self, broker_id: BrokerId) -> None:
        """A broker has answered, or is gone."""
        with self._lock:
            self._awaited.discard(broker_id)
            if self._awaited:
                return
        self.end()

    def give_up(self, brokers: set[BrokerId]) -> None:
        """Do not wait for some of the brokers."""
        with self._lock:
            self._silent = brokers
            self._awaited -= brokers
            if self._awaited:
                return
        self.end()

    def end(self) -> None:
        """Answer, if no answer was given."""
        with self._lock:
            behind = sorted(self._awaited | self._silent)
        self._reply.set(AwaitBrokersResponse(Errors.NONE, tuple(behind)))


_NOT_IN_ZOOKEEPER: Final = (
    events.StandAgain,
    events.UncleanLeaderElectionEnable,
    events.AdvertisedListenersChanged,
)
"""Events that no later read of ZooKeeper can replace."""


class ControllerEventManager(RegentActor):
    """Takes ``ControllerEvent`` and ``ControllerRequest`` messages, performs their effects."""

    overflow = Overflow(events.is_always_queued, events.EventsLost())

    def __init__(
        self,
        broker_id: BrokerId,
        controller: Controller,
        open_channel: OpenChannel,
        *,
        scheduler: Scheduler,
        journal: EventJournal,
        listener: ControllerListener,
        may_announce: Callable[[], bool] = lambda: True,
        delivery: DeliverySettings | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"Controller-{broker_id}-event-thread", supervisor=supervisor)
        self.controller = controller
        controller.flush_to(self._perform)
        self._scheduler = scheduler
        self._journal = journal
        self._listener = listener
        self._may_announce = may_announce
        self._request_ids = count(1)
        self._replies: dict[RequestId, Reply] = {}
        self.stats = EventManagerStats()
        self.channels = ControllerChannelManager(
            broker_id,
            open_channel,
            self._tell_later,
            may_announce=may_announce,
            settings=delivery or DeliverySettings(),
            supervisor=supervisor,
        )

    @property
    def view(self) -> ControllerView:
        """The parts that other threads may read."""
        return ControllerView(self.actor_ref, self.stats, self.channels)

    @staticmethod
    def collapse_key(message: object) -> Hashable | None:
        """Collapse events that would read the same state of ZooKeeper twice."""
        return events.collapse_key(message)

    def handle(self, message: ControllerEvent | ControllerRequest, reply: Reply | None) -> None:
        """Process one event to completion, then perform its effects in order."""
        if isinstance(message, DescribeControllerRequest):
            if reply is not None:
                reply.set(self._describe())
            return
        if isinstance(message, AwaitBrokersRequest):
            if reply is not None:
                self._await_brokers(message.timeout_ms, reply)
            return
        event = self._as_event(message, reply)
        started = time.monotonic()
        now_ms = time.time_ns() // 1_000_000
        with self.stats.handling(event, self.queue_ms), collector.paused():
            done = self._process(event, now_ms, reply)
        self._publish()
        handling_ms = (time.monotonic() - started) * 1000
        self._record(event, done, now_ms, handling_ms)
        if reply is not None and not isinstance(message, ControllerRequest):
            reply.set(None)  # the sender of an event waits until it has been processed

    def preemption_answer(self, message: object) -> object:
        """Answer a dropped request like a broker that is not the active controller."""
        match message:
            case DescribeControllerRequest():
                return DescribeControllerResponse(Errors.NOT_CONTROLLER)
            case AwaitBrokersRequest():
                return AwaitBrokersResponse(Errors.NOT_CONTROLLER)
            case _ if isinstance(message, ControllerRequest):
                refused = error_response(events.event_of(message, 0))
                return None if refused is None else refused.response
            case _:
                return super().preemption_answer(message)

    def on_preempted(self, message: object) -> None:
        """Queue events again that no later read of ZooKeeper can replace."""
        if isinstance(message, _NOT_IN_ZOOKEEPER):
            self._tell_later(message)

    def on_unexpected_error(self, message: object, error: Exception) -> None:
        """Resign at once, so that another broker takes over: our state may be inconsistent.

        Resigning is not queued, because queued events must not see that state, and because the
        queue may be full.
        """
        super().on_unexpected_error(message, error)
        if self.actor_stopped.is_set():
            return
        try:
            self.handle(resignation(message, error), None)
        except Exception:
            # Resign in memory only. /controller is still ours; the next election deletes it.
            logger.exception("%s: resigning failed", self.name)
            self._resign_in_memory()
            self._tell_later(events.Reelect())

    def on_stop(self) -> None:
        """Resign, and let others stand for election: this session may end much later."""
        try:
            if self._may_announce():
                self.controller.give_up()
            self._resign_in_memory()
            self._publish()
        finally:
            self.channels.close()

    # --- inside ---

    def _resign_in_memory(self) -> None:
        """Resign and record it, so that the end of the term is not taken for a crash."""
        event, now_ms = events.Expire(), time.time_ns() // 1_000_000
        was_active = self.controller.is_active
        done = self._process(event, now_ms, None)
        if was_active:
            self.queue_ms = 0.0
            self._record(event, done, now_ms, handling_ms=0.0)

    def _process(self, event: ControllerEvent, now_ms: int, reply: Reply | None) -> list[fx.Effect]:
        try:
            done = self.controller.handle(event, now_ms)
        except Exception:
            if reply is not None:
                self._forget(reply)
            raise
        self._perform(done)
        return done

    def _publish(self) -> None:
        controller, stats = self.controller, self.stats
        stats.gauges = take_gauges(
            controller.context, controller.active_controller_id, is_active=controller.is_active
        )
        stats.unclean_leader_elections = controller.context.stats.unclean_leader_elections

    def _describe(self) -> DescribeControllerResponse:
        context = self.controller.context
        if not self.controller.is_active:
            return DescribeControllerResponse(Errors.NOT_CONTROLLER)
        return DescribeControllerResponse(
            Errors.NONE,
            context.epoch,
            self.actor_inbox.size,
            tuple(sorted(context.topics_to_be_deleted)),
            tuple(sorted(context.topics_ineligible_for_deletion)),
            len(context.partitions_being_reassigned),
            tuple(self.channels.unanswered()),
            tuple(sorted(context.refused_states)[:_MAX_REFUSED_STATES]),
            tuple(self.channels.software()),
            tuple(self.channels.departed()),
            tuple(self.channels.answer_times()),
            tuple(
                OfflineReplicas(b, len(names), tuple(sorted(names)[:_MAX_OFFLINE_NAMED]))
                for b, names in sorted(context.replicas_on_offline_dirs.items())
                if names
            ),
            tuple(self.channels.returned()),
        )

    def _await_brokers(self, timeout_ms: int, reply: Reply) -> None:
        """Answer when every broker has answered what is queued now, or when the time is over."""
        if not self.controller.is_active:
            reply.set(AwaitBrokersResponse(Errors.NOT_CONTROLLER))
            return
        wait = _BrokersAwaited(set(self.channels.channels), reply)
        silent = self.channels.await_answers(timeout_ms, wait.on_answered)
        wait.give_up(silent)
        if not reply.answered:
            self._scheduler.schedule(timeout_ms, wait.end)

    def _record(
        self, event: ControllerEvent, done: list[fx.Effect], now_ms: int, handling_ms: float
    ) -> None:
        changes = next((e for e in done if isinstance(e, fx.RecordChanges)), None)
        # If this event ended a term, it belongs to that term.
        epoch = changes.controller_epoch if changes else self.controller.context.epoch
        self._journal.record(
            HandledEvent(
                event,
                epoch,
                now_ms,
                self.queue_ms,
                handling_ms,
                changes,
                self.controller.context.event_id,
            )
        )

    def _as_event(
        self, message: ControllerEvent | ControllerRequest, reply: Reply | None
    ) -> ControllerEvent:
        if not isinstance(message, ControllerRequest):
            return message
        request_id = next(self._request_ids)
        if reply is not None:
            self._replies[request_id] = reply
        return events.event_of(message, request_id)

    def _forget(self, reply: Reply) -> None:
        """Leave a reply to the runtime, which answers it with the exception."""
        self._replies = {i: other for i, other in self._replies.items() if other is not reply}

    def _perform(self, effects: list[fx.Effect]) -> None:
        requests: list[fx.SendControlRequest] = []
        for effect in effects:
            if isinstance(effect, fx.SendControlRequest):
                requests.append(effect)
                continue
            if isinstance(effect, fx.AddBroker | fx.RemoveBroker):
                self.channels.send(requests)  # before their receivers are removed
                requests = []
            self._perform_one(effect)
        self.channels.send(requests)

    def _perform_one(self, effect: fx.Effect) -> None:
        match effect:
            case fx.AddBroker(registration):
                self.channels.add_broker(registration)
            case fx.RemoveBroker(broker_id):
                self.channels.remove_broker(broker_id)
            case fx.SendResponse(request_id, response):
                waiting = self._replies.pop(request_id, None)
                if waiting is not None:
                    waiting.set(response)
            case fx.ScheduleEvent(after_ms, event):
                key = None if events.outlives_term(event) else self.name
                self._scheduler.schedule(after_ms, lambda: self._tell_later(event), key=key)
            case fx.CancelScheduledEvents():
                self._scheduler.cancel_key(self.name)
            case fx.BrokerRegistered() | fx.BrokerMustEnd() | fx.ControllerRoleChanged():
                self._tell_listener(effect)
            case fx.RecordChanges() | fx.SendControlRequest():
                pass

    def _tell_listener(
        self, effect: fx.BrokerRegistered | fx.BrokerMustEnd | fx.ControllerRoleChanged
    ) -> None:
        match effect:
            case fx.BrokerRegistered(broker_epoch):
                self._listener.on_broker_registered(broker_epoch)
            case fx.BrokerMustEnd(reason):
                self._listener.on_must_end(reason)
            case fx.ControllerRoleChanged(is_active, controller_epoch):
                self._listener.on_role_changed(is_active, controller_epoch)

    def _tell_later(self, event: ControllerEvent) -> None:
        """Queue an event, from any thread; ignore it if the actor has stopped."""
        try:
            self.actor_ref.tell(event)
        except ActorDeadError:
            logger.debug("%s has stopped; dropping %s", self.name, event)
