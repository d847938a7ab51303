"""Creates, grows, configures and deletes topics: validates, places and writes conditionally.

Mirrors ``kafka.server.ZkAdminManager`` and the checks of ``KafkaApis``. Only the broker of the
active controller accepts a request. Everything is validated before it is written. An invalid topic
does not affect the other topics of the request. The controller reads the result from ZooKeeper, as
it reads the writes of any tool.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from regent.core.admin.admin_requests import NewTopic, TopicPlacer, TopicStore
from regent.core.admin.config_alterations import ConfigRefusedError, altered
from regent.core.admin.topic_settings import (
    TOPIC_SETTINGS,
    topic_config_conflict,
    topic_config_problem,
)
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
from regent.core.protocol.placement import (
    PlacementBroker,
    PlacementSpec,
    PlaceTopicsRequest,
)
from regent.core.protocol.topics import (
    UNSET,
    AlterTopicConfigsRequest,
    AssignedPartition,
    ConfigEntry,
    ConfiguredTopic,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    PlacementOptions,
    Requester,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from regent.core.topic_validation import (
    TopicNames,
    assignment_problem,
    growth_problem,
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


class _RefusedError(Exception):
    """Why one topic of a request is refused; ends its validation."""

    def __init__(self, error_code: Errors, message: str) -> None:
        super().__init__(message)
        self.error_code = error_code


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

    def decide(self, request: TopicsRequest) -> TopicsResponse:
        """Validate, place and write; ``PendingAnswer`` waits until the cluster shows the result.

        Raises ``SessionExpiredError`` when the ZooKeeper session ends; some of it may be written.
        """
        match request:
            case CreateTopicsRequest():
                return self._create_topics(request)
            case CreatePartitionsRequest():
                return self._create_partitions(request)
            case DeleteTopicsRequest():
                return self._delete_topics(request)
            case AlterTopicConfigsRequest():
                return self._alter_configs(request)

    # --- the four requests ---

    def _create_topics(self, request: CreateTopicsRequest) -> TopicsResponse:
        wanted = {topic.topic: topic for topic in request.topics}
        existing = set(self._store.read_topic_names())
        names = TopicNames(existing)
        known = existing.intersection(wanted)
        created_before = self._created_before(known, wanted)
        deleting = set(self._store.read_topics_being_deleted()) if known else set()
        options = request.placement or PlacementOptions()
        configs: dict[str, dict[str, str]] = {}

        def plan(topic: str) -> _Plan:
            if topic not in created_before:
                _check_name(topic, existing, deleting, names)
            configs[topic] = _checked_config(
                topic, wanted[topic].config, self._settings.topic_defaults
            )
            planned = created_before.get(topic) or self._new_partitions(wanted[topic], options)
            names.add(topic)
            return planned

        plans, refusals = self._plan([topic.topic for topic in request.topics], plan)
        _limit(plans, refusals, request.max_partitions)
        valid = {topic: _new_topic(topic, planned) for topic, planned in plans.items()}
        if request.validate_only:
            return TopicsResponse(_outcomes(wanted, refusals, valid), self._warming(request))
        mutations = {t: _count(p) for t, p in plans.items() if t not in created_before}
        wait_ms = self._throttle(request.requester, mutations, plans, refusals)
        placed, note = self._place(plans, options)
        new = {
            topic: NewTopic(
                wanted[topic].topic_id or self._topic_ids.new_topic_id(), partitions, configs[topic]
            )
            for topic, partitions in placed.items()
        }
        written = self._store.create_topics(new)
        created = {
            topic: valid[topic]._replace(topic_id=row.topic_id) for topic, row in new.items()
        }
        return TopicsResponse(_outcomes(wanted, {**written, **refusals}, created), note, wait_ms)

    def _create_partitions(self, request: CreatePartitionsRequest) -> TopicsResponse:
        wanted = {topic.topic: topic for topic in request.topics}
        stored = self._store.read_topics([t for t in wanted if topic_name_problem(t) is None])
        deleting = set(self._store.read_topics_being_deleted())
        options = request.placement or PlacementOptions()

        def plan(topic: str) -> _Plan:
            current = _growable(topic, stored.get(topic), is_being_deleted=topic in deleting)
            return self._added_partitions(wanted[topic], current, options)

        plans, refusals = self._plan([topic.topic for topic in request.topics], plan)
        _limit(plans, refusals, request.max_partitions)
        grown = {
            topic: TopicOutcome(topic, Errors.NONE, partitions=wanted[topic].total)
            for topic in plans
        }
        if request.validate_only:
            return TopicsResponse(_outcomes(wanted, refusals, grown), self._warming(request))
        mutations = {topic: _count(planned) for topic, planned in plans.items()}
        wait_ms = self._throttle(request.requester, mutations, plans, refusals)
        placed, note = self._place(plans, options)
        written = self._store.add_partitions(placed)
        return TopicsResponse(_outcomes(wanted, {**written, **refusals}, grown), note, wait_ms)

    def _delete_topics(self, request: DeleteTopicsRequest) -> TopicsResponse:
        snapshot = self._cache.snapshot
        names = {id_: name for name, id_ in snapshot.topic_ids.items()}
        unknown_ids = {topic_id for topic_id in request.topic_ids if topic_id not in names}
        by_id = [(names.get(id_, id_), id_) for id_ in request.topic_ids]
        wanted = [*request.topics, *(topic for topic, _ in by_id)]

        def plan(topic: str) -> None:
            if not self._settings.delete_topic_enable:
                message = f"topic {shown_topic(topic)}: delete.topic.enable is false"
                raise _RefusedError(Errors.TOPIC_DELETION_DISABLED, message)
            if topic in unknown_ids and not snapshot.is_complete:
                raise _RefusedError(Errors.NOT_CONTROLLER, _NOT_TOLD)
            if topic in unknown_ids:
                raise _RefusedError(Errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            if topic_name_problem(topic) is not None:
                raise _RefusedError(*unknown_topic(topic))

        plans, refusals = self._plan(wanted, plan)
        mutations = {topic: len(snapshot.topics.get(topic, ())) for topic in plans}
        wait_ms = self._throttle(request.requester, mutations, plans, refusals)
        written = self._store.mark_for_deletion(list(plans))
        named = {topic: TopicOutcome(topic, Errors.NONE, topic_id=id_) for topic, id_ in by_id}
        outcomes = _outcomes(wanted, {**written, **refusals}, named)
        return TopicsResponse(outcomes, throttle_time_ms=wait_ms)

    def _alter_configs(self, request: AlterTopicConfigsRequest) -> TopicsResponse:
        wanted = {row.topic: row for row in request.topics}
        stored = self._store.read_topics([t for t in wanted if topic_name_problem(t) is None])
        configs = self._store.configs.read_topic_configs(stored)
        defaults = self._settings.topic_defaults

        def plan(topic: str) -> dict[str, str | None]:
            problem = topic_name_problem(topic)
            if problem is not None:
                message = f"topic {shown_topic(topic)} {problem}"
                raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, message)
            current = configs.get(topic)
            if current is None:
                raise _RefusedError(*unknown_topic(topic))
            if isinstance(current, BadDataError):
                raise _RefusedError(Errors.UNKNOWN_SERVER_ERROR, str(current))
            return _config_changes(wanted[topic], current, defaults)

        plans, refusals = self._plan([row.topic for row in request.topics], plan)
        written = {}
        for topic, changes in {} if request.validate_only else plans.items():
            written[topic] = self._alter_config(topic, changes)
        return TopicsResponse(_outcomes(wanted, {**written, **refusals}, {}))

    def _alter_config(self, topic: str, changes: Mapping[str, str | None]) -> ApiError:
        try:
            self._store.configs.alter_topic_config(topic, changes)
        except SessionExpiredError:
            raise  # the change may be written: the sender repeats the request
        except RegentError as error:
            return ApiError(Errors.UNKNOWN_SERVER_ERROR, str(error))
        return ApiError(Errors.NONE)

    def _plan(
        self, topics: Sequence[str], plan: Callable[[str], T]
    ) -> tuple[dict[str, T], dict[str, ApiError]]:
        """Return the plan for each accepted topic, and the error of each other topic."""
        plans: dict[str, T] = {}
        refusals: dict[str, ApiError] = {}
        for topic, count in Counter(topics).items():
            try:
                if not self._is_controller():
                    message = "this broker is not the active controller"
                    raise _RefusedError(Errors.NOT_CONTROLLER, message)
                if not self._cache.snapshot.brokers:
                    raise _RefusedError(Errors.NOT_CONTROLLER, _NOT_TOLD)
                if count > 1:
                    message = f"topic {shown_topic(topic)} is named more than once"
                    raise _RefusedError(Errors.INVALID_REQUEST, message)
                plans[topic] = plan(topic)
            except (_RefusedError, ConfigRefusedError, PlacementError) as refused:
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
        topic, count, factor = wanted.topic, wanted.partitions, wanted.replication_factor
        if wanted.assignment is None:
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
            raise _RefusedError(Errors.INVALID_REQUEST, message)
        return self._checked_assignment(topic, wanted.assignment)

    def _checked_assignment(
        self, topic: str, assignment: Sequence[AssignedPartition]
    ) -> dict[int, ReplicaAssignment]:
        if not assignment or sorted(row.partition for row in assignment) != list(
            range(len(assignment))
        ):
            raise _misassigned(topic, "partition ids must be 0, 1, … without gaps")
        ordered = [row.replicas for row in sorted(assignment)]
        self._check_replicas(topic, ordered)
        self._check_size(topic, len(ordered), len(ordered[0]))
        return {number: ReplicaAssignment(replicas) for number, replicas in enumerate(ordered)}

    def _check_replicas(self, topic: str, rows: Sequence[Sequence[BrokerId]]) -> None:
        problem = assignment_problem(rows, self._cache.snapshot.brokers)
        if problem is not None:
            raise _misassigned(topic, problem)

    def _check_size(self, topic: str, partitions: int, replication_factor: int) -> None:
        brokers = self._cache.snapshot.brokers
        problem = size_problem(topic, partitions, replication_factor, brokers)
        if problem is not None:
            raise _RefusedError(*problem)

    # --- more partitions ---

    def _added_partitions(
        self, wanted: GrowingTopic, current: TopicAssignment, options: PlacementOptions
    ) -> _Plan:
        topic, count, first = wanted.topic, len(current.partitions), current.partitions[0].replicas
        missing = wanted.total - count
        if missing <= 0:
            relation = "already has" if missing == 0 else "cannot shrink: it has"
            partitions = "1 partition" if count == 1 else f"{count} partitions"
            message = f"topic {topic} {relation} {partitions}"
            raise _RefusedError(Errors.INVALID_PARTITIONS, message)
        if wanted.assignments is None:
            self._check_size(topic, wanted.total, len(first))
            spec = PlacementSpec(topic, missing, len(first), start_partition=count)
            start_index = str(self._start_index(first[0]))
            return self._unplaced(spec, replace(options, start_index=start_index))
        if len(wanted.assignments) != missing:
            given = len(wanted.assignments)
            message = f"{missing} partitions are to be added, but the assignment has {given}"
            raise _misassigned(topic, message)
        self._check_replicas(topic, wanted.assignments)
        if any(len(replicas) != len(first) for replicas in wanted.assignments):
            message = f"every partition must have {len(first)} replicas, as partition 0 has"
            raise _misassigned(topic, message)
        return {
            count + number: ReplicaAssignment(replicas)
            for number, replicas in enumerate(wanted.assignments)
        }

    def _start_index(self, first_replica: BrokerId) -> int:
        """Return the index of the first replica of partition 0, from which placement continues.

        0 for ``ring``: it counts from partition 0.
        """
        if self._settings.placement is Strategy.RING:
            return 0
        brokers = sorted(self._cache.snapshot.brokers)
        return next((i for i, broker in enumerate(brokers) if broker >= first_replica), 0)

    # --- placement ---

    def _unplaced(self, spec: PlacementSpec, options: PlacementOptions) -> _Unplaced:
        """Return the partitions to place, after a check that they can be placed.

        Raises ``PlacementError``.
        """
        check(self._placement_request([spec], options, {}))
        total = spec.start_partition + spec.partitions
        self._check_size(spec.topic, total, spec.replication_factor)
        return _Unplaced(spec, options.start_index)

    def _place(
        self, plans: Mapping[str, _Plan], options: PlacementOptions
    ) -> tuple[dict[str, dict[int, ReplicaAssignment]], str]:
        """Return the partitions of each topic, and why the placement service did not place them.

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
        note = ""
        loads: Counter[BrokerId] = Counter()
        if options.start_index == LEAST_LOADED:
            rows = self._cache.snapshot.partitions.values()
            loads.update(replica for row in rows for replica in row.replicas)
        for start_index, specs in jobs.items():
            job = self._placement_request(specs, replace(options, start_index=start_index), loads)
            answer = self._placer.place(job, use_service=options.use_service)
            note = note or answer.message
            for row in answer.partitions:
                partitions[row.topic][row.partition] = ReplicaAssignment(row.replicas)
        return partitions, note

    def _warming(self, request: CreateTopicsRequest | CreatePartitionsRequest) -> str:
        """Return ``TopicPlacer.warming`` if the sender waits for it; Kafka's clients do not."""
        waits = request.placement is not None and request.placement.use_service
        return self._placer.warming() if waits else ""

    def _placement_request(
        self,
        specs: Sequence[PlacementSpec],
        options: PlacementOptions,
        loads: Mapping[BrokerId, int],
    ) -> PlaceTopicsRequest:
        brokers = sorted(self._cache.snapshot.brokers.items())
        return PlaceTopicsRequest(
            topics=tuple(specs),
            brokers=tuple(
                PlacementBroker(broker_id, broker.rack, loads.get(broker_id, 0))
                for broker_id, broker in brokers
            ),
            strategy=options.strategy or self._settings.placement,
            start_index=options.start_index,
            index=options.index,
            seed=options.seed,
        )


