"""Conditional writes of partition changes: the one loop behind elections and ISR changes.

Each round decides, writes on condition that nothing changed since, and puts what was accepted into
the context. The first round decides by the context, without a reading. Each of the next rounds
first reads the ``state`` znodes of the partitions that are not changed yet.

``decisions`` decides each condition once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import PartitionChanged
from regent.core.controller.election.decisions import CauseOf, DecidedGroup, Failures, decide
from regent.core.controller.election.election import PartitionChange
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, StateChangeFailedError, UnreadableError
from regent.core.model import LeaderAndIsr, LeaderIsrAndControllerEpoch, TopicPartition
from regent.core.ports import PartitionStates, WriteError

Changes: TypeAlias = dict[TopicPartition, PartitionChange]
Leaderships: TypeAlias = Mapping[TopicPartition, LeaderAndIsr]


# A conflict means that the state is not as it was known or read. After so many conflicts in a row
# the change fails; the next event for the partition tries again.
MAX_ROUNDS = 10


def change_partitions(
    services: ControllerServices,
    partitions: Collection[TopicPartition],
    cause: CauseOf,
) -> tuple[Changes, Failures]:
    """Change the leaderships of partitions, for one cause or for a cause of each partition.

    Returns the changes that the context holds now, with their new partition epochs, and the
    failures. A partition that needed no write is among the changes only if the context held
    something else. Raises ``ControllerMovedError``.
    """
    accepted: Changes = {}
    failures: Failures = {}
    remaining = _change_known(services, partitions, cause, accepted)
    for _ in range(MAX_ROUNDS - 1):
        if not remaining:
            break
        states = services.store.read_partition_states(remaining)
        current = _usable(services, remaining, states, failures)
        decided, refused = decide(services, current, cause)
        failures |= refused
        remaining = _write(services, current, decided, accepted, failures)
    for topic_partition in remaining:
        failures[topic_partition] = StateChangeFailedError(
            f"{topic_partition}: its state kept changing while {MAX_ROUNDS} attempts were made"
        )
    services.log("state.change").each(
        "Partition %s state changed to %s",
        ((topic_partition, change.leader_and_isr) for topic_partition, change in accepted.items()),
    )
    return accepted, failures


def _change_known(
    services: ControllerServices,
    partitions: Collection[TopicPartition],
    cause: CauseOf,
    accepted: Changes,
) -> list[TopicPartition]:
    """Change partitions by what the context knows; return those that must be read.

    The condition of the write protects a partition that changed since. What needs no write, or
    cannot be changed, must be read: another program may have written the state.
    """
    known = services.context.known_leaderships(partitions)
    decided, _ = decide(services, known, cause)
    writes = {p: d for p, d in decided.items() if d.change.leader_and_isr != known[p]}
    _write(services, known, writes, accepted, {})
    return [p for p in partitions if p not in accepted]


def _usable(
    services: ControllerServices,
    partitions: Collection[TopicPartition],
    states: PartitionStates,
    failures: Failures,
) -> dict[TopicPartition, LeaderAndIsr]:
    current: dict[TopicPartition, LeaderAndIsr] = {}
    known_epoch = services.context.newest_known_epoch
    for topic_partition in partitions:
        state = states.get(topic_partition)
        if state is None:
            reason = "its state znode does not exist"
        elif isinstance(state, BadDataError):
            if isinstance(state, UnreadableError):
                services.context.read_state_again(topic_partition)
            reason = str(state)
        elif state.controller_epoch > known_epoch:
            reason = f"written by a newer controller, epoch {state.controller_epoch}"
        else:
            current[topic_partition] = state.leader_and_isr
            continue
        failures[topic_partition] = StateChangeFailedError(f"{topic_partition}: {reason}")
    return current


def _write(
    services: ControllerServices,
    current: Leaderships,
    decided: Mapping[TopicPartition, DecidedGroup],
    accepted: Changes,
    failures: Failures,
) -> list[TopicPartition]:
    """Write what was decided; return partitions that met a conflict."""
    context = services.context
    states = _to_be_written(context, current, decided, accepted)
    if not states:
        return []
    _report_unclean(services, decided)
    outcomes = services.store.update_partition_states(states, context.epoch_zk_version)
    conflicts: list[TopicPartition] = []
    changes: list[tuple[TopicPartition, *tuple[object, ...]]] = []
    stored: dict[tuple[DecidedGroup, int], tuple[PartitionChange, LeaderIsrAndControllerEpoch]] = {}
    for topic_partition in states:
        decision, outcome = decided[topic_partition], outcomes[topic_partition]
        if outcome is WriteError.BAD_VERSION:
            conflicts.append(topic_partition)
        elif isinstance(outcome, WriteError):
            if outcome is WriteError.NOT_ALLOWED:
                context.read_state_again(topic_partition)
            reason = f"{topic_partition}: {outcome.value}"
            failures[topic_partition] = StateChangeFailedError(reason)
        else:
            if (decision, outcome) not in stored:
                now = decision.change.leader_and_isr.with_partition_epoch(outcome)
                leadership = LeaderIsrAndControllerEpoch(now, context.epoch)
                stored[decision, outcome] = decision.change._replace(leader_and_isr=now), leadership
            accepted[topic_partition], leadership = stored[decision, outcome]
            before = context.put_partition_leadership_info(topic_partition, leadership)
            changes.append((topic_partition, before, leadership.leader_and_isr))
    services.outbox.record_each(PartitionChanged, changes)
    return conflicts


def _to_be_written(
    context: ControllerContext,
    current: Leaderships,
    decided: Mapping[TopicPartition, DecidedGroup],
    accepted: Changes,
) -> dict[TopicPartition, LeaderIsrAndControllerEpoch]:
    """Return the states to be written; the partitions of a decision share one object.

    A change that is no change is accepted here if the context held something else.
    """
    states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
    state_of = {
        decision: LeaderIsrAndControllerEpoch(decision.change.leader_and_isr, context.epoch)
        for decision in dict.fromkeys(decided.values())
    }
    for topic_partition, decision in decided.items():
        change, state = decision.change, state_of[decision]
        if change.leader_and_isr != current[topic_partition]:
            states[topic_partition] = state
            continue
        known = context.partition_leadership_info(topic_partition)
        context.put_partition_leadership_info(topic_partition, state)
        if known is None or known.leader_and_isr != change.leader_and_isr:
            accepted[topic_partition] = change
    return states


def _report_unclean(
    services: ControllerServices, decided: Mapping[TopicPartition, DecidedGroup]
) -> None:
    """Count and log unclean elections before the write, whose answer may be lost."""
    unclean = [p for p, decision in decided.items() if decision.change.is_unclean]
    if not unclean:
        return
    services.context.stats.unclean_leader_elections += len(unclean)
    first = decided[unclean[0]]
    services.log("state.change").warning(
        "%d UNCLEAN elections: records may be lost. The first: %s, new leader %d, former ISR %s",
        len(unclean),
        unclean[0],
        first.change.leader_and_isr.leader,
        list(first.before.isr),
    )
