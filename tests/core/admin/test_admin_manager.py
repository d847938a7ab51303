from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from regent.core.admin.admin_manager import (
    MAX_MESSAGE_LENGTH,
    AdminManager,
    AdminSettings,
)
from regent.core.admin.admin_requests import NewTopic, PendingAnswer
from regent.core.errors import ApiError, BadDataError, Errors, SessionExpiredError
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.placement.replica_placer import Strategy, place
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.envelope import Requester
from regent.core.protocol.messages.configs import AlterableConfig, AlterOperation
from regent.core.protocol.messages.topics import (
    MAX_NEW_PARTITIONS,
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsResponse,
    PlacementOptions,
)
from regent.core.protocol.placement import PlaceTopicsRequest, PlaceTopicsResponse
from regent.core.protocol.topics import TopicsRequest, TopicsResponse, error_of, results_of
from regent.core.replication.metadata_cache import MetadataCache, MetadataSnapshot
from regent.core.topic_validation import unknown_topic
from tests.support.topic_requests import (
    alter_topic,
    alteration,
    assigned,
    creatable,
    create_partitions,
    create_topics,
    delete_topics,
    errors_of,
    growing,
    setting,
)
from tests.support.world import TopicIds, live_broker, topic_id

NOW, PATIENCE = 1_000, 500
STRICT, LENIENT = Requester("u", "c", is_strict=True), Requester("u", "c", is_strict=False)


class FakeAdmin:
    """An admin manager with three brokers and its ports; implements ``TopicStore``."""

    def __init__(self, settings: AdminSettings | None = None, *, is_active: bool = True) -> None:
        self.is_active = is_active
        self.cache = MetadataCache()
        self.topics: dict[str, dict[int, ReplicaAssignment]] = {}
        self.overrides: dict[str, Mapping[str, str]] = {}
        self.changes: list[tuple[str, Mapping[str, str | None]]] = []
        self.failure: Exception | None = None
        self.deleting: set[str] = set()
        self.jobs: list[PlaceTopicsRequest] = []
        self.start: ApiError | None = None  # why the placement service cannot be asked
        self.problem: ApiError | None = None  # why it cannot place what it was asked
        self.permits = 1_000_000
        self.manager = AdminManager(
            self.cache,
            self,
            TopicIds(),
            lambda: self.is_active,
            self,
            settings,
            self.take_permits,
        )
        self.update_metadata()

    def take_permits(self, requester: Requester, permits: int) -> tuple[bool, int]:
        """Take permits while there are any; a wait has as many milliseconds as are missing."""
        if requester.is_strict and self.permits < 0:
            return False, -self.permits
        self.permits -= permits
        return True, 0 if requester.is_strict else max(-self.permits, 0)

    def read_topic_names(self) -> Collection[str]:
        return self.topics

    def read_topics_being_deleted(self) -> Collection[str]:
        return self.deleting

    def read_topics(self, topics: Collection[str]) -> dict[str, TopicAssignment | BadDataError]:
        assert not any("/" in topic for topic in topics), "a slash would change the path"
        return {
            topic: TopicAssignment(topic_id(1), self.topics[topic], 0, 1)
            for topic in topics
            if topic in self.topics
        }

    def create_topics(self, topics: Mapping[str, NewTopic]) -> Mapping[str, ApiError]:
        for topic, new in topics.items():
            self.topics[topic], self.overrides[topic] = dict(new.partitions), new.config
        return dict.fromkeys(topics, ApiError(Errors.NONE))

    def add_partitions(
        self, added: Mapping[str, Mapping[int, ReplicaAssignment]]
    ) -> Mapping[str, ApiError]:
        for topic, partitions in added.items():
            self.topics[topic] |= partitions
        return dict.fromkeys(added, ApiError(Errors.NONE))

    def mark_for_deletion(self, topics: Collection[str]) -> Mapping[str, ApiError]:
        self.deleting |= self.topics.keys() & topics
        done = dict.fromkeys(self.deleting, ApiError(Errors.NONE))
        return {topic: done.get(topic, unknown_topic(topic)) for topic in topics}

    @property
    def configs(self) -> FakeAdmin:
        return self

    def read_topic_configs(self, topics: Collection[str]) -> Mapping[str, Mapping[str, str]]:
        return {topic: self.overrides.get(topic, {}) for topic in topics}

    def alter_topic_config(
        self, topic: str, changes: Mapping[str, str | None]
    ) -> Mapping[str, str]:
        if self.failure is not None:
            raise self.failure
        self.changes.append((topic, changes))
        return {}

    def place(self, request: PlaceTopicsRequest, *, use_service: bool) -> PlaceTopicsResponse:
        self.jobs.append(request)
        error = self.problem if use_service else None
        if error is not None:
            return PlaceTopicsResponse(*error)
        return PlaceTopicsResponse(Errors.NONE, "", tuple(place(request)))

    def obstacle(self) -> ApiError | None:
        return self.start

    # --- for tests --------------------------------------------------------------------------------

    def have(self, topic: str, *replicas: tuple[BrokerId, ...]) -> None:
        """Put a topic into the store; the metadata cache does not know it."""
        self.topics[topic] = {n: ReplicaAssignment(row) for n, row in enumerate(replicas)}

    def update_metadata(self, *, leaderless: bool = False) -> None:
        """Update the metadata cache with all topics."""
        states = tuple(
            UpdateMetadataTopic(topic, topic_id(number), _rows(partitions, leaderless))
            for number, (topic, partitions) in enumerate(self.topics.items(), 1)
        )
        brokers = tuple(live_broker(b, 1) for b in range(3))
        header = ControlHeader(0, 1, 1)
        self.cache.update(header, UpdateMetadataRequest(states, brokers, lists_all=True))

    def forget(self, topic: str) -> None:
        """Remove a topic from the store and the metadata cache."""
        rows = tuple(row._replace(leader=-2) for row in _rows(self.topics.pop(topic), False))
        states = (UpdateMetadataTopic(topic, None, rows),)
        self.cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest(states, ()))

    def decide(self, request: TopicsRequest) -> list[Errors]:
        """Decide a request; return its errors."""
        return [error for _, error in errors_of(self.manager.decide(request))]

    def create(self, *topics: CreatableTopic) -> list[Errors]:
        """Create topics."""
        return self.decide(create_topics(topics, PATIENCE))

    def grow(self, topic: str, total: int, *assignments: tuple[BrokerId, ...]) -> Errors:
        """Add partitions to a topic."""
        wanted = growing(topic, total, assignments or None)
        (error,) = self.decide(create_partitions((wanted,), PATIENCE))
        return error

    def alter(self, *alterations: AlterableConfig, topic: str = "t") -> Errors:
        """Change the overrides of a topic; return the error."""
        (error,) = self.decide(alter_topic(topic, *alterations))
        return error

    def delete(self, *topics: str) -> list[Errors]:
        """Delete topics."""
        return self.decide(delete_topics(topics, PATIENCE))

    def ask(self, request: TopicsRequest) -> PendingAnswer:
        """Decide a request and return the pending answer."""
        return PendingAnswer(request, self.manager.decide(request), NOW + PATIENCE)

    def replicas(self, topic: str) -> list[tuple[BrokerId, ...]]:
        """Return the assignment of a topic."""
        return [a.replicas for _, a in sorted(self.topics[topic].items())]


