"""Requests of clients to brokers in a simulation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from regent.core.model import TopicPartition
from regent.core.protocol.client import (
    ConsumedPartition,
    ConsumerFetch,
    DeletedRecords,
    ProducedPartition,
)
from regent.core.protocol.groups import GroupRequest
from regent.core.protocol.transactions import TransactionRequest


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """One batch for one partition; ``transactional_id``: it is part of a transaction."""

    name: TopicPartition
    acks: int
    batch: bytes
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    """The outcome for the partition."""

    outcome: ProducedPartition


@dataclass(frozen=True, slots=True)
class ConsumeRequest:
    """A consumer's fetch."""

    fetch: ConsumerFetch
    waits: bool = True


@dataclass(frozen=True, slots=True)
class ConsumeResponse:
    """The answer to a consumer's fetch."""

    partitions: Mapping[TopicPartition, ConsumedPartition]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    """Delete the records below an offset; -1: below the high watermark."""

    name: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsResponse:
    """The outcome for the partition."""

    outcome: DeletedRecords


@dataclass(frozen=True, slots=True)
class GroupCall:
    """A request to a group coordinator; ``transactional_id``: it is part of a transaction."""

    request: GroupRequest[Any]
    transactional_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What the coordinator answers."""

    result: Any


@dataclass(frozen=True, slots=True)
class TransactionCall:
    """A request to a transaction coordinator."""

    request: TransactionRequest[Any]


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    """What the coordinator answers."""

    result: Any


CoordinatorCall: TypeAlias = GroupCall | TransactionCall
ClientRequest: TypeAlias = ProduceRequest | ConsumeRequest | DeleteRecordsRequest | CoordinatorCall
ClientResponse: TypeAlias = (
    ProduceResponse | ConsumeResponse | DeleteRecordsResponse | GroupAnswer | TransactionAnswer
)
