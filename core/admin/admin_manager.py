"""Creates, grows, configures and deletes topics: validates, places and writes conditionally.

Mirrors ``kafka.server.ZkAdminManager`` and the checks of ``KafkaApis``. Only the broker of the
active controller decides; if that is one of Kafka's, every broker decides about settings. All is
validated before it is written. An invalid topic does not affect the other topics of the request.
The controller reads the result from ZooKeeper, as it reads the writes of any tool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from regent.core.admin.admin_requests import NewTopic, TopicPlacer, TopicStore, created_topic
from regent.core.admin.config_alterations import (
    RefusedError,
    checked_topic_config,
    topic_config_changes,
)
from regent.core.admin.topic_settings import protected_topics
from regent.core.controller.services import ControllerSettings
from regent.core.errors import (
    ApiError,
    BadDataError,
    Errors,
    RegentError,
    SessionExpiredError,
)
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.placement.replica_placer import (
    LEAST_LOADED,
    PlacementError,
    Strategy,
    check,
)
from regent.core.ports import TopicAssignment, TopicIds
from regent.core.protocol.envelope import Requester
from regent.core.protocol.messages.configs import (
    AlterConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.topics import (
    UNSET,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    PlacementOptions,
)
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
    hosts_of,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.topic_validation import (
    TopicNames,
    assignment_problem,
    growth_problem,
    new_topic_problem,
    protected_topic,
    shown_topic,
    size_problem,
    topic_name_problem,
    unknown_topic,
)

MAX_MESSAGE_LENGTH = 1_000  # a message may quote a string that is as long as the protocol allows

T = TypeVar("T")

TakePermits: TypeAlias = Callable[[Requester, int], tuple[bool, int]]
"""Takes permits for partitions; returns whether the client has them, and how long it must wait."""


class _Unplaced(NamedTuple):
    """Partitions to place, and their ``PlaceTopicsRequest.start_index``."""

    spec: PlacementSpec
    start_index: str


_DONE: Final = ApiError(Errors.NONE)
_OTHER_REFUSED: Final = ApiError(Errors.OPERATION_NOT_ATTEMPTED, "another topic is refused")
_NOT_HERE: Final = "this broker is not the active controller"
_NOT_TOLD: Final = "the controller has not told its own broker all brokers and topics yet"

_Plan: TypeAlias = dict[int, ReplicaAssignment] | _Unplaced


@dataclass(frozen=True)
class AdminSettings:
    """Kafka's settings of the same names, and how new replicas are placed."""

    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = ControllerSettings.delete_topic_enable
    placement: Strategy = Strategy.RING
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    """The values of the settings that a topic does not override."""