def _rows(
    partitions: Mapping[int, ReplicaAssignment], leaderless: bool
) -> tuple[UpdateMetadataPartition, ...]:
    return tuple(
        UpdateMetadataPartition(
            number,
            1,
            -1 if leaderless else assignment.replicas[0],
            0,
            assignment.replicas,
            0,
            assignment.replicas,
            (),
        )
        for number, assignment in partitions.items()
    )


# --- creation -------------------------------------------------------------------------------------


def test_a_created_topic_is_answered_when_every_partition_has_a_leader():
    admin = FakeAdmin()
    pending = admin.ask(create_topics((creatable("t", 2, 3),), PATIENCE))
    assert admin.replicas("t") == [(0, 1, 2), (1, 2, 0)]
    assert pending.poll(admin.cache.snapshot, NOW) is None
    admin.update_metadata(leaderless=True)
    assert pending.poll(admin.cache.snapshot, NOW) is None
    admin.update_metadata()
    created = CreatableTopicResult(
        name="t", error_code=0, topic_id=topic_id(1), num_partitions=2, replication_factor=3
    )
    assert pending.poll(admin.cache.snapshot, NOW) == CreateTopicsResponse(topics=(created,))


def test_a_request_that_times_out_keeps_its_topic():
    admin = FakeAdmin()
    pending = admin.ask(create_topics((creatable("t"),), PATIENCE))
    response = pending.poll(admin.cache.snapshot, NOW + PATIENCE)
    message = "topic t: 1 of 1 partitions have no leader after 500 ms; all partitions are created"
    late = CreatableTopicResult(
        name="t",
        error_code=Errors.REQUEST_TIMED_OUT,
        error_message=message,
        topic_id=topic_id(1),
    )
    assert response == CreateTopicsResponse(topics=(late,))
    assert "t" in admin.topics


