"""What becomes of a controller's order that arrives late."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from actors.request_router import RequestRouter, controller_client_id
from core.errors import Errors
from core.protocol.api import ApiKey
from core.protocol.control import ControlHeader, UpdateMetadataRequest, UpdateMetadataResponse
from tests.support.stage import TIMEOUT_S, Stage
from transport import codec
from transport.server import IncomingRequest, Reply

HEADER = ControlHeader(controller_id=3, controller_epoch=5, broker_epoch=-1)


@pytest.fixture
def router() -> Iterator[RequestRouter]:
    with Stage() as stage:
        yield RequestRouter(stage.broker(0), stage.controller(0))


def order(router: RequestRouter, client_id: str, correlation_id: int) -> Errors:
    """Have an order arrive, and return how it is answered."""
    answered = threading.Event()
    frames: list[tuple[bytes, ...]] = []

    def deliver(answer: tuple[bytes, ...]) -> None:
        frames.append(answer)
        answered.set()

    reply = Reply(ApiKey.UPDATE_METADATA, correlation_id, deliver)
    body = UpdateMetadataRequest((), ())
    router(IncomingRequest(ApiKey.UPDATE_METADATA, HEADER, correlation_id, client_id, body, reply))
    assert answered.wait(TIMEOUT_S)
    response = codec.decode_response_body(ApiKey.UPDATE_METADATA, frames[0][1])
    assert isinstance(response, UpdateMetadataResponse)
    return response.error_code


def test_an_earlier_attempt_of_the_same_controller_is_refused(router: RequestRouter) -> None:
    controller = controller_client_id(3)
    assert order(router, controller, 8) is Errors.NONE
    assert order(router, controller, 7) is Errors.STALE_CONTROLLER_EPOCH
    assert order(router, controller, 9) is Errors.NONE


def test_the_numbers_of_somebody_else_say_nothing(router: RequestRouter) -> None:
    assert order(router, controller_client_id(3), 8) is Errors.NONE
    assert order(router, "somebody else", 1) is Errors.NONE
