"""The requests about topics that the active controller's broker decides, and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from regent.core.errors import ApiError, Errors
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
