"""Asks the placement service to place new partitions, and has it started when it does not run.

With a service no other code places the topics of clients. Without one, which is the choice of who
configures the broker or creates the topic, the same algorithm runs in this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from regent.cluster.cluster_file import PlacementEntry, placement_entry
from regent.cluster.supervisor_socket import SupervisorError, start_placement
from regent.config.command_line import program
from regent.core.errors import ApiError, Errors
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

TIMEOUT_S: Final = 3.0
_STATUS_TIMEOUT_S: Final = 1.0
_START_TIMEOUT_S: Final = 1.0
_READY: Final = "ready"

FindService: TypeAlias = Callable[[], str | ApiError]
"""Returns the endpoint of a service that runs, or why there is none. It is called for each request,
because the service begins and ends with the need for it."""


class PlacementClient:
    """Implements ``core.admin.admin_requests.TopicPlacer``; used by one thread.

    ``find`` None: there is no service.
    """

    def __init__(
        self,
        context: Context,
        find: FindService | None,
        *,
        client_id: str,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.placements = 0
        self.failures = 0
        self._context = context
        self._find = find
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._is_failing = False

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        """See ``TopicPlacer.place``. Raises ``PlacementError`` if ``replica_placer.check`` does."""
        self.placements += 1
        if self._find is None or not use_service:
            return PlaceTopicsResponse(Errors.NONE, "", tuple(place(request)))
        answer = self._ask(request, self._find())
        if answer.error_code is Errors.NONE and not _is_complete(request, answer.partitions):
            message = "the placement service returned other partitions than requested"
            answer = PlaceTopicsResponse(Errors.UNKNOWN_SERVER_ERROR, message)
        elif answer.error_code is Errors.NONE and not _is_apart(request, answer.partitions):
            message = (
                "the placement service put two replicas on one host: it is of an older version"
            )
            answer = PlaceTopicsResponse(Errors.UNKNOWN_SERVER_ERROR, message)
        self._note(answer.message if answer.error_code else "")
        return answer

    def obstacle(self) -> ApiError | None:
        """See ``TopicPlacer.obstacle``."""
        if self._find is None:
            return None
        found = self._find()
        error = found if isinstance(found, ApiError) else self._status(found)
        if error is not None and error.error_code is not Errors.COORDINATOR_LOAD_IN_PROGRESS:
            self._note(error.message)
        return error

    def _status(self, endpoint: str) -> ApiError | None:
        try:
            with RemoteActorRef(self._context, endpoint, client_id=self._client_id) as service:
                request = PlacementStatusRequest()
                status = ask(service, request, PlacementStatusResponse, timeout_s=_STATUS_TIMEOUT_S)
        except RequestError as error:
            return _passing(f"the placement service does not answer: {error}")
        return None if status.state == _READY else _starting(status.message or status.state)

    def _ask(self, request: PlaceTopicsRequest, found: str | ApiError) -> PlaceTopicsResponse:
        if isinstance(found, ApiError):
            return PlaceTopicsResponse(*found)
        try:
            with RemoteActorRef(self._context, found, client_id=self._client_id) as service:
                answer = ask(service, request, PlaceTopicsResponse, timeout_s=self._timeout_s)
        except RequestError as error:
            return PlaceTopicsResponse(*_passing(f"the placement service did not answer: {error}"))
        if answer.error_code is Errors.BROKER_NOT_AVAILABLE:
            return PlaceTopicsResponse(*_passing(answer.message))
        return answer

    def _note(self, failure: str) -> None:
        """Count a failure, and log the first of several."""
        self.failures += bool(failure)
        if failure and not self._is_failing:
            logger.warning("New topics are not placed: %s", failure)
        elif self._is_failing and not failure:
            logger.info("The placement service places new topics again")
        self._is_failing = bool(failure)


def _passing(message: str) -> ApiError:
    return ApiError(Errors.COORDINATOR_LOAD_IN_PROGRESS, message)


def _starting(state: str) -> ApiError:
    return _passing(f"the placement service starts: {state}")


def placement_finder(setting: str) -> FindService | None:
    """Return what finds the service: the setting itself, or from a ``cluster.json``."""
    if not setting:
        return None
    if "://" in setting:
        return lambda: setting
    return lambda: _service_of_cluster(Path(setting))


def _service_of_cluster(file: Path) -> str | ApiError:
    """Return the endpoint, or why there is none; have the process started if it does not run."""
    entry = placement_entry(file)
    if entry is None or not entry.pid:
        try:
            entry = start_placement(file.parent, _START_TIMEOUT_S)
        except SupervisorError as error:
            return _passing(f"the placement service cannot be started: {error}")
    return entry.endpoint or _not_running(entry)


def _not_running(entry: PlacementEntry) -> ApiError:
    if not entry.message:
        return _starting("its process is starting")
    remedy = f"correct this, or use `{program()} topics create --no-placement-service`"
    message = f"the placement service cannot place: {entry.message}; {remedy}"
    return ApiError(Errors.BROKER_NOT_AVAILABLE, message)


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
