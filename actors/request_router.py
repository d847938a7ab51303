"""Passes requests from the control server to the actor that handles them."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from typing import Any

from pykka import ActorDeadError, ActorRef

from regent.actors.broker import Broker, BrokerView
from regent.actors.control_request_check import ControlRequestReceived
from regent.actors.controller_event_manager import ControllerEventManager
from regent.actors.event_journal import EventJournalReader
from regent.actors.inbox import InboxFullError, MessageWithReply, Reply
from regent.actors.scheduler import monotonic_ms
from regent.actors.topic_request_handler import TopicRequestHandler
from regent.core.admin.client_authorization import refused_to_client
from regent.core.errors import BadDataError, Errors, SessionExpiredError
from regent.core.model import BrokerId, TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.broker import (
    DescribeEventsRequest,
    DescribeMetadataRequest,
    HoldDeletedLogsRequest,
    ShutdownBrokerRequest,
)
from regent.core.protocol.control import (
    ControlHeader,
    ControlResponse,
    LeaderAndIsrRequest,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from regent.core.protocol.controller import AlterPartitionResponse, ControllerRequest
from regent.core.protocol.envelope import EnvelopeRequest, EnvelopeResponse
from regent.core.protocol.messages.partitions import PartitionsRequest, PartitionsResponse
from regent.core.repeated_lines import RepeatedLines
from regent.core.replication.control_request_fence import ControlRequestRefusedError
from regent.core.security.authorizer import Authorizer
from regent.transport.control.codec import CONTROL_REQUESTS
from regent.transport.control.server import IncomingRequest, Screen

logger = logging.getLogger(__name__)


class RequestRouter:
    """The handler of the control port; called on the control server's thread, never blocks."""

    def __init__(
        self,
        broker: ActorRef[Broker],
        controller: ActorRef[ControllerEventManager],
        journal: ActorRef[EventJournalReader],
        topics: ActorRef[TopicRequestHandler],
        authorizer: Authorizer,
    ) -> None:
        """``authorizer`` decides what the clients may do for whom brokers forward requests."""
        self._broker = broker
        self._controller = controller
        self._journal = journal
        self._topics = topics
        self._authorizer = authorizer
        self._lines = RepeatedLines()

    def __call__(self, incoming: IncomingRequest) -> None:
        """Pass the request to its actor; refuse it if the actor is overloaded or stopped."""
        header = incoming.control_header
        match incoming.body:
            case LeaderAndIsrRequest() | StopReplicaRequest() | UpdateMetadataRequest():
                if header is None:
                    incoming.reply.fail(Errors.INVALID_REQUEST)
                    return
                numbered = header._replace(sequence=_sequence(header, incoming))
                self._pass(incoming, self._broker, ControlRequestReceived(numbered, incoming.body))
            case DescribeMetadataRequest() | ShutdownBrokerRequest() | HoldDeletedLogsRequest():
                self._pass(incoming, self._broker, incoming.body)
            case DescribeEventsRequest():
                self._pass(incoming, self._journal, incoming.body)
            case EnvelopeRequest():
                self._open(incoming, incoming.body)
            case body if isinstance(body, ControllerRequest):
                self._pass(incoming, self._controller, body)
            case _:
                incoming.reply.fail(Errors.UNSUPPORTED_VERSION)

    def _open(self, incoming: IncomingRequest, envelope: EnvelopeRequest) -> None:
        """Pass a forwarded request to who decides it: the controller, or who changes topics."""
        try:
            request = envelope.request
        except BadDataError:
            incoming.reply.fail(Errors.INVALID_REQUEST)
            return
        if not isinstance(request, PartitionsRequest):
            self._pass(incoming, self._topics, envelope)
            return
        refused = refused_to_client(request, envelope.client, self._authorizer)
        if refused is None:
            self._pass(incoming, self._controller, request)
        else:
            incoming.reply(EnvelopeResponse.of(refused))

    def _pass(self, incoming: IncomingRequest, actor: ActorRef[Any], message: object) -> None:
        changed: list[TopicPartition] = []

        def answer(given: Any) -> None:
            changed.extend(_changed_by(given))
            give_answer(incoming, given)

        reply = Reply.of(answer, lambda work_s: incoming.charge(work_s, changed))
        try:
            actor.tell(MessageWithReply(message, reply))
        except (ActorDeadError, InboxFullError) as refused:
            if self._lines.is_due(type(refused).__name__, monotonic_ms()):
                logger.warning("%s of %s: %s", incoming.api_key.name, incoming.client_id, refused)
            incoming.reply.fail(Errors.BROKER_NOT_AVAILABLE)


def answer_unread(
    broker: BrokerView, api_key: ApiKey, header: ControlHeader
) -> ControlResponse | Errors | None:
    """Return the answer to a large request of a controller; None: it may be read.

    Only the controller's requests are read. One that we do not know yet sends its request again,
    and meanwhile ZooKeeper is asked about it.
    """
    stale = broker.replica_manager.refuse_unread(header, CONTROL_REQUESTS[api_key])
    if stale is not None or broker.replica_manager.fence.is_heard(header):
        return stale
    with suppress(ActorDeadError, InboxFullError):
        broker.ref.tell(ControlRequestReceived(header, None))
    return Errors.BROKER_NOT_AVAILABLE


def screen_of(broker: BrokerView) -> Screen:
    """Return what a broker decides about requests before they are decoded."""
    return Screen(partial(answer_unread, broker), broker.replica_manager.fence.is_heard)


def _changed_by(answer: object) -> list[TopicPartition]:
    """Return the partitions that were changed as a leader proposed."""
    if not isinstance(answer, AlterPartitionResponse):
        return []
    return [row.topic_partition for row in answer.partitions if row.error_code is Errors.NONE]


def give_answer(incoming: IncomingRequest, answer: Any) -> None:
    """Send an actor's answer to the peer; an exception becomes an error code."""
    if isinstance(answer, SessionExpiredError):
        incoming.reply.fail(Errors.BROKER_NOT_AVAILABLE)  # temporary: the sender may retry
    elif isinstance(answer, ControlRequestRefusedError):
        incoming.reply.fail(answer.error_code, str(answer))
    elif isinstance(answer, Exception):
        incoming.reply.fail(Errors.UNKNOWN_SERVER_ERROR)
    elif isinstance(incoming.body, EnvelopeRequest) and isinstance(answer, PartitionsResponse):
        incoming.reply(EnvelopeResponse.of(answer))
    else:
        incoming.reply(answer)


def controller_client_id(broker_id: BrokerId) -> str:
    """Return the client id of a controller's requests."""
    return f"controller-{broker_id}"


def _sequence(header: ControlHeader, incoming: IncomingRequest) -> int:
    """Return the correlation id, which numbers the attempt, if the sender is a controller.

    Only a controller numbers the requests of all its connections from one counter, so that a
    higher number means a later attempt. For other senders return 0.
    """
    is_controller = incoming.client_id == controller_client_id(header.controller_id)
    return incoming.correlation_id if is_controller else 0
