"""Which control requests a broker carries out, and which it believes only after ZooKeeper."""

from __future__ import annotations

import pytest

from regent.core.errors import Errors
from regent.core.model import MAX_CONTROLLER_EPOCH
from regent.core.ports import ControlFacts
from regent.core.protocol.control import ControlHeader
from regent.core.replica_logs import SeenOfCluster
from regent.core.replication.control_request_fence import (
    ControlRequestFence,
    ControlRequestRefusedError,
)
from tests.support.memory_logs import MemoryLogs

ME, OTHER = 1, 2
CONTROLLER, EPOCH, BROKER_EPOCH = 0, 7, 100
HEADER = ControlHeader(CONTROLLER, EPOCH, BROKER_EPOCH, broker_id=ME)
TRUTH = ControlFacts(CONTROLLER, EPOCH, BROKER_EPOCH)


@pytest.fixture
def logs() -> MemoryLogs:
    return MemoryLogs()


@pytest.fixture
def fence(logs: MemoryLogs) -> ControlRequestFence:
    """A registered broker that has obeyed the controller of epoch 7."""
    fence = ControlRequestFence(ME, logs)
    fence.on_registered(BROKER_EPOCH)
    fence.note(HEADER, is_metadata=True)
    return fence


def admits(
    fence: ControlRequestFence, header: ControlHeader, facts: ControlFacts | None = None
) -> bool:
    return fence.admit(header, facts, is_metadata=True)


def refusal(fence: ControlRequestFence, header: ControlHeader, facts: ControlFacts) -> Errors:
    with pytest.raises(ControlRequestRefusedError) as refused:
        admits(fence, header, facts)
    return refused.value.error_code


def test_the_known_controller_is_believed_without_a_read(fence: ControlRequestFence) -> None:
    assert admits(fence, HEADER)
    assert fence.refuse(HEADER, is_metadata=True) is Errors.NONE


@pytest.mark.parametrize("facts", [None, TRUTH])
@pytest.mark.parametrize("receiver", [OTHER, -1, 66])
def test_a_request_for_another_broker_is_not_answered(
    fence: ControlRequestFence, receiver: int, facts: ControlFacts | None
) -> None:
    expected = f"broker {ME} answers at the address of broker {receiver}"
    with pytest.raises(ControlRequestRefusedError, match=expected) as refused:
        admits(fence, HEADER._replace(broker_id=receiver), facts)
    assert refused.value.error_code is Errors.BROKER_ID_NOT_REGISTERED


NEWS = [
    HEADER._replace(controller_epoch=8),
    HEADER._replace(controller_epoch=MAX_CONTROLLER_EPOCH),
    HEADER._replace(controller_id=OTHER, controller_epoch=8),
    HEADER._replace(broker_epoch=101),
]


@pytest.mark.parametrize("header", NEWS)
def test_a_new_epoch_is_believed_when_zookeeper_has_it(
    fence: ControlRequestFence, logs: MemoryLogs, header: ControlHeader
) -> None:
    seen = logs.seen
    assert not admits(fence, header)
    assert logs.seen == seen, "nothing is noted before"
    facts = ControlFacts(header.controller_id, header.controller_epoch, header.broker_epoch)
    assert admits(fence, header, facts)
    assert fence.refuse(header, is_metadata=True) is Errors.NONE
    fence.note(header, is_metadata=True)
    assert admits(fence, header), "it is known from now on"


@pytest.mark.parametrize(
    "facts",
    [
        TRUTH,  # it is no controller's
        ControlFacts(3, 9, BROKER_EPOCH),  # it was replaced again
        ControlFacts(3, 8, BROKER_EPOCH),  # another has this epoch
        ControlFacts(-1, 8, BROKER_EPOCH),  # it has just ended
        ControlFacts(-1, 0, -1),  # ZooKeeper has no data
    ],
)
@pytest.mark.parametrize("header", NEWS)
def test_a_request_without_zookeepers_confirmation_is_refused_and_not_noted(
    fence: ControlRequestFence, logs: MemoryLogs, header: ControlHeader, facts: ControlFacts
) -> None:
    assert refusal(fence, header, facts) is Errors.NOT_CONTROLLER
    assert logs.seen == SeenOfCluster(EPOCH, BROKER_EPOCH)
    assert admits(fence, HEADER), "the controller is still believed"


def test_a_restarted_broker_asks_about_the_controller_of_its_epoch(logs: MemoryLogs) -> None:
    logs.note_seen(controller_epoch=EPOCH)
    fence = ControlRequestFence(ME, logs)
    fence.on_registered(BROKER_EPOCH)
    assert not admits(fence, HEADER), "its id was not noted"
    assert refusal(fence, HEADER._replace(controller_id=OTHER), TRUTH) is Errors.NOT_CONTROLLER
    assert admits(fence, HEADER, TRUTH)


@pytest.mark.parametrize(
    ("stale", "error"),
    [
        (HEADER._replace(broker_epoch=99), Errors.STALE_BROKER_EPOCH),
        (HEADER._replace(broker_epoch=-1), Errors.STALE_BROKER_EPOCH),
        (HEADER._replace(controller_epoch=6), Errors.STALE_CONTROLLER_EPOCH),
        (HEADER._replace(controller_id=OTHER), Errors.STALE_CONTROLLER_EPOCH),
    ],
)
def test_a_stale_request_is_answered_without_a_read(
    fence: ControlRequestFence, stale: ControlHeader, error: Errors
) -> None:
    assert admits(fence, stale)
    assert fence.refuse(stale, is_metadata=True) is error


def test_a_registration_that_only_zookeeper_has_confirmed_is_ours(
    fence: ControlRequestFence, logs: MemoryLogs
) -> None:
    """The controller may learn of it before we do."""
    header = HEADER._replace(broker_epoch=101)
    assert admits(fence, header, ControlFacts(CONTROLLER, EPOCH, 101))
    assert fence.broker_epoch == logs.seen.zxid == 101
    assert fence.refuse(HEADER) is Errors.STALE_BROKER_EPOCH


def test_a_sender_is_heard_only_if_it_is_the_controller_or_was_admitted(
    fence: ControlRequestFence,
) -> None:
    assert fence.is_heard(HEADER)
    next_one = HEADER._replace(controller_id=2, controller_epoch=8)
    assert not fence.is_heard(next_one)
    assert not admits(fence, next_one)
    assert not fence.is_heard(next_one)
    assert admits(fence, next_one, ControlFacts(2, 8, BROKER_EPOCH))
    fence.note_heard(next_one)
    assert fence.is_heard(next_one)
    assert fence.is_heard(next_one._replace(sequence=5))
    for other in (
        next_one._replace(controller_id=3),
        next_one._replace(controller_epoch=9),
        next_one._replace(broker_epoch=BROKER_EPOCH + 1),
    ):
        assert not fence.is_heard(other)
