"""Writes assignments to topic znodes, on condition of their versions.

A topic znode has all partitions of the topic, and tools rewrite it to add some. Kafka's controller
replaces it by its own copy. Here it is read, changed and written if it has the same version, so
that no partition is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from regent.core.controller.election.decisions import Failures
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, StateChangeFailedError, UnreadableError
from regent.core.model import ReplicaAssignment, TopicPartition
from regent.core.ports import TopicAssignment, WriteError

MAX_ROUNDS = 10


def write_assignments(
    services: ControllerServices, assignments: Mapping[TopicPartition, ReplicaAssignment]
) -> Failures:
    """Write these assignments to topic znodes; return the failures with reasons.

    The others are in ZooKeeper then, but not in the context. A znode that has them already is not
    written. Raises ``ControllerMovedError``.
    """
    wanted: dict[str, dict[int, ReplicaAssignment]] = {}
    for (topic, partition), assignment in assignments.items():
        wanted.setdefault(topic, {})[partition] = assignment
    refused: dict[str, str] = {}
    remaining = wanted
    for _ in range(MAX_ROUNDS):
        if not remaining:
            break
        proposals = _merge(services, remaining, refused)
        outcomes = services.store.write_topics(proposals, services.context.epoch_zk_version)
        remaining = {t: wanted[t] for t, o in outcomes.items() if o is WriteError.BAD_VERSION}
        denied = {t: wanted[t] for t, o in outcomes.items() if o is WriteError.NOT_ALLOWED}
        services.context.must_read_again |= bool(denied)
        # A first attempt, whose answer was lost, may have succeeded before the ACL was changed.
        unwritten = _merge(services, denied, refused) if denied else {}
        refused.update(
            {
                topic: f"its topic cannot be written: {outcome.value}"
                for topic, outcome in outcomes.items()
                if isinstance(outcome, WriteError)
                and topic not in remaining
                and (topic in unwritten or topic not in denied)
            }
        )
    for topic in remaining:
        refused[topic] = f"its znode kept changing while {MAX_ROUNDS} attempts were made"
    return {
        topic_partition: StateChangeFailedError(
            f"{topic_partition}: {refused[topic_partition.topic]}"
        )
        for topic_partition in assignments
        if topic_partition.topic in refused
    }


def _merge(
    services: ControllerServices,
    wanted: Mapping[str, Mapping[int, ReplicaAssignment]],
    refused: dict[str, str],
) -> dict[str, TopicAssignment]:
    """Return the new content of the topics that must be written."""
    proposals: dict[str, TopicAssignment] = {}
    stored = services.store.read_topics(wanted)
    for topic, partitions in wanted.items():
        read = stored.get(topic)
        if read is None:
            refused[topic] = "its topic is gone"
        elif isinstance(read, BadDataError):
            services.context.must_read_again |= isinstance(read, UnreadableError)
            refused[topic] = str(read)
        elif services.context.topic_created_zxids.get(topic) not in (None, read.created_zxid):
            refused[topic] = "its topic was deleted and created again"
        else:
            merged = replace(
                read,
                topic_id=services.context.topic_id(topic) or read.topic_id,
                partitions=dict(sorted({**read.partitions, **partitions}.items())),
            )
            if merged != read:
                proposals[topic] = merged
    return proposals