def test_missing_numbers_are_the_defaults_of_the_broker():
    admin = FakeAdmin(AdminSettings(num_partitions=3, default_replication_factor=2))
    assert admin.create(creatable("t")) == [Errors.NONE]
    assert admin.replicas("t") == [(0, 1), (1, 2), (2, 0)]


def test_an_assignment_and_a_configuration_are_stored_as_given():
    admin = FakeAdmin()
    assignments = assigned((1, (2, 0)), (0, (1, 2)))
    config = (setting("cleanup.policy", "compact"),)
    admin.create(creatable("t", assignments=assignments, configs=config))
    assert not admin.jobs
    assert admin.replicas("t") == [(1, 2), (2, 0)]
    assert admin.overrides["t"] == {"cleanup.policy": "compact"}


def on(*rows: tuple[int, BrokerId]) -> tuple[CreatableReplicaAssignment, ...]:
    return assigned(*((number, (replica,)) for number, replica in rows))


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (creatable("there"), Errors.TOPIC_ALREADY_EXISTS),
        (creatable("t.a"), Errors.INVALID_TOPIC_EXCEPTION),
        (creatable("no spaces"), Errors.INVALID_TOPIC_EXCEPTION),
        (creatable("t", 0), Errors.INVALID_PARTITIONS),
        (creatable("t", 1, 4), Errors.INVALID_REPLICATION_FACTOR),
        (creatable("t", MAX_NEW_PARTITIONS + 1), Errors.POLICY_VIOLATION),
        (creatable("t", 1, -1, assignments=on((0, 0))), Errors.INVALID_REQUEST),
        (creatable("t", assignments=on((1, 0))), Errors.INVALID_REPLICA_ASSIGNMENT),
        (creatable("t", assignments=on((0, 9))), Errors.INVALID_REPLICA_ASSIGNMENT),
        (
            creatable("t", assignments=on((0, 0), (0, 1))),
            Errors.INVALID_REPLICA_ASSIGNMENT,
        ),
        (creatable("t", configs=(setting("cleanup.policy", "x"),)), Errors.INVALID_CONFIG),
        (
            creatable("t", configs=(setting("cleanup.policy", None),)),
            Errors.INVALID_CONFIG,
        ),
    ],
)
def test_an_invalid_topic_is_refused_before_anything_is_written(
    wanted: CreatableTopic, error: Errors
):
    admin = FakeAdmin()
    admin.have("there", (0,))
    admin.have("t_a", (0,))
    assert admin.create(wanted) == [error]
    assert set(admin.topics) == {"there", "t_a"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (creatable("old"), "topic old already exists"),
        (creatable("gone"), "topic gone already exists and is being deleted"),
        (
            creatable("a_b"),
            'topic a_b collides with topic a.b: "." and "_" are the same in metrics',
        ),
        (creatable("a b"), "topic 'a b' has other characters than"),
        (creatable(""), "topic '' is empty"),
        (creatable("two\nlines"), r"topic 'two\nlines' has other characters"),
        (creatable("t", 0, 1), "topic t: the number of partitions must be positive, not 0"),
        (creatable("t", 1, 0), "topic t: the replication factor must be positive, not 0"),
        (creatable("t", 1, 4), "topic t: replication factor 4 is larger than the 3 available"),
        (
            creatable("t", configs=(setting("retention.ms", "x"),)),
            "topic t config retention.ms must be a number from",
        ),
        (
            creatable("t", configs=(setting("colour", "red"),)),
            "topic t config colour is not a setting of topics",
        ),
        (
            creatable("t", assignments=assigned((0, (0, 9)))),
            "topic t cannot be assigned like this: broker 9 is not registered; registered are 0, 1",
        ),
        (creatable("t", 200_000, 3), "topic t: 200000 partitions take 3600000 bytes in Zoo"),
    ],
)
def test_a_refusal_names_the_topic_and_the_reason(wanted: CreatableTopic, message: str):
    admin = FakeAdmin()
    for topic in ("old", "gone", "a.b"):
        admin.have(topic, (0,))
    admin.deleting.add("gone")
    request = create_topics((wanted,), validate_only=True)
    (result,) = results_of(admin.manager.decide(request))
    assert error_of(result).message.startswith(message)


