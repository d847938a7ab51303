"""The broker's side of a controlled shutdown; mirrors ``KafkaServer.controlledShutdown``.

The request goes directly to the active controller, on this broker or another one. The controller
is found in the metadata cache, so ZooKeeper is not needed for it (KAFKA-9189).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pykka import ActorDeadError
from pykka import Timeout as AskTimeout

from regent.actors.request_channel import ControllersOfKafka, RequestChannel
from regent.config.tables.broker import BrokerConfig
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import ControlledShutdownRequest, ControlledShutdownResponse
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.transport.control.remote_ref import RemoteActorRef
from regent.transport.control.sockets import Context

logger = logging.getLogger(__name__)


class AskableRef(Protocol):
    """An actor of this process (``pykka.ActorRef``) or another's (``RemoteActorRef``)."""

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Send a request and return its answer."""
        ...


class _KafkaController:
    """A controller of Kafka, asked as the actor of one of this project is."""

    def __init__(self, channel: RequestChannel[Any, Any]) -> None:
        self._channel = channel

    def ask(self, message: Any, *, timeout: float) -> Any:
        return self._channel.request(message, timeout_ms=round(timeout * 1000))


@dataclass(frozen=True, slots=True)
class ControlledShutdownSettings:
    """How often to ask, and how long to wait."""

    max_retries: int
    retry_backoff_s: float
    timeout_s: float
    reconnect_s: float = 1.0  # to wait for a lost connection to ZooKeeper


def hand_over(
    request: Callable[[], ControlledShutdownRequest],
    snapshot: Callable[[], MetadataSnapshot],
    own_controller: AskableRef,
    context: Context,
    of_kafka: ControllersOfKafka,
    config: BrokerConfig,
    abort: threading.Event,
    is_connected: Callable[[], bool],
) -> tuple[TopicPartition, ...] | None:
    """Find the active controller and ask it to move all leaderships away.

    ``is_connected`` returns whether ZooKeeper answers this broker. Returns what
    ``ask_for_controlled_shutdown`` does.
    """
    broker_id = request().broker_id
    with ExitStack() as refs:

        def find_controller(cluster: MetadataSnapshot) -> AskableRef | None:
            if cluster.controller_id == broker_id:
                return own_controller
            controller = cluster.controller
            if controller is None:
                return None
            if controller.control_peer is None:
                endpoint = of_kafka.endpoint(controller)
                if endpoint is None:
                    return None
                channel = refs.enter_context(closing(of_kafka.open_channel(endpoint)))
                return _KafkaController(channel)
            return refs.enter_context(
                RemoteActorRef(context, controller.control_peer, client_id=f"broker-{broker_id}")
            )

        settings = ControlledShutdownSettings(
            config.controlled_shutdown_max_retries,
            config.controlled_shutdown_retry_backoff_ms / 1000,
            config.controlled_shutdown_timeout_ms / 1000,
        )
        return ask_for_controlled_shutdown(
            request, snapshot, find_controller, settings, abort, is_connected
        )


def ask_for_controlled_shutdown(
    request: Callable[[], ControlledShutdownRequest],
    snapshot: Callable[[], MetadataSnapshot],
    find_controller: Callable[[MetadataSnapshot], AskableRef | None],
    settings: ControlledShutdownSettings,
    abort: threading.Event,
    is_connected: Callable[[], bool],
) -> tuple[TopicPartition, ...] | None:
    """Ask the controller to move all leaderships away; return the partitions that remain.

    None: no controller has done so. Gives up after ``max_retries`` attempts, when ``abort`` is set,
    or when ZooKeeper, which every election needs, is unreachable. The caller stops anyway.
    ``request`` is called for each attempt, because the broker epoch may have changed.
    """
    remaining = None
    for attempt in range(settings.max_retries):
        if attempt and abort.wait(settings.retry_backoff_s):
            break
        if not is_connected() and (abort.wait(settings.reconnect_s) or not is_connected()):
            logger.warning("ZooKeeper is unreachable: no election is possible; moving no leaders")
            break
        message, cluster = request(), snapshot()
        if not cluster.brokers:
            return ()  # no controller has sent this broker a request: it leads nothing
        response = _ask(partial(find_controller, cluster), message, settings.timeout_s)
        if response is None:
            continue
        if response.error_code is not Errors.NONE:
            logger.warning("The controller refused: %s", response.error_code.name)
            continue
        remaining = response.remaining_partitions
        if not remaining or not _others(cluster, message.broker_id):
            break
        logger.warning("Cannot move %d partitions yet", len(remaining))
    return remaining


def _ask(
    find_controller: Callable[[], AskableRef | None],
    message: ControlledShutdownRequest,
    timeout_s: float,
) -> ControlledShutdownResponse | None:
    try:
        controller = find_controller()
        if controller is None:
            logger.warning("No active controller is known")
            return None
        answer = controller.ask(message, timeout=timeout_s)
        assert isinstance(answer, ControlledShutdownResponse)
    except (RegentError, ActorDeadError, AskTimeout) as error:
        logger.warning("The controller did not answer: %s", error)
        return None
    except Exception:  # the logs must be closed all the same
        logger.exception("The controller did not answer: an unexpected error")
        return None
    return answer


def _others(cluster: MetadataSnapshot, broker_id: BrokerId) -> bool:
    """Whether another broker is alive."""
    return any(other != broker_id for other in cluster.brokers)
