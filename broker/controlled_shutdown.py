"""The asking side of a controlled shutdown; mirrors ``KafkaServer.controlledShutdown``.

The request goes straight to the controller, this broker's own or another's, as an actor request.
ZooKeeper has no part in it: the controller is found in the metadata cache (KAFKA-9189).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from pykka import ActorDeadError
from pykka import Timeout as AskTimeout

from regent.config.settings import BrokerConfig
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.controller import ControlledShutdownRequest, ControlledShutdownResponse
from regent.core.replication.metadata_cache import MetadataSnapshot
from regent.transport.remote_ref import RemoteActorRef
from regent.transport.sockets import Context

logger = logging.getLogger(__name__)


class AskableRef(Protocol):
    """An actor of this process (``pykka.ActorRef``) or another's (``RemoteActorRef``)."""

    def ask(self, message: Any, *, timeout: float) -> Any:
        """Send a request and return its answer."""
        ...


@dataclass(frozen=True, slots=True)
class ControlledShutdownSettings:
    """How often to ask, and how long to wait."""

    max_retries: int
    retry_backoff_s: float
    timeout_s: float
    reconnect_s: float = 1.0  # for a connection to ZooKeeper that is lost just now


def hand_over(
    request: Callable[[], ControlledShutdownRequest],
    snapshot: Callable[[], MetadataSnapshot],
    own_controller: AskableRef,
    context: Context,
    config: BrokerConfig,
    abort: threading.Event,
    is_connected: Callable[[], bool],
) -> tuple[TopicPartition, ...]:
    """Find the controller, wherever it is, and have it move everything away.

    ``is_connected`` says whether ZooKeeper answers this broker.
    """
    broker_id = request().broker_id
    with ExitStack() as refs:

        def find_controller(cluster: MetadataSnapshot) -> AskableRef | None:
            if cluster.controller_id == broker_id:
                return own_controller
            controller = cluster.controller
            if controller is None or controller.control_endpoint is None:
                return None
            return refs.enter_context(
                RemoteActorRef(
                    context, controller.control_endpoint, client_id=f"broker-{broker_id}"
                )
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
) -> tuple[TopicPartition, ...]:
    """Have the controller move everything away; return what could not be moved.

    Gives up after ``max_retries`` attempts, when ``abort`` is set, or when ZooKeeper is gone,
    without which nobody can be elected; the caller stops all the same. ``request`` is called for
    each attempt: the broker epoch may have changed.
    """
    remaining: tuple[TopicPartition, ...] = ()
    for attempt in range(settings.max_retries):
        if attempt and abort.wait(settings.retry_backoff_s):
            break
        if not is_connected() and (abort.wait(settings.reconnect_s) or not is_connected()):
            logger.warning("Without ZooKeeper nobody can take over: nothing is handed over")
            break
        message, cluster = request(), snapshot()
        if not cluster.brokers:
            break  # no controller has ever spoken to this broker: there is nothing to hand over
        response = _ask(find_controller(cluster), message, settings.timeout_s)
        if response is None:
            continue
        if response.error_code is not Errors.NONE:
            logger.warning("The controller refused: %s", response.error_code.name)
            continue
        remaining = response.remaining_partitions
        if not remaining or not _others(cluster, message.broker_id):
            break
        logger.warning("%d partitions cannot be moved yet", len(remaining))
    return remaining


def _ask(
    controller: AskableRef | None, message: ControlledShutdownRequest, timeout_s: float
) -> ControlledShutdownResponse | None:
    if controller is None:
        logger.warning("No controller is known that could take over")
        return None
    try:
        answer = controller.ask(message, timeout=timeout_s)
    except (RegentError, ActorDeadError, AskTimeout) as error:
        logger.warning("The controller did not answer: %s", error)
        return None
    assert isinstance(answer, ControlledShutdownResponse)
    return answer


def _others(cluster: MetadataSnapshot, broker_id: BrokerId) -> bool:
    """Whether anybody is left who could take over."""
    return any(other != broker_id for other in cluster.brokers)