def test_a_long_error_message_is_shortened():
    config = (setting("cleanup.policy", "x" * 32_767),)
    request = create_topics((creatable("t", configs=config),), PATIENCE)
    (result,) = results_of(FakeAdmin().manager.decide(request))
    assert len(error_of(result).message) == MAX_MESSAGE_LENGTH


def test_an_invalid_topic_does_not_affect_others():
    admin = FakeAdmin()
    topics = creatable("bad", 0), creatable("good")
    assert admin.create(*topics) == [Errors.INVALID_PARTITIONS, Errors.NONE]
    assert set(admin.topics) == {"good"}


def test_a_topic_named_twice_or_colliding_in_the_request_is_refused():
    admin = FakeAdmin()
    assert admin.create(creatable("t"), creatable("t")) == [Errors.INVALID_REQUEST]
    colliding = admin.create(creatable("a.b"), creatable("a_b"))
    assert colliding == [Errors.NONE, Errors.INVALID_TOPIC_EXCEPTION]


def test_validate_only_writes_nothing_and_knows_the_numbers():
    admin = FakeAdmin(AdminSettings(num_partitions=2, default_replication_factor=3))
    topics = (creatable("t"), creatable("u", assignments=on((0, 1))))
    request = create_topics(topics, PATIENCE, validate_only=True)
    response = admin.ask(request).poll(admin.cache.snapshot, NOW)
    assert isinstance(response, CreateTopicsResponse)
    assert [
        (row.name, row.error_code, row.num_partitions, row.replication_factor)
        for row in response.topics
    ] == [("t", Errors.NONE, 2, 3), ("u", Errors.NONE, 1, 1)]
    assert not admin.topics


STARTING = ApiError(Errors.COORDINATOR_LOAD_IN_PROGRESS, "Spark is starting")
NO_JAVA = ApiError(Errors.BROKER_NOT_AVAILABLE, "no Java")


@pytest.mark.parametrize(
    ("start", "problem"), [(STARTING, None), (NO_JAVA, None), (None, STARTING), (None, NO_JAVA)]
)
def test_nothing_is_written_when_the_placement_service_does_not_place(
    start: ApiError | None, problem: ApiError | None
):
    admin, topics = FakeAdmin(), (creatable("t"), creatable("u", assignments=on((0, 1))))
    admin.start, admin.problem = start, problem
    admin.have("old", (0,))
    for request in (create_topics(topics), create_partitions([growing("old", 2)])):
        response = admin.manager.decide(request)
        assert {(error_of(row)) for row in results_of(response)} == {start or problem}
    assert (set(admin.topics), len(admin.topics["old"])) == ({"old"}, 1)


def test_a_request_costs_no_quota_while_the_placement_service_starts():
    admin = FakeAdmin()
    admin.start = STARTING
    admin.manager.decide(create_topics([creatable("t")]), STRICT)
    assert admin.permits == 1_000_000


@pytest.mark.parametrize(
    ("options", "assignments"),
    [(PlacementOptions(use_service=False), ()), (None, assigned((0, (1,))))],
)
def test_a_request_that_needs_no_placement_service_does_not_await_it(
    options: PlacementOptions | None, assignments: tuple[CreatableReplicaAssignment, ...]
):
    admin = FakeAdmin()
    admin.start = STARTING
    request = create_topics([creatable("t", assignments=assignments)], placement=options)
    assert errors_of(admin.manager.decide(request)) == [("t", Errors.NONE)]


def test_an_invalid_topic_is_refused_while_the_placement_service_starts():
    admin = FakeAdmin()
    admin.start = STARTING
    assert admin.decide(create_topics([creatable("bad", 0), creatable("good")])) == [
        Errors.INVALID_PARTITIONS,
        Errors.COORDINATOR_LOAD_IN_PROGRESS,
    ]


def test_all_topics_are_created_or_none_if_the_sender_wants_that():
    admin = FakeAdmin()
    topics = [creatable("good"), creatable("bad", 0)]
    errors = admin.decide(create_topics(topics, all_or_none=True))
    assert errors == [Errors.OPERATION_NOT_ATTEMPTED, Errors.INVALID_PARTITIONS]
    assert not admin.topics
    admin.have("t", (0,))
    errors = admin.decide(delete_topics(["t", "unknown"], all_or_none=True))
    assert errors == [Errors.OPERATION_NOT_ATTEMPTED, Errors.UNKNOWN_TOPIC_OR_PARTITION]
    assert not admin.deleting
    assert admin.decide(delete_topics(["t"], all_or_none=True)) == [Errors.NONE]


