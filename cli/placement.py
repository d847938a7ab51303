"""Has new partitions placed: by the placement service, or by a Spark session of the command's own.

Either way it is the same job. A service that is not warm yet is waited for, for a limited time.
When it does not answer by then, or has failed, the same rule places without Spark.
"""

from __future__ import annotations

import functools
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, cast

import click

from regent.cli.find_cluster import Cluster, LocalPlacement
from regent.cli.output import note
from regent.cli.waiting import Waiting
from regent.core.errors import Errors, RegentError
from regent.core.model import BrokerId, BrokerRegistration
from regent.core.placement.replica_placer import LEAST_LOADED, IndexScope, Strategy, check, place
from regent.core.protocol.placement import (
    PlacedPartition,
    PlacementBroker,
    PlacementSpec,
    PlacementStatusRequest,
    PlacementStatusResponse,
    PlaceTopicsRequest,
    PlaceTopicsResponse,
)
from regent.zk.stores.admin_store import ZkAdminStore

PLACEMENT_TIMEOUT_MS: Final = 60_000
_STATUS_TIMEOUT_S: Final = 2.0
_RESTART_S: Final = 1.0  # how long `cluster` may take to see that the service has ended
_POLL_S: Final = 0.1

F = TypeVar("F", bound=Callable[..., Any])


class PlacementFailedError(RegentError):
    """Nothing was placed, so nothing was written."""


class ServiceUnavailableError(RegentError):
    """The service did not place in time, or cannot; it says why."""


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """How to place; see ``core.protocol.PlaceTopicsRequest``."""

    strategy: str = Strategy.RING.value
    start_index: str = "0"
    index: str = IndexScope.BATCH.value
    use_service: bool = True
    timeout_ms: int = PLACEMENT_TIMEOUT_MS  # for the service


def service_options(command: F) -> F:
    """Add the options about the service, ``placement_service`` and ``placement_timeout_ms``."""
    with_timeout = click.option(
        "--placement-timeout-ms",
        type=click.IntRange(min=0),
        default=PLACEMENT_TIMEOUT_MS,
        show_default=True,
        help="How long the service may take; then the same rule places without Spark.",
    )(command)
    return click.option(
        "--placement-service/--no-placement-service",
        default=True,
        help="Without the service a Spark session is started for this command.",
    )(with_timeout)


def placement_options(command: F) -> F:
    """Add the options that say how to place, together the argument ``placement``."""
    options = [
        click.option(
            "--strategy",
            type=click.Choice([strategy.value for strategy in Strategy]),
            default=Strategy.RING.value,
            show_default=True,
            help="How replicas are spread: neighbours on the ring, Kafka's shifted scheme, that"
            " scheme with racks, or few sets of brokers.",
        ),
        click.option(
            "--start-index",
            metavar="N|random|least-loaded",
            default="0",
            show_default=True,
            help="The broker that the first partition begins with.",
        ),
        click.option(
            "--index",
            type=click.Choice([scope.value for scope in IndexScope]),
            default=IndexScope.BATCH.value,
            show_default=True,
            help="Count partitions over all topics of a file, or from 0 for each topic.",
        ),
        service_options,
    ]

    @functools.wraps(command)
    def with_placement(*args: Any, **kwargs: Any) -> Any:
        service = ("placement_service", "placement_timeout_ms")
        names = ("strategy", "start_index", "index", *service)
        return command(*args, placement=PlacementOptions(*map(kwargs.pop, names)), **kwargs)

    decorated: Any = with_placement
    for option in reversed(options):
        decorated = option(decorated)
    return cast("F", decorated)


def placement_request(
    admin: ZkAdminStore,
    specs: Iterable[PlacementSpec],
    brokers: Mapping[BrokerId, BrokerRegistration],
    options: PlacementOptions,
) -> PlaceTopicsRequest:
    """Return what to ask for; how loaded brokers are is read only if it matters.

    Raises ``PlacementError`` when it cannot be satisfied.
    """
    loads = _replica_counts(admin) if options.start_index == LEAST_LOADED else Counter()
    request = PlaceTopicsRequest(
        topics=tuple(specs),
        brokers=tuple(
            PlacementBroker(broker_id, broker.info.rack, loads[broker_id])
            for broker_id, broker in sorted(brokers.items())
        ),
        strategy=options.strategy,
        start_index=options.start_index,
        index=options.index,
        seed=secrets.randbits(63),
    )
    check(request)
    return request


def place_topics(
    cluster: Cluster, request: PlaceTopicsRequest, options: PlacementOptions
) -> dict[str, dict[int, tuple[BrokerId, ...]]]:
    """Place everything in one job; replicas by topic and partition.

    Raises ``PlacementFailedError`` or ``PlacementError``.
    """
    file = cluster.file if options.use_service else None
    if file is None or file.placement is None:
        if options.use_service:
            note("there is no placement service: placing in a Spark session of this command's own")
        placed = _place_in_own_session(request)
    else:
        try:
            placed = _ask_service(cluster, request, options.timeout_ms / 1000)
        except ServiceUnavailableError as error:
            note(f"{error}: placed by the same rule, without Spark")
            placed = place(request)
    return _by_topic(request.topics, placed)


