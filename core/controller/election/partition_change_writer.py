"""Conditional writes of partition changes: the one loop behind elections and ISR changes.

Each round decides, writes on condition that nothing changed since, and puts what was accepted into
the context. The first round decides by the context, without a reading. Each of the next rounds
first reads the ``state`` znodes of the partitions that are not changed yet.

When a broker dies, thousands of partitions are in the same condition: the same leadership, the same
assignment, the same states of replicas. Each condition is decided once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from regent.core.controller.context import ControllerContext
from regent.core.controller.effects import PartitionChanged
from regent.core.controller.election.partition_change import (
    RECOVERED,
    Cause,
    change_partition,
    may_need_unclean_election,
    with_eligible_replicas,
)
from regent.core.controller.election.partition_replicas import (
    ChangeRefused,
    PartitionChange,
    PartitionReplicas,
)
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, StateChangeFailedError, UnreadableError
from regent.core.model import (
    NO_LEADER,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    TopicPartition,
)
from regent.core.ports import PartitionStates, WriteError

Failures: TypeAlias = dict[TopicPartition, StateChangeFailedError]
Changes: TypeAlias = dict[TopicPartition, PartitionChange]
Leaderships: TypeAlias = Mapping[TopicPartition, LeaderAndIsr]


# A conflict means that the state is not as it was known or read. After so many conflicts in a row
# the change fails; the next event for the partition tries again.
MAX_ROUNDS = 10
NOBODY_COMMITS = 2**31  # as ``min.insync.replicas``: more than an ISR can have


def change_partitions(
    services: ControllerServices,
    partitions: Collection[TopicPartition],
    cause: Cause | Callable[[TopicPartition], Cause],
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
        changes = _decide(services, current, cause, failures)
        remaining = _write(services, current, changes, accepted, failures)
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
    cause: Cause | Callable[[TopicPartition], Cause],
    accepted: Changes,
) -> list[TopicPartition]:
    """Change partitions by what the context knows; return those that must be read.

    The condition of the write protects a partition that changed since. What needs no write, or
    cannot be changed, must be read: another program may have written the state.
    """
    known = _known(services.context, partitions)
    changes = _decide(services, known, cause, {})
    writes = {p: change for p, change in changes.items() if change.leader_and_isr != known[p]}
    _write(services, known, writes, accepted, {})
    return [p for p in partitions if p not in accepted]


def _known(context: ControllerContext, partitions: Collection[TopicPartition]) -> Leaderships:
    """Return the leaderships in the context, the same object for equal ones."""
    known: dict[TopicPartition, LeaderAndIsr] = {}
    by_id: dict[int, LeaderAndIsr] = {}
    by_value: dict[LeaderAndIsr, LeaderAndIsr] = {}
    for topic_partition in partitions:
        leadership = context.partition_leadership_info(topic_partition)
        if leadership is None or context.is_of_newer_controller(leadership):
            continue
        found = by_id.get(id(leadership))
        if found is None:
            now = leadership.leader_and_isr
            found = by_id[id(leadership)] = by_value.setdefault(now, now)
        known[topic_partition] = found
    return known


def partition_replicas(
    context: ControllerContext, topic_partition: TopicPartition
) -> PartitionReplicas:
    """Return what the context knows of the replicas of a partition."""
    return PartitionReplicas(
        context.partition_full_replica_assignment(topic_partition),
        is_online=lambda r: context.is_replica_online(r, topic_partition),
        is_reachable=lambda r: context.is_replica_online(
            r, topic_partition, include_shutting_down=True
        ),
        is_shutting_down=lambda r: r in context.shutting_down_broker_ids,
        suspect_end=lambda r: context.suspect_end(r, topic_partition),
        has_restarted=lambda r: context.has_restarted(r, topic_partition),
        exists=lambda r: context.replica_exists(r, topic_partition),
        must_not_lead=lambda r: context.must_not_lead(r, topic_partition),
        broker_epoch=context.broker_epoch,
        is_topic_queued_for_deletion=context.is_topic_queued_for_deletion(topic_partition.topic),
    )


@dataclass(slots=True)
class _Case:
    """Partitions in the same condition: they change in the same way."""

    now: LeaderAndIsr
    cause: Cause
    replicas: PartitionReplicas
    partitions: list[TopicPartition]


def _decide(
    services: ControllerServices,
    current: Leaderships,
    cause: Cause | Callable[[TopicPartition], Cause],
    failures: Failures,
) -> Changes:
    current = _without_outdated_eligible_replicas(services, current)
    decided: Changes = {}
    for case in _with_settings(services, _cases(services.context, current, cause)):
        outcome = change_partition(case.now, case.replicas, case.cause)
        if isinstance(outcome, ChangeRefused):
            for topic_partition in case.partitions:
                failures[topic_partition] = StateChangeFailedError(
                    f"{topic_partition}: {outcome.reason}"
                )
        else:
            decided.update(dict.fromkeys(case.partitions, outcome))
    changes = {p: decided[p] for p in current if p in decided}
    return keep_eligible_replicas(services, current, changes)


def _cases(
    context: ControllerContext,
    current: Leaderships,
    cause: Cause | Callable[[TopicPartition], Cause],
) -> list[_Case]:
    """Group partitions by condition; one about which more is known is a case of its own."""
    cases: dict[object, _Case] = {}
    condition_of = context.conditions()
    for topic_partition, now in current.items():
        its_cause = cause(topic_partition) if callable(cause) else cause
        condition = condition_of(topic_partition)
        # Equal leaderships are the same object, in what is known as in what one reading gave.
        key = topic_partition if condition is None else (id(now), condition, its_cause)
        case = cases.get(key)
        if case is None:
            replicas = partition_replicas(context, topic_partition)
            cases[key] = _Case(now, its_cause, replicas, [topic_partition])
        else:
            case.partitions.append(topic_partition)
    return list(cases.values())


def _without_outdated_eligible_replicas(
    services: ControllerServices, current: Leaderships
) -> Leaderships:
    """Drop eligible replicas where the ISR suffices since ``min.insync.replicas`` was lowered.

    The leader may have committed records without them.
    """
    led = {
        topic_partition: now
        for topic_partition, now in current.items()
        if now.eligible_leader_replicas and now.leader != NO_LEADER
    }
    if not led:
        return current
    min_isrs = _min_insync_replicas(services, led)
    outdated = {
        topic_partition: now._replace(eligible_leader_replicas=())
        for topic_partition, now in led.items()
        if len(now.isr) >= min_isrs[topic_partition]
    }
    return {**current, **outdated}


def _min_insync_replicas(
    services: ControllerServices, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Read how many replicas must be in sync, at most as many as are assigned."""
    settings = services.store.read_min_insync_replicas(sorted({p.topic for p in partitions}))
    default = services.settings.min_insync_replicas
    assigned = services.context.partition_replica_assignment
    return {p: min(settings.get(p.topic, default), len(assigned(p))) for p in partitions}


