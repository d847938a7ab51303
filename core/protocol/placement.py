"""Requests to the placement service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from regent.core.errors import Errors
from regent.core.model import BrokerId


class PlacementSpec(NamedTuple):
    """One topic to place; ``start_partition`` > 0 when a topic grows."""

    topic: str
    partitions: int  # how many to place
    replication_factor: int
    start_partition: int


class PlacementBroker(NamedTuple):
    """A broker that may hold replicas, with what it already holds."""

    broker_id: BrokerId
    rack: str | None
    replica_count: int


class PlacementHost(NamedTuple):
    """The machine of a broker that may share it with others."""

    broker_id: BrokerId
    host: str


class _OnHost(Protocol):
    @property
    def node_host(self) -> str | None: ...


def hosts_of(brokers: Iterable[tuple[BrokerId, _OnHost]]) -> tuple[PlacementHost, ...]:
    """Return the machines of the brokers that name one."""
    return tuple(PlacementHost(b, of.node_host) for b, of in brokers if of.node_host is not None)


@dataclass(frozen=True, slots=True)
class PlaceTopicsRequest:
    """Asks the placement service to place these partitions in one job.

    ``strategy`` is "ring", "kafka", "rack-aware" or "copyset"; ``start_index`` a decimal number,
    "random" or "least-loaded"; ``index`` "batch" or "per-topic". ``scatter_width`` and
    ``copyset_seed`` are for "copyset": topics that are created one after the other share the
    copysets of one seed. A broker without one of the ``hosts`` is alone on its machine.
    """

    topics: tuple[PlacementSpec, ...]
    brokers: tuple[PlacementBroker, ...]
    strategy: str
    start_index: str
    index: str
    seed: int
    scatter_width: int = 0  # 0: see ``replica_placer.scatter_width``
    copyset_seed: int = 0
    hosts: tuple[PlacementHost, ...] = ()


class PlacedPartition(NamedTuple):
    """The replicas of one placed partition, preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]


@dataclass(frozen=True, slots=True)
class PlaceTopicsResponse:
    """The placement, sorted by (topic, partition); ``message`` says why on an error.

    BROKER_NOT_AVAILABLE: this process cannot place any more, or has too much to do.
    """

    error_code: Errors
    message: str = ""
    partitions: tuple[PlacedPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementStatusRequest:
    """Asks the placement service for its state."""


@dataclass(frozen=True, slots=True)
class PlacementStatusResponse:
    """``state`` is "starting" or "ready"; ``message`` has details."""

    error_code: Errors
    state: str
    message: str = ""
