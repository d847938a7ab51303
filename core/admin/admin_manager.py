"""Topics created, grown and deleted on behalf of clients.

Mirrors ``kafka.server.ZkAdminManager`` and the checks of ``KafkaApis``: only the broker that rules
accepts, everything is validated before it is written, and one bad topic of a request leaves the
others alone. The controller learns of it from ZooKeeper, as of any tool's writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from regent.core.admin.admin_requests import NewTopic, TopicPlacer, TopicStore
from regent.core.admin.topic_validation import (
    TopicNames,
    assignment_problem,
    growth_problem,
    topic_config_problem,
    topic_name_problem,
    unknown_topic,
)
from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.placement.replica_placer import IndexScope, PlacementError, Strategy, check, place
from regent.core.ports import TopicAssignment, TopicIds
from regent.core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from regent.core.protocol.topics import (
    UNSET,
    AssignedPartition,
    ConfigEntry,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    TopicOutcome,
    TopicsRequest,
)
from regent.core.replication.metadata_cache import MetadataCache

MAX_NEW_PARTITIONS = 10_000
"""How many partitions one request may create: a client's slip must not keep a cluster busy for
minutes. Kafka 4 has the same bound (``ReplicationControlManager.MAX_PARTITIONS_PER_BATCH``)."""

MAX_MESSAGE_LENGTH = 1_000  # it may quote what is as long as a string of the protocol can be

T = TypeVar("T")


class _Unplaced(NamedTuple):
    """Partitions that are still to be placed, and where Kafka's schemes begin with them."""

    spec: PlacementSpec
    start_index: int = 0


_Plan: TypeAlias = dict[int, ReplicaAssignment] | _Unplaced


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Kafka's settings of the same names, and how new replicas are placed."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    placement: Strategy = Strategy.RING


