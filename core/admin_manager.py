"""Topics created, grown and deleted on behalf of clients.

Mirrors ``kafka.server.ZkAdminManager`` and the checks of ``KafkaApis``: only the broker that rules
accepts, everything is validated before it is written, and one bad topic of a request leaves the
others alone. The controller learns of it from ZooKeeper, as of any tool's writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from core.admin_requests import (
    UNSET,
    CreatableTopic,
    GrowingTopic,
    NewTopic,
    PendingAnswer,
    TopicOutcome,
    TopicStore,
)
from core.errors import BadDataError, Errors
from core.model import NO_LEADER, BrokerId, ReplicaAssignment, TopicPartition
from core.placement import IndexScope, PlacementError, Strategy, place
from core.ports import TopicAssignment, TopicIds
from core.protocol.control import TopicId
from core.protocol.placement import PlacementBroker, PlacementSpec, PlaceTopicsRequest
from core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from core.topic_validation import (
    TopicNames,
    assignment_problem,
    topic_config_problem,
    topic_name_problem,
)

Plan = TypeVar("Plan")


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


class AdminManager:
    """Decides what clients ask of topics. ``is_controller`` tells whether this broker rules.

    Every request raises ``SessionExpiredError`` when the session is over.
    """

    def __init__(
        self,
        cache: MetadataCache,
        store: TopicStore,
        topic_ids: TopicIds,
        is_controller: Callable[[], bool],
        settings: AdminSettings | None = None,
    ) -> None:
        self._cache = cache
        self._store = store
        self._topic_ids = topic_ids
        self._is_controller = is_controller
        self._settings = settings or AdminSettings()

    # --- the three requests ---

    def create_topics(
        self,
        topics: Sequence[CreatableTopic],
        now_ms: int,
        timeout_ms: int,
        *,
        validate_only: bool = False,
    ) -> PendingAnswer:
        """Create topics; done when every partition of a topic has a leader."""
        wanted = {topic.topic: topic for topic in topics}
        existing = set(self._store.read_topic_names())
        names = TopicNames(existing)

        def plan(topic: str) -> NewTopic:
            _check_name(topic, existing, names)
            new = self._new_topic(wanted[topic])
            names.add(topic)
            return new

        plans, refusals = self._plan([topic.topic for topic in topics], plan)
        written = {} if validate_only else self._store.create_topics(plans)
        counts = {topic: len(new.partitions) for topic, new in plans.items()}
        return PendingAnswer(
            _outcomes([topic.topic for topic in topics], refusals, written),
            lambda snapshot, topic: _is_led(snapshot, topic, counts[topic]),
            now_ms + timeout_ms,
            waits=not validate_only,
        )

    def create_partitions(
        self,
        topics: Sequence[GrowingTopic],
        now_ms: int,
        timeout_ms: int,
        *,
        validate_only: bool = False,
    ) -> PendingAnswer:
        """Give topics more partitions; done when every partition has a leader."""
        wanted = {topic.topic: topic for topic in topics}
        stored = self._store.read_topics(list(wanted))
        deleting = set(self._store.read_topics_being_deleted())

        def plan(topic: str) -> dict[int, ReplicaAssignment]:
            current = _growable(topic, stored.get(topic), is_being_deleted=topic in deleting)
            return self._added_partitions(wanted[topic], current)

        plans, refusals = self._plan([topic.topic for topic in topics], plan)
        written = {} if validate_only else self._store.add_partitions(plans)
        return PendingAnswer(
            _outcomes([topic.topic for topic in topics], refusals, written),
            lambda snapshot, topic: _is_led(snapshot, topic, wanted[topic].total),
            now_ms + timeout_ms,
            waits=not validate_only,
        )

    def delete_topics(
        self,
        now_ms: int,
        timeout_ms: int,
        topics: Sequence[str] = (),
        topic_ids: Sequence[TopicId] = (),
    ) -> PendingAnswer:
        """Delete topics by name or by id; done when this broker knows them no more.

        The outcome of an unknown id names the id.
        """
        snapshot = self._cache.snapshot
        names = {topic_id: name for name, topic_id in snapshot.topic_ids.items()}
        unknown_ids = {topic_id for topic_id in topic_ids if topic_id not in names}
        wanted = [*topics, *(names.get(topic_id, topic_id) for topic_id in topic_ids)]

        def plan(topic: str) -> None:
            if not self._settings.delete_topic_enable:
                raise _RefusedError(Errors.TOPIC_DELETION_DISABLED, "topics cannot be deleted here")
            if topic in unknown_ids:
                raise _RefusedError(Errors.UNKNOWN_TOPIC_ID, f"no topic has the id {topic}")
            if not _is_known(snapshot, topic):
                raise _unknown(topic)

        plans, refusals = self._plan(wanted, plan)
        written = self._store.mark_for_deletion(list(plans))
        return PendingAnswer(
            _outcomes(wanted, refusals, written),
            lambda snapshot, topic: not _is_known(snapshot, topic),
            now_ms + timeout_ms,
        )

    def _plan(
        self, topics: Sequence[str], plan: Callable[[str], Plan]
    ) -> tuple[dict[str, Plan], dict[str, _RefusedError]]:
        """Return what is to be done for each topic, or why nothing is."""
        plans: dict[str, Plan] = {}
        refusals: dict[str, _RefusedError] = {}
        for topic, count in Counter(topics).items():
            try:
                if not self._is_controller():
                    raise _RefusedError(Errors.NOT_CONTROLLER, "this broker does not rule")
                if count > 1:
                    raise _RefusedError(Errors.INVALID_REQUEST, f"{topic} is named {count} times")
                plans[topic] = plan(topic)
            except _RefusedError as refused:
                refusals[topic] = refused
        return plans, refusals

    # --- new topics ---

    def _new_topic(self, wanted: CreatableTopic) -> NewTopic:
        is_counted = (wanted.partitions, wanted.replication_factor) != (UNSET, UNSET)
        if wanted.assignment is not None and is_counted:
            raise _RefusedError(
                Errors.INVALID_REQUEST, "numbers and an assignment exclude each other"
            )
        partitions = (
            self._placed_topic(wanted)
            if wanted.assignment is None
            else self._checked_assignment(wanted.assignment)
        )
        return NewTopic(self._topic_ids.new_topic_id(), partitions, _checked_config(wanted.config))

    def _placed_topic(self, wanted: CreatableTopic) -> dict[int, ReplicaAssignment]:
        count, factor = wanted.partitions, wanted.replication_factor
        spec = PlacementSpec(
            wanted.topic,
            self._settings.num_partitions if count == UNSET else count,
            self._settings.default_replication_factor if factor == UNSET else factor,
            start_partition=0,
        )
        return self._place(spec, start_index=0)

    def _checked_assignment(
        self, assignment: Mapping[int, tuple[BrokerId, ...]]
    ) -> dict[int, ReplicaAssignment]:
        if not assignment or sorted(assignment) != list(range(len(assignment))):
            raise _RefusedError(
                Errors.INVALID_REPLICA_ASSIGNMENT, "partition ids must be 0, 1, … without gaps"
            )
        ordered = [assignment[partition] for partition in sorted(assignment)]
        self._check_replicas(ordered)
        return {number: ReplicaAssignment(tuple(row)) for number, row in enumerate(ordered)}

    def _check_replicas(self, rows: Sequence[Sequence[BrokerId]]) -> None:
        problem = assignment_problem(rows, self._cache.snapshot.brokers)
        if problem is not None:
            raise _RefusedError(Errors.INVALID_REPLICA_ASSIGNMENT, problem)

    # --- more partitions ---

    def _added_partitions(
        self, wanted: GrowingTopic, current: TopicAssignment
    ) -> dict[int, ReplicaAssignment]:
        count, first = len(current.partitions), current.partitions[0].replicas
        missing = wanted.total - count
        if missing <= 0:
            raise _RefusedError(
                Errors.INVALID_PARTITIONS,
                f"{wanted.topic} has {count} partitions and cannot have {wanted.total}",
            )
        if wanted.assignments is None:
            spec = PlacementSpec(wanted.topic, missing, len(first), start_partition=count)
            return self._place(spec, self._start_index(first[0]))
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
            count + number: ReplicaAssignment(tuple(replicas))
            for number, replicas in enumerate(wanted.assignments)
        }

    def _start_index(self, first_replica: BrokerId) -> int:
        """Return where Kafka's schemes go on: at the first leader. The ring goes on anyhow."""
        if self._settings.placement is Strategy.RING:
            return 0
        brokers = sorted(self._cache.snapshot.brokers)
        return next((i for i, broker in enumerate(brokers) if broker >= first_replica), 0)

    def _place(self, spec: PlacementSpec, start_index: int) -> dict[int, ReplicaAssignment]:
        brokers = sorted(self._cache.snapshot.brokers.items())
        request = PlaceTopicsRequest(
            topics=(spec,),
            brokers=tuple(PlacementBroker(number, broker.rack, 0) for number, broker in brokers),
            strategy=self._settings.placement,
            start_index=str(start_index),
            index=IndexScope.PER_TOPIC,
            seed=0,
        )
        try:
            return {row.partition: ReplicaAssignment(row.replicas) for row in place(request)}
        except PlacementError as error:
            raise _RefusedError(error.error_code, str(error)) from None


