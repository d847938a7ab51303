"""Which partitions a plan reorders, so that brokers are the preferred leaders of equally many."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regent.core.model import BrokerId
from regent.jobs.planning.leadership import LeaderBalance
from regent.jobs.planning.model import Change, Layout, Partitions


class Led(NamedTuple):
    """The numbers of preferred leaders after a plan, and the partitions that it only reorders."""

    counts: list[int]
    reordered: list[Change]


def choose_leaders(
    layout: Layout,
    partitions: Partitions,
    left: Collection[int],
    *,
    evenly: bool,
    keeps_places: bool = False,
) -> Led:
    """Choose the preferred leaders of all loaded partitions, and reorder the layout's replicas.

    Only brokers that are ``left`` get leaders. Without ``evenly`` a leader that stays a replica
    leads on, and of the moved ones only those without such a leader may choose. With
    ``keeps_places`` the broker that took the place of a leader is regarded as that leader.
    """
    replicas = _replicas_after(layout, partitions)
    before = partitions.replicas[:, 0].astype(np.int64)
    stays = (replicas == before[:, None]).any(axis=1)
    former = np.where(stays, before, replicas[:, 0] if keeps_places else -1)
    may_lead = np.zeros(len(layout.brokers.ids), np.bool_)
    may_lead[list(left)] = True
    leader = np.where(former >= 0, former, _first_that(may_lead, replicas))
    count = np.array(layout.brokers.leaders) - np.bincount(before, minlength=len(may_lead))
    count += np.bincount(leader, minlength=len(may_lead))
    rows = np.arange(len(leader)) if evenly else np.flatnonzero(former < 0)
    leaders = LeaderBalance(replicas[rows], leader[rows], former[rows], count, may_lead)
    leaders.balance()
    leader[rows] = leaders.leader
    for row in np.flatnonzero((leader != replicas[:, 0])[partitions.planned]).tolist():
        first = int(leader[partitions.planned[row]])
        layout.replicas[row] = _led_by(first, layout.replicas[row])
    others = np.setdiff1d(np.flatnonzero(leader != before), partitions.planned)
    reordered = list(_reordered(partitions, others, leader[others], layout.brokers.ids))
    return Led(leaders.count.tolist(), reordered)


def _replicas_after(layout: Layout, partitions: Partitions) -> npt.NDArray[np.int32]:
    width = max([partitions.replicas.shape[1], *map(len, layout.replicas)])
    after = np.full((len(partitions.replicas), width), -1, np.int32)
    after[:, : partitions.replicas.shape[1]] = partitions.replicas
    for row in layout.changed_rows():
        replicas = layout.replicas[row]
        after[partitions.planned[row]] = [*replicas, *[-1] * (width - len(replicas))]
    return after


def _first_that(
    may_lead: npt.NDArray[np.bool_], replicas: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """Return the first replica of each row that may lead; if none may, the first one."""
    can = may_lead[replicas] & (replicas >= 0)
    first: npt.NDArray[np.int32] = replicas[np.arange(len(replicas)), can.argmax(axis=1)]
    return first


def _reordered(
    partitions: Partitions,
    rows: npt.NDArray[np.int64],
    leaders: npt.NDArray[np.int64],
    ids: Sequence[BrokerId],
) -> Iterator[Change]:
    some = partitions._replace(planned=rows).rows
    for topic, number, replicas, size, leader in zip(*some, leaders.tolist(), strict=True):
        before = tuple(ids[b] for b in replicas)
        yield Change(topic, number, before, tuple(ids[b] for b in _led_by(leader, replicas)), size)


def _led_by(leader: int, replicas: Sequence[int]) -> list[int]:
    return [leader, *(broker for broker in replicas if broker != leader)]