def _with_settings(services: ControllerServices, cases: list[_Case]) -> list[_Case]:
    """Read whether topics allow unclean elections, for the cases that depend on it."""
    settled: list[_Case] = []
    waiting: list[_Case] = []
    for case in cases:
        needs = may_need_unclean_election(case.now, case.replicas, case.cause)
        (waiting if needs else settled).append(case)
    if not waiting:
        return settled
    topics = sorted({p.topic for case in waiting for p in case.partitions})
    settings = services.store.read_unclean_leader_election(topics)
    default = services.settings.unclean_leader_election_enable
    for case in waiting:
        by_setting: dict[bool | str, list[TopicPartition]] = {}
        for topic_partition in case.partitions:
            setting = settings.get(topic_partition.topic, default)
            key = str(setting) if isinstance(setting, BadDataError) else setting
            by_setting.setdefault(key, []).append(topic_partition)
        for key, partitions in by_setting.items():
            replicas = replace(
                case.replicas,
                allows_unclean_election=key is True,
                unclean_election_error=key if isinstance(key, str) else "",
            )
            settled.append(_Case(case.now, case.cause, replicas, partitions))
    return settled


def keep_eligible_replicas(
    services: ControllerServices, current: Leaderships, changes: Changes
) -> Changes:
    """Return changes that keep as eligible the replicas that leave the ISR (KIP-966).

    ``min.insync.replicas`` of topics is read only where few replicas remain, or did before.
    """
    context = services.context
    keeping: dict[TopicPartition, LeaderAndIsr] = {}
    led: set[TopicPartition] = set()
    loses: dict[tuple[int, int], bool] = {}  # by the ids of the two leaderships
    for topic_partition, change in changes.items():
        before, after = current[topic_partition], change.leader_and_isr
        key = id(before), id(after)
        if key not in loses:
            leaves = bool(before.eligible_leader_replicas) or not set(before.isr) <= set(after.isr)
            loses[key] = change.keeps_eligible_replicas and after != before and leaves
        if not loses[key]:
            continue
        is_led = _can_be_led(context, topic_partition, after)
        assigned = len(context.partition_replica_assignment(topic_partition))
        if before.eligible_leader_replicas or not is_led or len(after.isr) <= max(1, assigned - 2):
            keeping[topic_partition] = after
            if is_led:
                led.add(topic_partition)
    read = {p for p in led if keeping[p].leader_recovery_state is RECOVERED}
    min_isrs = _min_insync_replicas(services, read) if read else {}
    kept = dict(changes)
    shared: dict[tuple[int, int, int], PartitionChange] = {}
    for topic_partition, after in keeping.items():
        # A partition that is led but was not read recovers: it keeps no eligible replicas.
        min_isr = min_isrs.get(topic_partition, 0) if topic_partition in led else NOBODY_COMMITS
        before, change = current[topic_partition], changes[topic_partition]
        shared_key = id(before), id(change), min_isr
        if shared_key not in shared:
            with_eligible = with_eligible_replicas(before, after, min_isr)
            shared[shared_key] = change._replace(leader_and_isr=with_eligible)
        kept[topic_partition] = shared[shared_key]
    return kept


