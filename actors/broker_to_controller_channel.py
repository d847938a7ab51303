"""The connection over which a broker forwards requests to the active controller's broker.

A controller that is a broker of Kafka takes no envelopes. It would take a client's request for one
of this broker, which may do more. So it gets only what this broker asks for itself. Clients are
sent to it, as by brokers of Kafka, and changes of topics' settings are decided here, as there.

Mirrors ``kafka.server.BrokerToControllerChannelManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pykka import ActorRef

from regent.actors.inbox import MessageWithReply, Reply
from regent.actors.request_channel import (
    ChannelToController,
    ControllersOfKafka,
    ControllerUnknownError,
    RequestChannel,
)
from regent.actors.runtime import RegentActor, Supervisor
from regent.actors.topic_request_handler import DECISION_TIMEOUT_MS, TopicRequestHandler
from regent.core.admin.admin_requests import refuse
from regent.core.admin.partition_requests import refuse_partitions
from regent.core.errors import BadDataError, Errors, RegentError
from regent.core.model import BrokerId
from regent.core.protocol.controller import AwaitBrokersRequest, AwaitBrokersResponse
from regent.core.protocol.envelope import (
    EnvelopeRequest,
    EnvelopeResponse,
    ForwardedRequest,
    ForwardedResponse,
)
from regent.core.protocol.messages.configs import IncrementalAlterConfigsRequest
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


class ControllerOfKafkaError(RegentError):
    """The controller is a broker of Kafka: a client must ask it itself."""


class BrokerToControllerChannel(RegentActor):
    """Answers with the response, or with an error.

    That is a ``RequestError``, ``ControllerUnknownError`` or ``ControllerOfKafkaError``. The
    controller's address is read from the metadata cache for every request. ``topics`` decides what
    is not for a controller of Kafka.
    """

    inbox_limit = 1_000

    def __init__(
        self,
        broker_id: BrokerId,
        cache: MetadataCache,
        open_channel: OpenForwardChannel,
        *,
        of_kafka: ControllersOfKafka | None = None,
        topics: ActorRef[TopicRequestHandler] | None = None,
        name: str = "to-controller-channel",
        supervisor: Supervisor | None = None,
    ) -> None:
        super().__init__(f"broker-{broker_id}-{name}", supervisor=supervisor)
        self._broker_id = broker_id
        self._cache = cache
        self._topics = topics
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
                raise self._not_asked()
            answer = self._answer(message, left_ms, reply)
            if answer is not None:
                reply.set(answer)
        except (RequestError, ControllerUnknownError, ControllerOfKafkaError) as error:
            reply.fail(error)
        except BadDataError as error:
            assert isinstance(message, EnvelopeRequest)
            reply.set(refuse_forwarded(message.request, Errors.INVALID_REQUEST, str(error)))

    def _answer(
        self, message: EnvelopeRequest | AwaitBrokersRequest, left_ms: int, reply: Reply
    ) -> object:
        """Ask the controller; None: another actor answers.

        Raises ``RequestError``, ``ControllerUnknownError``, ``ControllerOfKafkaError``, and
        ``BadDataError``.
        """
        controller = self._channel.current()
        if controller.is_of_kafka:
            if isinstance(message, AwaitBrokersRequest):
                return AwaitBrokersResponse(Errors.NONE)  # it does not say what other brokers know
            request = message.request
            if message.client is None:
                return controller.channel.request(request, timeout_ms=left_ms, closing=self.closing)
            if self._topics is None or not isinstance(request, IncrementalAlterConfigsRequest):
                broker_id = self._cache.snapshot.controller_id
                raise ControllerOfKafkaError(f"the controller is broker {broker_id}: ask it")
            self._topics.tell(MessageWithReply(message, _without_envelope(message, reply)))
            return None
        answer = controller.channel.request(message, timeout_ms=left_ms, closing=self.closing)
        if isinstance(message, EnvelopeRequest) and isinstance(answer, EnvelopeResponse):
            return answer.response_to(message)
        return answer

    def _not_asked(self) -> ControllerUnknownError:
        """Return why a request was not sent: the time was over when its turn came."""
        controller_id = self._cache.snapshot.controller_id
        if controller_id < 0:
            return ControllerUnknownError("no controller is known")
        return ControllerUnknownError(
            f"broker {controller_id}, the controller, was not asked: it answers slowly, and earlier"
            f" requests to it took {self.queue_ms:.0f} ms"
        )

    def on_stop(self) -> None:
        """Disconnect."""
        self._channel.close()


def _without_envelope(asked: EnvelopeRequest, reply: Reply) -> Reply:
    """Return what passes on the response in an envelope, or an error."""

    def deliver(answer: object) -> None:
        reply.set(answer.response_to(asked) if isinstance(answer, EnvelopeResponse) else answer)

    return Reply.of(deliver)
