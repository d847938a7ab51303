"""Has topics that clients create placed by the resident placement service, if it can.

The same rule applied right here takes its place when it is down, not warm yet, or slow: a topic
must not wait for Spark. That is counted, and logged once until the service answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from regent.cluster.cluster_file import placement_endpoint
from regent.core.errors import Errors, RegentError
from regent.core.placement.replica_placer import place
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.transport.client import RequestError
from regent.transport.remote_ref import RemoteActorRef
from regent.transport.sockets import Context

logger = logging.getLogger(__name__)

TIMEOUT_S = 3.0
PAUSE_S = 5.0
_STATUS_TIMEOUT_S = 1.0
_READY = "ready"


class PlacementUnavailableError(RegentError):
    """The service did not place what it was asked to."""


class PlacementClient:
    """Implements ``core.admin.admin_requests.TopicPlacer``; belongs to one thread.

    ``find_endpoint`` is called for each request, because the service may have been started anew;
    None: there is none. After a failure it is not asked for ``PAUSE_S``.
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

    def __call__(self, request: PlaceTopicsRequest) -> Sequence[PlacedPartition]:
        """Place the partitions; raises ``PlacementError`` only if ``replica_placer.check`` does."""
        self.placements += 1
        if self._failure is None or self._clock() >= self._ask_again_at:
            try:
                placed = self._ask(request)
            except (PlacementUnavailableError, RequestError) as error:
                log = logger.debug if self._failure else logger.warning
                log("New topics are placed without the placement service: %s", error)
                self._failure = str(error)
                self._ask_again_at = self._clock() + PAUSE_S
            else:
                if self._failure is not None:
                    logger.info("The placement service places new topics again")
                self._failure = None
                return placed
        self.fallbacks += 1
        return place(request)

    def _ask(self, request: PlaceTopicsRequest) -> Sequence[PlacedPartition]:
        endpoint = self._find_endpoint()
        if endpoint is None:
            raise PlacementUnavailableError("there is none")
        with RemoteActorRef(self._context, endpoint, client_id=self._client_id) as service:
            status = service.ask(PlacementStatusRequest(), timeout=_STATUS_TIMEOUT_S)
            assert isinstance(status, PlacementStatusResponse)
            if status.state != _READY:
                raise PlacementUnavailableError(f"it is {status.state}: {status.message}")
            answer = service.ask(request, timeout=self._timeout_s)
        assert isinstance(answer, PlaceTopicsResponse)
        if answer.error_code is not Errors.NONE:
            raise PlacementUnavailableError(answer.message or answer.error_code.name)
        if not _is_complete(request, answer.partitions):
            raise PlacementUnavailableError("what it answered is not what it was asked for")
        return answer.partitions


def placement_finder(setting: str) -> Callable[[], str | None]:
    """Return how to find the service: by its own endpoint, or in the ``cluster.json`` named."""
    if not setting:
        return lambda: None
    if "://" in setting:
        return lambda: setting
    return lambda: placement_endpoint(Path(setting))


def _is_complete(request: PlaceTopicsRequest, placed: Sequence[PlacedPartition]) -> bool:
    """Whether it is a placement of these partitions, and of nothing else, on these brokers."""
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
