"""The deletion of topics, replica by replica: TopicDeletionManagerTest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from regent.core.controller.states import PartitionState
from regent.core.errors import Errors
from regent.core.model import (
    LEADER_DURING_DELETE,
    BrokerId,
    PartitionAndReplica,
    ReplicaAssignment,
    TopicPartition,
)
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    check_words,
    one_of,
    partition,
)
from tests.conformance.machines import PARTITION_STATES, REPLICA_STATES
from tests.support.controller_parts import ControllerParts, metadata_rows
from tests.support.world import topic_id

_BROKER = r"(?:those |(?:the )?replicas? )?(?:on |of )?(?:broker )?(\d+)"
_PUSHES = (
    "every once each live named topic topics updatemetadata broker brokers partition partitions"
)


class Deletions:
    """A controller with topics on all brokers, with all replicas online."""

    def __init__(self, context: Fields) -> None:
        self.brokers: list[BrokerId] = context.take("brokers")
        count, factor = context.take("partitions"), context.take("rf")
        topics = context.take("topics")
        self.parts = ControllerParts(self.brokers)
        for number, topic in enumerate(topics, 1):
            ring = [*self.brokers, *self.brokers]
            starts = [index % len(self.brokers) for index in range(count)]
            partitions = {
                index: tuple(ring[start : start + factor]) for index, start in enumerate(starts)
            }
            self.parts.put_topic(topic, partitions, topic_id(number))
        self.parts.brokers.on_broker_change()  # it watches them from now on
        self.parts.topics.on_topic_change()
        self.dead: set[BrokerId] = set()  # now or earlier
        self.named: list[TopicPartition] = []  # the partitions of the last named topics
        self.replicas: list[PartitionAndReplica] = []
        self.parts.effects()

    def name(self, topics: Iterable[str]) -> None:
        """Store the partitions and replicas of these topics."""
        known = self.parts.context
        if not set(topics) <= set(known.all_topics):
            raise UnknownInCaseError(f"topics {topics}")
        self.named = [
            topic_partition for topic in topics for topic_partition in known.partitions_of(topic)
        ]
        self.replicas = known.replicas_of(self.named)

    def of(self, which: Any) -> list[PartitionAndReplica]:
        """Return the replicas that a case means: all, live, dead, or those of a broker."""
        if isinstance(which, int | list):
            brokers = {which} if isinstance(which, int) else set(which)
        elif which == "all":
            brokers = set(self.brokers)
        elif which == "live":
            brokers = set(self.brokers) - self.dead
        elif which in ("dead", "formerly dead"):
            brokers = self.dead
        elif (number := re.fullmatch(_BROKER, which)) is not None:
            brokers = {int(number[1])}
        else:
            raise UnknownInCaseError(f"the replicas {which!r}")
        return [replica for replica in self.replicas if replica.replica in brokers]

    # --- steps ---

    def init(self, step: Fields) -> None:
        """Begin a term: partitions of the ineligible topics are being moved."""
        moving = step.take("ineligible", [])
        known = self.parts.context
        if not set(moving) <= set(known.all_topics):
            raise UnknownInCaseError(f"topics {moving}")
        for topic in moving:
            for moved in known.partitions_of(topic):
                replicas = known.partition_replica_assignment(moved)
                assignment = ReplicaAssignment(replicas, adding_replicas=replicas[-1:])
                known.update_partition_full_replica_assignment(moved, assignment)
                known.partitions_being_reassigned.add(moved)
        for topic in step.take("to_delete"):
            self.parts.zookeeper.put(DeleteTopicsTopicZNode.path(topic))
        self.parts.deletions.load()

    def enqueue(self, step: Fields) -> None:
        """Request the deletion of topics."""
        topics = step.take("topics")
        self.name(topics)
        for topic in topics:
            self.parts.zookeeper.put(DeleteTopicsTopicZNode.path(topic))
        self.parts.deletions.on_topic_deletion()

    def complete(self, step: Fields) -> None:
        """Brokers answer that they deleted replicas."""
        self._answer(self.of(step.take("replicas")), Errors.NONE)

    def fail(self, step: Fields) -> None:
        """Replicas cannot be deleted: their broker died, or answers with an error."""
        replicas = self.of(step.take("replicas"))
        self.parts.deletions.fail([r for r in replicas if r.replica in self.dead])
        refused = [r for r in replicas if r.replica not in self.dead]
        self._answer(refused, Errors.KAFKA_STORAGE_ERROR)

    def _answer(self, replicas: Iterable[PartitionAndReplica], error: Errors) -> None:
        answers: dict[BrokerId, dict[TopicPartition, Errors]] = {}
        for replica in replicas:
            answers.setdefault(replica.replica, {})[replica.topic_partition] = error
        for broker_id, errors in answers.items():
            self.parts.deletions.on_stop_replica_response(broker_id, errors)

    def broker_down(self, step: Fields) -> None:
        """A broker dies; its replicas go offline."""
        broker_id = step.take("broker")
        if broker_id not in self.brokers:
            raise UnknownInCaseError(f"broker {broker_id!r}")
        self.dead.add(broker_id)
        self.parts.unregister(broker_id)
        self.parts.brokers.on_broker_change()
        for sentence in step.expected("then"):
            self._assert_moved(sentence)

    def _assert_moved(self, sentence: str) -> None:
        """Compare with a sentence about replicas."""
        said = re.fullmatch(
            r"(?:the )?replicas of (\w+) on (?:broker )?(\d+) "
            r"(?:(?:are )?moved?s? to|go(?: to)?|become|are) (\w+)",
            sentence,
        )
        if said is None:
            raise UnknownInCaseError(f"then {sentence!r}")
        known = self.parts.context
        replicas = known.replicas_of(known.partitions_of(said[1]))
        states = {known.replica_state(r) for r in replicas if r.replica == int(said[2])}
        assert states == {one_of(said[3], REPLICA_STATES, "the replicas' state")}

    def broker_up(self, step: Fields) -> None:
        """A broker registers again."""
        before = max(self.parts.context.live_broker_epochs.values(), default=0)
        registration = self.parts.register(step.take("broker"), incarnation=2)
        assert step.take("epoch", "+1") == "+1"
        assert registration.broker_epoch > before
        self.parts.brokers.on_broker_change()

    def resume(self, step: Fields) -> None:
        """Topics are eligible again."""
        topics = step.take("topics")
        if not set(topics) <= set(self.parts.context.all_topics):
            raise UnknownInCaseError(f"topics {topics}")
        self.parts.deletions.resume(topics)

    # --- expectations ---

    def assert_expected(self, expect: Fields) -> None:
        """Compare the state with what a step expects."""
        known = self.parts.context
        for key, found in (
            ("to_be_deleted", known.topics_to_be_deleted),
            ("started", known.topics_with_deletion_started),
            ("ineligible", known.topics_ineligible_for_deletion),
        ):
            for topics in expect.expected(key):
                assert found == set(topics)
        for state in expect.expected("partitions"):
            self._assert_partitions(state)
        for key, which in (
            ("replicas", "all"),
            ("replica_states", "all"),
            ("replicas_on_live", "live"),
            ("replicas_on_dead", "dead"),
        ):
            for state in expect.expected(key):
                self._assert_replicas(self.of(which), state)
        for key in sorted(key for key in expect.keys() if "metadata" in key):  # noqa: SIM118
            self._assert_pushed(expect.take(key))

    def _assert_partitions(self, state: Any) -> None:
        known = self.parts.context
        if state == []:
            assert not any(
                known.partitions_of(topic_partition.topic) for topic_partition in self.named
            )
            return
        wanted = one_of(state, PARTITION_STATES, "the partitions' state")
        assert {known.partition_state(topic_partition) for topic_partition in self.named} == {
            wanted
        }

    def _assert_replicas(self, replicas: list[PartitionAndReplica], state: Any) -> None:
        known = self.parts.context
        wanted = one_of(None if state == [] else state, REPLICA_STATES, "the replicas' state")
        assert {known.replica_state(replica) for replica in replicas} <= {wanted}
        assert state == [] or replicas

    def _assert_pushed(self, expected: Any) -> None:
        """Every live broker got metadata without a leader for the named partitions."""
        if isinstance(expected, list):
            assert set(map(partition, expected)) == set(self.named)
        elif expected not in (1, True):
            check_words(expected, "a metadata push", _PUSHES)
        rows = metadata_rows(self.parts.effects())
        for broker_id in self.parts.context.live_broker_ids:
            leaders = {
                topic_partition: row.leader for topic_partition, row in rows[broker_id].items()
            }
            assert leaders == dict.fromkeys(self.named, LEADER_DURING_DELETE)


def topic_deletion(case: Case) -> None:
    with case.nested("context") as context:
        deletions = Deletions(context)
    steps: Mapping[str, Callable[[Fields], None]] = {
        "init": deletions.init,
        "enqueue": deletions.enqueue,
        "complete": deletions.complete,
        "fail": deletions.fail,
        "broker_down": deletions.broker_down,
        "broker_up": deletions.broker_up,
        "resume": deletions.resume,
    }
    assert {
        deletions.parts.context.partition_state(topic_partition)
        for topic_partition in _all(deletions)
    } == {PartitionState.ONLINE}
    for step in case.take("steps"):
        with Fields(step, "step") as fields:
            one_of(fields.take("op"), steps, "the op")(fields)
            with fields.nested("expect") as expect:
                deletions.assert_expected(expect)


def _all(deletions: Deletions) -> list[TopicPartition]:
    return list(deletions.parts.context.all_partitions())
