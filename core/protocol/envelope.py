"""What a broker forwards to the active controller's broker for its clients.

These are Kafka's messages. What the receiver must know about the client is in the envelope, as in
Kafka's EnvelopeRequest (KIP-590): it authorizes the client again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias

from regent.core.errors import BadDataError
from regent.core.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.partitions import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionsRequest,
    PartitionsResponse,
)
from regent.core.protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from regent.core.protocol.topics import TopicsRequest, TopicsResponse

ForwardedRequest: TypeAlias = TopicsRequest | PartitionsRequest
ForwardedResponse: TypeAlias = TopicsResponse | PartitionsResponse


class Requester(NamedTuple):
    """The client whose quota of controller mutations counts (KIP-599).

    ``is_strict``: what is beyond the quota is refused; otherwise it is done, and the client waits.
    """

    user: str
    client_id: str
    is_strict: bool


class ForwardedClient(NamedTuple):
    """The client who asked, which the receiver authorizes; ``host`` is its IP address."""

    principal_type: str
    name: str
    host: str


@dataclass(frozen=True, slots=True)
class EnvelopeRequest:
    """A request that a broker forwards: one of the fields after ``client``.

    ``requester`` None: there are no quotas. ``client`` None: the broker itself asks, which creates
    topics only.
    """

    requester: Requester | None = None
    client: ForwardedClient | None = None
    create_topics: CreateTopicsRequest | None = None
    create_partitions: CreatePartitionsRequest | None = None
    delete_topics: DeleteTopicsRequest | None = None
    alter_configs: IncrementalAlterConfigsRequest | None = None
    elect_leaders: ElectLeadersRequest | None = None
    alter_reassignments: AlterPartitionReassignmentsRequest | None = None
    list_reassignments: ListPartitionReassignmentsRequest | None = None

    @classmethod
    def of(
        cls,
        request: ForwardedRequest,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> Self:
        """Return the envelope of a request."""
        content: Any = {_FIELDS[type(request)]: request}
        return cls(requester, client, **content)

    @property
    def request(self) -> ForwardedRequest:
        """The request; raises ``BadDataError`` if a peer has sent none, or more than one."""
        request: ForwardedRequest = _content(self)
        return request


@dataclass(frozen=True, slots=True)
class EnvelopeResponse:
    """The answer to the request in an envelope: one of these."""

    create_topics: CreateTopicsResponse | None = None
    create_partitions: CreatePartitionsResponse | None = None
    delete_topics: DeleteTopicsResponse | None = None
    alter_configs: IncrementalAlterConfigsResponse | None = None
    elect_leaders: ElectLeadersResponse | None = None
    alter_reassignments: AlterPartitionReassignmentsResponse | None = None
    list_reassignments: ListPartitionReassignmentsResponse | None = None

    @classmethod
    def of(cls, response: ForwardedResponse) -> Self:
        """Return the envelope of a response."""
        content: Any = {_FIELDS[type(response)]: response}
        return cls(**content)

    @property
    def response(self) -> ForwardedResponse:
        """The response; raises ``BadDataError`` if a peer has sent none, or more than one."""
        response: ForwardedResponse = _content(self)
        return response

    def response_to(self, envelope: EnvelopeRequest) -> ForwardedResponse:
        """Return the response; raises ``BadDataError`` if it does not belong to the request."""
        response = self.response
        given, asked = type(response), type(envelope.request)
        if _FIELDS[given] != _FIELDS[asked]:
            raise BadDataError(f"{given.__name__} is no answer to {asked.__name__}")
        return response


_FIELDS: Final[Mapping[type, str]] = {
    CreateTopicsRequest: "create_topics",
    CreateTopicsResponse: "create_topics",
    CreatePartitionsRequest: "create_partitions",
    CreatePartitionsResponse: "create_partitions",
    DeleteTopicsRequest: "delete_topics",
    DeleteTopicsResponse: "delete_topics",
    IncrementalAlterConfigsRequest: "alter_configs",
    IncrementalAlterConfigsResponse: "alter_configs",
    ElectLeadersRequest: "elect_leaders",
    ElectLeadersResponse: "elect_leaders",
    AlterPartitionReassignmentsRequest: "alter_reassignments",
    AlterPartitionReassignmentsResponse: "alter_reassignments",
    ListPartitionReassignmentsRequest: "list_reassignments",
    ListPartitionReassignmentsResponse: "list_reassignments",
}


def _content(envelope: EnvelopeRequest | EnvelopeResponse) -> Any:
    values = [getattr(envelope, name) for name in dict.fromkeys(_FIELDS.values())]
    present = [value for value in values if value is not None]
    if len(present) != 1:
        raise BadDataError(f"{type(envelope).__name__}: {len(present)} messages instead of one")
    return present[0]
