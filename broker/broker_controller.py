"""Starts and stops the controller of one broker process, and passes events to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

from pykka import ActorDeadError, ActorRef

from regent.actors.controller_event_manager import ControllerEventManager, ControllerListener
from regent.actors.event_journal import EventJournalFile, EventJournalReader
from regent.actors.inbox import ClearAndPut, InboxFullError, MessageWithReply, Reply
from regent.actors.request_router import controller_client_id
from regent.actors.request_send_thread import ControlChannel, DeliverySettings
from regent.actors.runtime import launch, start_actor, stop_actor
from regent.actors.scheduler import Scheduler
from regent.broker.listener_security import security_to_brokers
from regent.config.settings import Settings
from regent.core.controller.controller import Controller
from regent.core.controller.events import ControllerEvent, Expire
from regent.core.errors import Errors, SessionExpiredError
from regent.core.model import BrokerId, BrokerInfo
from regent.core.protocol.controller import ControllerRequest
from regent.core.replication.metadata_view import endpoint_named, inter_broker_endpoint
from regent.core.setting import SettingValues
from regent.transport.control.client import RequestClient, RequestFailedError
from regent.transport.control.sockets import Context
from regent.transport.kafka.control_channel import KafkaControlChannel
from regent.zk.client.session import SessionKeeper

logger = logging.getLogger(__name__)

_ACTOR_TIMEOUT_S = 10.0


class BrokerController:
    """Runs from its construction to ``stop``; any thread may send it events."""

    reconfigurable_configs: Final = ("log.segment.delete.delay.ms",)

    def __init__(
        self,
        broker_id: BrokerId,
        controller: Controller,
        settings: Settings,
        *,
        context: Context,
        keeper: SessionKeeper,
        scheduler: Scheduler,
        journal_file: Path,
        listener: ControllerListener,
    ) -> None:
        self._context = context
        self._keeper = keeper
        self._client_id = controller_client_id(broker_id)
        self._attempts = count(1)  # numbers the attempts to send control requests
        self._undo = ExitStack()
        journal = EventJournalFile(journal_file, broker_id)
        self._undo.callback(journal.close)
        config = settings.controller
        self._inter_broker = settings.listeners.inter_broker
        self._security = security_to_brokers(settings)
        self._control_plane = settings.listeners.control_plane
        self._control_security = security_to_brokers(settings, self._control_plane)
        self._controller = controller
        manager = ControllerEventManager(
            broker_id,
            controller,
            self._open_channel,
            scheduler=scheduler,
            journal=journal,
            listener=listener,
            may_announce=self._may_announce,
            delivery=DeliverySettings(config.request_timeout_ms, config.retry_backoff_ms),
        )
        self.view = manager.view
        self.ref: ActorRef[ControllerEventManager] = launch(manager)
        self._undo.callback(stop_actor, self.ref, _ACTOR_TIMEOUT_S)
        self._journal_reader = start_actor(EventJournalReader, journal_file.parent, broker_id)
        self._undo.callback(stop_actor, self._journal_reader, _ACTOR_TIMEOUT_S)

    def reconfigure(self, old: SettingValues, new: SettingValues) -> None:
        """Follow how long brokers keep the files of deleted topics. Thread-safe."""
        del old
        (name,) = self.reconfigurable_configs
        self._controller.keep_deleted_topics_for(new[name])

    @property
    def refs(self) -> tuple[ActorRef[ControllerEventManager], ActorRef[EventJournalReader]]:
        """The actors that answer requests: the controller, and what reads its journal."""
        return self.ref, self._journal_reader

    def is_active(self) -> bool:
        """Whether this broker is the active controller. Thread-safe."""
        return self._controller.is_active

    def tell(self, event: ControllerEvent) -> None:
        """Send it an event; dropped if it has stopped."""
        try:
            self.ref.tell(event)
        except ActorDeadError:
            logger.debug("The controller has stopped; dropping %s", event)

    def ask(self, request: ControllerRequest, respond: Callable[[object], None]) -> None:
        """Pass the answer, or an exception, to ``respond``, on any thread. Thread-safe."""
        try:
            self.ref.tell(MessageWithReply(request, Reply.of(respond)))
        except (ActorDeadError, InboxFullError) as refused:
            respond(refused)

    def expire(self) -> Future[None]:
        """Resign before any queued event is handled; the future is done afterwards."""
        resigned: Future[None] = Future()
        reply = Reply.of(lambda _: resigned.set_result(None))
        try:
            self.ref.tell(ClearAndPut(MessageWithReply(Expire(), reply)))
        except ActorDeadError:
            resigned.set_result(None)
        return resigned

    def stop(self) -> None:
        """Stop it. Idempotent."""
        self._undo.close()

    def _open_channel(self, broker: BrokerInfo) -> ControlChannel:
        peer = broker.control_peer
        if peer is not None:
            return RequestClient(
                self._context, peer, client_id=self._client_id, correlation_ids=self._attempts
            )
        if self._control_plane is not None:
            at = endpoint_named(broker, self._control_plane.listener)
            if at is not None:
                security = self._control_security
                return KafkaControlChannel(at, client_id=self._client_id, security=security)
        ours = self._inter_broker
        endpoint = inter_broker_endpoint(broker, ours.listener, ours.security_protocol)
        if endpoint is None:
            raise RequestFailedError(
                f"broker {broker.broker_id}",
                Errors.LISTENER_NOT_FOUND,
                f"a broker of Kafka without a listener {ours.listener} or one with"
                f" {ours.security_protocol}: set its inter.broker.listener.name and ours to the"
                " same name",
            )
        return KafkaControlChannel(endpoint, client_id=self._client_id, security=self._security)

    def _may_announce(self) -> bool:
        try:
            return self._keeper.client.lease_valid()
        except SessionExpiredError:
            return False
