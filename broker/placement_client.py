"""Asks the resident placement service to place new partitions; otherwise places them itself.

If the service is down, slow, or still starting, the same algorithm runs in this process, because a
new topic must not wait for Spark. This is counted, and logged once until the service answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from regent.cluster.cluster_file import placement_endpoint
from regent.core.errors import Errors, RegentError
from regent.core.placement.replica_placer import hosts_in_use, place
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.transport.control.client import RequestError
from regent.transport.control.remote_ref import RemoteActorRef, ask
from regent.transport.control.sockets import Context

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0
PAUSE_S = 5.0
_STATUS_TIMEOUT_S = 1.0
_READY = "ready"
_STARTING = ("starting", "warming")


class PlacementUnavailableError(RegentError):
    """The service did not place the partitions; the message has the reason."""


class PlacementClient:
    """Implements ``core.admin.admin_requests.TopicPlacer``; used by one thread.

    ``find_endpoint`` is called for each request, because the service may have been restarted; it
    returns None when there is no service. After a failure it is not asked for ``PAUSE_S``.
    """

    def __init__(
        self,
        context: Context,
        find_endpoint: Callable[[], str | None],
        *,
        client_id: str,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.placements = 0
        self.fallbacks = 0
        self._context = context
        self._find_endpoint = find_endpoint
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._clock = clock
        self._failure: str | None = None
        self._ask_again_at = 0.0

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        """Place the partitions; raises ``PlacementError`` only if ``replica_placer.check`` does."""
        self.placements += 1
        if not use_service:
            return PlaceTopicsResponse(Errors.NONE, "", tuple(place(request)))
        if self._failure is None or self._clock() >= self._ask_again_at:
            try:
                answer = self._ask(request)
            except (PlacementUnavailableError, RequestError) as error:
                log = logger.debug if self._failure else logger.warning
                log("Placing new topics without the placement service: %s", error)
                self._failure = str(error)
                self._ask_again_at = self._clock() + PAUSE_S
            else:
                if self._failure is not None:
                    logger.info("The placement service places new topics again")
                self._failure = None
                return answer
        self.fallbacks += 1
        note = f"{self._failure}: placed by the same algorithm, without Spark"
        return PlaceTopicsResponse(Errors.NONE, note, tuple(place(request)))

    def warming(self) -> str:
        """See ``TopicPlacer.warming``."""
        endpoint = self._find_endpoint()
        if endpoint is None:
            return ""
        try:
            with RemoteActorRef(self._context, endpoint, client_id=self._client_id) as service:
                status = _status(service)
        except RequestError:
            return ""
        return (status.message or status.state) if status.state in _STARTING else ""

    def _ask(self, request: PlaceTopicsRequest) -> PlaceTopicsResponse:
        endpoint = self._find_endpoint()
        if endpoint is None:
            raise PlacementUnavailableError("there is no placement service")
        with RemoteActorRef(self._context, endpoint, client_id=self._client_id) as service:
            status = _status(service)
            if status.state != _READY:
                reason = f" ({status.message})" if status.message else ""
                raise PlacementUnavailableError(f"the placement service is {status.state}{reason}")
            answer = ask(service, request, PlaceTopicsResponse, timeout_s=self._timeout_s)
        if answer.error_code is not Errors.NONE:
            raise PlacementUnavailableError(answer.message or answer.error_code.name)
        if not _is_complete(request, answer.partitions):
            message = "the placement service returned other partitions than requested"
            raise PlacementUnavailableError(message)
        if not _is_apart(request, answer.partitions):
            message = (
                "the placement service put two replicas on one host: it is of an older version"
            )
            raise PlacementUnavailableError(message)
        return answer


def _status(service: RemoteActorRef) -> PlacementStatusResponse:
    request = PlacementStatusRequest()
    return ask(service, request, PlacementStatusResponse, timeout_s=_STATUS_TIMEOUT_S)


def placement_finder(setting: str) -> Callable[[], str | None]:
    """Return a function that finds the endpoint: the setting itself, or from a ``cluster.json``."""
    if not setting:
        return lambda: None
    if "://" in setting:
        return lambda: setting
    return lambda: placement_endpoint(Path(setting))


def _is_complete(request: PlaceTopicsRequest, placed: Sequence[PlacedPartition]) -> bool:
    """Whether ``placed`` has exactly the requested partitions, on the requested brokers."""
    factors = {spec.topic: spec.replication_factor for spec in request.topics}
    brokers = {broker.broker_id for broker in request.brokers}
    wanted = {
        (spec.topic, number)
        for spec in request.topics
        for number in range(spec.start_partition, spec.start_partition + spec.partitions)
    }
    return (
        len(placed) == len(wanted)
        and {(row.topic, row.partition) for row in placed} == wanted
        and all(
            len(row.replicas) == factors[row.topic] == len(brokers.intersection(row.replicas))
            for row in placed
        )
    )


def _is_apart(request: PlaceTopicsRequest, placed: Sequence[PlacedPartition]) -> bool:
    """Whether no partition has two replicas on one host: an old service knows no hosts."""
    hosts = hosts_in_use(request)
    return not hosts or all(
        len({hosts[replica] for replica in row.replicas}) == len(row.replicas) for row in placed
    )
