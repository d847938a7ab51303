"""Clients' requests about topics, on a simulated cluster: CreateTopicsRequestTest and others.

Every step of the cluster takes a millisecond, so that a client's timeout may expire before the
cluster has handled the request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from regent.core.admin.admin_manager import AdminManager, AdminSettings
from regent.core.admin.admin_requests import PendingAnswer, timeout_of
from regent.core.errors import Errors
from regent.core.model import BrokerId, TopicPartition
from regent.core.placement.replica_placer import Strategy
from regent.core.protocol.messages.topics import CreatableTopic
from regent.core.protocol.topics import TopicsRequest
from regent.core.replication.metadata_cache import MetadataCache
from regent.zk.codecs.topic_znodes import TopicZNodeData
from regent.zk.stores.topic_store import ZkTopicStore
from regent.zk.znodes import DeleteTopicsTopicZNode, TopicZNode
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    is_called_unknown,
    one_of,
)
from tests.conformance.rules import ERRORS
from tests.simulation.cluster import Cluster
from tests.simulation.fetchers import FETCH_INTERVAL_MS
from tests.support.fake_zookeeper import FakeZooKeeper
from tests.support.local_placer import LocalPlacer
from tests.support.topic_requests import (
    assigned,
    creatable,
    create_partitions,
    create_topics,
    delete_topics,
    errors_of,
    growing,
    setting,
)
from tests.support.world import TopicIds

TIMEOUT_MS = 10_000


class Desk:
    """A cluster and the broker that its clients use; placement as Kafka's own."""

    def __init__(self, brokers: Collection[BrokerId], *, to_controller: bool = True) -> None:
        self.cluster = Cluster(sorted(brokers))
        self.cluster.run_until_quiet()
        (active,) = self.cluster.active_controllers
        others = [b for b in self.cluster.brokers.values() if b is not active]
        asked = active if to_controller else others[0]
        self.cache: MetadataCache = asked.cache
        self.manager = AdminManager(
            asked.cache,
            ZkTopicStore(FakeZooKeeper(self.cluster.zookeeper)),
            TopicIds(),
            lambda: asked.controller.is_active,
            LocalPlacer(),
            AdminSettings(placement=Strategy.KAFKA),
        )

    def answer(self, request: TopicsRequest) -> list[Errors]:
        """Run until a request is answered."""
        pending = PendingAnswer(request, self.manager.decide(request), timeout_of(request))
        now_ms = 0
        while (response := pending.poll(self.cache.snapshot, now_ms)) is None:
            steps = self.cluster.steps()
            if steps:
                self.cluster.take(steps[0])
            else:
                self.cluster.time.advance(FETCH_INTERVAL_MS)
            now_ms += 1
        return [error for _, error in errors_of(response)]

    def create(self, topic: CreatableTopic, timeout_ms: int = TIMEOUT_MS) -> Errors:
        """Create one topic."""
        (error,) = self.answer(create_topics((topic,), timeout_ms))
        return error

    def put_topic(self, topic: str, partitions: Mapping[int, tuple[BrokerId, ...]]) -> None:
        """Ensure that a topic exists."""
        self.cluster.rewrite_topic(topic, partitions)
        self.cluster.run_until_quiet()

    def topic(self, topic: str) -> TopicZNodeData | None:
        """Return the content of a topic's znode."""
        node = self.cluster.zookeeper.snapshot().get(TopicZNode.path(topic))
        return None if node is None else TopicZNode.decode(node.data)

    def replicas(self, topic: str) -> dict[int, list[BrokerId]]:
        """Return the assignment of a topic."""
        stored = self.topic(topic)
        return {} if stored is None else {p: list(a.replicas) for p, a in stored.partitions.items()}

    def leader(self, topic: str, partition: int) -> BrokerId:
        """Return the leader."""
        stored = self.cluster.state(TopicPartition(topic, partition))
        assert stored is not None, f"{topic}-{partition} has no leader"
        return stored.leader_and_isr.leader


def _named(error: str | None) -> Errors:
    wanted: Errors = one_of(error or "NONE", ERRORS, "the error")
    return wanted


def _at_controller(given: Fields) -> bool:
    places = {"controller": True, "non_controller": False}
    is_there: bool = one_of(given.take("to", "controller"), places, "to")
    return is_there


def _by_partition(rows: Mapping[str, Any]) -> dict[int, Any]:
    return {int(partition): row for partition, row in rows.items()}


# --- creating -------------------------------------------------------------------------------------


