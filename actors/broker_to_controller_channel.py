"""The connection over which a broker forwards requests to the active controller's broker.

Mirrors ``kafka.server.BrokerToControllerChannelManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from regent.actors.inbox import Reply
from regent.actors.request_channel import (
    ChannelToController,
    ControllersOfKafka,
    ControllerUnknownError,
    RequestChannel,
)
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.topic_request_handler import DECISION_TIMEOUT_MS
from regent.core.admin.admin_requests import refuse
from regent.core.admin.partition_requests import refuse_partitions
from regent.core.errors import BadDataError, Errors
from regent.core.model import BrokerId
from regent.core.protocol.controller import AwaitBrokersRequest, AwaitBrokersResponse
from regent.core.protocol.envelope import (
    EnvelopeRequest,
    EnvelopeResponse,
    ForwardedRequest,
    ForwardedResponse,
)
from regent.core.protocol.messages.partitions import PartitionsRequest
from regent.core.replication.metadata_cache import MetadataCache
from regent.transport.control.client import RequestError
from regent.transport.control.codec import Response

OpenForwardChannel: TypeAlias = Callable[
    [str], RequestChannel[EnvelopeRequest | AwaitBrokersRequest, Response]
]

_ON_THE_WAY_MS = 200  # for a question that the controller may answer at the end of its time


def refuse_forwarded(
    request: ForwardedRequest, error_code: Errors, message: str
) -> ForwardedResponse:
    """Return the answer that refuses a whole request."""
    if isinstance(request, PartitionsRequest):
        return refuse_partitions(request, error_code, message)
    return refuse(request, error_code, message)


class BrokerToControllerChannel(RegentActor):
    """Answers with the response, a ``RequestError``, or ``ControllerUnknownError``.

    The controller's address is read from the metadata cache for every request.
    """

    inbox_limit = 1_000

    def __init__(
        self,
        broker_id: BrokerId,
        cache: MetadataCache,
        open_channel: OpenForwardChannel,
        *,
        of_kafka: ControllersOfKafka | None = None,
        name: str = "to-controller-channel",
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}-{name}", supervisor=supervisor)
        self._broker_id = broker_id
        self._channel = ChannelToController(cache, open_channel, of_kafka)

    def handle(self, message: EnvelopeRequest | AwaitBrokersRequest, reply: Reply | None) -> None:
        """Send the request to the controller's broker once."""
        if reply is None:
            return
        patience_ms = DECISION_TIMEOUT_MS
        if isinstance(message, AwaitBrokersRequest):
            patience_ms = message.timeout_ms + _ON_THE_WAY_MS
        left_ms = round(patience_ms - self.queue_ms)
        try:
            if left_ms <= 0:
                raise ControllerUnknownError("no controller is known")
            reply.set(self._answer(message, left_ms))
        except (RequestError, ControllerUnknownError) as error:
            reply.fail(error)
        except BadDataError as error:
            assert isinstance(message, EnvelopeRequest)
            reply.set(refuse_forwarded(message.request, Errors.INVALID_REQUEST, str(error)))

    def _answer(self, message: EnvelopeRequest | AwaitBrokersRequest, left_ms: int) -> object:
        """Ask the controller. One of Kafka gets a client's request as it is, without the client.

        It does not say when the other brokers know what it has done. Raises ``RequestError``,
        ``ControllerUnknownError``, and ``BadDataError``.
        """
        controller = self._channel.current()
        if controller.is_of_kafka:
            if isinstance(message, AwaitBrokersRequest):
                return AwaitBrokersResponse(Errors.NONE)
            request = message.request
            return controller.channel.request(request, timeout_ms=left_ms, closing=self.closing)
        answer = controller.channel.request(message, timeout_ms=left_ms, closing=self.closing)
        if isinstance(message, EnvelopeRequest) and isinstance(answer, EnvelopeResponse):
            return answer.response_to(message)
        return answer

    def on_stop(self) -> None:
        """Disconnect."""
        self._channel.close()
