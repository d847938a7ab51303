"""The interface of a connection to one peer, as actors use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from regent.config.closing import Closing
from regent.core.errors import RegentError
from regent.core.protocol.control import UpdateMetadataBroker
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.replication.metadata_view import inter_broker_endpoint

R_contra = TypeVar("R_contra", contravariant=True)
A_co = TypeVar("A_co", covariant=True)


class RequestChannel(Protocol[R_contra, A_co]):
    """Sends one request at a time to one peer; see ``transport.client.RequestClient``."""

    def request(self, body: R_contra, *, timeout_ms: int, closing: Closing | None = None) -> A_co:
        """Send and wait for the answer; raises ``RequestError``, soon after ``closing`` is set."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class ChannelToCurrent(Generic[R_contra, A_co]):
    """One connection to the current receiver, for example the active controller.

    ``open_channel`` connects to an endpoint, on the thread that uses it.
    """

    def __init__(self, open_channel: Callable[[str], RequestChannel[R_contra, A_co]]) -> None:
        self._open_channel = open_channel
        self._current: tuple[str, RequestChannel[R_contra, A_co]] | None = None

    def to(self, endpoint: str) -> RequestChannel[R_contra, A_co]:
        """Return a connection to ``endpoint``; close one to another endpoint."""
        if self._current is None or self._current[0] != endpoint:
            self.close()
            self._current = (endpoint, self._open_channel(endpoint))
        return self._current[1]

    def close(self) -> None:
        """Close the connection, if there is one."""
        current, self._current = self._current, None
        if current is not None:
            current[1].close()


class ControllerUnknownError(RegentError):
    """No controller could be asked: none is known, or it does not get to it in time."""


@dataclass(frozen=True, slots=True)
class ControllersOfKafka:
    """How a controller without a control port is reached: as any other broker of Kafka.

    ``listener`` and ``security_protocol`` are those of our own listener for brokers.
    """

    listener: str
    security_protocol: str
    open_channel: Callable[[str], RequestChannel[Any, Any]]

    def endpoint(self, controller: UpdateMetadataBroker) -> str | None:
        """Return where it listens for brokers; None: it does not say."""
        return inter_broker_endpoint(controller, self.listener, self.security_protocol)


class OpenController(NamedTuple):
    """A connection to the active controller."""

    channel: RequestChannel[Any, Any]
    is_of_kafka: bool


class ChannelToController:
    """One connection to the active controller, found in the metadata cache for each request.

    ``open_channel`` connects to the control port of one of this project. ``of_kafka`` None: others
    are not asked.
    """

    def __init__(
        self,
        cache: MetadataCache,
        open_channel: Callable[[str], RequestChannel[Any, Any]],
        of_kafka: ControllersOfKafka | None = None,
    ) -> None:
        self._cache = cache
        self._of_kafka = of_kafka
        self._ours = ChannelToCurrent(open_channel)
        self._kafkas = None if of_kafka is None else ChannelToCurrent(of_kafka.open_channel)

    def current(self) -> OpenController:
        """Return a connection; raises ``ControllerUnknownError``."""
        controller = self._cache.snapshot.controller
        if controller is not None and controller.control_peer is not None:
            return OpenController(self._ours.to(controller.control_peer), is_of_kafka=False)
        if controller is not None and self._of_kafka is not None and self._kafkas is not None:
            endpoint = self._of_kafka.endpoint(controller)
            if endpoint is not None:
                return OpenController(self._kafkas.to(endpoint), is_of_kafka=True)
        if controller is None:
            raise ControllerUnknownError("no controller is known")
        raise ControllerUnknownError(f"controller {controller.broker_id} names no port for us")

    def close(self) -> None:
        """Close the connections."""
        self._ours.close()
        if self._kafkas is not None:
            self._kafkas.close()