def test_the_result_tells_what_a_tool_must_know():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.deleting.add("t")
    response = admin.manager.decide(create_topics([creatable("t")]))
    assert isinstance(response, CreateTopicsResponse)
    assert response.topics[0].is_being_deleted
    admin.deleting.clear()
    grown = admin.manager.decide(create_partitions([growing("t", 3), growing("u", 2)]))
    assert isinstance(grown, CreatePartitionsResponse)
    assert [row.previous_count for row in grown.results] == [1, -1]


@pytest.mark.parametrize("waits", [True, False])
def test_a_sender_may_wait_for_the_decision_only(waits: bool):
    admin = FakeAdmin()
    for request in (
        create_topics([creatable("t")], waits=waits),
        delete_topics(["t"], waits=waits),
    ):
        response = admin.ask(request).poll(admin.cache.snapshot, NOW)
        assert (response is None) is waits
        admin.update_metadata()


def test_a_tool_chooses_the_placement_of_new_topics():
    admin = FakeAdmin()
    admin.have("old", (0, 1), (0, 1))
    admin.update_metadata()
    topics = creatable("a", 1, 2), creatable("b", 1, 1)
    options = PlacementOptions(strategy="kafka", start_index="least-loaded", index="batch", seed=7)
    admin.decide(create_topics(topics, 0, placement=options))
    (job,) = admin.jobs
    assert (job.strategy, job.start_index, job.index, job.seed) == (
        "kafka",
        "least-loaded",
        "batch",
        7,
    )
    assert [broker.replica_count for broker in job.brokers] == [2, 2, 0]
    assert [admin.replicas(topic)[0][0] for topic in "ab"] == [2, 0]


def test_topics_created_together_are_placed_in_one_job():
    admin = FakeAdmin()
    admin.create(creatable("a", 2, 1), creatable("bad", 0), creatable("b", 1, 2))
    assert [[spec.topic for spec in job.topics] for job in admin.jobs] == [["a", "b"]]
    assert admin.replicas("a") == [(0,), (1,)]
    assert admin.replicas("b") == [(0, 1)]


def test_the_partitions_of_a_request_are_limited_together():
    admin = FakeAdmin()
    topics = creatable("a", MAX_NEW_PARTITIONS), creatable("b", 1)
    request = create_topics(topics, PATIENCE, validate_only=True)
    assert admin.decide(request) == [Errors.NONE, Errors.POLICY_VIOLATION]


def test_a_topic_created_by_an_earlier_attempt_counts_as_created():
    admin = FakeAdmin()
    admin.have("t", (0,))  # every topic gets the id 1
    again = admin.create(creatable("t", topic_id=topic_id(1)))
    another = admin.create(creatable("t", topic_id=topic_id(2)))
    assert [*again, *another] == [Errors.NONE, Errors.TOPIC_ALREADY_EXISTS]


# --- additional partitions ------------------------------------------------------------------------


def test_the_ring_continues_for_added_partitions():
    admin = FakeAdmin()
    admin.have("t", (0, 1), (1, 2))
    assert admin.grow("t", 4) is Errors.NONE
    assert admin.replicas("t")[2:] == [(2, 0), (0, 1)]


def test_kafkas_scheme_continues_from_the_first_leader():
    admin = FakeAdmin(AdminSettings(placement=Strategy.KAFKA))
    admin.have("t", (1, 2))
    assert admin.grow("t", 3) is Errors.NONE
    assert [replicas[0] for replicas in admin.replicas("t")] == [1, 2, 0]


def test_added_partitions_may_be_assigned():
    admin = FakeAdmin()
    admin.have("t", (0, 1))
    assert admin.grow("t", 3, (2, 0), (1, 0)) is Errors.NONE
    assert admin.replicas("t") == [(0, 1), (2, 0), (1, 0)]