# --- validation -----------------------------------------------------------------------------------


def _check_name(
    topic: str, existing: Collection[str], deleting: Collection[str], names: TopicNames
) -> None:
    if topic in existing:
        state = "already exists and is being deleted" if topic in deleting else "already exists"
        raise _RefusedError(Errors.TOPIC_ALREADY_EXISTS, f"topic {topic} {state}")
    problem = topic_name_problem(topic)
    if problem is not None:
        message = f"topic {shown_topic(topic)} {problem}"
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, message)
    collision = names.collision_problem(topic)
    if collision is not None:
        raise _RefusedError(*collision)


def _checked_config(
    topic: str, config: Sequence[ConfigEntry], defaults: Mapping[str, str]
) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in config:
        if value is None:
            message = f"topic {topic} config {name} has no value"
            raise _RefusedError(Errors.INVALID_CONFIG, message)
        refusal = _config_refusal(topic, name, value)
        if refusal is not None:
            raise refusal
        checked[name] = value
    _check_conflict(topic, checked, defaults)
    return checked


def _config_changes(
    wanted: ConfiguredTopic, current: Mapping[str, str], defaults: Mapping[str, str]
) -> dict[str, str | None]:
    """Return the new overrides, None for those to remove."""
    changes = altered(
        f"topic {wanted.topic}",
        wanted.alterations,
        current,
        replaces=wanted.replaces,
        settings=TOPIC_SETTINGS,
        defaults=defaults,
        problem=lambda name, value: _config_refusal(wanted.topic, name, value),
    )
    _check_conflict(wanted.topic, {**current, **changes}, defaults)
    return changes