class _RefusedError(Exception):
    """Why one topic of a request is refused; ends its validation."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


_Refusal: TypeAlias = _RefusedError | PlacementError


class AdminManager:
    """Decides what clients ask of topics. ``is_controller`` tells whether this broker rules."""

    def __init__(
        self,
        cache: MetadataCache,
        store: TopicStore,
        topic_ids: TopicIds,
        is_controller: Callable[[], bool],
        settings: AdminSettings | None = None,
        placer: TopicPlacer = place,
    ) -> None:
        self._cache = cache
        self._store = store
        self._topic_ids = topic_ids
        self._is_controller = is_controller
        self._settings = settings or AdminSettings()
        self._placer = placer

    def decide(self, request: TopicsRequest) -> tuple[TopicOutcome, ...]:
        """Decide and write; how far the cluster is with it is for ``PendingAnswer`` to see.

        Raises ``SessionExpiredError`` when the session is over.
        """
        match request:
            case CreateTopicsRequest():
                return self._create_topics(request)
            case CreatePartitionsRequest():
                return self._create_partitions(request)
            case DeleteTopicsRequest():
                return self._delete_topics(request)

    # --- the three requests ---

    def _create_topics(self, request: CreateTopicsRequest) -> tuple[TopicOutcome, ...]:
        wanted = {topic.topic: topic for topic in request.topics}
        existing = set(self._store.read_topic_names())
        names = TopicNames(existing)
        created_before = self._created_before(existing.intersection(wanted), wanted)
        configs: dict[str, dict[str, str]] = {}

        def plan(topic: str) -> _Plan:
            if topic not in created_before:
                _check_name(topic, existing, names)
            configs[topic] = _checked_config(wanted[topic].config)
            planned = created_before.get(topic) or self._new_partitions(wanted[topic])
            names.add(topic)
            return planned

        plans, refusals = self._plan([topic.topic for topic in request.topics], plan)
        new = {
            topic: NewTopic(
                wanted[topic].topic_id or self._topic_ids.new_topic_id(), partitions, configs[topic]
            )
            for topic, partitions in self._place(plans, refusals).items()
        }
        written = {} if request.validate_only else self._store.create_topics(new)
        counts = {topic: len(planned.partitions) for topic, planned in new.items()}
        return _outcomes(wanted, refusals, written, counts)

    def _create_partitions(self, request: CreatePartitionsRequest) -> tuple[TopicOutcome, ...]:
        wanted = {topic.topic: topic for topic in request.topics}
        stored = self._store.read_topics([t for t in wanted if topic_name_problem(t) is None])
        deleting = set(self._store.read_topics_being_deleted())

        def plan(topic: str) -> _Plan:
            current = _growable(topic, stored.get(topic), is_being_deleted=topic in deleting)
            return self._added_partitions(wanted[topic], current)

        plans, refusals = self._plan([topic.topic for topic in request.topics], plan)
        added = self._place(plans, refusals)
        written = {} if request.validate_only else self._store.add_partitions(added)
        return _outcomes(wanted, refusals, written, {t: row.total for t, row in wanted.items()})

    def _delete_topics(self, request: DeleteTopicsRequest) -> tuple[TopicOutcome, ...]:
        """Delete topics; the outcome of an unknown id names the id."""
        topic_ids = self._cache.snapshot.topic_ids
        names = {topic_id: name for name, topic_id in topic_ids.items()}
        unknown_ids = {topic_id for topic_id in request.topic_ids if topic_id not in names}
        wanted = [*request.topics, *(names.get(id_, id_) for id_ in request.topic_ids)]

        def plan(topic: str) -> None:
            if not self._settings.delete_topic_enable:
                raise _RefusedError(Errors.TOPIC_DELETION_DISABLED, "topics cannot be deleted here")
            if topic in unknown_ids:
                raise _RefusedError(Errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            if topic not in topic_ids:
                raise _RefusedError(*unknown_topic(topic))

        plans, refusals = self._plan(wanted, plan)
        written = self._store.mark_for_deletion(list(plans))
        return _outcomes(wanted, refusals, written, {})

    def _plan(
        self, topics: Sequence[str], plan: Callable[[str], T]
    ) -> tuple[dict[str, T], dict[str, _Refusal]]:
        """Return what is to be done for each topic, or why nothing is."""
        plans: dict[str, T] = {}
        refusals: dict[str, _Refusal] = {}
        for topic, count in Counter(topics).items():
            try:
                if not self._is_controller():
                    raise _RefusedError(Errors.NOT_CONTROLLER, "this broker does not rule")
                if count > 1:
                    raise _RefusedError(Errors.INVALID_REQUEST, f"{topic} is named {count} times")
                plans[topic] = plan(topic)
            except (_RefusedError, PlacementError) as refused:
                refusals[topic] = refused
        return plans, refusals

    # --- new topics ---

    def _created_before(
        self, topics: Collection[str], wanted: Mapping[str, CreatableTopic]
    ) -> dict[str, dict[int, ReplicaAssignment]]:
        """Return those that exist because of an earlier attempt at the same request."""
        return {
            topic: dict(stored.partitions)
            for topic, stored in self._store.read_topics(topics).items()
            if isinstance(stored, TopicAssignment)
            and stored.topic_id is not None
            and stored.topic_id == wanted[topic].topic_id
        }

    def _new_partitions(self, wanted: CreatableTopic) -> _Plan:
        count, factor = wanted.partitions, wanted.replication_factor
        if wanted.assignment is None:
            settings = self._settings
            spec = PlacementSpec(
                wanted.topic,
                settings.num_partitions if count == UNSET else count,
                settings.default_replication_factor if factor == UNSET else factor,
                start_partition=0,
            )
            return self._unplaced(spec)
        if (count, factor) != (UNSET, UNSET):
            raise _RefusedError(
                Errors.INVALID_REQUEST, "numbers and an assignment exclude each other"
            )
        return self._checked_assignment(wanted.assignment)

    def _checked_assignment(
        self, assignment: Sequence[AssignedPartition]
    ) -> dict[int, ReplicaAssignment]:
        if not assignment or sorted(row.partition for row in assignment) != list(
            range(len(assignment))
        ):
            raise _RefusedError(
                Errors.INVALID_REPLICA_ASSIGNMENT, "partition ids must be 0, 1, … without gaps"
            )
        ordered = [row.replicas for row in sorted(assignment)]
        self._check_replicas(ordered)
        return {number: ReplicaAssignment(replicas) for number, replicas in enumerate(ordered)}

    def _check_replicas(self, rows: Sequence[Sequence[BrokerId]]) -> None:
        problem = assignment_problem(rows, self._cache.snapshot.brokers)
        if problem is not None:
            raise _RefusedError(Errors.INVALID_REPLICA_ASSIGNMENT, problem)

    # --- more partitions ---

    def _added_partitions(self, wanted: GrowingTopic, current: TopicAssignment) -> _Plan:
        count, first = len(current.partitions), current.partitions[0].replicas
        missing = wanted.total - count
        if missing <= 0:
            raise _RefusedError(
                Errors.INVALID_PARTITIONS,
                f"{wanted.topic} has {count} partitions and cannot have {wanted.total}",
            )
        if wanted.assignments is None:
            spec = PlacementSpec(wanted.topic, missing, len(first), start_partition=count)
            return self._unplaced(spec, self._start_index(first[0]))
        if len(wanted.assignments) != missing:
            raise _RefusedError(
                Errors.INVALID_REPLICA_ASSIGNMENT,
                f"{missing} partitions are to be added, {len(wanted.assignments)} are assigned",
            )
        self._check_replicas(wanted.assignments)
        if any(len(replicas) != len(first) for replicas in wanted.assignments):
            raise _RefusedError(
                Errors.INVALID_REPLICA_ASSIGNMENT, f"partition 0 has {len(first)} replicas"
            )
        return {
            count + number: ReplicaAssignment(replicas)
            for number, replicas in enumerate(wanted.assignments)
        }

    def _start_index(self, first_replica: BrokerId) -> int:
        """Return where Kafka's schemes go on: at the first leader. The ring goes on anyhow."""
        if self._settings.placement is Strategy.RING:
            return 0
        brokers = sorted(self._cache.snapshot.brokers)
        return next((i for i, broker in enumerate(brokers) if broker >= first_replica), 0)

    # --- placement ---

    def _unplaced(self, spec: PlacementSpec, start_index: int = 0) -> _Unplaced:
        """Put off placing, once it is certain that it can be done; raises ``PlacementError``."""
        check(self._placement_request([spec], start_index))
        return _Unplaced(spec, start_index)

    def _place(
        self, plans: Mapping[str, _Plan], refusals: dict[str, _Refusal]
    ) -> dict[str, dict[int, ReplicaAssignment]]:
        """Place what no client placed: in one job all that begin at the same broker."""
        partitions: dict[str, dict[int, ReplicaAssignment]] = {}
        jobs: dict[int, list[PlacementSpec]] = {}
        left = MAX_NEW_PARTITIONS
        for topic, plan in plans.items():
            count = plan.spec.partitions if isinstance(plan, _Unplaced) else len(plan)
            if count > left:
                message = f"more than {MAX_NEW_PARTITIONS} new partitions in one request"
                refusals[topic] = _RefusedError(Errors.POLICY_VIOLATION, message)
                continue
            left -= count
            if isinstance(plan, _Unplaced):
                partitions[topic] = {}  # in the order of the request
                jobs.setdefault(plan.start_index, []).append(plan.spec)
            else:
                partitions[topic] = plan
        for start_index, specs in jobs.items():
            for row in self._placer(self._placement_request(specs, start_index)):
                partitions[row.topic][row.partition] = ReplicaAssignment(row.replicas)
        return partitions

    def _placement_request(
        self, specs: Sequence[PlacementSpec], start_index: int
    ) -> PlaceTopicsRequest:
        brokers = sorted(self._cache.snapshot.brokers.items())
        return PlaceTopicsRequest(
            topics=tuple(specs),
            brokers=tuple(PlacementBroker(number, broker.rack, 0) for number, broker in brokers),
            strategy=self._settings.placement,
            start_index=str(start_index),
            index=IndexScope.PER_TOPIC,
            seed=0,
        )


