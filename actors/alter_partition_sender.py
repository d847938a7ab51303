"""Sends the ISR changes that this broker proposes as leader; one request at a time.

Mirrors ``kafka.server.AlterPartitionManager``. The ReplicaManager decides what to propose and what
an answer means. It wakes this actor when there may be a proposal. There are two ways to change an
ISR (``isr_change_protocol``): ``ControllerAlterPartitionSender`` asks the controller;
``ZkIsrManager`` writes to ZooKeeper, as brokers before Kafka 2.7.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from pykka import ActorDeadError, ActorRef
from pykka import Timeout as AskTimeout

from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.inbox import Reply
from regent.actors.request_channel import (
    ChannelToController,
    ControllersOfKafka,
    ControllerUnknownError,
    RequestChannel,
)
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.scheduler import OneShotTimer, RepeatingTimer, Scheduler, monotonic_ms
from regent.core.errors import Errors, RegentError
from regent.core.protocol.controller import AlterPartitionRequest, AlterPartitionResponse
from regent.core.replication.isr_change_propagation import CHECK_INTERVAL_MS, IsrStore, IsrWriter
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.replica_manager import ReplicaManager
from regent.transport.control.client import RequestAbandonedError
from regent.transport.control.codec import Response

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 50
MAX_STALE_BACKOFF_MS = 5_000
UNKNOWN_CONTROLLER_BACKOFF_MS = 100
_SLICE_S = 0.05  # how often a wait for our own controller checks whether this actor is stopping


OpenControllerChannel: TypeAlias = Callable[[str], RequestChannel[AlterPartitionRequest, Response]]


@dataclass(frozen=True, slots=True)
class SendPending:
    """There may be a proposal to send."""


class AlterPartitionSender(RegentActor):
    """Sends proposals on ``SendPending``, which any thread may tell it."""

    def __init__(
        self,
        name: str,
        replica_manager: ReplicaManager,
        scheduler: Scheduler,
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(name, supervisor=supervisor)
        self.requests = 0
        self._replica_manager = replica_manager
        self._retry = OneShotTimer(scheduler, self._tell_send_pending)
        self._is_failing = False
        self._stale_epoch: int | None = None  # a broker epoch that the controller does not know
        self._stale_backoff_ms = RETRY_BACKOFF_MS

    @staticmethod
    def collapse_key(message: Hashable) -> Hashable | None:
        """One queued message is enough."""
        return message

    @abstractmethod
    def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Send the AlterPartition; raises ``RegentError`` if no controller answered."""

    def handle(self, message: SendPending, reply: Reply | None) -> None:
        """Send the proposals, unless the last attempt failed recently.

        If the controller does not know our broker epoch, the backoff doubles until we register
        again.
        """
        del message, reply
        is_known_again = self._stale_epoch not in (None, self._replica_manager.broker_epoch)
        if self._retry.is_pending and not is_known_again:
            return
        request = self._replica_manager.alter_partition_request()
        if request is None:
            return
        response: AlterPartitionResponse | None = None
        retry_after_ms = RETRY_BACKOFF_MS
        self.requests += 1
        try:
            response = self._decided(request)
            if self._stale_epoch is not None:
                retry_after_ms = self._stale_backoff_ms
        except ControllerUnknownError as error:
            retry_after_ms = UNKNOWN_CONTROLLER_BACKOFF_MS
            self._failed(error)
        except RequestAbandonedError:
            pass
        except RegentError as error:
            self._failed(error)
        finally:  # otherwise the request would stay in flight for ever
            self._replica_manager.on_alter_partition_response(request, response, monotonic_ms())
            if response is not None and _accepts_all(request, response):
                self._is_failing = False
                self._tell_send_pending()  # there may be new proposals
            else:
                self._retry.set(retry_after_ms)

    def on_stop(self) -> None:
        """Send nothing more."""
        self._retry.cancel()

    def _decided(self, request: AlterPartitionRequest) -> AlterPartitionResponse | None:
        """Return the answer, or None if the whole request was refused."""
        response = self.alter_partitions(request)
        if response.error_code is Errors.STALE_BROKER_EPOCH:
            is_news = self._stale_epoch != request.broker_epoch
            longer_ms = min(2 * self._stale_backoff_ms, MAX_STALE_BACKOFF_MS)
            self._stale_backoff_ms = RETRY_BACKOFF_MS if is_news else longer_ms
            self._stale_epoch = request.broker_epoch
        else:
            self._stale_epoch = None
        if response.error_code is Errors.NONE:
            return response
        self._failed(response.error_code.name)
        return None

    def _failed(self, why: object) -> None:
        log = logger.debug if self._is_failing else logger.warning
        log("%s: %s; trying again", self.name, why)
        self._is_failing = True

    def _tell_send_pending(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(SendPending())


class ControllerAlterPartitionSender(AlterPartitionSender):
    """Asks the active controller, found in the metadata cache for each request."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        cache: MetadataCache,
        controller: ActorRef[ControllerEventManager],
        open_channel: OpenControllerChannel,
        *,
        scheduler: Scheduler,
        timeout_ms: int,
        of_kafka: ControllersOfKafka | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        name = f"broker-{replica_manager.broker_id}-alter-partition-sender"
        super().__init__(name, replica_manager, scheduler, supervisor)
        self._cache = cache
        self._own_controller = controller
        self._timeout_ms = timeout_ms
        self._channel = ChannelToController(cache, open_channel, of_kafka)

    def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Ask; raises ``ControllerUnknownError`` or a ``RequestError``."""
        if self._cache.snapshot.controller_id == request.broker_id:
            answer = self._ask_own_controller(request)
        else:
            answer = self._channel.current().channel.request(
                request, timeout_ms=self._timeout_ms, closing=self.closing
            )
        assert isinstance(answer, AlterPartitionResponse)
        return answer

    def on_stop(self) -> None:
        """Disconnect."""
        super().on_stop()
        self._channel.close()

    def _ask_own_controller(self, request: AlterPartitionRequest) -> object:
        answer = self._own_controller.ask(request, block=False)
        deadline = time.monotonic() + self._timeout_ms / 1000
        while not self.closing.is_set() and time.monotonic() < deadline:
            with suppress(AskTimeout):
                try:
                    return answer.get(timeout=_SLICE_S)
                except ActorDeadError as error:
                    raise ControllerUnknownError(str(error)) from None
        raise ControllerUnknownError(
            f"our own controller did not answer within {self._timeout_ms} ms"
        )


@dataclass(frozen=True, slots=True)
class PropagateIsrChanges:
    """Notify the controller of changed ISRs if that is due."""


class ZkIsrManager(AlterPartitionSender):
    """Changes ISRs by conditional writes of this leader, without the controller."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        store: IsrStore,
        *,
        scheduler: Scheduler,
        supervisor: Supervisor | None = None,
    ) -> None:
        name = f"broker-{replica_manager.broker_id}-zk-isr-manager"
        super().__init__(name, replica_manager, scheduler, supervisor)
        self._writer = IsrWriter(replica_manager, store, monotonic_ms())
        self._scheduler = scheduler
        self._checks: RepeatingTimer | None = None

    def on_start(self) -> None:
        """Begin to check periodically whether the controller is to be notified."""
        self._checks = RepeatingTimer(self._scheduler, CHECK_INTERVAL_MS, self._tell_propagate)

    def on_stop(self) -> None:
        """Write and notify nothing more."""
        super().on_stop()
        if self._checks is not None:
            self._checks.cancel()

    def handle(self, message: SendPending | PropagateIsrChanges, reply: Reply | None) -> None:
        """Write proposals, or notify the controller."""
        match message:
            case SendPending():
                super().handle(message, reply)
            case PropagateIsrChanges():
                try:
                    self._writer.propagate(monotonic_ms())
                except RegentError as error:
                    self._failed(error)

    def alter_partitions(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """Write the proposals; raises ``SessionExpiredError``."""
        return self._writer.alter_partitions(request, monotonic_ms())

    def _tell_propagate(self) -> None:
        with suppress(ActorDeadError):
            self.actor_ref.tell(PropagateIsrChanges())


def _accepts_all(request: AlterPartitionRequest, response: AlterPartitionResponse) -> bool:
    accepted = {row.topic_partition for row in response.partitions if not row.error_code}
    return accepted >= {row.topic_partition for row in request.partitions}
