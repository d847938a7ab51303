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


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """One batch for one partition."""

    name: TopicPartition
    acks: int
    batch: bytes


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
    """A request to a group coordinator."""

    request: GroupRequest[Any]


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What the coordinator answers."""

    result: Any


ClientRequest: TypeAlias = ProduceRequest | ConsumeRequest | DeleteRecordsRequest | GroupCall
ClientResponse: TypeAlias = ProduceResponse | ConsumeResponse | DeleteRecordsResponse | GroupAnswer
