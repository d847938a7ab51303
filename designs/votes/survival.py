"""What is left when the replicas die one after the other, and some come back.

A batch of records is written at first and after each death, if a commit is possible then. Replicas
that live have all acknowledged batches; those that are dead have the ones before their death.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from regent.designs.votes.replication_model import ElectedBy, ReplicationScheme


class Remaining(NamedTuple):
    """What living replicas have; ``lost`` batches of the acknowledged, None: nobody can read."""

    lost: int | None
    acknowledged: int
    writes: bool


class Survival(NamedTuple):
    """The states after ``failures`` deaths, after one more, and when replicas are back then."""

    after_failures: Remaining
    after_one_more: Remaining
    first_is_back: Remaining
    all_are_back: Remaining


def survival(scheme: ReplicationScheme, failures: int) -> Survival:
    """Let ``failures`` replicas die, and one more; the last member of the ISR stays in it."""
    replicas = list(range(scheme.replicas))
    batches = dict.fromkeys(replicas, 1)
    in_sync = set(replicas)
    acknowledged = 1
    for death in range(1, failures + 1):
        living = replicas[death:]
        if scheme.shrinks:
            in_sync = set(living)
        if _writes(scheme, living, in_sync):
            acknowledged += 1
            batches.update(dict.fromkeys(living, acknowledged))

    def remaining(living: Collection[int]) -> Remaining:
        readers = _readers(scheme, living, in_sync)
        lost = acknowledged - max(batches[r] for r in readers) if readers else None
        return Remaining(lost, acknowledged, _writes(scheme, living, in_sync))

    left = replicas[failures + 1 :]
    after_failures = remaining(replicas[failures:])
    first_is_back = remaining([0, *left])
    everyone = remaining(replicas)
    if scheme.elected_by is ElectedBy.CONTROLLER_UNCLEAN:
        everyone = first_is_back  # it leads, and the others follow it
    return Survival(after_failures, remaining(left), first_is_back, everyone)


def _readers(
    scheme: ReplicationScheme, living: Collection[int], in_sync: Collection[int]
) -> Collection[int]:
    """Return the replicas that may lead, or that a read asks; none if they are too few."""
    if scheme.has_controller:
        members = [replica for replica in living if replica in in_sync]
        is_unclean = scheme.elected_by is ElectedBy.CONTROLLER_UNCLEAN
        return members or (living if is_unclean else [])
    return living if len(living) >= scheme.quorum else []


def _writes(scheme: ReplicationScheme, living: Collection[int], in_sync: Collection[int]) -> bool:
    readers = _readers(scheme, living, in_sync)
    needed = scheme.acknowledgements_of(len(readers)) if scheme.shrinks else scheme.acknowledgements
    return bool(readers) and len(living) >= needed
