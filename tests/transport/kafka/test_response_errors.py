"""The errors in responses are counted, wherever they are."""

from __future__ import annotations

from regent.core.errors import Errors
from regent.core.protocol.messages import groups
from regent.transport.kafka.message_codec import answer
from tests.transport.kafka.wire import request_of


def test_each_error_in_a_response_counts():
    request = request_of(42, 1, b"")
    rows = tuple(
        groups.DeletableGroupResult(group_id=str(error), error_code=error)
        for error in (Errors.NONE, Errors.NON_EMPTY_GROUP, Errors.NON_EMPTY_GROUP)
    )
    answer(groups.DeleteGroupsResponse(throttle_time_ms=0, results=rows), request)
    assert request.errors == {"NON_EMPTY_GROUP": 2}


def test_a_response_without_an_error_counts_once():
    request = request_of(42, 1, b"")
    for _ in range(2):
        answer(groups.DeleteGroupsResponse(throttle_time_ms=0, results=()), request)
    assert request.errors == {"NONE": 2}
