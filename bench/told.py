"""What a broker was told, and when: it is read from the requests that a stub received."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from regent.core.errors import Errors
from regent.core.model import TopicPartition
from regent.core.protocol.api import ApiKey
from regent.core.protocol.control import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrType,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from regent.transport.control.codec import Request, decode_request_body, encode_body


class ReceivedBody:
    """The body of a control request, and the answer of a healthy broker to it."""

    def __init__(self, api_key: ApiKey, data: bytes) -> None:
        self.data = data
        self._api_key = api_key
        self._answer = b""
        self._part: Part | None = None
        if api_key is not ApiKey.UPDATE_METADATA:
            self._note(self.decoded())

    @property
    def answer(self) -> bytes:
        """The body of the answer."""
        return self._answer or _UPDATED

    @property
    def part(self) -> Part | None:
        """Which part of a complete list it is; None: it is none."""
        if self._api_key is ApiKey.UPDATE_METADATA and self._part is None:
            self._note(self.decoded())
        return self._part if self._part and self._part.parts else None

    def decoded(self) -> Request:
        """Return the request. It is not kept: a million rows take much memory."""
        return decode_request_body(self._api_key, self.data)

    def _note(self, request: Request) -> None:
        match request:
            case LeaderAndIsrRequest():
                is_full = request.type is LeaderAndIsrType.FULL
                errors = tuple(PartitionError(*n, Errors.NONE) for n, _ in request.partitions())
                self._answer = bytes(encode_body(LeaderAndIsrResponse(Errors.NONE, errors))[0])
                self._part = Part.of(request, len(errors), is_full=is_full)
            case StopReplicaRequest():
                errors = tuple(PartitionError(*n, Errors.NONE) for n, _ in request.partitions())
                self._answer = bytes(encode_body(StopReplicaResponse(Errors.NONE, errors))[0])
            case UpdateMetadataRequest():
                rows = sum(len(topic.partition_states) for topic in request.topic_states)
                self._part = Part.of(request, rows, is_full=request.is_full)
            case _:
                raise AssertionError(f"{request} is not a control request")


_UPDATED = bytes(encode_body(UpdateMetadataResponse(Errors.NONE))[0])


class Part(NamedTuple):
    """One part of a list of all partitions; ``parts`` is 0 for a list of some."""

    api: type[Request]
    part: int
    parts: int
    rows: int

    @classmethod
    def of(
        cls, request: LeaderAndIsrRequest | UpdateMetadataRequest, rows: int, *, is_full: bool
    ) -> Part:
        """Return what a request is a part of."""
        return cls(type(request), request.part, request.parts if is_full else 0, rows)


class Arrival(NamedTuple):
    """A request, and the monotonic time at which it came."""

    at: float
    controller_epoch: int
    body: ReceivedBody


class Told(NamedTuple):
    """When a broker was told the last of what it had to be told; None: it was not told all yet.

    ``leadership`` is about its replicas (LeaderAndIsr), ``metadata`` about the cluster
    (UpdateMetadata). ``data`` counts the bytes of all requests.
    """

    leadership: float | None
    metadata: float | None
    data: int

    @property
    def at(self) -> float | None:
        """When both were complete."""
        if self.leadership is None or self.metadata is None:
            return None
        return max(self.leadership, self.metadata)


@dataclass(frozen=True)
class CompleteLists:
    """Look for the complete lists of a controller: each of so many partitions."""

    controller_epoch: int
    replicas: int
    partitions: int

    def __call__(self, arrivals: Iterable[Arrival]) -> Told:
        """Return when both lists were complete."""
        ours = [a for a in arrivals if a.controller_epoch == self.controller_epoch]
        return Told(
            _complete_at(ours, LeaderAndIsrRequest, self.replicas),
            _complete_at(ours, UpdateMetadataRequest, self.partitions),
            sum(len(arrival.body.data) for arrival in ours),
        )


def _complete_at(arrivals: Iterable[Arrival], api: type[Request], rows: int) -> float | None:
    found: dict[int, int] = {}
    for arrival in arrivals:
        part = arrival.body.part
        if part is not None and part.api is api:
            found[part.part] = part.rows
            if len(found) == part.parts and sum(found.values()) >= rows:
                return arrival.at
    return None


@dataclass(frozen=True)
class Leaders:
    """Look for the leaders of partitions; ``gone`` is the place of a broker that leads no more.

    Then only the partitions that it led count: those whose number has this rest. ``replicas`` of
    them are the broker's own, of which LeaderAndIsr tells; ``partitions`` are all of them.
    """

    replicas: int
    partitions: int
    brokers: int = 1
    gone: int | None = None

    def __call__(self, arrivals: Iterable[Arrival]) -> Told:
        """Return when the broker had been told of all."""
        arrivals = list(arrivals)
        requests = [(arrival.at, arrival.body.decoded()) for arrival in arrivals]
        return Told(
            self._told_at(requests, LeaderAndIsrRequest, self.replicas),
            self._told_at(requests, UpdateMetadataRequest, self.partitions),
            sum(len(arrival.body.data) for arrival in arrivals),
        )

    def _told_at(
        self,
        requests: Iterable[tuple[float, Request]],
        api: type[LeaderAndIsrRequest | UpdateMetadataRequest],
        rows: int,
    ) -> float | None:
        found: set[TopicPartition] = set()
        for at, request in requests:
            if isinstance(request, api):
                found.update(
                    name
                    for name, row in request.partitions()
                    if row.leader >= 0 and self._counts(name.partition)
                )
                if len(found) >= rows:
                    return at
        return None

    def _counts(self, number: int) -> bool:
        return self.gone is None or number % self.brokers == self.gone
