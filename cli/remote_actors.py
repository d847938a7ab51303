"""The actors of brokers, as a command asks them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self, TypeVar

from core.errors import BadDataError, Errors, RegentError
from core.model import BrokerId, BrokerRegistration
from core.protocol.controller import DescribeTopicsRequest, DescribeTopicsResponse
from transport.client import RequestError
from transport.codec import Request
from transport.remote_ref import RemoteActorRef
from transport.sockets import new_context
from zk.admin import ZkAdminStore

CLIENT_ID = "regent-cli"

_MAX_ASK_S = 5.0  # then the controller may have moved: look for it again

T = TypeVar("T")


class BrokerNotFoundError(RegentError):
    """There is no such broker, or it has no control endpoint."""


@contextmanager
def actor_at(endpoint: str) -> Iterator[RemoteActorRef]:
    """Give a reference to the actor at a control endpoint, for the block."""
    context = new_context()
    try:
        with RemoteActorRef(context, endpoint, client_id=CLIENT_ID) as actor:
            yield actor
    finally:
        context.destroy(linger=0)


def ask(actor: RemoteActorRef, message: Request, answer: type[T], *, timeout_s: float) -> T:
    """Return the answer to ``message``; raises a ``RequestError``."""
    response = actor.ask(message, timeout=timeout_s)
    assert isinstance(response, answer)
    return response


def control_endpoint(
    broker_id: BrokerId, registration: BrokerRegistration | BadDataError | None
) -> str:
    """Return where a registered broker takes requests; raises ``BrokerNotFoundError``."""
    if isinstance(registration, BadDataError):
        raise registration
    endpoint = None if registration is None else registration.info.control_endpoint
    if endpoint is None:
        raise BrokerNotFoundError(
            f"broker {broker_id} is not registered"
            if registration is None
            else f"broker {broker_id} has no control endpoint: it is not one of Regent's"
        )
    return endpoint


class ControllerRef:
    """The controller, whichever broker it is at the moment."""

    def __init__(self, admin: ZkAdminStore) -> None:
        self._admin = admin
        self._open = ExitStack()
        self._actor: RemoteActorRef | None = None
        self.failure = "there is no controller"
        """Why the last question was not answered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def describe_topics(
        self, topics: Sequence[str], *, deadline: float
    ) -> DescribeTopicsResponse | None:
        """Return what the controller knows of ``topics``; None when nobody answered as one.

        ``deadline`` is on the monotonic clock. After None the controller is looked for anew.
        """
        try:
            actor = self._actor or self._find()
            timeout_s = max(0.0, min(_MAX_ASK_S, deadline - time.monotonic()))
            request = DescribeTopicsRequest(tuple(topics))
            response = ask(actor, request, DescribeTopicsResponse, timeout_s=timeout_s)
            if response.error_code is Errors.NONE:
                return response
            self.failure = f"the controller answered {response.error_code.name}"
        except (RequestError, BrokerNotFoundError, BadDataError) as error:
            self.failure = f"the controller does not answer: {error}"
        self._forget()
        return None

    def _find(self) -> RemoteActorRef:
        controller = self._admin.read_controller()
        if controller is None:
            raise BrokerNotFoundError("there is none")
        broker_id = controller.broker_id
        endpoint = control_endpoint(broker_id, self._admin.read_broker(broker_id))
        self._actor = self._open.enter_context(actor_at(endpoint))
        return self._actor

    def _forget(self) -> None:
        self._actor = None
        self._open.close()