# --- what speaks against it -----------------------------------------------------------------------


def _check_name(topic: str, existing: set[str], names: TopicNames) -> None:
    if topic in existing:
        raise _RefusedError(Errors.TOPIC_ALREADY_EXISTS, f"topic {topic} already exists")
    problem = topic_name_problem(topic)
    if problem is not None:
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
    other = names.collision(topic)
    if other is not None:
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"{topic} collides with {other}")


def _checked_config(config: Sequence[ConfigEntry]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in config:
        if value is None:
            raise _RefusedError(Errors.INVALID_REQUEST, f"{name} has no value")
        problem = topic_config_problem(name, value)
        if problem is not None:
            raise _RefusedError(Errors.INVALID_CONFIG, f"{name} {problem}")
        checked[name] = value
    return checked


def _growable(
    topic: str, stored: TopicAssignment | BadDataError | None, *, is_being_deleted: bool
) -> TopicAssignment:
    if stored is None:
        raise _RefusedError(*unknown_topic(topic))
    if isinstance(stored, BadDataError):
        raise _RefusedError(Errors.UNKNOWN_SERVER_ERROR, str(stored))
    problem = growth_problem(topic, stored, is_being_deleted=is_being_deleted)
    if problem is not None:
        raise _RefusedError(*problem)
    return stored


def _outcomes(
    topics: Iterable[str],
    refusals: Mapping[str, _Refusal],
    written: Mapping[str, ApiError],
    counts: Mapping[str, int],
) -> tuple[TopicOutcome, ...]:
    """Return an outcome for each topic, named once, in the order of the request."""
    results = dict(written) | {t: ApiError(r.error_code, str(r)) for t, r in refusals.items()}
    outcomes = []
    for topic in dict.fromkeys(topics):
        error_code, message = results.get(topic, ApiError(Errors.NONE))
        count = UNSET if topic in refusals else counts.get(topic, UNSET)
        outcomes.append(TopicOutcome(topic, error_code, message[:MAX_MESSAGE_LENGTH], count))
    return tuple(outcomes)
