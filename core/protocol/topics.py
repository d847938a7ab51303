"""Requests about topics, as a broker forwards them to the active controller's broker.

They are Kafka's messages. What the receiver must know about the client is in the envelope, as in
Kafka's EnvelopeRequest (KIP-590).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

from regent.core.errors import ApiError, BadDataError, Errors
from regent.core.protocol.messages.configs import (
    AlterConfigsResourceResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from regent.core.protocol.messages.topics import (
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

TopicsRequest: TypeAlias = (
    CreateTopicsRequest
    | CreatePartitionsRequest
    | DeleteTopicsRequest
    | IncrementalAlterConfigsRequest
)
"""The resources of IncrementalAlterConfigs are topics."""
TopicsResponse: TypeAlias = (
    CreateTopicsResponse
    | CreatePartitionsResponse
    | DeleteTopicsResponse
    | IncrementalAlterConfigsResponse
)
TopicResult: TypeAlias = (
    CreatableTopicResult
    | CreatePartitionsTopicResult
    | DeletableTopicResult
    | AlterConfigsResourceResult
)

_ERRORS: Final = frozenset(map(int, Errors))

R = TypeVar("R", bound=TopicsResponse)

_RESULTS: Final[Mapping[type, str]] = {
    CreateTopicsResponse: "topics",
    CreatePartitionsResponse: "results",
    DeleteTopicsResponse: "responses",
    IncrementalAlterConfigsResponse: "responses",
}


def results_of(response: TopicsResponse) -> Sequence[TopicResult]:
    """Return the results of a response: one for each topic, in the order of the request."""
    results: Sequence[TopicResult] = getattr(response, _RESULTS[type(response)])
    return results


def with_results(response: R, results: Sequence[TopicResult], **changes: Any) -> R:
    """Return the response with other results, and with ``changes`` of its fields."""
    return dataclasses.replace(response, **{_RESULTS[type(response)]: tuple(results), **changes})


def topic_of(result: TopicResult) -> str:
    """Return the name of the topic; its id if no topic has that."""
    if isinstance(result, AlterConfigsResourceResult):
        return result.resource_name
    if isinstance(result, DeletableTopicResult):
        return result.name or result.topic_id or ""
    return result.name


def error_of(result: TopicResult) -> ApiError:
    """Return the error of a topic with its message; an error that we do not know is an unknown one.

    With NONE the message is empty.
    """
    is_known = result.error_code in _ERRORS
    code = Errors(result.error_code) if is_known else Errors.UNKNOWN_SERVER_ERROR
    return ApiError(code, result.error_message or "")


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
    """A request that a broker forwards: one of the last four.

    ``requester`` None: there are no quotas. ``client`` None: the broker itself asks, or there is no
    authorizer.
    """

    requester: Requester | None = None
    client: ForwardedClient | None = None
    create_topics: CreateTopicsRequest | None = None
    create_partitions: CreatePartitionsRequest | None = None
    delete_topics: DeleteTopicsRequest | None = None
    alter_configs: IncrementalAlterConfigsRequest | None = None

    @classmethod
    def of(
        cls,
        request: TopicsRequest,
        requester: Requester | None = None,
        client: ForwardedClient | None = None,
    ) -> Self:
        """Return the envelope of a request."""
        content: Any = {_FIELDS[type(request)]: request}
        return cls(requester, client, **content)

    @property
    def request(self) -> TopicsRequest:
        """The request; raises ``BadDataError`` if a peer has sent none, or more than one."""
        request: TopicsRequest = _content(self)
        return request


@dataclass(frozen=True, slots=True)
class EnvelopeResponse:
    """The answer to the request in an envelope: one of these."""

    create_topics: CreateTopicsResponse | None = None
    create_partitions: CreatePartitionsResponse | None = None
    delete_topics: DeleteTopicsResponse | None = None
    alter_configs: IncrementalAlterConfigsResponse | None = None

    @classmethod
    def of(cls, response: TopicsResponse) -> Self:
        """Return the envelope of a response."""
        content: Any = {_FIELDS[type(response)]: response}
        return cls(**content)

    @property
    def response(self) -> TopicsResponse:
        """The response; raises ``BadDataError`` if a peer has sent none, or more than one."""
        response: TopicsResponse = _content(self)
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
}


def _content(envelope: EnvelopeRequest | EnvelopeResponse) -> Any:
    values = [getattr(envelope, name) for name in dict.fromkeys(_FIELDS.values())]
    present = [value for value in values if value is not None]
    if len(present) != 1:
        raise BadDataError(f"{type(envelope).__name__}: {len(present)} messages instead of one")
    return present[0]
