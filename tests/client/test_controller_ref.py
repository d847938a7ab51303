"""Requests to the active controller, which may be unknown, replaced or busy."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from regent.client.controller_ref import ControllerError, ControllerRef, batches, refusal
from regent.core.errors import (
    ApiError,
    BadDataError,
    BrokerNotFoundError,
    Errors,
    NoControlPortError,
)
from regent.core.model import TopicPartition
from regent.core.protocol.controller import (
    DescribeControllerRequest,
    DescribeControllerResponse,
)
from regent.testing.waits import scaled
from regent.transport.control.server import IncomingRequest
from tests.transport.control.conftest import Serve

QUESTION = DescribeControllerRequest()
ANSWER = DescribeControllerResponse(Errors.NONE, controller_epoch=7)


def answering(*answers: DescribeControllerResponse | Errors) -> Callable[[IncomingRequest], None]:
    """Answer each request by the next of these, at last always by the last one."""
    left = list(answers)

    def dispatch(incoming: IncomingRequest) -> None:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Errors):
            incoming.reply.fail(answer)
        else:
            incoming.reply(answer)

    return dispatch


def ask(controller: ControllerRef, timeout_s: float = 5.0) -> DescribeControllerResponse | None:
    deadline = time.monotonic() + scaled(timeout_s)
    return controller.ask(QUESTION, DescribeControllerResponse, deadline=deadline)


def test_the_controller_is_looked_for_once_as_long_as_it_answers(serve: Serve):
    looks: list[str] = []
    server = serve(answering(ANSWER))

    def find() -> str:
        looks.append(server.endpoint)
        return server.endpoint

    with ControllerRef(find, client_id="test") as controller:
        assert ask(controller) == ANSWER
        assert ask(controller) == ANSWER
    assert len(looks) == 1


def test_a_deposed_controller_is_replaced_by_a_new_search(serve: Serve):
    endpoints = iter([serve(answering(Errors.NOT_CONTROLLER)).endpoint])
    new = serve(answering(ANSWER)).endpoint
    with ControllerRef(lambda: next(endpoints, new), client_id="test") as controller:
        assert ask(controller) is None
        assert controller.failure == "the controller answered NOT_CONTROLLER"
        assert ask(controller) == ANSWER


def test_a_controller_that_cannot_be_found_is_the_reason_for_a_missing_answer():
    def find() -> str:
        raise BrokerNotFoundError("there is no controller")

    with ControllerRef(find, client_id="test") as controller:
        assert ask(controller) is None
        assert controller.failure == "there is no controller"


def test_a_garbage_registration_is_the_reason_for_a_missing_answer():
    def find() -> str:
        raise BadDataError("garbage")

    with ControllerRef(find, client_id="test") as controller:
        assert ask(controller) is None
        assert controller.failure == "the controller does not answer: garbage"


def test_a_request_is_repeated_until_temporary_errors_end(serve: Serve):
    refusing = DescribeControllerResponse(Errors.NOT_CONTROLLER)
    server = serve(answering(refusing, Errors.BROKER_NOT_AVAILABLE, ANSWER))
    with ControllerRef(lambda: server.endpoint, client_id="test") as controller:
        answer = controller.ask_until_answered(
            QUESTION, DescribeControllerResponse, deadline=time.monotonic() + scaled(20)
        )
    assert answer == ANSWER


@pytest.mark.parametrize(
    ("error", "timeout_s"), [(Errors.UNKNOWN_SERVER_ERROR, 20.0), (Errors.NOT_CONTROLLER, 0.2)]
)
def test_a_refusal_and_the_end_of_patience_are_errors(
    serve: Serve, error: Errors, timeout_s: float
):
    server = serve(answering(error))
    with (
        ControllerRef(lambda: server.endpoint, client_id="test") as controller,
        pytest.raises(ControllerError),
    ):
        controller.ask_until_answered(
            QUESTION, DescribeControllerResponse, deadline=time.monotonic() + timeout_s
        )


def test_a_controller_of_kafka_is_not_asked_again():
    looks: list[str] = []

    def find() -> str:
        looks.append("look")
        raise NoControlPortError("the controller is one of Kafka")

    with (
        ControllerRef(find, client_id="test") as controller,
        pytest.raises(ControllerError, match="one of Kafka"),
    ):
        controller.ask_until_answered(
            QUESTION, DescribeControllerResponse, deadline=time.monotonic() + scaled(20)
        )
    assert len(looks) == 1


def test_the_reason_of_a_refusal_omits_the_name_of_the_partition():
    partition, code = TopicPartition("t", 3), Errors.PREFERRED_LEADER_NOT_AVAILABLE
    assert refusal(partition, ApiError(code, "t-3: it is dead")) == "it is dead"
    assert refusal(partition, ApiError(code)) == "PREFERRED_LEADER_NOT_AVAILABLE"


def test_too_many_rows_for_one_request_are_sent_in_several() -> None:
    assert list(batches([])) == []
    assert list(batches([1, 2], 2)) == [(1, 2)]
    assert list(batches([1, 2, 3, 4, 5], 2)) == [(1, 2), (3, 4), (5,)]
