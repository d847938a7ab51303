from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from regent.core.admin.admin_manager import (
    MAX_MESSAGE_LENGTH,
    AdminManager,
    AdminSettings,
)
from regent.core.admin.admin_requests import NewTopic, PendingAnswer
from regent.core.admin.topic_validation import unknown_topic
from regent.core.errors import ApiError, BadDataError, Errors, SessionExpiredError
from regent.core.model import BrokerId, ReplicaAssignment
from regent.core.placement.replica_placer import Strategy, place
from regent.core.ports import TopicAssignment
from regent.core.protocol.control import (
    ControlHeader,
    UpdateMetadataBroker,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)
from regent.core.protocol.placement import PlaceTopicsRequest, PlaceTopicsResponse
from regent.core.protocol.topics import (
    MAX_NEW_PARTITIONS,
    AlterOperation,
    AlterTopicConfigsRequest,
    AssignedPartition,
    ConfigAlteration,
    ConfigEntry,
    ConfiguredTopic,
    CreatableTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    GrowingTopic,
    PlacementOptions,
    TopicOutcome,
    TopicsRequest,
    TopicsResponse,
)
from regent.core.replication.metadata_cache import MetadataCache
from tests.support.term import KnownTopicIds, topic_id

NOW, PATIENCE = 1_000, 500


class Desk:
    """An admin manager with three brokers, and everything around it; implements ``TopicStore``."""

    def __init__(self, settings: AdminSettings | None = None, *, rules: bool = True) -> None:
        self.rules = rules
        self.cache = MetadataCache()
        self.topics: dict[str, dict[int, ReplicaAssignment]] = {}
        self.overrides: dict[str, Mapping[str, str]] = {}
        self.changes: list[tuple[str, Mapping[str, str | None]]] = []
        self.failure: Exception | None = None
        self.deleting: set[str] = set()
        self.jobs: list[PlaceTopicsRequest] = []
        self.manager = AdminManager(
            self.cache, self, KnownTopicIds(), lambda: self.rules, self, settings
        )
        self.tell()

    def read_topic_names(self) -> Collection[str]:
        return self.topics

    def read_topics_being_deleted(self) -> Collection[str]:
        return self.deleting

    def read_topics(self, topics: Collection[str]) -> dict[str, TopicAssignment | BadDataError]:
        assert not any("/" in topic for topic in topics), "it would be part of a path"
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
    def configs(self) -> Desk:
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
        note = "" if use_service else "no service"
        return PlaceTopicsResponse(Errors.NONE, note, tuple(place(request)))

    def warming(self) -> str:
        return "Spark is starting"

    # --- what tests do ---

    def have(self, topic: str, *replicas: tuple[BrokerId, ...]) -> None:
        """Have a topic, known to nobody yet."""
        self.topics[topic] = {n: ReplicaAssignment(row) for n, row in enumerate(replicas)}

    def tell(self, *, leaderless: bool = False) -> None:
        """Let the metadata cache learn of every topic that is not being deleted."""
        states = tuple(
            UpdateMetadataTopic(topic, topic_id(number), _rows(partitions, leaderless))
            for number, (topic, partitions) in enumerate(self.topics.items(), 1)
        )
        brokers = tuple(UpdateMetadataBroker(b, 1, (), None, None, None) for b in range(3))
        header = ControlHeader(0, 1, 1)
        self.cache.update(header, UpdateMetadataRequest(states, brokers))

    def forget(self, topic: str) -> None:
        """Let the metadata cache forget a topic."""
        rows = tuple(row._replace(leader=-2) for row in _rows(self.topics.pop(topic), False))
        states = (UpdateMetadataTopic(topic, None, rows),)
        self.cache.update(ControlHeader(0, 1, 1), UpdateMetadataRequest(states, ()))

    def decide(self, request: TopicsRequest) -> list[Errors]:
        """Have a request decided; return its outcomes."""
        return [outcome.error_code for outcome in self.manager.decide(request).outcomes]

    def create(self, *topics: CreatableTopic) -> list[Errors]:
        """Create topics."""
        return self.decide(CreateTopicsRequest(topics, PATIENCE))

    def grow(self, topic: str, total: int, *assignments: tuple[BrokerId, ...]) -> Errors:
        """Give a topic more partitions."""
        growing = GrowingTopic(topic, total, assignments or None)
        (error,) = self.decide(CreatePartitionsRequest((growing,), PATIENCE))
        return error

    def alter(self, *alterations: ConfigAlteration, topic: str = "t") -> Errors:
        """Change what a topic overrides; return the outcome."""
        wanted = ConfiguredTopic(topic, alterations)
        (error,) = self.decide(AlterTopicConfigsRequest((wanted,), 0))
        return error

    def delete(self, *topics: str) -> list[Errors]:
        """Delete topics."""
        return self.decide(DeleteTopicsRequest(topics, PATIENCE))

    def ask(self, request: TopicsRequest) -> PendingAnswer:
        """Have a request decided and wait for the cluster."""
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