def test_invalid_added_partitions_are_refused():
    admin = FakeAdmin()
    admin.have("t", (0, 1))
    admin.have("deleting", (0,))
    admin.deleting.add("deleting")
    admin.topics["moving"] = {0: ReplicaAssignment((0, 1), (1,))}
    admin.topics["torn"] = {1: ReplicaAssignment((0,))}
    assert admin.grow("unknown", 2) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.grow("t/partitions/0", 2) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.grow("t", 1) is Errors.INVALID_PARTITIONS
    assert admin.grow("t", 3, (0, 1)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert admin.grow("t", 2, (0,)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert admin.grow("t", 2, (0, 9)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert admin.grow("deleting", 2) is Errors.INVALID_TOPIC_EXCEPTION
    assert admin.grow("moving", 2) is Errors.REASSIGNMENT_IN_PROGRESS
    assert admin.grow("torn", 3) is Errors.INVALID_REQUEST


# --- deletion -------------------------------------------------------------------------------------


def test_a_deletion_is_answered_when_this_broker_no_longer_knows_the_topic():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.update_metadata()
    pending = admin.ask(delete_topics(("t",), PATIENCE))
    assert admin.deleting == {"t"}
    assert pending.poll(admin.cache.snapshot, NOW) is None
    admin.forget("t")
    response = pending.poll(admin.cache.snapshot, NOW)
    assert response is not None
    assert errors_of(response) == [("t", Errors.NONE)]


def test_a_topic_may_be_deleted_by_its_id():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.update_metadata()
    unknown = topic_id(9)
    decided = admin.manager.decide(delete_topics((), PATIENCE, (topic_id(1), unknown)))
    assert isinstance(decided, DeleteTopicsResponse)
    assert [(row.name, row.error_code, row.topic_id) for row in decided.responses] == [
        ("t", Errors.NONE, topic_id(1)),
        (None, Errors.UNKNOWN_TOPIC_ID, unknown),
    ]
    assert admin.deleting == {"t"}
    twice = admin.manager.decide(delete_topics(("t",), PATIENCE, (topic_id(1),)))
    assert errors_of(twice) == [("t", Errors.INVALID_REQUEST)]


def test_a_controller_that_its_own_broker_does_not_know_yet_decides_later():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.cache.snapshot = MetadataSnapshot()
    assert admin.create(creatable("u", 1, 1)) == [Errors.NOT_CONTROLLER]
    brokers = tuple(live_broker(b, 1) for b in range(3))
    admin.cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest((), brokers))
    assert admin.create(creatable("u", 1, 1)) == [Errors.NONE]
    by_id = delete_topics((), PATIENCE, (topic_id(1),))
    assert admin.decide(by_id) == [Errors.NOT_CONTROLLER], "not: there is no such topic"


def test_a_deletion_is_not_believed_because_a_broker_has_just_started():
    outcome = DeleteTopicsResponse(responses=(DeletableTopicResult(name="t", error_code=0),))
    request = delete_topics(("t",), PATIENCE)
    pending = PendingAnswer(request, outcome, NOW + PATIENCE)
    cache = MetadataCache()
    assert pending.poll(cache.snapshot, NOW) is None
    cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest((), (), lists_all=True))
    assert pending.poll(cache.snapshot, NOW) == outcome


def test_unknown_topics_and_disabled_deletion_are_refused():
    assert FakeAdmin().delete("unknown") == [Errors.UNKNOWN_TOPIC_OR_PARTITION]
    admin = FakeAdmin(AdminSettings(delete_topic_enable=False))
    admin.have("t", (0,))
    admin.update_metadata()
    assert admin.delete("t") == [Errors.TOPIC_DELETION_DISABLED]
    assert not admin.deleting


def test_a_protected_topic_is_not_deleted_until_its_protection_is_taken_away():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.have("u", (0,))
    admin.overrides["t"] = {"regent.deletion.protection": "true"}
    admin.update_metadata()
    assert admin.decide(delete_topics(("t", "u"))) == [Errors.TOPIC_DELETION_DISABLED, Errors.NONE]
    assert admin.decide(delete_topics((), PATIENCE, (topic_id(1),))) == [
        Errors.TOPIC_DELETION_DISABLED
    ]
    assert admin.deleting == {"u"}
    admin.overrides["t"] = {"regent.deletion.protection": "false"}
    assert admin.decide(delete_topics(("t",))) == [Errors.NONE]


def test_with_one_protected_topic_no_topic_of_a_request_for_all_or_none_is_deleted():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.have("u", (0,))
    admin.overrides["u"] = {"regent.deletion.protection": "true"}
    request = replace(delete_topics(("t", "u")), all_or_none=True)
    assert admin.decide(request) == [
        Errors.OPERATION_NOT_ATTEMPTED,
        Errors.TOPIC_DELETION_DISABLED,
    ]
    assert not admin.deleting


def test_the_deletion_of_topics_is_disabled_and_enabled_while_the_broker_runs():
    admin = FakeAdmin()
    admin.have("t", (0,))
    admin.update_metadata()
    admin.manager.delete_topic_enable = False
    assert admin.delete("t") == [Errors.TOPIC_DELETION_DISABLED]
    admin.manager.delete_topic_enable = True
    assert admin.delete("t") == [Errors.NONE]


def test_only_the_active_controller_accepts_requests():
    admin = FakeAdmin(is_active=False)
    admin.have("t", (0,))
    admin.update_metadata()
    assert admin.create(creatable("new")) == [Errors.NOT_CONTROLLER]
    assert admin.grow("t", 2) is Errors.NOT_CONTROLLER
    assert admin.delete("t") == [Errors.NOT_CONTROLLER]
    assert not admin.deleting


# --- configuration --------------------------------------------------------------------------------


@pytest.fixture
def configured() -> FakeAdmin:
    """A topic with two overrides."""
    admin = FakeAdmin(AdminSettings(topic_defaults={"cleanup.policy": "delete"}))
    admin.have("t", (0,))
    admin.overrides["t"] = {"retention.ms": "99", "segment.ms": "5"}
    return admin


def set_(name: str, value: str | None) -> AlterableConfig:
    return alteration(name, AlterOperation.SET, value)


def test_replacing_removes_settings_that_are_not_named(configured: FakeAdmin):
    replaced = alter_topic("t", set_("segment.ms", "6"), replaces=True)
    assert configured.decide(replaced) == [Errors.NONE]
    assert configured.changes == [("t", {"retention.ms": None, "segment.ms": "6"})]


def test_changes_keep_the_other_settings(configured: FakeAdmin):
    deleted = alteration("segment.ms", AlterOperation.DELETE)
    assert configured.alter(deleted, set_("flush.ms", "1")) is Errors.NONE
    assert configured.changes == [("t", {"segment.ms": None, "flush.ms": "1"})]


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, AlterOperation.APPEND, "compact", "delete,compact"),
        ("compact", AlterOperation.APPEND, "compact,delete", "compact,delete"),
        ("compact,delete", AlterOperation.SUBTRACT, "delete", "compact"),
        ("delete", AlterOperation.SUBTRACT, "delete", ""),
    ],
)
def test_values_are_appended_to_and_removed_from_lists(
    configured: FakeAdmin, before: str | None, operation: AlterOperation, value: str, after: str
):
    configured.overrides["t"] = {} if before is None else {"cleanup.policy": before}
    assert configured.alter(alteration("cleanup.policy", operation, value)) is Errors.NONE
    assert configured.changes == [("t", {"cleanup.policy": after})]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (set_("made.up", "1"), Errors.INVALID_CONFIG),
        (set_("segment.ms", "soon"), Errors.INVALID_CONFIG),
        (set_("segment.ms", None), Errors.INVALID_REQUEST),
        (alteration("segment.ms", AlterOperation.APPEND, "1"), Errors.INVALID_CONFIG),
        (alteration("segment.ms", 9, "1"), Errors.INVALID_REQUEST),
        (alteration("made.up", AlterOperation.SUBTRACT, "1"), Errors.INVALID_CONFIG),
        (set_("remote.storage.enable", "true"), Errors.INVALID_CONFIG),
    ],
)
def test_invalid_settings_are_refused(
    configured: FakeAdmin, change: AlterableConfig, error: Errors
):
    assert configured.alter(change) is error
    assert not configured.changes