def _can_be_led(
    context: ControllerContext, topic_partition: TopicPartition, leadership: LeaderAndIsr
) -> bool:
    """Whether a replica leads, or can be elected at once."""
    return leadership.leader != NO_LEADER or any(
        context.is_replica_online(r, topic_partition)
        and context.suspect_end(r, topic_partition) is None
        for r in leadership.isr
    )


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
    changes: Changes,
    accepted: Changes,
    failures: Failures,
) -> list[TopicPartition]:
    """Write changes; return partitions that met a conflict."""
    context = services.context
    states = _to_be_written(context, current, changes, accepted)
    if not states:
        return []
    _report_unclean(services, current, changes)
    outcomes = services.store.update_partition_states(states, context.epoch_zk_version)
    conflicts: list[TopicPartition] = []
    written: dict[tuple[int, int], tuple[PartitionChange, LeaderIsrAndControllerEpoch]] = {}
    for topic_partition, state in states.items():
        outcome = outcomes[topic_partition]
        if outcome is WriteError.BAD_VERSION:
            conflicts.append(topic_partition)
        elif isinstance(outcome, WriteError):
            if outcome is WriteError.NOT_ALLOWED:
                context.read_state_again(topic_partition)
            failures[topic_partition] = StateChangeFailedError(
                f"{topic_partition}: {outcome.value}"
            )
        else:
            before = context.partition_leadership_info(topic_partition)
            key = id(state), outcome
            if key not in written:
                now = state.leader_and_isr.with_partition_epoch(outcome)
                written[key] = (
                    changes[topic_partition]._replace(leader_and_isr=now),
                    LeaderIsrAndControllerEpoch(now, context.epoch),
                )
            accepted[topic_partition], leadership = written[key]
            context.put_partition_leadership_info(topic_partition, leadership)
            services.outbox.record(
                PartitionChanged, topic_partition, before, leadership.leader_and_isr
            )
    return conflicts


def _to_be_written(
    context: ControllerContext, current: Leaderships, changes: Changes, accepted: Changes
) -> dict[TopicPartition, LeaderIsrAndControllerEpoch]:
    """Return the states to be written, one object for each change.

    A change that is no change is accepted here if the context held something else.
    """
    states: dict[TopicPartition, LeaderIsrAndControllerEpoch] = {}
    shared: dict[int, LeaderIsrAndControllerEpoch] = {}  # by the id of the change
    for topic_partition, change in changes.items():
        state = shared.get(id(change))
        if state is None:
            state = LeaderIsrAndControllerEpoch(change.leader_and_isr, context.epoch)
            shared[id(change)] = state
        if change.leader_and_isr != current[topic_partition]:
            states[topic_partition] = state
            continue
        known = context.partition_leadership_info(topic_partition)
        context.put_partition_leadership_info(topic_partition, state)
        if known is None or known.leader_and_isr != change.leader_and_isr:
            accepted[topic_partition] = change
    return states


def _report_unclean(services: ControllerServices, before: Leaderships, changes: Changes) -> None:
    """Count and log unclean elections before the write, whose answer may be lost."""
    unclean = [topic_partition for topic_partition, change in changes.items() if change.is_unclean]
    if not unclean:
        return
    services.context.stats.unclean_leader_elections += len(unclean)
    first = unclean[0]
    services.log("state.change").warning(
        "%d UNCLEAN elections: records may be lost. The first: %s, new leader %d, former ISR %s",
        len(unclean),
        first,
        changes[first].leader_and_isr.leader,
        list(before[first].isr),
    )