# --- creating -------------------------------------------------------------------------------------


def test_a_topic_is_created_when_every_partition_is_led():
    desk = Desk()
    pending = desk.ask(CreateTopicsRequest((CreatableTopic("t", 2, 3),), PATIENCE))
    assert desk.replicas("t") == [(0, 1, 2), (1, 2, 0)]
    assert pending.poll(desk.cache.snapshot, NOW) is None
    desk.tell(leaderless=True)
    assert pending.poll(desk.cache.snapshot, NOW) is None
    desk.tell()
    created = TopicOutcome("t", Errors.NONE, partitions=2)
    assert pending.poll(desk.cache.snapshot, NOW) == TopicsResponse((created,))


def test_whose_patience_is_over_is_told_so_and_the_topic_stays():
    desk = Desk()
    pending = desk.ask(CreateTopicsRequest((CreatableTopic("t"),), PATIENCE))
    response = pending.poll(desk.cache.snapshot, NOW + PATIENCE)
    message = "topic t: 1 of 1 partitions have no leader after 500 ms; everything is written"
    late = TopicOutcome("t", Errors.REQUEST_TIMED_OUT, message, 1)
    assert response == TopicsResponse((late,))
    assert "t" in desk.topics


def test_numbers_left_out_are_the_brokers_own():
    desk = Desk(AdminSettings(num_partitions=3, default_replication_factor=2))
    assert desk.create(CreatableTopic("t")) == [Errors.NONE]
    assert desk.replicas("t") == [(0, 1), (1, 2), (2, 0)]


def test_an_assignment_and_a_configuration_are_stored_as_given():
    desk = Desk()
    assignment = (AssignedPartition(1, (2, 0)), AssignedPartition(0, (1, 2)))
    config = (ConfigEntry("cleanup.policy", "compact"),)
    desk.create(CreatableTopic("t", assignment=assignment, config=config))
    assert not desk.jobs
    assert desk.replicas("t") == [(1, 2), (2, 0)]
    assert desk.overrides["t"] == {"cleanup.policy": "compact"}


def assigned(*rows: tuple[int, BrokerId]) -> tuple[AssignedPartition, ...]:
    return tuple(AssignedPartition(number, (replica,)) for number, replica in rows)


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (CreatableTopic("there"), Errors.TOPIC_ALREADY_EXISTS),
        (CreatableTopic("t.a"), Errors.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("no spaces"), Errors.INVALID_TOPIC_EXCEPTION),
        (CreatableTopic("t", 0), Errors.INVALID_PARTITIONS),
        (CreatableTopic("t", 1, 4), Errors.INVALID_REPLICATION_FACTOR),
        (CreatableTopic("t", MAX_NEW_PARTITIONS + 1), Errors.POLICY_VIOLATION),
        (CreatableTopic("t", 1, -1, assigned((0, 0))), Errors.INVALID_REQUEST),
        (CreatableTopic("t", assignment=()), Errors.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignment=assigned((1, 0))), Errors.INVALID_REPLICA_ASSIGNMENT),
        (CreatableTopic("t", assignment=assigned((0, 9))), Errors.INVALID_REPLICA_ASSIGNMENT),
        (
            CreatableTopic("t", assignment=assigned((0, 0), (0, 1))),
            Errors.INVALID_REPLICA_ASSIGNMENT,
        ),
        (CreatableTopic("t", config=(ConfigEntry("cleanup.policy", "x"),)), Errors.INVALID_CONFIG),
        (
            CreatableTopic("t", config=(ConfigEntry("cleanup.policy", None),)),
            Errors.INVALID_REQUEST,
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    wanted: CreatableTopic, error: Errors
):
    desk = Desk()
    desk.have("there", (0,))
    desk.have("t_a", (0,))
    assert desk.create(wanted) == [error]
    assert set(desk.topics) == {"there", "t_a"}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (CreatableTopic("old"), "topic old already exists"),
        (CreatableTopic("gone"), "topic gone already exists and is being deleted"),
        (
            CreatableTopic("a_b"),
            'topic a_b collides with topic a.b: "." and "_" are the same in metrics',
        ),
        (CreatableTopic("a b"), "topic 'a b' has other characters than"),
        (CreatableTopic(""), "topic '' is empty"),
        (CreatableTopic("two\nlines"), r"topic 'two\nlines' has other characters"),
        (CreatableTopic("t", 0, 1), "topic t: the number of partitions must be positive, not 0"),
        (CreatableTopic("t", 1, 0), "topic t: the replication factor must be positive, not 0"),
        (CreatableTopic("t", 1, 4), "topic t: replication factor 4 is larger than the 3 available"),
        (
            CreatableTopic("t", config=(ConfigEntry("retention.ms", "x"),)),
            "topic t config retention.ms must be a number from",
        ),
        (
            CreatableTopic("t", config=(ConfigEntry("colour", "red"),)),
            "topic t config colour is not a setting of topics",
        ),
        (
            CreatableTopic("t", assignment=(AssignedPartition(0, (0, 9)),)),
            "topic t cannot be assigned like this: broker 9 is not registered; registered are 0, 1",
        ),
        (CreatableTopic("t", 200_000, 3), "topic t: 200000 partitions take 3600000 bytes in Zoo"),
    ],
)
def test_a_refusal_names_the_topic_and_the_reason(wanted: CreatableTopic, message: str):
    desk = Desk()
    for topic in ("old", "gone", "a.b"):
        desk.have(topic, (0,))
    desk.deleting.add("gone")
    request = CreateTopicsRequest((wanted,), 0, True)
    (outcome,) = desk.manager.decide(request).outcomes
    assert outcome.message.startswith(message)