def test_a_topic_whose_compaction_lags_contradict_each_other_is_refused(configured: FakeAdmin):
    configured.overrides["t"] = {"max.compaction.lag.ms": "10"}
    assert configured.alter(set_("min.compaction.lag.ms", "11")) is Errors.INVALID_CONFIG
    assert configured.alter(set_("min.compaction.lag.ms", "10")) is Errors.NONE


def test_a_setting_named_twice_and_unknown_topics_are_refused(configured: FakeAdmin):
    change = set_("segment.ms", "1")
    assert configured.alter(change, change) is Errors.INVALID_REQUEST
    assert configured.alter(change, topic="unknown") is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert configured.alter(change, topic="a/b") is Errors.INVALID_TOPIC_EXCEPTION
    assert not configured.changes


def test_validate_only_changes_no_settings(configured: FakeAdmin):
    for value, error in (("6", Errors.NONE), ("x", Errors.INVALID_CONFIG)):
        request = alter_topic("t", set_("segment.ms", value), validate_only=True)
        assert configured.decide(request) == [error]
    assert not configured.changes


def test_settings_that_cannot_be_written_are_refused_or_retriable(configured: FakeAdmin):
    configured.failure = BadDataError("garbage")
    assert configured.alter(set_("segment.ms", "6")) is Errors.UNKNOWN_SERVER_ERROR
    configured.failure = SessionExpiredError("no session")
    with pytest.raises(SessionExpiredError):
        configured.alter(set_("segment.ms", "6"))


