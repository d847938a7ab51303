"""Requests to the active controller, which may move to another broker between two requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self, TypeVar

from regent.core.errors import (
    ApiError,
    BadDataError,
    BrokerNotFoundError,
    Errors,
    NoControlPortError,
    RegentError,
)
from regent.core.model import TopicPartition
from regent.core.protocol.broker import DescribeMetadataResponse
from regent.core.protocol.controller import ControllerResponse
from regent.transport.control.client import RequestError, RequestFailedError
from regent.transport.control.codec import Request
from regent.transport.control.remote_ref import RemoteActorRef, actor_at, ask

_MAX_ASK_S: Final = 5.0  # then look for the controller again, because it may have moved
_MAX_COMMAND_S: Final = 10.0  # the same, for requests that take longer
_PAUSE_S: Final = 0.1
MAX_ROWS_AT_ONCE: Final = 10_000
_PASSING_ERRORS: Final = (Errors.NOT_CONTROLLER, Errors.BROKER_NOT_AVAILABLE)

T = TypeVar("T")
A = TypeVar("A", bound=ControllerResponse | DescribeMetadataResponse)


def batches(rows: Sequence[T], size: int = MAX_ROWS_AT_ONCE) -> Iterator[tuple[T, ...]]:
    """Yield ``rows`` in slices of ``size``, the most rows that the controller accepts at once."""
    for start in range(0, len(rows), size):
        yield tuple(rows[start : start + size])


class ControllerError(RegentError):
    """The controller refused a request, or no controller answered in time."""


class ControllerRef:
    """The active controller of a cluster.

    ``find`` returns its control endpoint, or raises ``BrokerNotFoundError`` or ``BadDataError``.
    A ``NoControlPortError`` is a refusal: a controller of Kafka answers no such request.
    ``on_wait`` is called with the reason whenever a request will be sent again.
    """

    def __init__(
        self,
        find: Callable[[], str],
        *,
        client_id: str,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._find = find
        self._client_id = client_id
        self._open = ExitStack()
        self._actor: RemoteActorRef | None = None
        self.failure = "there is no controller"
        """Why the last request was not answered."""
        self.is_silent = False
        """Whether the reason is that the controller's broker sent no answer."""
        self.was_refused = False
        """Whether the controller refused the last request. A retry would be refused too."""
        self._on_wait = on_wait

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()

    def ask(
        self, request: Request, answer: type[A], *, deadline: float, limit_s: float = _MAX_ASK_S
    ) -> A | None:
        """Send a request once; set ``failure`` and return None when no controller answers.

        ``deadline`` is on the monotonic clock. After None the next call looks up the controller.
        """
        self.was_refused = self.is_silent = False
        try:
            actor = self._actor or self._connect()
            timeout_s = max(0.0, min(limit_s, deadline - time.monotonic()))
            response = ask(actor, request, answer, timeout_s=timeout_s)
            if response.error_code == Errors.NONE:
                return response
            self._refused(Errors(response.error_code))
        except RequestFailedError as error:
            self._refused(error.error_code)
        except BrokerNotFoundError as error:
            self.was_refused = isinstance(error, NoControlPortError)
            self.failure = str(error)
        except (RequestError, BadDataError) as error:
            self.is_silent = True
            self.failure = f"the controller does not answer: {error}"
        self._forget()
        return None

    def ask_until_answered(self, request: Request, answer: type[A], *, deadline: float) -> A:
        """Send a request until a controller answers; it may reach several controllers.

        Raises ``ControllerError`` when one refuses, or none answers before ``deadline``.
        """
        while True:
            response = self.ask(request, answer, deadline=deadline, limit_s=_MAX_COMMAND_S)
            if response is not None:
                return response
            if self.was_refused or time.monotonic() >= deadline:
                raise ControllerError(self.failure)
            self._on_wait(self.failure)
            time.sleep(_PAUSE_S)

    def _refused(self, error_code: Errors) -> None:
        self.failure = f"the controller answered {error_code.name}"
        self.was_refused = error_code not in _PASSING_ERRORS

    def _connect(self) -> RemoteActorRef:
        actor = actor_at(self._find(), client_id=self._client_id)
        self._actor = self._open.enter_context(actor)
        return self._actor

    def _forget(self) -> None:
        self._actor = None
        self._open.close()


def refusal(topic_partition: TopicPartition, error: ApiError) -> str:
    """Return why the controller refused a partition, without the partition's name."""
    reason = error.message.removeprefix(str(topic_partition)).lstrip(": ")
    return reason or error.error_code.name