class AdminManager:
    """Decides requests about topics. ``is_controller``: whether the active controller is here."""

    def __init__(
        self,
        cache: MetadataCache,
        store: TopicStore,
        topic_ids: TopicIds,
        is_controller: Callable[[], bool],
        placer: TopicPlacer,
        settings: AdminSettings | None = None,
        take_permits: TakePermits = lambda _, __: (True, 0),
    ) -> None:
        self._take_permits = take_permits
        self._cache = cache
        self._store = store
        self._topic_ids = topic_ids
        self._is_controller = is_controller
        self._settings = settings or AdminSettings()
        self._placer = placer
        self.delete_topic_enable = self._settings.delete_topic_enable
        """It may change while the broker runs; any thread may set it."""

    def decide(self, request: TopicsRequest, requester: Requester | None = None) -> TopicsResponse:
        """Validate, place and write; ``PendingAnswer`` waits until the cluster shows the result.

        ``requester`` None: there are no quotas. Raises ``SessionExpiredError`` when the ZooKeeper
        session ends; some of it may be written.
        """
        match request:
            case CreateTopicsRequest():
                return self._create_topics(request, requester)
            case CreatePartitionsRequest():
                return self._create_partitions(request, requester)
            case DeleteTopicsRequest():
                return self._delete_topics(request, requester)
            case IncrementalAlterConfigsRequest():
                return self._alter_configs(request)

    # --- the four requests ---

    def _create_topics(
        self, request: CreateTopicsRequest, requester: Requester | None
    ) -> CreateTopicsResponse:
        wanted = {topic.name: topic for topic in request.topics}
        existing = set(self._store.read_topic_names())
        names = TopicNames(existing)
        known = existing.intersection(wanted)
        created_before = self._created_before(known, wanted)
        deleting = set(self._store.read_topics_being_deleted()) if known else set()
        options = request.placement or PlacementOptions()
        configs: dict[str, dict[str, str]] = {}

        def plan(topic: str) -> _Plan:
            problem = new_topic_problem(topic, existing, deleting, names)
            if problem is not None and topic not in created_before:
                raise RefusedError(*problem)
            configs[topic] = checked_topic_config(
                topic, wanted[topic].configs, self._settings.topic_defaults
            )
            planned = created_before.get(topic) or self._new_partitions(wanted[topic], options)
            names.add(topic)
            return planned

        plans, refusals = self._plan([topic.name for topic in request.topics], plan)
        _limit(plans, refusals, request.max_partitions)
        sizes = {topic: _size(planned) for topic, planned in plans.items()}
        ids: dict[str, str] = {}
        errors, wait_ms = refusals, 0
        if not request.validate_only:
            if request.all_or_none:
                _refuse_all_if_any(plans, refusals)
            counts = {t: sizes[t][0] for t in plans if t not in created_before}
            wait_ms, placed = self._admit(options, counts, requester, plans, refusals)
            ids = {t: wanted[t].topic_id or self._topic_ids.new_topic_id() for t in placed}
            new = {t: NewTopic(ids[t], rows, configs[t]) for t, rows in placed.items()}
            errors = {**self._store.create_topics(new), **refusals}
        results = (
            CreatableTopicResult(
                name=topic,
                error_code=code,
                error_message=message,
                is_being_deleted=topic in deleting,
            )
            if code
            else created_topic(topic, sizes[topic], ids.get(topic))
            for topic, code, message in _outcomes(wanted, errors)
        )
        return CreateTopicsResponse(topics=tuple(results), throttle_time_ms=wait_ms)

    def _create_partitions(
        self, request: CreatePartitionsRequest, requester: Requester | None
    ) -> CreatePartitionsResponse:
        wanted = {topic.name: topic for topic in request.topics}
        stored = self._existing(wanted)
        deleting = set(self._store.read_topics_being_deleted())
        options = request.placement or PlacementOptions()
        counts: dict[str, int] = {}

        def plan(topic: str) -> _Plan:
            current = _growable(topic, stored.get(topic), is_being_deleted=topic in deleting)
            counts[topic] = len(current.partitions)
            return self._added_partitions(wanted[topic], current, options)

        plans, refusals = self._plan([topic.name for topic in request.topics], plan)
        _limit(plans, refusals, request.max_partitions)
        errors, wait_ms = refusals, 0
        if not request.validate_only:
            added = {topic: _size(planned)[0] for topic, planned in plans.items()}
            wait_ms, placed = self._admit(options, added, requester, plans, refusals)
            errors = {**self._store.add_partitions(placed), **refusals}
        results = (
            CreatePartitionsTopicResult(
                name=topic,
                error_code=code,
                error_message=message,
                previous_count=counts.get(topic, UNSET),
            )
            for topic, code, message in _outcomes(wanted, errors)
        )
        return CreatePartitionsResponse(results=tuple(results), throttle_time_ms=wait_ms)

    def _delete_topics(
        self, request: DeleteTopicsRequest, requester: Requester | None
    ) -> DeleteTopicsResponse:
        snapshot = self._cache.snapshot
        names = {id_: name for name, id_ in snapshot.topic_ids.items()}
        ids = {row.topic_id for row in request.topics if row.topic_id is not None}
        named = [
            row.name or names.get(row.topic_id or "", row.topic_id or "") for row in request.topics
        ]
        existing: Collection[str] = self._existing(named) if request.all_or_none else named
        usable = [topic for topic in named if topic_name_problem(topic) is None]
        protected = protected_topics(self._store.configs.read_topic_configs(usable))

        def plan(topic: str) -> None:
            if not self.delete_topic_enable:
                message = f"topic {shown_topic(topic)}: delete.topic.enable is false"
                raise RefusedError(Errors.TOPIC_DELETION_DISABLED, message)
            if topic in ids and not snapshot.is_complete:
                raise RefusedError(Errors.NOT_CONTROLLER, _NOT_TOLD)
            if topic in ids:
                raise RefusedError(Errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            if topic_name_problem(topic) is not None or topic not in existing:
                raise RefusedError(*unknown_topic(topic))
            if topic in protected:
                raise RefusedError(*protected_topic(topic))

        plans, refusals = self._plan(named, plan)
        if request.all_or_none:
            _refuse_all_if_any(plans, refusals)
        mutations = {topic: len(snapshot.topics.get(topic, ())) for topic in plans}
        wait_ms = self._throttle(requester, mutations, plans, refusals)
        errors = {**self._store.mark_for_deletion(list(plans)), **refusals}

        by_topic = dict(zip(named, (row.topic_id for row in request.topics), strict=True))
        results = (
            DeletableTopicResult(
                name=None if topic == by_topic[topic] else topic,
                topic_id=by_topic[topic],
                error_code=code,
                error_message=message if code else None,
                was_marked=not code and message is not None,
            )
            for topic, code, message in _outcomes(by_topic, errors)
        )
        return DeleteTopicsResponse(responses=tuple(results), throttle_time_ms=wait_ms)

    def _existing(self, topics: Iterable[str]) -> Mapping[str, TopicAssignment | BadDataError]:
        return self._store.read_topics([t for t in topics if topic_name_problem(t) is None])

    def _alter_configs(
        self, request: IncrementalAlterConfigsRequest
    ) -> IncrementalAlterConfigsResponse:
        wanted = {row.resource_name: row for row in request.resources}
        configs = self._store.configs.read_topic_configs(self._existing(wanted))
        defaults = self._settings.topic_defaults

        def plan(topic: str) -> dict[str, str | None]:
            problem = topic_name_problem(topic)
            if problem is not None:
                message = f"topic {shown_topic(topic)} {problem}"
                raise RefusedError(Errors.INVALID_TOPIC_EXCEPTION, message)
            current = configs.get(topic)
            if isinstance(current, BadDataError):
                raise RefusedError(Errors.UNKNOWN_SERVER_ERROR, str(current))
            if current is None:
                raise RefusedError(*unknown_topic(topic))
            return topic_config_changes(wanted[topic], current, defaults)

        names = [row.resource_name for row in request.resources]
        is_here = self._is_controller() or self._cache.snapshot.is_ruled_by_kafka
        plans, errors = self._plan(names, plan, is_here=is_here)
        for topic, changes in {} if request.validate_only else plans.items():
            try:
                self._store.configs.alter_topic_config(topic, changes)
            except SessionExpiredError:
                raise  # the change may be written: the sender repeats the request
            except RegentError as error:
                errors[topic] = ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error))
        results = (
            AlterConfigsResourceResult(
                error_code=code,
                error_message=message,
                resource_type=wanted[topic].resource_type,
                resource_name=topic,
            )
            for topic, code, message in _outcomes(wanted, errors)
        )
        return IncrementalAlterConfigsResponse(responses=tuple(results))

    def _plan(
        self, topics: Sequence[str], plan: Callable[[str], T], *, is_here: bool | None = None
    ) -> tuple[dict[str, T], dict[str, ApiError]]:
        """Return the plan for each accepted topic, and the error of each other topic."""
        is_here = self._is_controller() if is_here is None else is_here
        plans: dict[str, T] = {}
        refusals: dict[str, ApiError] = {}
        for topic, count in Counter(topics).items():
            try:
                if not is_here:
                    raise RefusedError(Errors.NOT_CONTROLLER, _NOT_HERE)
                if not self._cache.snapshot.brokers:
                    raise RefusedError(Errors.NOT_CONTROLLER, _NOT_TOLD)
                if count > 1:
                    message = f"topic {shown_topic(topic)} is named more than once"
                    raise RefusedError(Errors.INVALID_REQUEST, message)
                plans[topic] = plan(topic)
            except (RefusedError, PlacementError) as refused:
                refusals[topic] = ApiError(refused.error_code, str(refused))
        return plans, refusals

    def _throttle(
        self,
        requester: Requester | None,
        mutations: Mapping[str, int],
        plans: dict[str, T],
        refusals: dict[str, ApiError],
    ) -> int:
        """Refuse the topics that exceed the quota of the client; return how long it must wait.

        ``mutations``: how many partitions of each topic are created or deleted.
        """
        wait_ms = 0
        if requester is None:
            return wait_ms
        for topic, count in mutations.items():
            is_allowed, topic_wait_ms = self._take_permits(requester, count)
            wait_ms = max(wait_ms, topic_wait_ms)
            if not is_allowed:
                del plans[topic]
                message = f"topic {topic}: the quota controller_mutation_rate is used up"
                refusals[topic] = ApiError(Errors.THROTTLING_QUOTA_EXCEEDED, message)
        return wait_ms

    # --- new topics ---

    def _created_before(
        self, topics: Collection[str], wanted: Mapping[str, CreatableTopic]
    ) -> dict[str, dict[int, ReplicaAssignment]]:
        """Return the topics that exist because of an earlier attempt at the same request."""
        return {
            topic: dict(stored.partitions)
            for topic, stored in self._store.read_topics(topics).items()
            if isinstance(stored, TopicAssignment)
            and stored.topic_id is not None
            and stored.topic_id == wanted[topic].topic_id
        }

    def _new_partitions(self, wanted: CreatableTopic, options: PlacementOptions) -> _Plan:
        topic, count, factor = wanted.name, wanted.num_partitions, wanted.replication_factor
        if not wanted.assignments:
            settings = self._settings
            spec = PlacementSpec(
                topic,
                settings.num_partitions if count == UNSET else count,
                settings.default_replication_factor if factor == UNSET else factor,
                start_partition=0,
            )
            return self._unplaced(spec, options)
        if (count, factor) != (UNSET, UNSET):
            message = (
                f"topic {topic}: give either numbers of partitions and replicas, or an assignment"
            )
            raise RefusedError(Errors.INVALID_REQUEST, message)
        return self._checked_assignment(topic, wanted.assignments)

    def _checked_assignment(
        self, topic: str, assignment: Sequence[CreatableReplicaAssignment]
    ) -> dict[int, ReplicaAssignment]:
        rows = sorted(assignment, key=lambda row: row.partition_index)
        if [row.partition_index for row in rows] != list(range(len(rows))):
            raise _misassigned(topic, "partition ids must be 0, 1, … without gaps")
        ordered = [row.broker_ids for row in rows]
        self._check_replicas(topic, ordered)
        self._check_size(topic, len(ordered), len(ordered[0]))
        return {number: ReplicaAssignment(replicas) for number, replicas in enumerate(ordered)}

    def _check_replicas(self, topic: str, rows: Sequence[Sequence[BrokerId]]) -> None:
        snapshot = self._cache.snapshot
        problem = assignment_problem(rows, snapshot.brokers, snapshot.brokers_for_replicas)
        if problem is not None:
            raise _misassigned(topic, problem)

    def _check_size(self, topic: str, partitions: int, replication_factor: int) -> None:
        live = self._cache.snapshot.brokers
        problem = size_problem(topic, partitions, replication_factor, live)
        if problem is not None:
            raise RefusedError(*problem)

    # --- more partitions ---

    def _added_partitions(
        self, wanted: CreatePartitionsTopic, current: TopicAssignment, options: PlacementOptions
    ) -> _Plan:
        topic, count, first = wanted.name, len(current.partitions), current.partitions[0].replicas
        missing = wanted.count - count
        if missing <= 0:
            relation = "already has" if missing == 0 else "cannot shrink: it has"
            partitions = "1 partition" if count == 1 else f"{count} partitions"
            message = f"topic {topic} {relation} {partitions}"
            raise RefusedError(Errors.INVALID_PARTITIONS, message)
        if wanted.assignments is None:
            self._check_size(topic, wanted.count, len(first))
            spec = PlacementSpec(topic, missing, len(first), start_partition=count)
            start_index = str(self._start_index(first[0]))
            return self._unplaced(spec, replace(options, start_index=start_index))
        rows = [row.broker_ids for row in wanted.assignments]
        if len(rows) != missing:
            message = f"{missing} partitions are to be added, but the assignment has {len(rows)}"
            raise _misassigned(topic, message)
        self._check_replicas(topic, rows)
        if any(len(replicas) != len(first) for replicas in rows):
            message = f"every partition must have {len(first)} replicas, as partition 0 has"
            raise _misassigned(topic, message)
        return {count + number: ReplicaAssignment(replicas) for number, replicas in enumerate(rows)}

    def _start_index(self, first_replica: BrokerId) -> int:
        """Return the index of the first replica of partition 0, from which placement continues.

        0 for ``ring``: it counts from partition 0.
        """
        if self._settings.placement is Strategy.RING:
            return 0
        brokers = sorted(self._cache.snapshot.brokers_for_replicas)
        return next((i for i, broker in enumerate(brokers) if broker >= first_replica), 0)

    # --- placement ---

    def _unplaced(self, spec: PlacementSpec, options: PlacementOptions) -> _Unplaced:
        """Return the partitions to place; raises ``PlacementError`` if they cannot be placed."""
        check(self._placement_request([spec], options, {}))
        total = spec.start_partition + spec.partitions
        self._check_size(spec.topic, total, spec.replication_factor)
        return _Unplaced(spec, options.start_index)

    def _place(
        self, plans: Mapping[str, _Plan], options: PlacementOptions
    ) -> dict[str, dict[int, ReplicaAssignment]] | ApiError:
        """Return the partitions of each topic, or why the placement service did not place them.

        All partitions with the same start index are placed by one request.
        """
        partitions: dict[str, dict[int, ReplicaAssignment]] = {}
        jobs: dict[str, list[PlacementSpec]] = {}
        for topic, plan in plans.items():
            if isinstance(plan, _Unplaced):
                partitions[topic] = {}  # in the order of the request
                jobs.setdefault(plan.start_index, []).append(plan.spec)
            else:
                partitions[topic] = plan
        loads: Counter[BrokerId] = Counter()
        if options.start_index == LEAST_LOADED:
            rows = self._cache.snapshot.partitions.values()
            loads.update(replica for row in rows for replica in row.replicas)
        for start_index, specs in jobs.items():
            job = self._placement_request(specs, replace(options, start_index=start_index), loads)
            answer = self._placer.place(job, use_service=options.use_service)
            if answer.error_code:
                return ApiError(answer.error_code, answer.message)
            for row in answer.partitions:
                partitions[row.topic][row.partition] = ReplicaAssignment(row.replicas)
        return partitions

    def _admit(
        self,
        options: PlacementOptions,
        counts: Mapping[str, int],
        requester: Requester | None,
        plans: dict[str, _Plan],
        refusals: dict[str, ApiError],
    ) -> tuple[int, dict[str, dict[int, ReplicaAssignment]]]:
        """Return how long the client must wait, and the placed partitions.

        Refuse all topics if one needs the placement service, and it cannot place. ``counts``: new
        partitions, by topic.
        """
        is_needed = any(isinstance(plan, _Unplaced) for plan in plans.values())
        obstacle = self._placer.obstacle() if options.use_service and is_needed else None
        wait_ms = 0 if obstacle else self._throttle(requester, counts, plans, refusals)
        placed = obstacle or self._place(plans, options)
        if isinstance(placed, ApiError):
            refusals.update(dict.fromkeys(plans, placed))
            plans.clear()
            placed = {}
        return wait_ms, placed

    def _placement_request(
        self,
        specs: Sequence[PlacementSpec],
        options: PlacementOptions,
        loads: Mapping[BrokerId, int],
    ) -> PlaceTopicsRequest:
        brokers = sorted(self._cache.snapshot.brokers_for_replicas.items())
        return PlaceTopicsRequest(
            topics=tuple(specs),
            brokers=tuple(PlacementBroker(b, of.rack, loads.get(b, 0)) for b, of in brokers),
            hosts=hosts_of(brokers),
            strategy=options.strategy or self._settings.placement,
            start_index=options.start_index,
            index=options.index,
            seed=options.seed,
        )