def _config_refusal(topic: str, name: str, value: str) -> ConfigRefusedError | None:
    problem = topic_config_problem(name, value)
    if problem is None:
        return None
    return ConfigRefusedError(Errors.INVALID_CONFIG, f"topic {topic} config {name} {problem}")


def _check_conflict(
    topic: str, config: Mapping[str, str | None], defaults: Mapping[str, str]
) -> None:
    conflict = topic_config_conflict(config, defaults)
    if conflict is not None:
        raise ConfigRefusedError(Errors.INVALID_CONFIG, f"topic {topic} config: {conflict}")


def _misassigned(topic: str, problem: str) -> _RefusedError:
    message = f"topic {topic} cannot be assigned like this: {problem}"
    return _RefusedError(Errors.INVALID_REPLICA_ASSIGNMENT, message)


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


def _count(plan: _Plan) -> int:
    return plan.spec.partitions if isinstance(plan, _Unplaced) else len(plan)


def _limit(plans: dict[str, _Plan], refusals: dict[str, ApiError], max_partitions: int) -> None:
    """Refuse the topics that would take the new partitions of a request over its limit."""
    left = max_partitions
    for topic, plan in list(plans.items()):
        count = _count(plan)
        if count > left:
            del plans[topic]
            message = f"topic {topic}: more than {max_partitions} new partitions in one request"
            refusals[topic] = ApiError(Errors.POLICY_VIOLATION, message)
        else:
            left -= count


def _new_topic(topic: str, plan: _Plan) -> TopicOutcome:
    """Return the outcome of a topic that can be created."""
    if isinstance(plan, _Unplaced):
        factor = plan.spec.replication_factor
    else:
        factor = len(next(iter(plan.values())).replicas)
    return TopicOutcome(topic, Errors.NONE, partitions=_count(plan), replication_factor=factor)


def _outcomes(
    topics: Iterable[str], results: Mapping[str, ApiError], rows: Mapping[str, TopicOutcome]
) -> tuple[TopicOutcome, ...]:
    """Return an outcome for each topic, named once, in the order of the request.

    ``rows`` has what else is known about a topic.
    """
    outcomes = []
    for topic in dict.fromkeys(topics):
        error_code, message = results.get(topic, ApiError(Errors.NONE))
        row = rows.get(topic) or TopicOutcome(topic, error_code)
        outcomes.append(row._replace(error_code=error_code, message=message[:MAX_MESSAGE_LENGTH]))
    return tuple(outcomes)