def create_topics_request(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        brokers = given.take("brokers", 3)
        brokers = range(brokers) if isinstance(brokers, int) else brokers
        desk = Desk(brokers, to_controller=_at_controller(given))
        if given.take("exists", False):
            desk.put_topic("topic", {0: (min(brokers),)})
        assignment = given.take("assignment", None)
        usual = 1 if assignment is None else -1
        wanted = creatable(
            "topic",
            given.take("partitions", usual),
            given.take("rf", usual),
            assignments=() if assignment is None else assigned(*_tuples(assignment).items()),
            configs=tuple(
                setting(name, None if value is None else str(value))
                for name, value in given.take("config", {}).items()
            ),
        )
        error = desk.create(wanted, given.take("timeout_ms", TIMEOUT_MS))
        assert error is _named(expect.take("error", None))
        desk.cluster.run_until_quiet()
        if error in (Errors.NONE, Errors.REQUEST_TIMED_OUT):
            replicas = desk.replicas("topic")
            assert all(desk.leader("topic", number) in brokers for number in replicas)
            assert len(replicas) == (
                wanted.num_partitions if assignment is None else len(assignment)
            )


def _tuples(assignment: Mapping[str, Any]) -> dict[int, tuple[BrokerId, ...]]:
    return {number: tuple(row) for number, row in _by_partition(assignment).items()}


def topic_assignment_validation(case: Case) -> None:
    assignment = _tuples(case.take("in"))
    named = {replica for row in assignment.values() for replica in row if replica >= 0}
    with case.nested("expect") as expect:
        desk = Desk(named | {0})
        error = desk.create(creatable("topic", assignments=assigned(*assignment.items())))
        assert (error is Errors.NONE) is expect.take("valid")
        for name in expect.expected("error"):
            assert error is _named(name)
        is_stored = desk.replicas("topic") == {n: list(row) for n, row in assignment.items()}
        assert is_stored is (error is Errors.NONE)


# --- growing --------------------------------------------------------------------------------------


def add_partitions(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        desk = Desk(given.take("brokers"))
        existing, manual = _tuples(given.take("existing")), given.take("manual", None)
        # The manager derives it from the topic, as Kafka does; the placement shows it.
        given.take("start_index", None)
        assert given.take("start_partition_id", len(existing)) == len(existing)
        desk.put_topic("topic", existing)
        added = None
        if manual is not None:
            rows = sorted(_tuples(manual).items())
            added = tuple(row for number, row in rows if number not in existing)
        wanted = growing("topic", given.take("total"), added)
        (error,) = desk.answer(create_partitions((wanted,), TIMEOUT_MS))
        assert error is _named(expect.take("error", None))
        if error is not Errors.NONE:
            assert desk.replicas("topic") == {n: list(row) for n, row in existing.items()}
        desk.cluster.run_until_quiet()
        _assert_grown(desk, expect)


def _assert_grown(desk: Desk, expect: Fields) -> None:
    found = desk.replicas("topic")
    for count in expect.expected("partition_count"):
        assert len(found) == count
    for count in expect.expected("replicas_per_partition"):
        assert {len(row) for row in found.values()} == {count}
    for rows in expect.expected("replicas"):
        assert {number: found[number] for number in _by_partition(rows)} == _by_partition(rows)
    for replica_set in expect.expected("replica_set"):
        if isinstance(replica_set, list):
            replica_set = dict.fromkeys(found, replica_set)
        for number, row in _by_partition(replica_set).items():
            assert sorted(found[number]) == sorted(row)
    for leaders in expect.expected("leader"):
        wanted = dict(enumerate(leaders)) if isinstance(leaders, list) else _by_partition(leaders)
        assert {number: desk.leader("topic", number) for number in wanted} == wanted
    for is_replica in expect.expected("leader_in_replicas"):
        led = {number: desk.leader("topic", number) for number in found}
        assert all(led[number] in row for number, row in found.items()) is is_replica


def create_partitions_validation(case: Case) -> None:
    """One topic, or an object of topics in each key of the case."""
    with case.nested("in") as given, case.nested("expect") as expect:
        current, totals = (
            given.take("current", {"partitions": 1, "rf": 1}),
            given.take("requested_total", 3),
        )
        is_one = not isinstance(totals, Mapping)
        currents = {"topic": current} if is_one else current
        wanted = {"topic": totals} if is_one else totals
        assignments = given.take("assignments", None)
        rows = {"topic": assignments} if is_one else (assignments or {})
        desk = Desk(given.take("brokers", [0, 1, 2]))
        for one in (currents, rows):
            if not set(one) <= set(wanted):
                raise UnknownInCaseError(f"not understood: {sorted(set(one) - set(wanted))}")
        for topic in wanted:
            _have(desk, topic, currents.get(topic))
        before = {topic: desk.replicas(topic) for topic in wanted}
        growing_topics = tuple(
            growing(t, total, None if rows.get(t) is None else tuple(map(tuple, rows[t])))
            for t, total in wanted.items()
        )
        request = create_partitions(
            growing_topics, TIMEOUT_MS, validate_only=given.take("validate_only", False)
        )
        errors = dict(zip(wanted, desk.answer(request), strict=True))
        expected = expect.take("error", None)
        if isinstance(expected, Mapping) and not set(expected) <= set(errors):
            raise UnknownInCaseError(f"not understood: {sorted(set(expected) - set(errors))}")
        for topic, error in errors.items():
            one = expected.get(topic) if isinstance(expected, Mapping) else expected
            assert error is _named(one)
            assert error is Errors.NONE or desk.replicas(topic) == before[topic]
        _assert_counts(desk, expect, is_one=is_one)


def _have(desk: Desk, topic: str, current: Any) -> None:
    """Create a topic in the state that the case gives before the request."""
    if current is None or current in ("absent", "unknown") or is_called_unknown(topic):
        return
    if isinstance(current, str):
        current = {"partitions": 1, "rf": 1, "state": current}
    with Fields(current, "current") as fields:
        factor = fields.take("rf", 1)
        state = fields.take("topic_state", fields.take("state", "usual"))
        is_queued = fields.take("queued_for_deletion", False)
        count = fields.take("partitions", 1)
    known = ("usual", "queued_for_deletion", "being_deleted", "deleting", "absent", "unknown")
    if state not in known:
        raise UnknownInCaseError(f"a topic that is {state!r}")
    if state in ("absent", "unknown"):
        return
    brokers = sorted(desk.cluster.brokers)
    ring = [*brokers, *brokers]
    starts = {number: number % len(brokers) for number in range(count)}
    desk.put_topic(topic, {n: tuple(ring[s : s + factor]) for n, s in starts.items()})
    if is_queued or state != "usual":
        desk.cluster.zookeeper.put(DeleteTopicsTopicZNode.path(topic))


def _assert_counts(desk: Desk, expect: Fields, *, is_one: bool) -> None:
    for counts in expect.expected("partitions"):
        wanted = {"topic": counts} if is_one else counts
        assert {topic: len(desk.replicas(topic)) for topic in wanted} == wanted
    for rows in expect.expected("replicas"):
        found = desk.replicas("topic")
        assert {number: found[number] for number in _by_partition(rows)} == _by_partition(rows)


# --- deleting -------------------------------------------------------------------------------------


def delete_topics_request(case: Case) -> None:
    with case.nested("in") as given, case.nested("expect") as expect:
        desk = Desk([0, 1, 2], to_controller=_at_controller(given))
        desk.put_topic("known", {0: (0, 1, 2), 1: (1, 2, 0)})
        stored = desk.topic("known")
        assert stored is not None
        ids = {"known": stored.topic_id, "unknown": "x" * 22}
        topics = _as_list(given.take("topic", []))
        wanted_ids = _as_list(given.take("topic_id", []))
        if not topics and not wanted_ids:
            topics = ["known"]
        if {*topics, *wanted_ids} - {"known", "unknown"}:
            raise UnknownInCaseError(f"topics {topics}, ids {wanted_ids}")
        timeout_ms = given.take("timeout_ms", TIMEOUT_MS)
        names = tuple(str(ids[name]) for name in wanted_ids)
        errors = desk.answer(delete_topics(tuple(topics), timeout_ms, names))
        named = dict(zip([*topics, *wanted_ids], (error.name for error in errors), strict=True))
        for expected in expect.expected("error"):
            if isinstance(expected, Mapping):
                assert named == {name: error or "NONE" for name, error in expected.items()}
            elif isinstance(expected, list):
                assert list(named.values()) == expected
            else:
                assert set(named.values()) == {expected or "NONE"}
        desk.cluster.run_until_quiet()
        is_gone = named.get("known") in ("NONE", "REQUEST_TIMED_OUT")
        assert (desk.topic("known") is None) is is_gone


def _as_list(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