def _replica_counts(admin: ZkAdminStore) -> Counter[BrokerId]:
    counts: Counter[BrokerId] = Counter()
    for topic in admin.topics.read_topics(admin.topics.read_topic_names()).values():
        if not isinstance(topic, Exception):
            for assignment in topic.partitions.values():
                counts.update(assignment.replicas)
    return counts


def _place_in_own_session(request: PlaceTopicsRequest) -> Sequence[PlacedPartition]:
    from regent.jobs.placement_job import place_in_own_session

    return place_in_own_session(request)


def _ask_service(
    cluster: Cluster, request: PlaceTopicsRequest, timeout_s: float
) -> Sequence[PlacedPartition]:
    """Have the service place; when it dies meanwhile, its successor is asked, once.

    Raises ``ServiceUnavailableError`` when it is not able to, or not within ``timeout_s``.
    """
    from regent.transport.client import (
        PeerDisconnectedError,
        PeerUnreachableError,
        RequestError,
        RequestTimeoutError,
    )

    limit = _Limit(timeout_s, time.monotonic() + timeout_s)
    try:
        with Waiting() as waiting:
            try:
                answer = _ask_once(cluster, request, limit, waiting)
            except (PeerDisconnectedError, PeerUnreachableError):
                answer = _ask_once(cluster, request, limit, waiting)
    except RequestTimeoutError:
        raise limit.exceeded("it is placing") from None
    except RequestError as error:
        raise ServiceUnavailableError(f"the placement service failed ({error})") from None
    if answer.error_code is Errors.INVALID_PARTITIONS:  # too many: the request itself was checked
        raise PlacementFailedError(f"{answer.message}; --no-placement-service has no such limit")
    if answer.error_code is not Errors.NONE:
        raise ServiceUnavailableError(answer.message or answer.error_code.name)
    return answer.partitions


class _Limit(NamedTuple):
    """How long the service may take, and until when that is."""

    timeout_s: float
    deadline: float

    @property
    def left_s(self) -> float:
        return max(self.deadline - time.monotonic(), 0.0)

    def exceeded(self, state: str) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"the placement service is not ready after {self.timeout_s:g} s ({state})"
        )


def _ask_once(
    cluster: Cluster, request: PlaceTopicsRequest, limit: _Limit, waiting: Waiting
) -> PlaceTopicsResponse:
    from regent.cli.remote_actors import actor_at
    from regent.transport.controller_ref import ask

    service = _await_warm(cluster, limit, waiting)
    with actor_at(service.endpoint) as actor:
        return ask(actor, request, PlaceTopicsResponse, timeout_s=limit.left_s)


def _await_warm(cluster: Cluster, limit: _Limit, waiting: Waiting) -> LocalPlacement:
    """Return the service once Spark runs; it may be replaced by a new one meanwhile."""
    ended_at: float | None = None  # when the listed process was first seen to have ended
    while True:
        file = cluster.file
        if file is None:
            raise PlacementFailedError("the cluster has stopped")
        service = file.placement
        status = None
        if service is None or _is_running(service.pid):  # None: it is being started again
            ended_at = None
        else:
            ended_at = ended_at or time.monotonic()
        if service is not None:
            status = placement_status(service, timeout_s=_STATUS_TIMEOUT_S)
            if status is not None and status.state in ("ready", "warming"):
                is_warm = status.state == "ready"
                waiting.say("placing new topics" if is_warm else f"placement: {status.message}")
                return service  # what comes while it warms up is served in between
            if status is not None and status.state == "failed":
                raise ServiceUnavailableError(f"the placement service failed ({status.message})")
            if ended_at is not None and time.monotonic() - ended_at > _RESTART_S:
                raise ServiceUnavailableError(
                    f"the placement service (process {service.pid}) is not running"
                )
        state = "the service is starting" if service is None else "the service does not answer"
        if status is not None:
            state = status.message
        if not limit.left_s:
            raise limit.exceeded(state)
        waiting.say(f"placement: {state}")
        time.sleep(_POLL_S)


def placement_status(
    service: LocalPlacement, *, timeout_s: float
) -> PlacementStatusResponse | None:
    """Ask the service how it is; None when it does not answer."""
    from regent.cli.remote_actors import actor_at
    from regent.transport.client import RequestError
    from regent.transport.controller_ref import ask

    try:
        with actor_at(service.endpoint) as actor:
            return ask(
                actor, PlacementStatusRequest(), PlacementStatusResponse, timeout_s=timeout_s
            )
    except RequestError:
        return None


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _by_topic(
    specs: Iterable[PlacementSpec], placed: Iterable[PlacedPartition]
) -> dict[str, dict[int, tuple[BrokerId, ...]]]:
    """Return the placement by topic; nothing less than what was asked for is ever written."""
    by_topic: dict[str, dict[int, tuple[BrokerId, ...]]] = {}
    for topic, partition, replicas in placed:
        by_topic.setdefault(topic, {})[partition] = replicas
    for spec in specs:
        first, last = spec.start_partition, spec.start_partition + spec.partitions
        found = by_topic.get(spec.topic, {})
        is_complete = sorted(found) == list(range(first, last)) and all(
            len(set(replicas)) == spec.replication_factor for replicas in found.values()
        )
        if not is_complete:
            raise PlacementFailedError(
                f"topic {spec.topic}: the placement that came back is not the one asked for"
            )
    return by_topic
