"""The controller's memory: ControllerContextTest, and the count of offline partitions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from regent.core.controller.context import ControllerContext
from regent.core.controller.states import ReplicaState
from regent.core.model import BrokerId, TopicPartition
from regent.zk.znodes import DeleteTopicsTopicZNode
from tests.conformance.fields import (
    Case,
    Fields,
    UnknownInCaseError,
    assert_assignment,
    assignment,
    leadership,
    one_of,
    partition,
)
from tests.conformance.machines import PARTITION_STATES, REPLICA_STATES
from tests.conformance.rules import strategy
from tests.support.controller_parts import ControllerParts

_TOPIC = re.compile(r"topic\((.+)\)")


def controller_context_lookup(case: Case) -> None:
    context = ControllerContext()
    _assign(context, case.take("given", {}))
    for name, expected in case.take("expect", {}).items():
        _assert_lookup(context, name, expected)
    for step in case.take("steps", []):
        with Fields(step, "step") as fields:
            changed = fields.take("set", {})
            _assign(context, changed)
            for expected in fields.expected("expect"):
                _assert_step(context, list(changed), expected)


def _assign(context: ControllerContext, given: Mapping[str, Any]) -> None:
    for name, replicas in given.items():
        context.update_partition_full_replica_assignment(partition(name), assignment(replicas))


def _assert_step(context: ControllerContext, changed: list[str], expected: Any) -> None:
    """Compare the one partition that was set, or the lookups in the case."""
    if isinstance(expected, Mapping) and "replicas" not in expected:
        for name, value in expected.items():
            _assert_lookup(context, name, value)
        return
    for name in changed:
        _assert_lookup(context, name, expected)


def _assert_lookup(context: ControllerContext, name: str, expected: Any) -> None:
    """Compare ``topic(T)``, the assignments of a topic, or ``T-0``, those of a partition."""
    topic = _TOPIC.fullmatch(name)
    if topic is not None:
        found = context.partition_assignments(topic[1])
        assert found == {partition(n): assignment(replicas) for n, replicas in expected.items()}
    elif isinstance(expected, Mapping):
        with Fields(expected, name) as fields:
            assert_assignment(context.partition_full_replica_assignment(partition(name)), fields)
    elif isinstance(expected, list):
        assert list(context.partition_replica_assignment(partition(name))) == expected
    else:
        raise UnknownInCaseError(f"{name} is expected to be {expected!r}")


def preferred_imbalance_metric(case: Case) -> None:
    context = ControllerContext()
    for step in case.take("steps"):
        with Fields(step, "step") as fields:
            match fields.take("op"):
                case "assign":
                    _assign(context, {fields.take("tp"): fields.take("replicas")})
                case "leader":
                    known = leadership({k: fields.take(k) for k in ("leader", "isr")}, 1)
                    topic_partition = partition(fields.take("tp"))
                    context.put_partition_leadership_info(topic_partition, known)
                case "queue_delete":
                    context.queue_topic_deletion([fields.take("topic")])
                case "remove_topic":
                    context.remove_topic(fields.take("topic"))
                case unknown:
                    raise UnknownInCaseError(f"op {unknown}")
            for count in fields.expected("expect"):
                assert context.preferred_replica_imbalance_count == count


def offline_partition_count(case: Case) -> None:
    """PartitionStateMachineTest: partitions of one topic change states, and are counted."""
    topic_partitions = [partition(name) for name in case.take("partitions")]
    led = case.take("zk_leader_isr", None)
    replicas = case.take("assignment", None if led is None else led.get("isr")) or [0]
    by_partition = {
        topic_partition: _of(replicas, topic_partition) for topic_partition in topic_partitions
    }
    live = case.take("live", sorted({r for assigned in by_partition.values() for r in assigned}))
    parts = ControllerParts({0, *live})
    parts.context.remove_live_broker(0 if 0 not in live else -1)
    for name in topic_partitions:
        parts.context.update_partition_full_replica_assignment(name, assignment(by_partition[name]))
    _put_topics(parts, topic_partitions)
    if led is not None:
        for name in topic_partitions:
            state = led.get(str(name), led)
            parts.put_state(name, state["leader"], tuple(state["isr"]))
    parts.context.topics_to_be_deleted |= set(case.take("topics_to_be_deleted", []))
    parts.context.topics_with_deletion_started |= set(case.take("topics_with_deletion_started", []))
    _put_replica_states(parts, topic_partitions, case.take("replica_state", None))
    for step in case.take("steps"):
        with Fields(step, "step") as fields:
            _count_step(parts, topic_partitions, fields)


def _of(replicas: Any, topic_partition: TopicPartition) -> list[BrokerId]:
    found = replicas.get(str(topic_partition)) if isinstance(replicas, Mapping) else replicas
    if not isinstance(found, list):
        raise UnknownInCaseError(f"the replicas of {topic_partition} are {found!r}")
    return found


def _put_topics(parts: ControllerParts, topic_partitions: Iterable[TopicPartition]) -> None:
    """Write the topics' znodes, which a deletion reads."""
    for topic in sorted({topic_partition.topic for topic_partition in topic_partitions}):
        assignments = parts.context.partition_assignments(topic)
        parts.put_topic(
            topic, {topic_partition.partition: a for topic_partition, a in assignments.items()}
        )


def _put_replica_states(
    parts: ControllerParts, topic_partitions: Iterable[TopicPartition], state: Any
) -> None:
    wanted = one_of(state, REPLICA_STATES, "the replicas' state")
    if wanted is ReplicaState.NON_EXISTENT:
        return
    for replica in parts.context.replicas_of(topic_partitions):
        parts.context.put_replica_state(replica, wanted)


def _count_step(
    parts: ControllerParts, topic_partitions: list[TopicPartition], fields: Fields
) -> None:
    if "op" in fields:
        enqueue = one_of(fields.take("op"), {"enqueue_delete": _enqueue_delete}, "the op")
        enqueue(parts, fields)
    else:
        target = one_of(fields.take("target"), PARTITION_STATES, "the target")
        name = fields.take("strategy", "offline")
        parts.partitions.handle_state_changes(topic_partitions, target, strategy(name))
    for count in fields.expected("expect"):
        assert parts.context.offline_partition_count == count


def _enqueue_delete(parts: ControllerParts, fields: Fields) -> None:
    parts.zookeeper.put(DeleteTopicsTopicZNode.path(fields.take("topic")))
    parts.deletions.on_topic_deletion()
