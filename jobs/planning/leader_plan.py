"""Which partitions a plan reorders, so that brokers are the preferred leaders of equally many."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from regent.jobs.planning.leadership import LeaderBalance
from regent.jobs.planning.model import Ints, Layout, Mask, Replicas


def choose_leaders(
    layout: Layout, left: Collection[int], *, evenly: bool, keeps_places: bool = False
) -> list[int]:
    """Choose the preferred leaders and reorder the replicas; return the leaders of each broker.

    Only brokers that are ``left`` get leaders. Without ``evenly`` a leader that stays a replica
    leads on, and of the moved ones only those without such a leader may choose. With
    ``keeps_places`` the broker that took the place of a leader is regarded as that leader.
    """
    after, before = layout.after, layout.before[:, 0].astype(np.int64)
    stays = (after == before[:, None]).any(axis=1)
    former = np.where(stays, before, after[:, 0] if keeps_places else -1)
    may_lead = np.zeros(len(layout.brokers.ids), np.bool_)
    may_lead[list(left)] = True
    leader = np.where(former >= 0, former, _first_that(may_lead, after))
    count = np.array(layout.brokers.leaders) - np.bincount(before, minlength=len(may_lead))
    count += np.bincount(leader, minlength=len(may_lead))
    rows = np.arange(len(leader)) if evenly else np.flatnonzero(former < 0)
    leaders = LeaderBalance(after[rows], leader[rows], former[rows], count, may_lead)
    leaders.balance()
    leader[rows] = leaders.leader
    reordered = np.flatnonzero(leader != after[:, 0])
    follows = after[reordered] != leader[reordered, None]
    sequence = np.argsort(follows, axis=1, kind="stable")  # the leader, then the others as before
    after[reordered] = np.take_along_axis(after[reordered], sequence, axis=1)
    counts: list[int] = leaders.count.tolist()
    return counts


def _first_that(may_lead: Mask, replicas: Replicas) -> Ints:
    """Return the first replica of each row that may lead; if none may, the first one."""
    can = may_lead[replicas] & (replicas >= 0)
    first: Ints = replicas[np.arange(len(replicas)), can.argmax(axis=1)].astype(np.int64)
    return first