def test_a_refusal_that_quotes_a_long_value_is_cut_short():
    config = (ConfigEntry("cleanup.policy", "x" * 32_767),)
    request = CreateTopicsRequest((CreatableTopic("t", config=config),), PATIENCE)
    (outcome,) = Desk().manager.decide(request).outcomes
    assert len(outcome.message) == MAX_MESSAGE_LENGTH


def test_one_bad_topic_leaves_the_others_alone():
    desk = Desk()
    topics = CreatableTopic("bad", 0), CreatableTopic("good")
    assert desk.create(*topics) == [Errors.INVALID_PARTITIONS, Errors.NONE]
    assert set(desk.topics) == {"good"}


def test_a_topic_named_twice_or_colliding_with_another_of_the_request_is_refused():
    desk = Desk()
    assert desk.create(CreatableTopic("t"), CreatableTopic("t")) == [Errors.INVALID_REQUEST]
    colliding = desk.create(CreatableTopic("a.b"), CreatableTopic("a_b"))
    assert colliding == [Errors.NONE, Errors.INVALID_TOPIC_EXCEPTION]


def test_validation_alone_writes_nothing():
    desk = Desk()
    request = CreateTopicsRequest((CreatableTopic("t", 2),), PATIENCE, validate_only=True)
    valid = TopicOutcome("t", Errors.NONE, partitions=2)
    assert desk.ask(request).poll(desk.cache.snapshot, NOW) == TopicsResponse((valid,))
    assert not desk.topics


def test_a_tool_learns_what_the_placement_service_does():
    desk, topics = Desk(), (CreatableTopic("t"),)
    for use_service, starting, note in ((True, "Spark is starting", ""), (False, "", "no service")):
        options = PlacementOptions(use_service=use_service)
        request = CreateTopicsRequest(topics, 0, validate_only=True, placement=options)
        assert desk.manager.decide(request).placement_note == starting
        desk.topics.clear()
        request = CreateTopicsRequest(topics, 0, placement=options)
        assert desk.manager.decide(request).placement_note == note
    assert desk.manager.decide(CreateTopicsRequest(topics, 0, True)).placement_note == ""


def test_a_tool_chooses_how_new_topics_are_placed():
    desk = Desk()
    desk.have("old", (0, 1), (0, 1))
    desk.tell()
    topics = CreatableTopic("a", 1, 2), CreatableTopic("b", 1, 1)
    options = PlacementOptions("kafka", "least-loaded", "batch", seed=7)
    desk.decide(CreateTopicsRequest(topics, 0, placement=options))
    (job,) = desk.jobs
    assert (job.strategy, job.start_index, job.index, job.seed) == (
        "kafka",
        "least-loaded",
        "batch",
        7,
    )
    assert [broker.replica_count for broker in job.brokers] == [2, 2, 0]
    assert [desk.replicas(topic)[0][0] for topic in "ab"] == [2, 0]


