"""Decides partitions by condition: thousands that a dead broker led are decided once.

A topic's setting is read only for the partitions where it matters, and divides their condition:

* ``unclean.leader.election.enable``, if no replica with every committed record is online;
* ``min.insync.replicas``, if few replicas remain in sync. While fewer than it are in sync, nothing
  is committed: a replica that leaves the ISR then stays eligible as leader (KIP-966).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from regent.core.controller.context import ControllerContext
from regent.core.controller.election.election import (
    ChangeRefused,
    PartitionChange,
    PartitionReplicas,
    partition_replicas,
)
from regent.core.controller.election.partition_change import (
    RECOVERED,
    RECOVERING,
    Cause,
    change_partition,
    may_need_unclean_election,
)
from regent.core.controller.services import ControllerServices
from regent.core.errors import BadDataError, StateChangeFailedError
from regent.core.model import NO_LEADER, LeaderAndIsr, TopicPartition

Failures: TypeAlias = dict[TopicPartition, StateChangeFailedError]
CauseOf: TypeAlias = Cause | Callable[[TopicPartition], Cause]
T = TypeVar("T")

NOBODY_COMMITS = 2**31  # as ``min.insync.replicas``: more than an ISR can have


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """Partitions in one condition, with one cause and the same settings."""

    partitions: list[TopicPartition]
    now: LeaderAndIsr
    cause: Cause
    replicas: PartitionReplicas


@dataclass(frozen=True, slots=True, eq=False)
class DecidedGroup:
    """The change of all partitions of one condition."""

    partitions: list[TopicPartition]
    before: LeaderAndIsr
    change: PartitionChange


def decide(
    services: ControllerServices, current: Mapping[TopicPartition, LeaderAndIsr], cause: CauseOf
) -> tuple[dict[TopicPartition, DecidedGroup], Failures]:
    """Return the decision about each partition, in the given order, and the refusals."""
    decisions: list[DecidedGroup] = []
    failures: Failures = {}
    outdated = without_outdated_eligible_replicas(services, current)
    for case in _with_settings(services, _cases(services, {**current, **outdated}, cause)):
        outcome = change_partition(case.now, case.replicas, case.cause)
        if isinstance(outcome, ChangeRefused):
            failures |= {
                p: StateChangeFailedError(f"{p}: {outcome.reason}") for p in case.partitions
            }
        else:
            decisions.append(DecidedGroup(case.partitions, case.now, outcome))
    decided: dict[TopicPartition, DecidedGroup] = {}
    for decision in keep_eligible_replicas(services, decisions):
        decided.update(dict.fromkeys(decision.partitions, decision))
    for p, now in outdated.items():
        if p in decided and decided[p].change.leader_and_isr == now:  # no reason for a write
            change = decided[p].change._replace(leader_and_isr=current[p])
            decided[p] = DecidedGroup([p], current[p], change)
    return {p: decided[p] for p in current if p in decided}, failures


def _cases(
    services: ControllerServices, current: Mapping[TopicPartition, LeaderAndIsr], cause: CauseOf
) -> list[_Case]:
    cases: list[_Case] = []
    for condition, partitions in services.context.conditions(current).items():
        replicas = partition_replicas(services.context, partitions[0])
        by_cause = _by(partitions, cause) if callable(cause) else {cause: partitions}
        cases += [_Case(alike, condition.now, why, replicas) for why, alike in by_cause.items()]
    return cases


def _by(
    partitions: Iterable[TopicPartition], key: Callable[[TopicPartition], T]
) -> dict[T, list[TopicPartition]]:
    groups: dict[T, list[TopicPartition]] = {}
    for topic_partition in partitions:
        groups.setdefault(key(topic_partition), []).append(topic_partition)
    return groups


def _with_settings(services: ControllerServices, cases: Iterable[_Case]) -> list[_Case]:
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

    def setting_of(topic_partition: TopicPartition) -> bool | str:
        setting = settings.get(topic_partition.topic, default)
        return str(setting) if isinstance(setting, BadDataError) else setting

    for case in waiting:
        for setting, partitions in _by(case.partitions, setting_of).items():
            replicas = replace(
                case.replicas,
                allows_unclean_election=setting is True,
                unclean_election_error=setting if isinstance(setting, str) else "",
            )
            settled.append(replace(case, replicas=replicas, partitions=partitions))
    return settled


# --- eligible replicas ---


def without_outdated_eligible_replicas(
    services: ControllerServices, current: Mapping[TopicPartition, LeaderAndIsr]
) -> dict[TopicPartition, LeaderAndIsr]:
    """Return the leaderships without eligible replicas that do not count any more.

    The leader may have committed records without them: the ISR suffices since
    ``min.insync.replicas`` was lowered. Or that was lowered and raised again, if any configuration
    has changed since the state was written. Or the leader is a broker of Kafka. Other leaderships
    are not returned.
    """
    led = [
        p for p, now in current.items() if now.eligible_leader_replicas and now.leader != NO_LEADER
    ]
    if not led:
        return {}
    _, written = services.store.read_partition_states_with_zxids(led)
    configured = services.store.read_config_zxids({p.topic for p in led})
    needed = _min_insync_replicas(services, led)
    return {
        p: current[p]._replace(eligible_leader_replicas=())
        for p in led
        if len(current[p].isr) >= needed[p]
        or configured[p.topic] > written.get(p, 0)
        or services.context.is_of_kafka(current[p].leader)
    }


def keep_eligible_replicas(
    services: ControllerServices, decisions: Iterable[DecidedGroup]
) -> list[DecidedGroup]:
    """Return the decisions with the replicas that stay eligible when they leave the ISR.

    ``min.insync.replicas`` of topics is read only where few replicas remain, or did before. Where a
    broker of Kafka leads, none stays: it commits alone before 3.7, and has a default of its own.
    """
    kept: list[DecidedGroup] = []
    unsettled: list[DecidedGroup] = []
    for decision in decisions:
        before, after = decision.before, decision.change.leader_and_isr
        topic_partition = decision.partitions[0]
        assigned = len(services.context.partition_replica_assignment(topic_partition))
        if not _removes_replicas(decision):
            kept.append(decision)
        elif not _can_be_led(services.context, topic_partition, after):
            kept.append(_keeping(decision, NOBODY_COMMITS))
        elif not before.eligible_leader_replicas and len(after.isr) > max(1, assigned - 2):
            kept.append(decision)  # enough replicas remain
        elif after.leader_recovery_state is not RECOVERED or services.context.is_of_kafka(
            after.leader
        ):
            kept.append(_keeping(decision, 0))
        else:
            unsettled.append(decision)
    if unsettled:
        needed = _min_insync_replicas(services, [p for d in unsettled for p in d.partitions])
        kept += [
            _keeping(replace(decision, partitions=partitions), min_isr)
            for decision in unsettled
            for min_isr, partitions in _by(decision.partitions, needed.__getitem__).items()
        ]
    return kept


def _min_insync_replicas(
    services: ControllerServices, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return how many replicas must be in sync: at most as many as are assigned."""
    settings = services.store.read_min_insync_replicas(sorted({p.topic for p in partitions}))
    default = services.settings.min_insync_replicas
    assigned = services.context.partition_replica_assignment
    return {p: min(settings.get(p.topic, default), len(assigned(p))) for p in partitions}


