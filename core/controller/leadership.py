"""Conditional changes of leaderships in ZooKeeper: the one loop behind elections and ISR shrinking.

Each round reads the ``state`` znodes, lets a rule propose, writes the proposals on condition that
nothing changed meanwhile, and puts what was accepted into the context. What changed meanwhile goes
round again with what is there now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, TypeVar

from regent.core.controller.context import ControllerContext
from regent.core.controller.election import remember_eligible
from regent.core.controller.outbox import Outbox
from regent.core.controller.term import Term
from regent.core.errors import BadDataError, StateChangeFailedError, UnreadableError
from regent.core.model import (
    NO_LEADER,
    LeaderAndIsr,
    LeaderIsrAndControllerEpoch,
    LeaderRecoveryState,
    TopicPartition,
)
from regent.core.ports import PartitionStates, WriteError

Proposal = TypeVar("Proposal")
Failures: TypeAlias = dict[TopicPartition, StateChangeFailedError]
Leaderships: TypeAlias = Mapping[TopicPartition, LeaderAndIsr]

# A conflict means that somebody changed the ISR between our read and our write. More than a few in
# a row means that it will not stop; the next event for the partition tries again.
MAX_ROUNDS = 10
NOBODY_COMMITS = 2**31  # as ``min.insync.replicas``: more than there can be in an ISR


def change_leaderships(
    term: Term,
    partitions: Collection[TopicPartition],
    propose: Callable[[Leaderships, Failures], Mapping[TopicPartition, LeaderAndIsr]],
) -> tuple[dict[TopicPartition, LeaderAndIsr], Failures]:
    """Bring the leaderships of ``partitions`` to what ``propose`` makes of them.

    ``propose`` gets what ZooKeeper holds; it puts what it cannot change into the failures and
    leaves out what needs no write. Returns what was accepted (with its new partition epoch), which
    the context holds by then, and what failed and why. Raises ``ControllerMovedError``.
    """
    accepted: dict[TopicPartition, LeaderAndIsr] = {}
    failures: Failures = {}
    remaining = list(partitions)
    for _ in range(MAX_ROUNDS):
        if not remaining:
            break
        states = term.store.read_partition_states(remaining)
        current = _usable(term, remaining, states, failures)
        conflicts = _write(term, propose(current, failures), accepted, failures)
        remaining = conflicts
    for partition in remaining:
        failures[partition] = StateChangeFailedError(
            f"{partition}: its state kept changing while {MAX_ROUNDS} attempts were made"
        )
    return accepted, failures


def with_eligible_replicas(
    term: Term, current: Leaderships, proposals: Mapping[TopicPartition, LeaderAndIsr]
) -> dict[TopicPartition, LeaderAndIsr]:
    """Return proposals that keep as eligible the replicas that leave the ISR (KIP-966).

    Topics are asked for their ``min.insync.replicas`` only where few remain, or did before.
    """
    context = term.context
    led = {p for p, new in proposals.items() if _can_be_led(context, p, new)}
    concerned = {
        partition
        for partition, new in proposals.items()
        if current[partition].eligible_leader_replicas
        or (
            not set(current[partition].isr) <= set(new.isr)
            and (
                partition not in led
                or len(new.isr) <= max(1, len(context.partition_replica_assignment(partition)) - 2)
            )
        )
    }
    asked = {p.topic for p in concerned & led if _is_recovered(proposals[p])}
    settings = term.store.read_min_insync_replicas(sorted(asked)) if asked else {}
    with_eligible = dict(proposals)
    for partition in concerned:
        replicas = context.partition_replica_assignment(partition)
        min_isr = settings.get(partition.topic, term.settings.min_insync_replicas)
        with_eligible[partition] = remember_eligible(
            current[partition],
            proposals[partition],
            min(min_isr, len(replicas)) if partition in led else NOBODY_COMMITS,
        )
    return with_eligible


def _can_be_led(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr
) -> bool:
    """Whether a replica leads, or can be elected at once."""
    return leadership.leader != NO_LEADER or any(
        context.is_replica_online(r, partition) and context.suspect_end(r, partition) is None
        for r in leadership.isr
    )


def _is_recovered(leadership: LeaderAndIsr) -> bool:
    return leadership.leader_recovery_state is LeaderRecoveryState.RECOVERED


def _usable(
    term: Term,
    partitions: Collection[TopicPartition],
    states: PartitionStates,
    failures: Failures,
) -> dict[TopicPartition, LeaderAndIsr]:
    current: dict[TopicPartition, LeaderAndIsr] = {}
    for partition in partitions:
        state = states.get(partition)
        if state is None:
            reason = "its state znode does not exist"
        elif isinstance(state, BadDataError):
            if isinstance(state, UnreadableError):
                _look_again(term.context, partition)
            reason = str(state)
        elif term.context.is_of_newer_controller(state):
            reason = f"written by a newer controller, epoch {state.controller_epoch}"
        else:
            current[partition] = state.leader_and_isr
            continue
        failures[partition] = StateChangeFailedError(f"{partition}: {reason}")
    return current


def _look_again(context: ControllerContext, partition: TopicPartition) -> None:
    """Remember a state that an ACL keeps from changing: no watch fires when the ACL changes."""
    context.refused_states.add(partition)
    context.must_read_again = True


def _write(
    term: Term,
    proposals: Mapping[TopicPartition, LeaderAndIsr],
    accepted: dict[TopicPartition, LeaderAndIsr],
    failures: Failures,
) -> list[TopicPartition]:
    """Write proposals; return those that met a conflict."""
    if not proposals:
        return []
    context = term.context
    outcomes = term.store.update_partition_states(
        {
            partition: LeaderIsrAndControllerEpoch(proposal, context.epoch)
            for partition, proposal in proposals.items()
        },
        context.epoch_zk_version,
    )
    conflicts: list[TopicPartition] = []
    for partition, proposal in proposals.items():
        outcome = outcomes[partition]
        if outcome is WriteError.BAD_VERSION:
            conflicts.append(partition)
        elif isinstance(outcome, WriteError):
            if outcome is WriteError.NOT_ALLOWED:
                _look_again(context, partition)
            failures[partition] = StateChangeFailedError(f"{partition}: {outcome.value}")
        else:
            before = context.partition_leadership_info(partition)
            written = proposal.with_partition_epoch(outcome)
            accepted[partition] = written
            context.put_partition_leadership_info(
                partition, LeaderIsrAndControllerEpoch(written, context.epoch)
            )
            _record(term.outbox, partition, before, written)
    return conflicts


def _record(
    outbox: Outbox,
    partition: TopicPartition,
    before: LeaderIsrAndControllerEpoch | None,
    now: LeaderAndIsr,
) -> None:
    then = None if before is None else before.leader_and_isr
    if then is not None and then.leader == now.leader:
        outbox.record(
            "%s: leader %d, isr %s → %s, leader epoch %d",
            partition,
            now.leader,
            then.isr,
            now.isr,
            now.leader_epoch,
        )
    else:
        outbox.record(
            "%s: leader %s → %d, isr %s, leader epoch %d",
            partition,
            "?" if then is None else then.leader,
            now.leader,
            now.isr,
            now.leader_epoch,
        )