def _misassigned(topic: str, problem: str) -> RefusedError:
    message = f"topic {topic} cannot be assigned like this: {problem}"
    return RefusedError(Errors.INVALID_REPLICA_ASSIGNMENT, message)


def _growable(
    topic: str, stored: TopicAssignment | BadDataError | None, *, is_being_deleted: bool
) -> TopicAssignment:
    if stored is None:
        raise RefusedError(*unknown_topic(topic))
    if isinstance(stored, BadDataError):
        raise RefusedError(Errors.UNKNOWN_SERVER_ERROR, str(stored))
    problem = growth_problem(topic, stored, is_being_deleted=is_being_deleted)
    if problem is not None:
        raise RefusedError(*problem)
    return stored


def _size(plan: _Plan) -> tuple[int, int]:
    """Return the numbers of new partitions, and of the replicas of each."""
    if isinstance(plan, _Unplaced):
        return plan.spec.partitions, plan.spec.replication_factor
    return len(plan), len(next(iter(plan.values())).replicas)


def _refuse_all_if_any(plans: dict[str, T], refusals: dict[str, ApiError]) -> None:
    """Refuse the other topics, too, if one is refused."""
    if refusals:
        refusals.update(dict.fromkeys(plans, _OTHER_REFUSED))
        plans.clear()


def _limit(plans: dict[str, _Plan], refusals: dict[str, ApiError], max_partitions: int) -> None:
    """Refuse the topics that would take the new partitions of a request over its limit."""
    left = max_partitions
    for topic, plan in list(plans.items()):
        count, _ = _size(plan)
        if count > left:
            del plans[topic]
            message = f"topic {topic}: more than {max_partitions} new partitions in one request"
            refusals[topic] = ApiError(Errors.POLICY_VIOLATION, message)
        else:
            left -= count


def _outcomes(
    topics: Iterable[str], errors: Mapping[str, ApiError]
) -> Iterator[tuple[str, Errors, str | None]]:
    """Yield each topic with its error code and message."""
    for topic in topics:
        code, message = errors.get(topic, _DONE)
        yield topic, code, message[:MAX_MESSAGE_LENGTH] or None