def _removes_replicas(decision: DecidedGroup) -> bool:
    """Whether replicas leave the ISR, or left it before and were eligible until now."""
    before, after = decision.before, decision.change.leader_and_isr
    if not decision.change.keeps_eligible_replicas or after == before:
        return False
    return bool(before.eligible_leader_replicas) or not set(before.isr) <= set(after.isr)


def _keeping(decision: DecidedGroup, min_isr: int) -> DecidedGroup:
    after = with_eligible_replicas(decision.before, decision.change.leader_and_isr, min_isr)
    return replace(decision, change=decision.change._replace(leader_and_isr=after))


def with_eligible_replicas(before: LeaderAndIsr, now: LeaderAndIsr, min_isr: int) -> LeaderAndIsr:
    """Keep as eligible the replicas that leave the ISR with every committed record (KIP-966).

    While fewer are in sync than ``min_isr``, nothing is committed.
    """
    left = tuple(
        r
        for r in dict.fromkeys((*before.eligible_leader_replicas, *before.isr))
        if r not in now.isr
    )
    is_committing = len(now.isr) >= min_isr
    is_unclean = now.leader_recovery_state is RECOVERING
    return now._replace(eligible_leader_replicas=() if is_committing or is_unclean else left)


def _can_be_led(
    context: ControllerContext, topic_partition: TopicPartition, leadership: LeaderAndIsr
) -> bool:
    """Whether a replica leads, or can be elected at once."""
    return leadership.leader != NO_LEADER or any(
        context.is_replica_online(r, topic_partition)
        and context.suspect_end(r, topic_partition) is None
        for r in leadership.isr
    )