def test_what_is_created_together_is_placed_in_one_job():
    desk = Desk()
    desk.create(CreatableTopic("a", 2, 1), CreatableTopic("bad", 0), CreatableTopic("b", 1, 2))
    assert [[spec.topic for spec in job.topics] for job in desk.jobs] == [["a", "b"]]
    assert desk.replicas("a") == [(0,), (1,)]
    assert desk.replicas("b") == [(0, 1)]


def test_the_partitions_of_a_request_are_bounded_together():
    desk = Desk()
    topics = CreatableTopic("a", MAX_NEW_PARTITIONS), CreatableTopic("b", 1)
    request = CreateTopicsRequest(topics, PATIENCE, validate_only=True)
    assert desk.decide(request) == [Errors.NONE, Errors.POLICY_VIOLATION]


def test_an_earlier_attempt_at_the_same_topic_counts_as_done():
    desk = Desk()
    desk.have("t", (0,))  # the desk gives every topic the id 1
    again = desk.create(CreatableTopic("t", topic_id=topic_id(1)))
    another = desk.create(CreatableTopic("t", topic_id=topic_id(2)))
    assert [*again, *another] == [Errors.NONE, Errors.TOPIC_ALREADY_EXISTS]


# --- growing --------------------------------------------------------------------------------------


def test_the_ring_goes_on_where_it_ended():
    desk = Desk()
    desk.have("t", (0, 1), (1, 2))
    assert desk.grow("t", 4) is Errors.NONE
    assert desk.replicas("t")[2:] == [(2, 0), (0, 1)]


def test_kafkas_scheme_goes_on_at_the_first_leader():
    desk = Desk(AdminSettings(placement=Strategy.KAFKA))
    desk.have("t", (1, 2))
    assert desk.grow("t", 3) is Errors.NONE
    assert [replicas[0] for replicas in desk.replicas("t")] == [1, 2, 0]


def test_new_partitions_may_be_assigned():
    desk = Desk()
    desk.have("t", (0, 1))
    assert desk.grow("t", 3, (2, 0), (1, 0)) is Errors.NONE
    assert desk.replicas("t") == [(0, 1), (2, 0), (1, 0)]