# --- what speaks against it -----------------------------------------------------------------------


def _check_name(topic: str, existing: set[str], names: TopicNames) -> None:
    if topic in existing:
        raise _RefusedError(Errors.TOPIC_ALREADY_EXISTS, f"{topic} exists")
    problem = topic_name_problem(topic)
    if problem is not None:
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"the name {problem}")
    other = names.collision(topic)
    if other is not None:
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"{topic} collides with {other}")


def _checked_config(config: Mapping[str, str | None]) -> dict[str, str]:
    checked: dict[str, str] = {}
    for name, value in config.items():
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
        raise _unknown(topic)
    if isinstance(stored, BadDataError):
        raise _RefusedError(Errors.UNKNOWN_SERVER_ERROR, str(stored))
    if is_being_deleted:
        raise _RefusedError(Errors.INVALID_TOPIC_EXCEPTION, f"{topic} is being deleted")
    if any(assignment.is_being_reassigned for assignment in stored.partitions.values()):
        raise _RefusedError(Errors.REASSIGNMENT_IN_PROGRESS, f"{topic} is being reassigned")
    if sorted(stored.partitions) != list(range(len(stored.partitions))) or not stored.partitions:
        raise _RefusedError(Errors.INVALID_REQUEST, f"{topic} lacks some of its partitions")
    return stored


def _unknown(topic: str) -> _RefusedError:
    return _RefusedError(Errors.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")


def _outcomes(
    topics: Sequence[str], refusals: Mapping[str, _RefusedError], written: Mapping[str, Errors]
) -> list[TopicOutcome]:
    """Return an outcome for each topic, named once, in the order of the request."""
    return [
        TopicOutcome(topic, refusals[topic].error_code, str(refusals[topic]))
        if topic in refusals
        else TopicOutcome(topic, written.get(topic, Errors.NONE))
        for topic in dict.fromkeys(topics)
    ]


# --- whether it is done ---------------------------------------------------------------------------


def _is_led(snapshot: MetadataSnapshot, topic: str, count: int) -> bool:
    rows = (snapshot.partitions.get(TopicPartition(topic, number)) for number in range(count))
    return all(row is not None and row.leader != NO_LEADER for row in rows)


def _is_known(snapshot: MetadataSnapshot, topic: str) -> bool:
    return topic in snapshot.topic_ids