# --- the quota of controller mutations ------------------------------------------------------------


def two_topics(**more: Any) -> CreateTopicsRequest:
    topics = (creatable("a", 3), creatable("b", 2), creatable("a b"))
    return create_topics(topics, PATIENCE, **more)


def outcomes_of(response: TopicsResponse) -> dict[str, Errors]:
    return dict(errors_of(response))


def test_topics_beyond_a_strict_quota_are_refused():
    admin = FakeAdmin()
    admin.permits = 2
    response = admin.manager.decide(two_topics(), STRICT)
    assert outcomes_of(response) == {
        "a": Errors.NONE,
        "b": Errors.THROTTLING_QUOTA_EXCEEDED,
        "a b": Errors.INVALID_TOPIC_EXCEPTION,
    }
    assert response.throttle_time_ms == 1
    assert error_of(results_of(response)[1]).message == (
        "topic b: the quota controller_mutation_rate is used up"
    )
    assert [*admin.topics] == ["a"]


def test_topics_beyond_a_lenient_quota_are_created_and_the_client_waits():
    admin = FakeAdmin()
    admin.permits = 2
    response = admin.manager.decide(two_topics(), LENIENT)
    assert (outcomes_of(response)["b"], response.throttle_time_ms) == (Errors.NONE, 3)


@pytest.mark.parametrize("requester", [None, STRICT])
def test_validation_and_requests_without_a_client_take_no_permits(requester: Requester | None):
    admin = FakeAdmin()
    admin.permits = 2
    request = two_topics(validate_only=requester is not None)
    assert outcomes_of(admin.manager.decide(request, requester))["b"] is Errors.NONE
    assert admin.permits == 2


def test_a_repeated_request_takes_no_permits_for_topics_that_it_has_created():
    admin = FakeAdmin()
    topics = (creatable("a", 3, topic_id=topic_id(1)),)
    for _ in range(2):
        admin.manager.decide(create_topics(topics, PATIENCE), STRICT)
    assert admin.permits == 1_000_000 - 3


def test_added_and_deleted_partitions_take_permits():
    admin = FakeAdmin()
    admin.have("a", (0, 1), (1, 2))
    admin.update_metadata()
    admin.manager.decide(create_partitions((growing("a", 5),), PATIENCE), STRICT)
    assert admin.permits == 1_000_000 - 3
    admin.permits = 0
    admin.update_metadata()
    for expected in (Errors.NONE, Errors.THROTTLING_QUOTA_EXCEEDED):
        deleted = admin.manager.decide(delete_topics(("a",), PATIENCE), STRICT)
        assert outcomes_of(deleted) == {"a": expected}
    assert admin.permits == -5


# --- brokers that take no replicas ---


def bar(admin: FakeAdmin, *barred: BrokerId) -> None:
    """Tell the broker that some of the three brokers take no replicas."""
    brokers = tuple(replace(live_broker(b, 1), no_replicas=b in barred) for b in range(3))
    admin.cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest((), brokers))


def test_new_partitions_are_placed_on_the_other_brokers():
    admin = FakeAdmin()
    admin.have("t", (1, 2))
    admin.update_metadata()
    bar(admin, 0)
    assert admin.create(creatable("u", 4, 2)) == [Errors.NONE]
    assert admin.grow("t", 4) is Errors.NONE
    placed = [row.replicas for topic in ("t", "u") for row in admin.topics[topic].values()]
    assert {replica for replicas in placed for replica in replicas} == {1, 2}
    assert admin.create(creatable("v", 1, 3)) == [Errors.INVALID_REPLICATION_FACTOR]


def test_an_assignment_to_a_broker_that_takes_no_replicas_is_refused():
    admin = FakeAdmin()
    bar(admin, 0)
    admin.topics["t"] = {0: ReplicaAssignment((1, 2))}
    assert admin.grow("t", 2, (0, 1)) is Errors.INVALID_REPLICA_ASSIGNMENT