def test_what_cannot_grow_is_refused():
    desk = Desk()
    desk.have("t", (0, 1))
    desk.have("deleting", (0,))
    desk.deleting.add("deleting")
    desk.topics["moving"] = {0: ReplicaAssignment((0, 1), (1,))}
    desk.topics["torn"] = {1: ReplicaAssignment((0,))}
    assert desk.grow("nobody", 2) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert desk.grow("t/partitions/0", 2) is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert desk.grow("t", 1) is Errors.INVALID_PARTITIONS
    assert desk.grow("t", 3, (0, 1)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert desk.grow("t", 2, (0,)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert desk.grow("t", 2, (0, 9)) is Errors.INVALID_REPLICA_ASSIGNMENT
    assert desk.grow("deleting", 2) is Errors.INVALID_TOPIC_EXCEPTION
    assert desk.grow("moving", 2) is Errors.REASSIGNMENT_IN_PROGRESS
    assert desk.grow("torn", 3) is Errors.INVALID_REQUEST


# --- deleting -------------------------------------------------------------------------------------


def test_a_topic_is_deleted_when_this_broker_knows_it_no_more():
    desk = Desk()
    desk.have("t", (0,))
    desk.tell()
    pending = desk.ask(DeleteTopicsRequest(("t",), PATIENCE))
    assert desk.deleting == {"t"}
    assert pending.poll(desk.cache.snapshot, NOW) is None
    desk.forget("t")
    assert pending.poll(desk.cache.snapshot, NOW) == TopicsResponse(
        (TopicOutcome("t", Errors.NONE),)
    )


def test_a_topic_may_be_named_by_its_id():
    desk = Desk()
    desk.have("t", (0,))
    desk.tell()
    unknown = topic_id(9)
    decided = desk.manager.decide(DeleteTopicsRequest((), PATIENCE, (topic_id(1), unknown)))
    assert [(o.topic, o.error_code) for o in decided.outcomes] == [
        ("t", Errors.NONE),
        (unknown, Errors.UNKNOWN_TOPIC_ID),
    ]
    assert desk.deleting == {"t"}


def test_unknown_topics_and_disabled_deletion_are_refused():
    assert Desk().delete("nobody") == [Errors.UNKNOWN_TOPIC_OR_PARTITION]
    desk = Desk(AdminSettings(delete_topic_enable=False))
    desk.have("t", (0,))
    desk.tell()
    assert desk.delete("t") == [Errors.TOPIC_DELETION_DISABLED]
    assert not desk.deleting


def test_only_the_broker_that_rules_accepts():
    desk = Desk(rules=False)
    desk.have("t", (0,))
    desk.tell()
    assert desk.create(CreatableTopic("new")) == [Errors.NOT_CONTROLLER]
    assert desk.grow("t", 2) is Errors.NOT_CONTROLLER
    assert desk.delete("t") == [Errors.NOT_CONTROLLER]
    assert not desk.deleting


# --- configuring ----------------------------------------------------------------------------------


@pytest.fixture
def configured() -> Desk:
    """A topic that overrides two settings."""
    desk = Desk(AdminSettings(topic_defaults={"cleanup.policy": "delete"}))
    desk.have("t", (0,))
    desk.overrides["t"] = {"retention.ms": "99", "segment.ms": "5"}
    return desk


def set_(name: str, value: str | None) -> ConfigAlteration:
    return ConfigAlteration(name, AlterOperation.SET, value)


def test_replacing_drops_what_is_not_named(configured: Desk):
    wanted = ConfiguredTopic("t", (set_("segment.ms", "6"),), replaces=True)
    assert configured.decide(AlterTopicConfigsRequest((wanted,), 0)) == [Errors.NONE]
    assert configured.changes == [("t", {"retention.ms": None, "segment.ms": "6"})]


def test_changes_leave_the_rest_alone(configured: Desk):
    deleted = ConfigAlteration("segment.ms", AlterOperation.DELETE)
    assert configured.alter(deleted, set_("flush.ms", "1")) is Errors.NONE
    assert configured.changes == [("t", {"segment.ms": None, "flush.ms": "1"})]


@pytest.mark.parametrize(
    ("before", "operation", "value", "after"),
    [
        (None, AlterOperation.APPEND, "compact", "delete,compact"),
        ("compact", AlterOperation.APPEND, "compact,delete", "compact,delete"),
        ("compact,delete", AlterOperation.SUBTRACT, "delete", "compact"),
    ],
)
def test_lists_take_and_lose_values(
    configured: Desk, before: str | None, operation: AlterOperation, value: str, after: str
):
    configured.overrides["t"] = {} if before is None else {"cleanup.policy": before}
    assert configured.alter(ConfigAlteration("cleanup.policy", operation, value)) is Errors.NONE
    assert configured.changes == [("t", {"cleanup.policy": after})]


@pytest.mark.parametrize(
    ("alteration", "error"),
    [
        (set_("made.up", "1"), Errors.INVALID_CONFIG),
        (set_("segment.ms", "soon"), Errors.INVALID_CONFIG),
        (set_("segment.ms", None), Errors.INVALID_REQUEST),
        (ConfigAlteration("segment.ms", AlterOperation.APPEND, "1"), Errors.INVALID_REQUEST),
        (ConfigAlteration("segment.ms", 9, "1"), Errors.INVALID_REQUEST),
        (
            ConfigAlteration("cleanup.policy", AlterOperation.SUBTRACT, "delete"),
            Errors.INVALID_CONFIG,
        ),
    ],
)
def test_settings_that_are_not_valid_are_refused(
    configured: Desk, alteration: ConfigAlteration, error: Errors
):
    assert configured.alter(alteration) is error
    assert not configured.changes


def test_a_setting_named_twice_and_topics_that_do_not_exist_are_refused(configured: Desk):
    change = set_("segment.ms", "1")
    assert configured.alter(change, change) is Errors.INVALID_REQUEST
    assert configured.alter(change, topic="nobody") is Errors.UNKNOWN_TOPIC_OR_PARTITION
    assert configured.alter(change, topic="a/b") is Errors.INVALID_TOPIC_EXCEPTION
    assert not configured.changes


def test_validating_settings_changes_nothing(configured: Desk):
    for value, error in (("6", Errors.NONE), ("x", Errors.INVALID_CONFIG)):
        wanted = ConfiguredTopic("t", (set_("segment.ms", value),))
        request = AlterTopicConfigsRequest((wanted,), 0, validate_only=True)
        assert configured.decide(request) == [error]
    assert not configured.changes


def test_settings_that_cannot_be_written_are_refused_or_tried_again(configured: Desk):
    configured.failure = BadDataError("garbage")
    assert configured.alter(set_("segment.ms", "6")) is Errors.UNKNOWN_SERVER_ERROR
    configured.failure = SessionExpiredError("no session")
    with pytest.raises(SessionExpiredError):
        configured.alter(set_("segment.ms", "6"))
